from __future__ import annotations

import json
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
from coalface.methods.feddyn import FedDyn, Regularised
from coalface.training.local_work import LocalTraining

EXACT = Tiny(flip=False, double=True)


@pytest.mark.parametrize(
    ("weights", "sample", "norm"),
    by_default(1, [("images", 2, True), ("equal", 2, False), ("equal", None, True)]),
)
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: Literal["images", "equal"],
    sample: int | None,
    norm: bool,
) -> None:
    """As the authors' public code keeps it: not gradients, but each party's sum s_i of θ_i − θ_t, without α.

    A local step adds α (θ − θ_t + s_i), and the server sends the mean of who came + Σ w_i s_i over all.
    """
    alpha, build = 0.2, replace(EXACT, norm=norm)
    work = LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.5, weight_decay=5e-3)
    states = naive.watched(FedDyn, monkeypatch)
    method = FedDyn(rounds=4, local=work, loss=LOSS, alpha=alpha, weights=weights, sample=sample, head_momentum="keep")
    run(method, tmp_path, build)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    x, parties = build().backbone.shared(), naive.silos(build, work)
    share = naive.shares(parties) if weights == "images" else [1 / 3] * 3
    sums = [naive.zeros(build) for _ in parties]
    for state, names in zip(states, (line["losses"] for line in lines), strict=True):
        ends, present = [], [place for place, silo in enumerate(parties) if silo.name in names]
        for place in present:
            silo, y, velocity = parties[place], dict(x), naive.zeros(build)
            for pixels, labels in silo.batches():
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    slope = g[n] + 5e-3 * y[n] + alpha * (y[n] - x[n] + sums[place][n])
                    velocity[n] = 0.5 * velocity[n] + slope
                    y[n] = y[n] - 0.1 * velocity[n]
                y.update(running)
                silo.step_head(h, 0.1)
            sums[place] = {n: s + y[n] - x[n] for n, s in sums[place].items()}
            ends.append(y)
        own = [share[place] / sum(share[p] for p in present) for place in present]
        mean, drift = naive.mean(own, ends), naive.mean(share, sums)
        x = {n: w + drift[n] if n in drift else w for n, w in mean.items()}
        assert naive.furthest(state.backbone, x) < 1e-11
        assert naive.furthest(state.gradient, {n: -alpha * d for n, d in drift.items()}) < 1e-12
    for silo, total in zip(parties, sums, strict=True):
        if (kept := naive.kept(tmp_path, silo.name, Regularised)) is not None:
            assert naive.furthest(kept.gradient, {n: -alpha * s for n, s in total.items()}) < 1e-12
            assert naive.furthest({"head": kept.head}, {"head": silo.head}) < 1e-12


@pytest.mark.parametrize("weights", by_default(1, ["images", "equal"]))
@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"sample": 1}, {}),
        ({}, {"faults": SimulatedFaults(corrupt={"silo-1": "nan"})}),
        ({}, {"faults": SimulatedFaults(lost=0.4)}),
    ],
)
def test_h_stays_the_mean_of_the_g_i_whoever_comes(
    tmp_path: Path, weights: Literal["images", "equal"], settings: dict[str, Any], rules: dict[str, Any]
) -> None:
    """Over all parties, those that never came with zero."""
    build = Tiny(double=True, parties=4)
    images = {name: len(faces) for name, faces in build().data.items()}
    method = recipe("feddyn", weights=weights, **settings)[0]
    ran = run(method, tmp_path, build, min_reply_fraction=0.0, max_abandoned_rounds=99, **rules)
    mean = {n: torch.zeros_like(t) for n, t in ran.state.gradient.items()}
    for name, count in images.items():
        if (state := naive.kept(tmp_path, name, Regularised)) is not None:
            share = count / sum(images.values()) if weights == "images" else 0.25
            for n, t in state.gradient.items():
                mean[n] += share * t
    assert naive.furthest(ran.state.gradient, mean) < 1e-12
    assert max(float(t.abs().max()) for t in mean.values()) > 1e-4


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """α = 1, w = 1/4 and 3/4, two steps of η = 1/2 on f′(w) − g_i + w − w_t.

    Round 1: y_a = 0 → 1/2 → 1/2, y_b = −1/2; their mean −1/4, h = 1/4, w = −1/2; g_a = −1/2, g_b = 1/2.
    Round 2: a's slope w − 1 + 1/2 + w + 1/2 = 2w is 0 at w = 0, whither one step goes, and b's w + 1 − 1/2 + w + 1/2 at
    −1/2: y_a = 0, y_b = −1/2, mean −3/8; h = 1/4 − 1/8, w = −1/2, the optimum of both.
    """
    settings = {"alpha": 1.0, "momentum": "none"}
    assert naive.worked(FedDyn, tmp_path, monkeypatch, **settings) == [
        {"backbone": -0.5, "gradient": 0.25},
        {"backbone": -0.5, "gradient": 0.125},
    ]
    assert [float(naive.kept(tmp_path, p, Regularised).gradient["w"]) for p in "ab"] == [-1.0, 0.5]


def test_it_comes_to_rest_at_the_optimum_of_all_where_fedavg_does_not(tmp_path: Path) -> None:
    """−1/2 on `line`, with an epoch of one step at party a and of two at b."""
    work = LocalTraining(epochs=4, batch_size=1, lr=0.3, momentum=0.0, weight_decay=0.0)
    rest = {}
    for name, settings in (("fedavg", {}), ("feddyn", {"alpha": 0.5})):
        method = recipe(name, rounds=20, local=work, loss=naive.Square(), **settings)[0]
        rest[name] = abs(float(run(method, tmp_path / name, naive.line).state.backbone["w"]) + 0.5)
    assert rest["fedavg"] > 0.03
    assert rest["feddyn"] < 1e-3


def test_with_a_small_alpha_local_training_is_fedavgs_and_the_server_goes_twice_as_far(tmp_path: Path) -> None:
    """One round: θ̄ − h / α = θ̄ + (θ̄ − θ_0), whatever α. So no α makes FedDyn FedAvg, and the paper says so of none."""
    build = replace(EXACT, norm=True)
    dyn = run(recipe("feddyn", rounds=1, alpha=1e-9)[0], tmp_path / "dyn", build).state
    mean = run(recipe("fedavg", rounds=1)[0], tmp_path / "avg", build).state.backbone
    first = build().backbone.shared()
    expected = {n: 2 * w - first[n] if n in dyn.gradient else w for n, w in mean.items()}
    assert naive.furthest(dyn.backbone, expected) < 1e-7
    assert naive.furthest(first, mean) > 0.01
