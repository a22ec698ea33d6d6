"""What a validation chooses: (8) to (13) of its paper, by a plain loop and by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.core.method import Ticket
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.training.federated_validation import FederatedValidation, Open, Weighting

W = {"a": 0.5, "b": 0.3, "c": 0.2}
DRAWN = (W, {"a": 0.1, "b": 0.1, "c": 0.8}, {"a": 0.3, "b": 0.6, "c": 0.1})


RNG = np.random.default_rng(0)
"""For a blind choice alone; the others draw nothing."""


def opened(candidates: tuple[dict[str, float], ...] = DRAWN) -> Open:
    return Open(ticket=Ticket("train", 1, 2), round=1, candidates=candidates)


def weighting() -> Weighting:
    return Weighting(weights=W, open=opened(), mean={}, variance={})


def scores(**rows: Iterable[float]) -> dict[str, Tensor]:
    return {name: torch.tensor(list(row), dtype=torch.float64) for name, row in rows.items()}


def naive_choice(
    settings: FederatedValidation, before: Weighting, validation: Open, rows: dict[str, list[float]]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Lines 11 to 13 of Algorithm 2 with lists and loops."""
    mean, variance = dict(before.mean), dict(before.variance)
    summed = [0.0] * len(validation.candidates)
    for name, row in rows.items():
        count = len(row)
        average = sum(row) / count
        if settings.norm == "local":
            sigma2 = sum((s - average) ** 2 for s in row) / count
            scale = (sigma2 + settings.epsilon) ** 0.5
        elif settings.norm == "moving":
            g = settings.forgetting
            if name not in mean:  # the first validation
                mean[name], variance[name] = average, sum((s - average) ** 2 for s in row) / count
            else:
                mean[name] = (1 - g) * mean[name] + g * average
                spread = sum((s - mean[name]) ** 2 for s in row) / count
                variance[name] = (1 - g) * variance[name] + g * spread
            scale = (variance[name] + settings.epsilon) ** 0.5
        else:
            scale = 1.0
        for t in range(count):
            summed[t] += row[t] / scale
    best = summed.index(max(summed))
    phi = settings.smoothing
    return {p: (1 - phi) * w + phi * validation.candidates[best][p] for p, w in before.weights.items()}, mean, variance


@pytest.mark.parametrize("norm", ["local", "moving", "none"])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_choice_is_that_of_a_plain_loop(norm: Any, count: int) -> None:
    settings = FederatedValidation(candidates=count, norm=norm, smoothing=0.3, forgetting=0.25)
    rng, before = np.random.default_rng(count), weighting()
    chosen = set()
    for _ in range(40):
        shares = rng.dirichlet([1, 1, 1], size=count - 1).tolist()
        drawn = (before.weights, *(dict(zip(W, row, strict=True)) for row in shares))
        rows = {
            name: (middle + width * rng.standard_normal(count)).tolist()
            for name, middle, width in (("v", 92, 0.2), ("x", 70, 5), ("y", 85, 1))
            if rng.random() < 0.8  # some are left out
        }
        validation = opened(drawn)
        after = settings.choose(before, validation, scores(**rows), RNG)
        if rows:
            weights, mean, variance = naive_choice(settings, before, validation, rows)
            assert after.weights == pytest.approx(weights, rel=1e-12)
            assert after.mean == pytest.approx(mean, rel=1e-12) and after.variance == pytest.approx(variance, rel=1e-9)
            chosen.add(int(np.argmax([sum(after.weights[p] * d[p] for p in W) for d in drawn])))
        assert after.open is None and sum(after.weights.values()) == pytest.approx(1, abs=1e-12)
        before = after
    assert len(chosen) > 1


def test_a_blind_choice_takes_each_candidate_as_often_whatever_the_scores() -> None:
    blind, rng = FederatedValidation(smoothing=1, choice="blind"), np.random.default_rng(5)
    taken = [blind.choose(weighting(), opened(), scores(v=[90, 95, 10]), rng).weights for _ in range(300)]
    counts = [taken.count(candidate) for candidate in DRAWN]
    assert sum(counts) == 300 and min(counts) > 75  # 100 ± 3 standard deviations
    assert blind.choose(weighting(), opened(), {}, rng).weights == W  # nobody has answered


