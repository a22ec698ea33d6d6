"""Rules over several vectors, by another library, by loops, by hand, and by what they promise."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from coalface.engine.robust import rules

GOLDENS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "byzfl_goldens.json").read_text(encoding="utf-8"))
"""Inputs, and what ByzFL 0.0.11 makes of them: by `tools/byzfl_goldens.py`."""
LIMITED = settings(max_examples=20, deadline=None)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{len(golden['rows'])} of {golden['f']}")
def test_every_rule_gives_what_byzfl_gives(golden: dict[str, Any]) -> None:
    rows, f = torch.tensor(golden["rows"], dtype=torch.float64), golden["f"]
    mixed, zero = rules.nearest_neighbour_mixing(rows, f), torch.zeros(rows.shape[1])
    ours = {
        "median": rules.median(rows),
        "trimmed_mean": rules.trimmed_mean(rows, f),
        "geometric_median, 3 steps": rules.geometric_median(rows, start=zero, smoothing=0.1, iterations=3),
        "geometric_median": rules.geometric_median(rows, iterations=1000),
        "krum": rules.krum(rows, f),
        "multi_krum": rules.multi_krum(rows, f),
        "centred_clipping": rules.centred_clipping(rows, radius=1.5, iterations=4),
        "norm_bound": rules.norm_bound(rows, radius=2.0),
        "nearest_neighbour_mixing": mixed,
        "mixing and trimmed_mean": rules.trimmed_mean(mixed, f),
        "mixing and krum": rules.krum(mixed, f),
        "bucketing": rules.bucketing(rows, 2, golden["byzfl"].pop("order")),
    }
    assert ours.keys() == golden["byzfl"].keys()
    for name, result in ours.items():
        np.testing.assert_allclose(result.numpy(), golden["byzfl"][name], rtol=0, atol=1e-6, err_msg=name)


# --- loops over Python's own numbers ----------------------------------------------------------------------------------

Vector = list[float]


def distance(a: Vector, b: Vector) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def mean(rows: list[Vector]) -> Vector:
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def naive_trimmed(rows: list[Vector], f: int) -> Vector:
    columns = [sorted(column)[f : len(rows) - f] for column in zip(*rows, strict=True)]
    return [math.fsum(column) / len(column) for column in columns]


def naive_median(rows: list[Vector], f: int) -> Vector:
    return [float(np.median(column)) for column in zip(*rows, strict=True)]


def by_score(rows: list[Vector], f: int) -> list[Vector]:
    scores = []
    for i, row in enumerate(rows):
        others = sorted(distance(row, other) ** 2 for j, other in enumerate(rows) if j != i)
        scores.append((sum(others[: len(rows) - f - 1]), i))
    return [rows[i] for _, i in sorted(scores)]


def naive_clipping(rows: list[Vector], steps: int) -> Vector:
    v = [0.0] * len(rows[0])
    for _ in range(steps):
        distances = [distance(row, v) for row in rows]
        bound = sorted(distances)[(len(rows) - 1) // 2]
        cut = [
            [x + (a - x) * min(1.0, bound / d) if d else x for a, x in zip(row, v, strict=True)]
            for row, d in zip(rows, distances, strict=True)
        ]
        v = mean(cut)
    return v


def naive_mixing(rows: list[Vector], f: int) -> list[Vector]:
    return [mean(sorted(rows, key=lambda other: distance(row, other))[: len(rows) - f]) for row in rows]


NAIVE: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[list[Vector], int], Any]]] = {
    "median": (lambda rows, f: rules.median(rows), naive_median),
    "trimmed mean": (rules.trimmed_mean, naive_trimmed),
    "krum": (rules.krum, lambda rows, f: by_score(rows, f)[0]),
    "multi-krum": (rules.multi_krum, lambda rows, f: mean(by_score(rows, f)[: len(rows) - f])),
    "centred clipping": (lambda rows, f: rules.centred_clipping(rows), lambda rows, f: naive_clipping(rows, 3)),
    "norm bound": (lambda rows, f: rules.norm_bound(rows), lambda rows, f: naive_clipping(rows, 1)),
    "mixing": (rules.nearest_neighbour_mixing, naive_mixing),
    "bucketing": (
        lambda rows, f: rules.bucketing(rows, 2, range(len(rows))),
        lambda rows, f: [mean(rows[i : i + 2]) for i in range(0, len(rows), 2)],
    ),
}


@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize(("parties", "f"), [(3, 1), (8, 2), (13, 4)])
def test_a_rule_is_what_a_loop_gives(monkeypatch: pytest.MonkeyPatch, name: str, parties: int, f: int) -> None:
    monkeypatch.setattr(rules, "_COLUMNS", 3)  # several blocks of columns
    rows = torch.from_numpy(np.random.default_rng(parties).standard_normal((parties, 7)) + 1)
    fast, naive = NAIVE[name]
    expected = naive(rows.tolist(), f)
    np.testing.assert_allclose(fast(rows, f).numpy(), expected, rtol=1e-12, atol=1e-12)
    narrow = fast(rows.float(), f)  # the rows may be of float32, and are computed with in float64
    np.testing.assert_allclose(narrow.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median() -> None:
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((9, 4)))
    z = rules.geometric_median(rows)

    def total(point: Tensor) -> float:
        return rules.distances_to(rows, point).sum().item()

    directions = [torch.eye(4, dtype=torch.float64)[i] * s for i, s in itertools.product(range(4), (1e-3, -1e-3))]
    assert all(total(z) < total(z + direction) for direction in directions)


# --- numbers worked by hand -------------------------------------------------------------------------------------------


def test_numbers_worked_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [100.0, 0.0]])
    assert rules.median(rows).tolist() == [3.0, 0.0]
    assert rules.trimmed_mean(rows, 1).tolist() == [3.0, 0.0]
    # squared distances to the two nearest others: 1 + 9, 1 + 4, 4 + 9, …
    assert rules.krum(rows, 1).tolist() == [2.0, 0.0]
    assert rules.multi_krum(rows, 1).tolist() == pytest.approx([7 / 3, 0.0])
    # norms 1, 2, 4, 100, the lower median 2: (1 + 2 + 2 + 2) / 4
    assert rules.norm_bound(rows).tolist() == [1.75, 0.0]
    assert rules.norm_bound(rows, radius=4.0).tolist() == [2.75, 0.0]
    # from 1.75: −0.75, 0.25, 2.25, 98.25, the lower median 0.75: 1.75 + (−0.75 + 0.25 + 0.75 + 0.75) / 4
    assert rules.centred_clipping(rows, iterations=2).tolist() == [2.0, 0.0]
    # the nearest three of each: 1, 2, 4 for the first three, and 2, 4, 100
    assert rules.nearest_neighbour_mixing(rows, 1)[:, 0].tolist() == pytest.approx([7 / 3, 7 / 3, 7 / 3, 106 / 3])
    # of a triangle with angles below 120° the point that sees all sides at 120°: of an equilateral one, its centre
    triangle = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]], dtype=torch.float64)
    assert rules.geometric_median(triangle).tolist() == pytest.approx([0.5, math.sqrt(3) / 6])


def test_rows_that_are_the_same_are_their_own_mean() -> None:
    rows = torch.full((5, 3), 2.5)
    for rule in EVERY.values():
        assert torch.allclose(rule(rows, 2), torch.full((3,), 2.5, dtype=torch.float64))
        assert torch.equal(rule(torch.zeros(5, 3), 2), torch.zeros(3, dtype=torch.float64))


# --- what they promise ------------------------------------------------------------------------------------------------

EVERY: dict[str, Callable[[Tensor, int], Tensor]] = {
    "median": lambda rows, f: rules.median(rows),
    "trimmed mean": rules.trimmed_mean,
    "geometric median": lambda rows, f: rules.geometric_median(rows),
    "krum": rules.krum,
    "multi-krum": rules.multi_krum,
    "centred clipping": lambda rows, f: rules.centred_clipping(rows),
    "norm bound": lambda rows, f: rules.norm_bound(rows),
}
FROM_ZERO = ("centred clipping", "norm bound")
"""Where 0 is what was sent, so that a shift of the replies alone is an update."""


@st.composite
def some(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Vectors of parties, and how many may be lies."""
    f = draw(st.integers(0, 3))
    parties = draw(st.integers(2 * f + 1, 2 * f + 5))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    return torch.from_numpy(rng.standard_normal((parties, draw(st.integers(1, 5))))), f


