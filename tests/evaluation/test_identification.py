"""Ranks in a gallery against a loop over every query and image, and worked by hand."""

import numpy as np
import pytest
from unit_rows import unit

from coalface.evaluation.metrics.identification import identify, query_and_gallery


def world(seed, images=120, people=15, noise=1.2):
    rng = np.random.default_rng(seed)
    identities = np.concatenate([np.arange(people), rng.integers(0, people, images - people)])
    centres = rng.normal(size=(people, 8))
    return unit(centres[identities] + noise * rng.normal(size=(images, 8))), identities, rng


def naive_ranks(queries, gallery, query_names, names):
    ranks = []
    for i, query in enumerate(queries.astype(np.float64)):
        scores = [sum(a * b for a, b in zip(query, image, strict=True)) for image in gallery.astype(np.float64)]
        best_own = max(s for j, s in enumerate(scores) if names[j] == query_names[i])
        other_scores = [s for j, s in enumerate(scores) if names[j] != query_names[i]]
        ranks.append(1 + sum(s > best_own or abs(s - best_own) < 1e-12 for s in other_scores))
    return ranks


@pytest.mark.parametrize("seed", range(4))
def test_ranks_equal_a_loop_whatever_the_blocks(seed):
    features, identities, rng = world(seed)
    queries, gallery = query_and_gallery(identities, rng)
    split = features[queries], features[gallery], identities[queries], identities[gallery]
    naive = naive_ranks(*split)
    assert len(set(naive)) >= 4 and min(naive) == 1
    for block in (1, 7, 4096):
        result = identify(*split, block=block)
        assert result.ranks.tolist() == naive
    assert result.figures((1, 5)) == {f"rank-{k}": 100 * np.mean([rank <= k for rank in naive]) for k in (1, 5)}


def test_by_hand():
    at = np.deg2rad([0, 10, 25, 40, 90])  # the gallery on a circle; identities 1 2 1 3 2
    gallery, names = unit(np.stack([np.cos(at), np.sin(at)], 1)), np.array([1, 2, 1, 3, 2])
    looks = np.deg2rad([2, 20, 60, 36])
    queries = unit(np.stack([np.cos(looks), np.sin(looks)], 1))
    result = identify(queries, gallery, np.array([1, 1, 2, 2]), names)
    # 2°: 0° is next. 20°: 25° is. 60°: 40° is next (3), then 90° (2). 36°: 40° (3), 25° (1), then 10° (2).
    assert result.ranks.tolist() == [1, 1, 2, 3]
    assert result.right(2).tolist() == [True, True, True, False]
    assert result.figures((1, 2, 3)) == {"rank-1": 50, "rank-2": 75, "rank-3": 100}


@pytest.mark.parametrize("dimensions", [3, 256, 509])
def test_a_collapsed_model_finds_nobody(dimensions):
    rng = np.random.default_rng(dimensions)
    identities = np.repeat(np.arange(50), 3)
    queries, gallery = query_and_gallery(identities, rng)
    for features in (unit(np.tile(rng.normal(size=dimensions), (150, 1))), np.zeros((150, dimensions), np.float32)):
        for block in (1, 13, 1024):
            result = identify(
                features[queries], features[gallery], identities[queries], identities[gallery], block=block
            )
            assert result.ranks.tolist() == [1 + 100 - 2] * 50 and result.figures()["rank-1"] == 0


def test_queries_and_gallery_are_drawn_from_who_has_two():
    identities = np.array([4, 9, 4, 2, 2, 4, 7, 2])
    drawn = set()
    for seed in range(200):
        queries, gallery = query_and_gallery(identities, np.random.default_rng(seed))
        assert sorted([*queries, *gallery]) == list(range(8)) and sorted(identities[queries]) == [2, 4]
        assert list(queries) == sorted(queries) and {9, 7} <= set(identities[gallery].tolist())
        drawn |= {tuple(queries.tolist())}
    assert drawn == {tuple(sorted((a, b))) for a in (0, 2, 5) for b in (3, 4, 7)}  # every one can be drawn
    again = query_and_gallery(identities, np.random.default_rng(199))
    assert again[0].tolist() == queries.tolist() and again[1].tolist() == gallery.tolist()


F, G = unit([[1, 0], [0, 1]]), unit([[1, 1], [1, 2], [1, 3]])
ONE, TWO = np.array([0, 1]), np.array([0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((F, G, np.array([0, 8]), TWO), r"1 of 2 queries; the first is query 1, of identity 8"),
        ((F, 2 * G, ONE, TWO), r"3 of 3 features .* of gallery image 0, of length 2"),
        ((F, np.ones((3, 1), np.float32), ONE, TWO), "queries have 2 dimensions and the gallery 1"),
        ((F, G, TWO, TWO), r"features \(2, 2\) with identities \(3,\)"),
        ((F[:0], G, ONE[:0], TWO), "at least one query"),
    ],
)
def test_what_cannot_be_looked_up_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        identify(*arguments)


def test_what_cannot_be_drawn_or_ranked_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="every identity has one image"):
        query_and_gallery(np.arange(5), rng)
    with pytest.raises(ValueError, match="there are no images"):
        query_and_gallery(np.arange(0), rng)
    with pytest.raises(ValueError, match="there is no rank 0"):
        identify(F, G, ONE, TWO).right(0)
