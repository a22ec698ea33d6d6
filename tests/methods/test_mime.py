from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import naive
import pytest
from cases import by_default
from worlds import LOSS, Tiny, recipe, run

from coalface.methods.mime import Mime
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.sphereface2 import SphereFace2

EXACT = Tiny(flip=False, double=True)
BETA, DECAY, LR = 0.9, 5e-3, 0.05


@pytest.mark.parametrize("norm", by_default(1, [False, True]))
@pytest.mark.parametrize("steps", [1, 3])
def test_it_is_algorithm_1_in_the_papers_own_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, norm: bool
) -> None:
    """By a plain loop with the damped momentum s and the rate η′ = η / (1 − β)."""
    build = replace(EXACT, norm=norm)
    work = LocalTraining(
        steps_per_round=steps, batch_size=16, lr=LR, momentum=BETA, weight_decay=DECAY
    )  # a batch is all images:
    states = naive.watched(Mime, monkeypatch)  # BatchNorm's gradient hangs on how the images are cut
    if not norm:
        work = replace(work, batch_size=4)
    run(Mime(rounds=3, local=work, loss=LOSS), tmp_path, build)
    parties = naive.silos(build, work)
    weights, rate = naive.shares(parties), LR / (1 - BETA)
    x, s = build().backbone.shared(), naive.zeros(build)
    for found in states:
        wholes = []
        for silo in parties:
            ((pixels, labels),) = silo.everything()
            whole, _, _ = silo.gradients(x, silo.head, pixels, labels)
            wholes.append({n: g + DECAY * x[n] for n, g in whole.items()})
        c, ends = naive.mean(weights, wholes), []
        for silo in parties:
            y, head = dict(x), silo.head.clone()
            for pixels, labels in silo.batches():
                there, _, _ = silo.gradients(x, head, pixels, labels)
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    corrected = (g[n] + DECAY * y[n]) - (there[n] + DECAY * x[n]) + c[n]
                    y[n] = y[n] - rate * ((1 - BETA) * corrected + BETA * s[n])
                y.update(running)
                silo.step_head(h, LR)
            ends.append(y)
        x = naive.mean(weights, ends)
        s = {n: (1 - BETA) * t + BETA * s[n] for n, t in c.items()}
        assert naive.furthest(found.backbone, x) < 1e-12
        assert naive.furthest(found.momentum, {n: t / (1 - BETA) for n, t in s.items()}) < 1e-12
    for silo in parties:
        assert naive.furthest({"head": naive.kept(tmp_path, silo.name, Learner).head}, {"head": silo.head}) < 1e-12


def test_one_step_a_round_is_sgd_with_momentum_on_everybodys_images(tmp_path: Path) -> None:
    """The two gradients of the first step are one and the same, so whatever batch was drawn falls out."""
    work = LocalTraining(steps_per_round=1, batch_size=3, lr=0.1, momentum=BETA, weight_decay=DECAY)
    state = run(Mime(rounds=4, local=work, loss=LOSS), tmp_path, EXACT).state
    parties = naive.silos(EXACT, work)
    weights = naive.shares(parties)
    x, m = EXACT().backbone.shared(), naive.zeros(EXACT)
    for _ in range(4):
        wholes = []
        for silo in parties:
            (((pixels, labels),), ((some, theirs),)) = silo.everything(), silo.batches()
            wholes.append(silo.gradients(x, silo.head, pixels, labels)[0])
            silo.step_head(silo.gradients(x, silo.head, some, theirs)[1], work.lr)
        m = {n: BETA * m[n] + c + DECAY * x[n] for n, c in naive.mean(weights, wholes).items()}
        x = {n: w - work.lr * m[n] for n, w in x.items()}
    assert naive.furthest(state.backbone, x) < 1e-12
    assert naive.furthest(state.momentum, m) < 1e-12


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parties take y ← y − (y − x + c + β m) / 2, since ∇f_i(y) − ∇f_i(x) = y − x.

    Round 1, c = 1/2: 0 → −1/4 → −3/8. Round 2, c + β m = 1/8 + 1/4: −3/8 → −9/16 → −21/32.
    """
    assert naive.worked(Mime, tmp_path, monkeypatch) == [
        {"backbone": -0.375, "momentum": 0.5},
        {"backbone": -0.65625, "momentum": 0.375},
    ]


def test_batchnorm_statistics_are_those_of_training_alone(tmp_path: Path) -> None:
    """All other passes over images leave no trace: in a round of one step they are FedAvg's, which begins the same."""
    build = Tiny(norm=True, flip=False)
    work = LocalTraining(steps_per_round=1, batch_size=4, lr=0.05)
    mime = run(recipe("mime", rounds=1, local=work)[0], tmp_path / "mime", build).state
    plain = run(recipe("fedavg", rounds=1, local=work)[0], tmp_path / "fedavg", build).state
    running = [n for n in plain.backbone if "running" in n]
    assert running
    assert naive.furthest(*({n: s.backbone[n] for n in running} for s in (mime, plain))) == 0
    assert set(mime.momentum) == set(mime.backbone) - set(running)


def test_a_loss_with_tensors_of_its_own_is_taken_as_it_stood(tmp_path: Path) -> None:
    """With one step a round the two gradients cancel, bias and all: so batches of 2 end where batches of 4 do."""
    ends = []
    for batch in (2, 4):
        work = LocalTraining(steps_per_round=1, batch_size=batch, lr=0.1, momentum=BETA)
        ends.append(run(Mime(rounds=1, local=work, loss=SphereFace2()), tmp_path / str(batch), EXACT).state.backbone)
    assert naive.furthest(*ends) < 1e-12
