from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import naive
import pytest
import torch
from cases import by_default
from worlds import recipe

from coalface.core.method import Tensors
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.mime import Mime, MimeLite
from coalface.training.classifier import HEAD
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.sphereface2 import SphereFace2

EXACT = Tiny(flip=False, double=True)
BETA, DECAY, LR = 0.9, 5e-3, 0.05

both = pytest.mark.parametrize("method", [Mime, MimeLite])


@both
@pytest.mark.parametrize(("steps", "norm"), by_default(2, [(1, False), (3, False), (1, True), (3, True)]))
def test_it_is_algorithm_1_in_the_papers_own_convention(
    method: type[MimeLite], steps: int, norm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a plain loop with the damped momentum s and the rate η′ = η / (1 − β)."""
    build, batch = replace(EXACT, norm=norm), 16 if norm else 4  # BatchNorm's gradient depends on how images are cut
    work = LocalTraining(steps_per_round=steps, batch_size=batch, lr=LR, momentum=BETA, weight_decay=DECAY)
    states = naive.watched(method, monkeypatch)
    run(method(rounds=3, local=work, loss=LOSS), tmp_path, build)
    parties = naive.silos(build, work)
    weights, rate = naive.shares(parties), LR / (1 - BETA)
    x, s = build().backbone.shared(), naive.zeros(build)
    for state in states:
        wholes = []
        for silo in parties:
            ((pixels, labels),) = silo.everything()
            whole, _, _ = silo.gradients(x, silo.head, pixels, labels)
            wholes.append({n: g + DECAY * x[n] for n, g in whole.items()})
        c, ends = naive.mean(weights, wholes), []
        for silo in parties:
            y, head = dict(x), silo.head.clone()
            for pixels, labels in silo.batches():
                at_x, _, _ = silo.gradients(x, head, pixels, labels)
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    step = g[n] + DECAY * y[n]
                    if method is Mime:
                        step = step - (at_x[n] + DECAY * x[n]) + c[n]
                    y[n] = y[n] - rate * ((1 - BETA) * step + BETA * s[n])
                y.update(running)
                silo.step_head(h, LR)
            ends.append(y)
        x = naive.mean(weights, ends)
        s = {n: (1 - BETA) * t + BETA * s[n] for n, t in c.items()}
        assert naive.furthest(state.backbone, x) < 1e-12
        assert naive.furthest(state.momentum, {n: t / (1 - BETA) for n, t in s.items()}) < 1e-12
    for silo in parties:
        assert naive.furthest({"head": naive.kept(tmp_path, silo.name, Learner).head}, {"head": silo.head}) < 1e-12
    assert max(float(t.abs().max()) for t in s.values()) > 1e-3


@pytest.mark.parametrize("norm", [False, True])
def test_one_trainer_with_one_step_of_all_images_is_torch_sgd_with_momentum(tmp_path: Path, norm: bool) -> None:
    build = replace(EXACT, pooled=True, norm=norm)
    work = LocalTraining(steps_per_round=1, batch_size=99, lr=0.2, schedule="step", momentum=BETA, weight_decay=DECAY)
    (silo,) = naive.silos(build, work)
    net, head = silo.net, silo.head.clone().requires_grad_()
    optimiser = torch.optim.SGD([*net.parameters(), head], momentum=BETA, weight_decay=DECAY)
    for lr in (0.2, 0.2, 0.02, 0.002):
        ((pixels, labels),) = silo.batches()
        optimiser.param_groups[0]["lr"] = lr
        optimiser.zero_grad()
        LOSS(net(pixels), head, labels).backward()
        optimiser.step()
    state = run(MimeLite(rounds=4, local=work, loss=LOSS), tmp_path, build).state
    expected = {n: t for n, t in net.state_dict().items() if t.is_floating_point()}
    velocity = {n: optimiser.state[p]["momentum_buffer"] for n, p in net.named_parameters()}
    assert naive.furthest(state.backbone, expected) < 1e-12
    assert naive.furthest(state.momentum, velocity) < 1e-12


@both
def test_numbers_by_hand(method: type[MimeLite], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MimeLite, round 1, m = 0: y_a = 3/4, y_b = −3/4, c = 0 + 1/2. Round 2, β m = 1/4: y_a = −3/8 → 3/16 → 15/32,
    y_b = −3/8 → −13/16 → −33/32, c = −3/8 + 1/2 and m = 1/8 + 1/4.

    Mime: both parties take y ← y − (y − x + c + β m) / 2, since ∇f_i(y) − ∇f_i(x) = y − x. Round 1, c = 1/2:
    0 → −1/4 → −3/8. Round 2, c + β m = 1/8 + 1/4: −3/8 → −9/16 → −21/32.
    """
    assert naive.worked(method, tmp_path, monkeypatch) == [
        {"backbone": -0.375, "momentum": 0.5},
        {"backbone": -0.65625, "momentum": 0.375},
    ]


def test_without_momentum_mimelite_trains_as_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """So the full gradient takes nothing from the streams and leaves no trace in BatchNorm."""
    work = LocalTraining(epochs=2, batch_size=4, lr=0.05, momentum=0.0)
    lite = run(recipe("mimelite", local=work, gradient_batches=2)[0], tmp_path / "lite", Tiny(norm=True))
    plain = run(recipe("fedavg", local=work)[0], tmp_path / "fedavg", Tiny(norm=True))
    assert naive.furthest(lite.state.backbone, plain.state.backbone) == 0


def test_a_loss_with_tensors_of_its_own_is_taken_as_it_stood(tmp_path: Path) -> None:
    """With one step a round Mime's two gradients cancel, bias and all: batches of 2 end where batches of 4 do."""
    ends = []
    for batch in (2, 4):
        work = LocalTraining(steps_per_round=1, batch_size=batch, lr=0.1, momentum=BETA)
        ends.append(run(Mime(rounds=1, local=work, loss=SphereFace2()), tmp_path / str(batch), EXACT).state.backbone)
    assert naive.furthest(*ends) < 1e-12


@both
def test_momentum_of_the_class_embeddings_is_the_partys_own(method: type[MimeLite], tmp_path: Path) -> None:
    name = method.__name__.lower()
    run(recipe(name, rounds=2)[0], tmp_path)
    velocity: Tensors = naive.kept(tmp_path, "silo-0", Learner).velocity
    assert set(velocity) == {HEAD}
    run(recipe(name, rounds=2, head_momentum="reset")[0], tmp_path / "reset")
    assert naive.kept(tmp_path / "reset", "silo-0", Learner).velocity == {}
