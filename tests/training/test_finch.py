"""C-FINCH against a naive loop, numbers worked by hand, and the package of FINCH's authors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coalface.evaluation.metrics import exact
from coalface.training.clustering import finch
from coalface.training.clustering.finch import Partitions, auto_threshold, cfinch, drop_small, refine, unit_features

Features = NDArray[np.float64]
Labels = NDArray[np.int64]


def oracle(features: Features, clusters: int | None = None) -> tuple[list[Labels], Labels | None]:
    """The partitions of finch-clust, and that of the number wanted, over unit features."""
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on import: that approximate neighbours are not installed
        from finch import FINCH
    labels, _, wanted_labels = FINCH(features, req_clust=clusters, ensure_early_exit=False, verbose=False)
    return [finch._numbered(column.astype(np.int64)) for column in labels.T], wanted_labels


def on_circle(*degrees: float) -> Features:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def distance(degrees: float) -> float:
    return 1 - math.cos(math.radians(degrees))


def random(seed: int, count: int, d: int) -> Features:
    return np.random.default_rng(seed).standard_normal((count, d))


def identities(seed: int, people: int, d: int, noise: float) -> tuple[Features, Labels]:
    """1 to 20 features of each person around a centre, shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(people), rng.integers(1, 21, people)))
    return rng.standard_normal((people, d))[labels] + noise * rng.standard_normal((len(labels), d)), labels


def lists(partitions: Partitions) -> list[list[int]]:
    return [level.tolist() for level in partitions.labels]


def naive(features: Features, threshold: float) -> list[list[int]]:
    """The definition, one cluster at a time."""
    points = [row / math.sqrt(sum(x * x for x in row)) for row in features]
    clusters = [[i] for i in range(len(points))]
    levels = []
    while True:
        means = [sum(points[i] for i in members) for members in clusters]
        means = [mean / math.sqrt(mean @ mean) for mean in means]
        groups = list(range(len(clusters)))
        for i, mean in enumerate(means):
            cosines = [mean @ other_mean if i != j else -math.inf for j, other_mean in enumerate(means)]
            nearest = max(range(len(means)), key=lambda j: (cosines[j], -j))
            if nearest != i and max(0.0, 1 - cosines[nearest]) < threshold:
                old, new = groups[i], groups[nearest]
                groups = [new if group == old else group for group in groups]
        names = list(dict.fromkeys(groups))
        if len(names) == len(clusters):
            break
        clusters = [
            [i for members, group in zip(clusters, groups, strict=True) if group == name for i in members]
            for name in names
        ]
        where = {i: number for number, members in enumerate(sorted(clusters, key=min)) for i in members}
        clusters.sort(key=min)
        levels.append([where[i] for i in range(len(points))])
    return levels or [list(range(len(points)))]


DATA: dict[str, Callable[[], Features]] = {
    "random": lambda: random(0, 60, 8),
    "random, wide": lambda: random(1, 80, 40),
    "identities": lambda: identities(2, 10, 12, 0.5)[0],
    "lengths": lambda: random(3, 50, 6) * np.exp(3 * random(4, 50, 1)),
    "doubles": lambda: random(5, 20, 6)[np.random.default_rng(6).integers(20, size=60)],
}


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.2, 0.4, 0.8, 1.2, math.inf])
@pytest.mark.parametrize("name", DATA)
def test_equals_the_naive_loop(name: str, threshold: float) -> None:
    assert lists(cfinch(DATA[name](), threshold)) == naive(DATA[name](), threshold)


def test_by_hand() -> None:
    features = on_circle(0, 1, 10, 12, 180, 191)
    # Means of the pairs: 0.5, 11 and 185.5 degrees, then of four 5.75 degrees.
    first, second = [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]
    assert lists(cfinch(features)) == [first, [0] * 6]  # 185.5 has 11 as its first neighbour
    assert lists(cfinch(features, distance(11.5))) == [first, second]  # 174.5 degrees are too far, 10.5 are not
    assert lists(cfinch(features, distance(10.25))) == [[0, 0, 1, 1, 2, 3]]  # neither 11 nor 10.5 degrees
    assert lists(cfinch(features, distance(1.5))) == [[0, 0, 1, 2, 3, 4]]
    assert lists(cfinch(features, distance(0.5))) == [[0, 1, 2, 3, 4, 5]]
    assert cfinch(features, distance(11.5)).counts == (3, 2)
    assert cfinch(features, distance(11.5)).final.tolist() == second


def test_a_mutual_pair_is_held_to_the_threshold_itself() -> None:
    pair = on_circle(0, 20)
    assert lists(cfinch(pair, 1.01 * distance(20))) == [[0, 0]]  # a known implementation takes half of it here
    assert lists(cfinch(pair, 0.99 * distance(20))) == [[0, 1]]