def moved(before: Weighting, towards: dict[str, float], phi: float) -> dict[str, float]:
    return {p: (1 - phi) * w + phi * towards[p] for p, w in before.weights.items()}


def test_local_norm_by_hand() -> None:
    """100 and 110 have the population variance 25, 80 and 48 have 256; ε = 144 makes them 13² and 20²."""
    local = FederatedValidation(candidates=2, epsilon=144, smoothing=1)
    raw, two = replace(local, norm="none"), opened(DRAWN[:2])
    up, down = [100, 110], [80, 48]
    assert local.choose(weighting(), two, scores(v=up, x=down), RNG).weights == W  # 10/13 is less than 32/20
    three = scores(v=up, x=down, y=up, z=up)
    assert local.choose(weighting(), two, three, RNG).weights == DRAWN[1]  # 30/13 is more
    assert raw.choose(weighting(), two, three, RNG).weights == W  # 30 is less than 32
    far = scores(v=up, x=[100, 30], y=up)  # 20/13 is less than 70/37; with T − 1 as divisor 20/√194 > 70/√2594
    assert local.choose(weighting(), two, far, RNG).weights == W


def test_scores_are_in_percent_or_epsilon_would_swamp_them() -> None:
    """v, y and z gain 0.2 percent points, of variance 0.01, and x loses 0.7, of variance 0.1225. In percent the three
    win, 3 · 0.2/√0.011 = 5.7 against 0.7/√0.1235 = 2.0; as fractions ε = 0.001 leaves raw sums, 0.006 and 0.007."""
    settings = FederatedValidation(candidates=2, smoothing=1)
    rows = {"v": [90.0, 90.2], "x": [50.7, 50.0], "y": [80.0, 80.2], "z": [70.0, 70.2]}
    assert settings.choose(weighting(), opened(DRAWN[:2]), scores(**rows), RNG).weights == DRAWN[1]
    fractions = {name: [s / 100 for s in row] for name, row in rows.items()}
    assert settings.choose(weighting(), opened(DRAWN[:2]), scores(**fractions), RNG).weights == W
    party = Tiny(validators=1).validating()["judge-0"][1]
    cosines = np.where(party.same, 0.9, 0.1)
    assert settings.graded(cosines, party.same, party.fold) == 100
    assert replace(settings, score="tar", far=0.1).graded(cosines, party.same, party.fold) == 100
    assert replace(settings, score="loss").graded(cosines, party.same, party.fold) == pytest.approx(-10)


def test_moving_norm_starts_from_the_first_validation_by_hand() -> None:
    settings = FederatedValidation(norm="moving", forgetting=0.5, smoothing=1)
    first = settings.choose(weighting(), opened(), scores(v=[90, 92, 94]), RNG)
    assert first.mean == {"v": 92.0} and first.variance == {"v": pytest.approx(8 / 3)}
    second = settings.choose(replace(first, open=opened()), opened(), scores(v=[80, 84, 88], x=[50, 50, 53]), RNG)
    # μ = 92/2 + 84/2 = 88; the mean of (s − 88)² is (64 + 16 + 0)/3 = 80/3; ν = (8/3 + 80/3)/2 = 44/3
    assert second.mean == {"v": 88.0, "x": 51.0}
    assert second.variance == pytest.approx({"v": 44 / 3, "x": 2})
    third = settings.choose(replace(second, open=opened()), opened(), scores(x=[51, 51, 51]), RNG)  # v did not answer
    assert third.mean["v"] == 88.0 and third.variance["x"] == pytest.approx(1)
    assert FederatedValidation().choose(weighting(), opened(), scores(v=[1, 2, 3]), RNG).mean == {}


@pytest.mark.parametrize("norm", ["local", "moving", "none"])
def test_of_equal_candidates_the_one_in_use_is_kept(norm: Any) -> None:
    settings = FederatedValidation(norm=norm, smoothing=1)
    assert settings.choose(weighting(), opened(), scores(v=[90, 90, 90], x=[7, 7, 7]), RNG).weights == W
    assert settings.choose(weighting(), opened(), scores(v=[90, 80, 90]), RNG).weights == W
    assert settings.choose(weighting(), opened(), scores(v=[80, 90, 90]), RNG).weights == DRAWN[1]
