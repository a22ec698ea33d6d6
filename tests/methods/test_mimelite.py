from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import naive
import pytest
import torch
from worlds import LOSS, Tiny, recipe, run

from coalface.core.method import Tensors
from coalface.methods.mimelite import MimeLite
from coalface.training.classifier import HEAD
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining

EXACT = Tiny(flip=False, double=True)
BETA, DECAY, LR = 0.9, 5e-3, 0.05


@pytest.mark.parametrize("steps", [1, 3])
def test_it_is_algorithm_1_in_the_papers_own_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """By a plain loop with the damped momentum s and the rate η′ = η / (1 − β)."""
    work = LocalTraining(steps_per_round=steps, batch_size=4, lr=LR, momentum=BETA, weight_decay=DECAY)
    states = naive.watched(MimeLite, monkeypatch)
    run(MimeLite(rounds=3, local=work, loss=LOSS), tmp_path, EXACT)
    parties = naive.silos(EXACT, work)
    weights, rate = naive.shares(parties), LR / (1 - BETA)
    x, s = EXACT().backbone.shared(), naive.zeros(EXACT)
    for found in states:
        ends, wholes = [], []
        for silo in parties:
            ((pixels, labels),) = silo.everything()
            whole, _, _ = silo.gradients(x, silo.head, pixels, labels)
            wholes.append({n: g + DECAY * x[n] for n, g in whole.items()})
            y = dict(x)
            for pixels, labels in silo.batches():
                g, h, _ = silo.gradients(y, silo.head, pixels, labels)
                y = {n: w - rate * ((1 - BETA) * (g[n] + DECAY * w) + BETA * s[n]) for n, w in y.items()}
                silo.step_head(h, LR)
            ends.append(y)
        x = naive.mean(weights, ends)
        s = {n: (1 - BETA) * c + BETA * s[n] for n, c in naive.mean(weights, wholes).items()}
        assert naive.furthest(found.backbone, x) < 1e-12
        assert naive.furthest(found.momentum, {n: t / (1 - BETA) for n, t in s.items()}) < 1e-12
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
    found = run(MimeLite(rounds=4, local=work, loss=LOSS), tmp_path, build).state
    expected = {n: t for n, t in net.state_dict().items() if t.is_floating_point()}
    velocity = {n: optimiser.state[p]["momentum_buffer"] for n, p in net.named_parameters()}
    assert naive.furthest(found.backbone, expected) < 1e-12
    assert naive.furthest(found.momentum, velocity) < 1e-12


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1, m = 0: y_a = 3/4, y_b = −3/4, c = 0 + 1/2. Round 2, β m = 1/4: y_a = −3/8 → 3/16 → 15/32,
    y_b = −3/8 → −13/16 → −33/32, c = −3/8 + 1/2 and m = 1/8 + 1/4.
    """
    assert naive.worked(MimeLite, tmp_path, monkeypatch) == [
        {"backbone": -0.375, "momentum": 0.5},
        {"backbone": -0.65625, "momentum": 0.375},
    ]


def test_without_momentum_it_trains_as_fedavg_bit_for_bit(tmp_path: Path) -> None:
    """So the full gradient takes nothing from the streams and leaves no trace in BatchNorm."""
    build = Tiny(norm=True)
    work = LocalTraining(epochs=2, batch_size=4, lr=0.05, momentum=0.0)
    lite = run(recipe("mimelite", local=work, gradient_batches=2)[0], tmp_path / "lite", build)
    plain = run(recipe("fedavg", local=work)[0], tmp_path / "fedavg", build)
    assert naive.furthest(lite.state.backbone, plain.state.backbone) == 0
    metrics = [r.folder.joinpath("metrics.jsonl").read_text().count('"loss": ') for r in (lite, plain)]
    assert metrics == [3, 3]


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_momentum_of_the_class_embeddings_is_the_partys_own(tmp_path: Path, name: str) -> None:
    run(recipe(name, rounds=2)[0], tmp_path)
    velocity: Tensors = naive.kept(tmp_path, "silo-0", Learner).velocity
    assert set(velocity) == {HEAD}
    run(recipe(name, rounds=2, head_momentum="reset")[0], tmp_path / "reset")
    assert naive.kept(tmp_path / "reset", "silo-0", Learner).velocity == {}