@pytest.mark.parametrize("name", EVERY)
@LIMITED
@given(some(), st.randoms(use_true_random=False))
def test_who_sent_what_does_not_matter(name: str, given_rows: tuple[Tensor, int], random: Any) -> None:
    rows, f = given_rows
    order = list(range(len(rows)))
    random.shuffle(order)
    result, other = EVERY[name](rows, f), EVERY[name](rows[order], f)
    if name == "krum":  # two may be the same two nearest to each other
        result, other = (rules.squared_distances(torch.stack([r, *rows]))[0, 1:].sort().values for r in (result, other))
        assume(len(rows) > f + 2)
    assert torch.allclose(result, other, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in FROM_ZERO])
@LIMITED
@given(some(), st.floats(-1e3, 1e3))
def test_a_shift_of_all_is_a_shift_of_the_result(name: str, given_rows: tuple[Tensor, int], shift: float) -> None:
    rows, f = given_rows
    assume(name not in ("krum", "multi-krum") or len(rows) > f + 2)  # else rows are alike near, and rounding chooses
    assert torch.allclose(EVERY[name](rows + shift, f), EVERY[name](rows, f) + shift, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
@LIMITED
@given(some(), st.floats(0, 1e12), st.integers(0, 100))
def test_lies_of_any_size_move_the_result_by_a_bound(
    name: str, given_rows: tuple[Tensor, int], size: float, seed: int
) -> None:
    """Whatever f parties send, the result is near what all others sent."""
    rows, f = given_rows
    assume(f > 0)
    honest = rows[f:]
    lies = torch.from_numpy(np.random.default_rng(seed).standard_normal((f, rows.shape[1]))) * size
    result = EVERY[name](torch.cat([lies, honest]), f)
    largest = rules.distances_to(honest, torch.zeros_like(honest[0])).max().item()
    if name in ("median", "trimmed mean"):  # number by number between the honest ones
        assert (result >= honest.min(dim=0).values - 1e-9).all() and (result <= honest.max(dim=0).values + 1e-9).all()
    elif name == "geometric median":  # 2 (n − f) / (n − 2 f) times the radius of the honest (Lopuhaä, Rousseeuw 1991)
        n = len(rows)
        assert result.norm().item() <= 2 * (n - f) / (n - 2 * f) * largest * (1 + 1e-6)
    else:  # Krum takes one that is near to honest ones; the others clip to the norm of an honest one
        steps = 3 if name == "centred clipping" else 1
        assert result.norm().item() <= 4**steps * (len(rows) + 1) * largest


def test_the_mean_has_no_such_bound() -> None:
    rows = torch.cat([torch.full((1, 2), 1e12), torch.zeros(4, 2)])
    assert rows.mean(dim=0).norm() > 1e11


@pytest.mark.parametrize("name", EVERY)
def test_threads_change_no_bit(name: str) -> None:
    rows = torch.from_numpy(np.random.default_rng(3).standard_normal((7, 100_003))).float()
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            results.append(EVERY[name](rules.nearest_neighbour_mixing(rows, 2), 2))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_a_huge_lie_takes_no_digits_from_the_others() -> None:
    """By ‖x‖² + ‖y‖² − 2 x·y about a common centre the distances of the others would be lost."""
    rows = torch.tensor([[1e-3, 0.0], [2e-3, 0.0], [3e-3, 0.0], [1e19, -1e19]])
    assert rules.squared_distances(rows)[0, :3].tolist() == pytest.approx([0.0, 1e-6, 4e-6], rel=1e-5)
    assert rules.krum(rows, 1).tolist() == pytest.approx([2e-3, 0.0])
    assert rules.geometric_median(rows)[0].item() == pytest.approx(2e-3, abs=1.5e-3)
