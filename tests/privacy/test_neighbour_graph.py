"""The graph of neighbours: published parameters, its form, and how often random graphs really fail."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np
import pytest
from scipy.stats import hypergeom
from sum_rounds import context

from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.neighbours import CORRECTNESS, SECURITY, Roster, choose

NAMES = [f"silo-{number:04}" for number in range(1000)]


@pytest.mark.parametrize(
    ("parties", "corrupt", "dropouts", "degree", "threshold"),
    [
        (100, 33, 33, 68, 34),
        (1000, 330, 330, 286, 150),
        (10_000, 3300, 3300, 422, 221),
        (100, 5, 33, 28, 6),
        (1000, 50, 330, 72, 24),
        (10_000, 500, 3300, 86, 29),
        (100_000, 5000, 33_000, 96, 32),
        (100, 33, 5, 34, 29),
        (1000, 330, 50, 78, 60),
        (10_000, 3300, 500, 92, 70),
    ],
)
def test_degree_and_threshold_are_those_of_the_authors(
    parties: int, corrupt: int, dropouts: int, degree: int, threshold: int
) -> None:
    """Expected values of google-parfait/federated-compute, fcp/secagg/server/graph_parameter_finder_test.cc, σ = 40,
    η = 20, a curious server."""
    assert choose(parties, dropouts, corrupt, complete=2) == (degree, threshold)


@pytest.mark.parametrize(("parties", "corrupt", "dropouts"), [(1000, 330, 330), (1000, 50, 330), (300, 30, 90)])
def test_the_bounds_hold_by_scipys_tails_and_not_for_a_smaller_degree(
    parties: int, corrupt: int, dropouts: int
) -> None:
    def holds(degree: int, thresholds: Sequence[int]) -> list[bool]:
        leak = parties * hypergeom(parties - 1, corrupt, degree).sf(np.array(thresholds) - 1)
        stuck = parties * hypergeom(parties - 1, dropouts, degree).sf(degree - np.array(thresholds))
        gone, gap = corrupt + dropouts, 1.0
        for place in range(degree):
            gap *= max(gone - place, 0) / (parties - place)
        parted = parties * (parties - degree - 1) / 2 * gap
        rare = 2.0 ** -(SECURITY + 1)
        return [bool(h) for h in (leak <= rare) & (parted <= rare) & (stuck <= 2.0**-CORRECTNESS)]

    degree, threshold = choose(parties, dropouts, corrupt)
    assert holds(degree, [threshold - 1, threshold]) == [False, True]
    assert not any(holds(degree - 2, range(2, degree - 1)))


def test_few_parties_are_all_neighbours() -> None:
    assert choose(100, 30, 10) == (99, 70) and choose(101, 30, 10)[0] < 60
    assert choose(150, 74, 74) == (149, 76)  # no sparse graph will do
    roster = Roster(context(6, 2, 1), NAMES[:5])
    assert roster.threshold == 4 and roster.neighbours(NAMES[1]) == [NAMES[0], *NAMES[2:5]]


def test_the_sparse_graph_is_regular_mutual_and_the_same_for_all() -> None:
    about = context(1000, 300, 50)
    roster = Roster(about, NAMES)
    near = {name: roster.neighbours(name) for name in NAMES}
    assert all(len(set(others)) == roster.degree and name not in others for name, others in near.items())
    assert all(name in near[other] for name, others in near.items() for other in others)
    again = Roster(about, NAMES[::-1])
    assert again.neighbours(NAMES[7]) == near[NAMES[7]] and again.digest == roster.digest
    other = Roster(context(1000, 300, 50, round=2), NAMES)
    assert len(set(other.neighbours(NAMES[7])) & set(near[NAMES[7]])) < roster.degree / 2


def connected(roster: Roster, names: Collection[str]) -> bool:
    left, seen, reached = set(names), set(), [min(names)]
    while reached:
        name = reached.pop()
        if name not in seen:
            seen.add(name)
            reached += left.intersection(roster.neighbours(name)) - seen
    return seen == left


def test_random_graphs_leave_the_honest_connected_and_safe() -> None:
    """Ten rounds, each with other corrupt parties and other dropouts of the number that is allowed for."""
    draws = random.Random(3)
    for number in range(10):
        roster = Roster(context(300, 90, 30, round=number), NAMES[:300])
        gone = draws.sample(NAMES[:300], 120)
        corrupt, dropped = set(gone[:30]), set(gone[30:])
        assert connected(roster, set(NAMES[:300]) - corrupt - dropped)
        for name in NAMES[:300]:
            near = set(roster.neighbours(name))
            assert len(near & corrupt) < roster.threshold <= len(near - dropped)


@pytest.mark.parametrize("names", [NAMES[:3], [*NAMES[:5], NAMES[0]], NAMES[:7]])
def test_a_roster_of_too_few_too_many_or_the_same_parties_is_refused(names: list[str]) -> None:
    with pytest.raises(SecureSumError) as caught:
        Roster(context(6, 2, 1), names)
    assert caught.value.code == ("too-few" if len(names) == 3 else "roster")