def test_the_threshold_is_strict() -> None:
    right_angle = np.eye(2)
    assert cfinch(right_angle, 1.0).counts == (2,)
    assert cfinch(right_angle, np.nextafter(1.0, 2)).counts == (1,)
    assert cfinch(np.ones((5, 3)), 0.0).counts == (5,)
    assert cfinch(np.ones((5, 3)), 1e-6).counts == (1,)


def test_means_are_those_of_the_points_and_not_of_the_clusters_below() -> None:
    # Level 1 has the pairs and the six; level 2 joins 0 and 20, 55 and 65, 108 and 118 degrees. By points the first has
    # its mean at 5 degrees, 55 from the second, which is 53 from the third; by means of means it would be 50 from it.
    features = on_circle(*[0] * 6, 20, 20, 55, 55, 65, 65, 108, 108, 118, 118)
    levels = cfinch(features, distance(54))
    assert levels.labels[1].tolist() == [0] * 8 + [1] * 4 + [2] * 4
    assert levels.labels[2].tolist() == [0] * 8 + [1] * 8
    assert lists(levels) == naive(features, distance(54))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["random", "structured"])
def test_without_threshold_it_is_the_package_of_the_authors(kind: str, seed: int) -> None:
    """Partition by partition; the package drops the last ones, from a level on that joins one pair or all."""
    features = random(seed, 700, 24) if kind == "random" else identities(seed, 70, 24, 0.6)[0]
    expected, _ = oracle(features)
    partitions = cfinch(features)
    assert len(expected) >= 2
    assert [level.tolist() for level in expected] == lists(partitions)[: len(expected)]
    assert all(
        a - b <= 1 or b == 1
        for a, b in zip(partitions.counts[len(expected) - 1 :], partitions.counts[len(expected) :], strict=False)
    )


@pytest.mark.parametrize("clusters", [1, 3, 12, 57])
@pytest.mark.parametrize("kind", ["random", "structured"])
def test_refined_to_a_number_it_is_the_package_of_the_authors(kind: str, clusters: int) -> None:
    features = random(7, 300, 24) if kind == "random" else identities(8, 60, 24, 0.6)[0]
    partitions = cfinch(features)
    _, expected = oracle(features, clusters)
    of_authors = Partitions(labels=partitions.labels[: len(oracle(features)[0])])  # the levels that it keeps
    labels = refine(of_authors, features, clusters)
    assert expected is not None
    assert labels.tolist() == finch._numbered(expected.astype(np.int64)).tolist()
    assert len(set(labels.tolist())) == clusters


@pytest.mark.parametrize("threshold", [0.3, 0.7, math.inf])
def test_a_permutation_of_the_points_permutes_the_answer(threshold: float) -> None:
    for features in (random(10, 400, 16), identities(11, 40, 16, 0.6)[0]):
        order = np.random.default_rng(12).permutation(len(features))
        partitions, moved = cfinch(features, threshold), cfinch(features[order], threshold)
        assert [finch._numbered(level[order]).tolist() for level in partitions.labels] == lists(moved)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 6), st.floats(0, 2))
def test_levels_are_nested_and_end(seed: int, count: int, d: int, threshold: float) -> None:
    features = random(seed, count, d)
    partitions = cfinch(features, threshold)
    assert list(partitions.counts) == sorted(set(partitions.counts), reverse=True)
    for level, counted in zip(partitions.labels, partitions.counts, strict=True):
        assert list(dict.fromkeys(level.tolist())) == list(range(counted))  # numbered by first appearance
    for fine, coarse in zip(partitions.labels, partitions.labels[1:], strict=False):
        assert len({*zip(fine.tolist(), coarse.tolist(), strict=True)}) == fine.max() + 1
    assert lists(partitions) == naive(features, threshold)


def test_none_one_and_doubles() -> None:
    assert lists(cfinch(np.empty((0, 4)))) == [[]] and cfinch(np.empty((0, 4))).counts == (0,)
    assert lists(cfinch(np.ones((1, 4)))) == [[0]]
    assert lists(cfinch(np.ones((300, 4)))) == [[0] * 300]
    assert lists(cfinch(np.repeat(np.eye(3), 2, axis=0), 0.5)) == [[0, 0, 1, 1, 2, 2]]


def test_a_cluster_whose_points_cancel_stays() -> None:
    # 0 and 180 degrees have no other neighbour: to τ = ∞ they join, and point nowhere.
    features = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    assert lists(cfinch(features)) == [[0, 0]]
    lying = unit_features(np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 0.1], [0, 0.1, 1.0]]))
    labels = np.array([0, 0, 1, 1, 2])
    index, cosine = finch._first_of_directed(*finch._directions(lying, labels, lying, labels))
    assert index.tolist() == [-1, 2, 1] and cosine[0] == -math.inf
    assert len(set(refine(Partitions(labels=(labels,)), lying, 2).tolist())) == 2


