from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import naive
import pytest
import torch
from cases import by_default
from worlds import recipe

from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.scaffold import Controlled, Scaffold
from coalface.training.local_work import LocalTraining

EXACT = Tiny(flip=False, double=True)
DECAY = 5e-3


@pytest.mark.parametrize("norm", by_default(1, [False, True]))
@pytest.mark.parametrize(
    ("weights", "server_lr", "work"),
    [
        ("images", 1.0, LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, weight_decay=DECAY)),
        ("equal", 0.7, LocalTraining(steps_per_round=2, batch_size=5, lr=0.1, weight_decay=DECAY, momentum=0.5)),
        (
            "images",
            1.3,
            LocalTraining(epochs=2, batch_size=4, lr=0.02, weight_decay=DECAY),
        ),  # K differs from party to party
    ],
)
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Any, server_lr: float, work: LocalTraining, norm: bool
) -> None:
    """With c_i⁺ as the mean gradient along the way, which option II telescopes to, and Δc sent by every party."""
    build = replace(EXACT, norm=norm)
    states = naive.watched(Scaffold, monkeypatch)
    method = Scaffold(rounds=3, local=work, loss=LOSS, weights=weights, server_lr=server_lr)
    run(method, tmp_path, build)
    parties = naive.silos(build, work)
    shares = naive.shares(parties) if weights == "images" else [1 / 3] * 3
    x, c = build().backbone.shared(), naive.zeros(build)
    controls = [naive.zeros(build) for _ in parties]
    for state in states:
        ends, changes = [], []
        for place, silo in enumerate(parties):
            y, total, batches, c_i = dict(x), naive.zeros(build), silo.batches(), controls[place]
            for pixels, labels in batches:
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    g[n] = g[n] + DECAY * y[n]
                    total[n] += g[n] / len(batches)
                    y[n] = y[n] - work.lr * (g[n] - c_i[n] + c[n])  # line 10
                y.update(running)
                silo.step_head(h, work.lr)
            changes.append({n: total[n] - c_i[n] for n in c_i})  # line 13
            controls[place] = total  # line 14
            ends.append(y)
        mean = naive.mean(shares, ends)
        x = {n: x[n] + server_lr * (mean[n] - x[n]) if n in c else mean[n] for n in x}  # line 17
        c = {n: c[n] + change for n, change in naive.mean(shares, changes).items()}
        assert naive.furthest(state.backbone, x) < 1e-12
        assert naive.furthest(state.control, c) < 1e-12
    for silo, control in zip(parties, controls, strict=True):
        state = naive.kept(tmp_path, silo.name, Controlled)
        assert naive.furthest(state.control, control) < 1e-12
        assert naive.furthest({"head": state.head}, {"head": silo.head}) < 1e-12
    assert max(float(t.abs().max()) for t in c.values()) > 0.01


@pytest.mark.parametrize("weights", by_default(1, ["images", "equal"]))
@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"sample": 2}, {}),
        ({"sample": 1}, {}),
        ({}, {"faults": SimulatedFaults(corrupt={"silo-1": "nan"})}),
        ({}, {"faults": SimulatedFaults(lost=0.4)}),
        ({"sample": 3}, {"faults": SimulatedFaults(dropout=0.3, slow={"silo-2": 1.0}, deadline=1.0)}),
    ],
)
def test_c_stays_the_mean_of_the_c_i_whoever_comes(
    tmp_path: Path, weights: Literal["images", "equal"], settings: dict[str, Any], rules: dict[str, Any]
) -> None:
    """Over all parties, those that never came with zero: by images, or equal."""
    build = Tiny(double=True, parties=4)
    images = {name: len(faces) for name, faces in build().data.items()}
    absent = 0
    for rounds in (1, 2, 5):
        folder = tmp_path / str(rounds)
        method = recipe("scaffold", rounds=rounds, weights=weights, **settings)[0]
        ran = run(method, folder, build, min_reply_fraction=0.0, max_abandoned_rounds=99, **rules)
        share = {p: n / sum(images.values()) if weights == "images" else 0.25 for p, n in images.items()}
        mean = {n: torch.zeros_like(t) for n, t in ran.state.control.items()}
        for name in images:
            state = naive.kept(folder, name, Controlled)
            absent += state is None
            for n, t in state.control.items() if state is not None else ():
                mean[n] += share[name] * t
        assert naive.furthest(ran.state.control, mean) < 1e-12
        assert max(float(t.abs().max()) for t in mean.values()) > 1e-3
    assert absent


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1: y_a = 0 → 1/2 → 3/4, c_a = −3/4; y_b = −3/4, c_b = 3/4.

    Round 2, c − c_a = 9/8 and c − c_b = −3/8: y_a = −3/8 → −1/4 → −3/16, c_a = −9/8 − 3/16 = −21/16;
    y_b = −3/8 → −1/2 → −9/16, c_b = 3/8 + 3/16 = 9/16.
    """
    assert naive.worked(Scaffold, tmp_path, monkeypatch) == [
        {"backbone": -0.375, "control": 0.375},
        {"backbone": -0.46875, "control": 0.09375},
    ]
    assert [float(naive.kept(tmp_path, p, Controlled).control["w"]) for p in "ab"] == [-1.3125, 0.5625]


def test_one_party_alone_is_plain_sgd(tmp_path: Path) -> None:
    """Its c_i is c, so the correction is nothing."""
    alone = Tiny(pooled=True, double=True)
    work = LocalTraining(epochs=2, batch_size=4, lr=0.05)
    backbone = run(recipe("scaffold", local=work)[0], tmp_path / "scaffold", alone).state.backbone
    plain = recipe("fedavg", local=work, momentum="none", head_momentum="keep")[0]
    assert naive.furthest(backbone, run(plain, tmp_path / "fedavg", alone).state.backbone) < 1e-12


@pytest.mark.parametrize("server_lr", [1.0, 1.5])
def test_batchnorm_statistics_are_averaged_whatever_the_servers_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_lr: float
) -> None:
    """One round, in which no control variate is at work yet: FedAvg's statistics, and a longer step of the weights."""
    build = Tiny(norm=True)
    state = run(recipe("scaffold", rounds=1, server_lr=server_lr)[0], tmp_path / "scaffold", build).state
    plain = run(recipe("fedavg", rounds=1, momentum="none", head_momentum="keep")[0], tmp_path / "fedavg", build)
    first, mean = build().backbone.shared(), plain.state.backbone
    assert set(state.control) == {n for n in mean if "running" not in n}
    for n, t in mean.items():
        assert torch.allclose(
            state.backbone[n], t if "running" in n else first[n] + server_lr * (t - first[n]), atol=1e-6
        )
        if server_lr == 1 or "running" in n:
            assert torch.equal(state.backbone[n], t)
