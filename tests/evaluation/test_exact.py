"""Exact scores against sums that `math.fsum` rounds once, and what `scan` finds against a sort of all of them."""

import math

import numpy as np
import pytest
import torch
from unit_rows import coarse, collapsed, crowded, spread, unit

from coalface.evaluation.metrics import exact

BLOCKS = [(1, 1), (7, 16), (2048, 8192)]


@pytest.mark.parametrize("d", [1, 3, 40, 129, 512])
def test_a_score_is_the_same_in_arrays_and_tensors_and_a_product_lies_within_the_bound(d):
    rng = np.random.default_rng(d)
    features = unit(rng.normal(size=(300, d)))
    left, right = rng.integers(300, size=(2, 2000))
    scores = exact.exactly(features, left, features, right)
    assert (exact.exactly(features, right, features, left) == scores).all()
    assert (exact.inner_of(torch.from_numpy(features), *map(torch.from_numpy, (left, right))).numpy() == scores).all()
    naive = [
        math.fsum(a * b for a, b in zip(*pair, strict=True))
        for pair in zip(features[left[:50]].tolist(), features[right[:50]].tolist(), strict=True)
    ]
    np.testing.assert_allclose(scores[:50], naive, atol=1e-15)
    products = (features @ features.T)[left, right]
    assert np.abs(products - scores).max() <= exact.rounding(d)


KINDS = [coarse, crowded, spread, collapsed]
MEMORY = [(10**6, 2**16), (0, 2**16), (0, 3)]
"""(scores that are kept, bins): all are kept, counted, and counted in few bins."""


@pytest.mark.parametrize(
    ("kind", "memory", "block"),
    [(k, m, BLOCKS[(i + j) % 3]) for i, k in enumerate(KINDS) for j, m in enumerate(MEMORY)],
)
def test_ranked_scores_and_nearest_columns_are_those_of_a_sort(kind, memory, block, monkeypatch):
    """Every two of a kind of rows, a memory and a block are among the cases."""
    many, bins = memory
    monkeypatch.setattr(exact, "MANY", many)
    monkeypatch.setattr(exact, "BINS", bins)
    rng = np.random.default_rng(5)
    features = kind(rng, 54)
    rows, columns = features[:17], features[17:]
    names, column_names = rng.integers(5, size=17), rng.integers(5, size=37)
    i, j = (side.ravel() for side in np.indices((17, 37)))
    scores = exact.exactly(rows, i, columns, j).reshape(17, 37)
    places = rng.permutation(37)[:13]
    for chosen, other_names, where in ((scores, column_names, None), (scores[:, places], column_names[places], places)):
        apart = names[:, None] != other_names
        ordered = np.sort(chosen[apart])[::-1]

        def one_person(at, at_columns, other_names=other_names):
            return names[at, None] == other_names[at_columns]

        for ranks in ((1, 2, 17), (len(ordered) // 2, len(ordered), 3), ()):
            options = {"nearest": True, "ranks": ranks, "places": where, "excluded": one_person, "block": block}
            scanned = exact.scan(rows, columns, **options)
            values = [ordered[rank - 1] for rank in ranks]
            assert scanned.ranked == [(value, (ordered > value).sum()) for value in values]
            assert (scanned.nearest == np.where(apart, chosen, -np.inf).max(axis=1)).all()
    (third,) = exact.scan(rows, columns, ranks=[3], block=block).ranked
    assert third.value == np.sort(scores, axis=None)[-3]


def test_float32_alone_would_say_something_else():
    features = crowded(np.random.default_rng(0), 200)
    (scanned,) = exact.scan(features, features[:60], ranks=[500]).ranked
    i, j = (side.ravel() for side in np.indices((200, 60)))
    rounded = exact.exactly(features, i, features[:60], j).astype(np.float32)  # no float32 comes nearer
    assert (rounded > np.float32(scanned.value)).sum() != scanned.above


def test_a_row_without_a_counted_pair_has_no_nearest_column():
    rows = np.eye(2, dtype=np.float32)
    counted = np.array([[False, False], [False, True]])
    scanned = exact.scan(rows, rows, nearest=True, ranks=[1], excluded=lambda at, at_columns: ~counted[at, at_columns])
    assert scanned.nearest.tolist() == [-np.inf, 1] and scanned.ranked == [(1, 0)]