def test_in_small_pieces_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features = identities(16, 30, 16, 0.6)[0]
    whole, few = cfinch(features, 0.6), refine(cfinch(features), features, 4)
    monkeypatch.setattr(exact, "CHUNK", 48)
    assert lists(cfinch(features, 0.6)) == lists(whole)
    assert refine(cfinch(features), features, 4).tolist() == few.tolist()


def test_small_clusters_are_dropped() -> None:
    labels = np.array([3, 0, 3, -1, 1, 0, 3, 2])
    assert drop_small(labels, 2).tolist() == [0, 1, 0, -1, -1, 1, 0, -1]
    assert drop_small(labels, 3).tolist() == [0, -1, 0, -1, -1, -1, 0, -1]
    assert drop_small(labels, 1).tolist() == [0, 1, 0, -1, 2, 1, 0, 3]
    assert drop_small(labels, 9).tolist() == [-1] * 8
    assert drop_small(np.array([-1, -1]), 1).tolist() == [-1, -1]
    assert drop_small(np.empty(0, dtype=np.int64), 2).tolist() == []
    with pytest.raises(ValueError, match="got -2"):
        drop_small(np.array([-2, 0]), 2)


def pairwise_f(labels: Labels, clusters: Labels) -> float:
    is_genuine, together = labels[:, None] == labels, clusters[:, None] == clusters
    np.fill_diagonal(is_genuine, False)
    np.fill_diagonal(together, False)
    return float(2 * (is_genuine & together).sum() / (is_genuine.sum() + together.sum()))


@pytest.mark.slow
@pytest.mark.ci
def test_the_threshold_with_the_best_score() -> None:
    features, labels = identities(17, 14, 24, 0.5)
    tried: dict[float, float] = {}

    def score(labels: Labels, clusters: Labels) -> float:
        tried[len(tried)] = pairwise_f(labels, clusters)
        return tried[len(tried) - 1]

    best = auto_threshold(features, labels, score)
    values = [pairwise_f(labels, cfinch(features, tau).final) for tau in finch.GRID]
    top = finch.GRID[int(np.argmax(values))]
    assert abs(best - top) < 0.025
    assert pairwise_f(labels, cfinch(features, best).final) == max(tried.values()) >= max(values)
    assert len(tried) == len(finch.GRID) + 2 * 19
    assert max(values) > 0.9 > values[-1]  # a good one exists, and is not the last
    assert auto_threshold(features, labels, score) == best


def test_of_equal_scores_the_smallest_threshold() -> None:
    features, labels = identities(18, 10, 8, 0.5)
    assert auto_threshold(features, labels, lambda labels, clusters: 1.0) == pytest.approx(1e-6 / 20)
    grid = np.linspace(0.1, 2, 20)
    joined = auto_threshold(features, labels, lambda labels, clusters: float(clusters.max() == 0), grid=grid)
    assert cfinch(features, joined).counts[-1] == 1 < cfinch(features, joined - 0.1 / 19).counts[-1]


def test_another_clustering_can_be_scored() -> None:
    features, labels = identities(19, 10, 8, 0.5)
    score = {"τ": 0.0}

    def clustering(rows: torch.Tensor, threshold: float) -> Labels:
        assert rows.norm(dim=1).sub(1).abs().max() < 1e-6
        score["τ"] = threshold
        return labels

    chosen = auto_threshold(features, labels, lambda *_: -abs(score["τ"] - 0.3312), cluster=clustering, grid=[0.2, 0.4])
    assert chosen == pytest.approx(0.33)  # between 0.2 and 0.4 in steps of 0.01


def test_a_threshold_is_found_for_features_that_lie_close_together() -> None:
    rng = np.random.default_rng(0)
    centres = 1 + 0.02 * rng.standard_normal((30, 32))
    labels = np.repeat(np.arange(30), 6)
    features = centres[labels] + 0.001 * rng.standard_normal((180, 32))
    best = auto_threshold(features, labels, pairwise_f)
    assert best < 1e-3 and pairwise_f(labels, cfinch(features, best).final) > 0.99


def test_features_without_a_direction_are_named() -> None:
    for bad in (0.0, math.nan):
        features = random(13, 10, 4)
        features[[2, 7]] = bad
        with pytest.raises(ValueError, match="2 of 10 features .*rows 2, 7"):
            cfinch(features)


def test_what_cannot_be_clustered_is_refused() -> None:
    features, labels = identities(20, 5, 8, 0.5)
    with pytest.raises(ValueError, match="ask for 1 to 4 of them, not 5"):
        refine(cfinch(np.eye(4), 0.5), np.eye(4), 5)
    with pytest.raises(ValueError):
        cfinch(np.eye(3), math.nan)
    with pytest.raises(ValueError, match="no score is a number"):
        auto_threshold(features, labels, lambda *_: math.nan)
