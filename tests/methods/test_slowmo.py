from __future__ import annotations

from pathlib import Path
from typing import Literal

import naive
import pytest
from cases import by_default
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.slowmo import SlowMo
from coalface.training.local_work import LocalTraining


@pytest.mark.parametrize("momentum", by_default(1, ["reset", "keep", "none"]))
def test_without_slow_momentum_it_is_fedavg(tmp_path: Path, momentum: Literal["reset", "keep", "none"]) -> None:
    """To rounding, and bit for bit in one round of BatchNorm's statistics, which are averaged in both."""
    build = Tiny(norm=True, double=True)
    for rounds in (1, 3):
        slow, plain = (
            run(recipe(name, rounds=rounds, momentum=momentum, **settings)[0], tmp_path / f"{name}-{rounds}", build)
            for name, settings in (("slowmo", {"slow_momentum": 0.0}), ("fedavg", {}))
        )
        assert naive.furthest(slow.state.backbone, plain.state.backbone) < 1e-11
        if rounds == 1:
            running = [n for n in plain.state.backbone if "running" in n]
            assert naive.furthest(*({n: r.state.backbone[n] for n in running} for r in (slow, plain))) == 0
    moved = {n: slow.state.backbone[n] - t for n, t in build().backbone.shared().items()}
    assert max(float(t.abs().max()) for t in moved.values()) > 0.01


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Literal["constant", "cosine"]
) -> None:
    build, beta, alpha = Tiny(flip=False, double=True, norm=True), 0.6, 0.8
    work = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, schedule=schedule, momentum=0.9, weight_decay=5e-3)
    states = naive.watched(SlowMo, monkeypatch)
    run(
        SlowMo(rounds=3, local=work, loss=LOSS, slow_momentum=beta, slow_lr=alpha, head_momentum="keep"),
        tmp_path,
        build,
    )
    parties = naive.silos(build, work)
    weights = naive.shares(parties)
    x, u = build().backbone.shared(), naive.zeros(build)
    for state, lr in zip(states, [0.1] * 3 if schedule == "constant" else [0.1, 0.075, 0.025], strict=True):
        ends = []
        for silo in parties:
            y, velocity = dict(x), naive.zeros(build)  # the base optimiser's buffers are reset
            for pixels, labels in silo.batches():
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    velocity[n] = 0.9 * velocity[n] + g[n] + 5e-3 * y[n]
                    y[n] = y[n] - lr * velocity[n]
                y.update(running)
                silo.step_head(h, lr)
            ends.append(y)
        mean = naive.mean(weights, ends)
        u = {n: beta * u[n] + (x[n] - mean[n]) / lr for n in u}
        x = {n: x[n] - alpha * lr * u[n] if n in u else mean[n] for n in x}
        assert naive.furthest(state.backbone, x) < 1e-12
        assert naive.furthest(state.momentum, u) < 1e-12


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """α = β = 1/2. Round 1: the mean is −3/8, u = 3/4, x = −3/16.

    Round 2: y_a = −3/16 → 13/32 → 45/64, y_b = −3/16 → −19/32 → −51/64, mean −27/64; u = 3/8 + 15/32, x = −3/16 − u/4.
    """
    settings = {"slow_momentum": 0.5, "slow_lr": 0.5, "momentum": "none"}
    assert naive.worked(SlowMo, tmp_path, monkeypatch, **settings) == [
        {"backbone": -0.1875, "momentum": 0.75},
        {"backbone": -0.3984375, "momentum": 0.84375},
    ]
