"""How images are grouped: each algorithm against naive loops and points whose groups can be seen."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from naive_unlabelled import in_order, naive_cfinch
from numpy.typing import NDArray
from torch import Tensor

from coalface.data.faceset import FaceSet
from coalface.evaluation.metrics.clustering import evaluate_clusters
from coalface.training.clustering.finch import GRID, cfinch
from coalface.training.clustering.pseudo_labels import Labelling


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def at(*degrees: float) -> Tensor:
    """Unit vectors of the plane."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def groups(count: int, size: int, spread: float, seed: int = 0) -> tuple[Tensor, NDArray[np.int64]]:
    """Unit vectors around so many directions, in a random order, and which one each is around."""
    draw = rng(seed)
    labels = draw.permutation(np.repeat(np.arange(count), size))
    middles = draw.standard_normal((count, 8))
    points = middles[labels] / np.linalg.norm(middles, axis=1)[labels, None]
    points = points + spread * draw.standard_normal(points.shape)
    return torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True)), labels


def degrees(wide: float) -> float:
    """The cosine distance of two directions so many degrees apart."""
    return 1 - math.cos(math.radians(wide))


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.3, 2.0])
@pytest.mark.parametrize("smallest", [1, 3])
def test_cfinch_by_naive_loops_less_small_clusters(threshold: float, smallest: int) -> None:
    features, _ = groups(6, 5, 0.12)
    clusters = Labelling(threshold=0.9, min_cluster_size=smallest)(features, threshold, rng())  # τ is the call's
    assert clusters.tolist() == in_order(naive_cfinch(features.numpy(), threshold), smallest)


@pytest.mark.parametrize("count", [1, 3, 6, 7])
def test_cfinch_is_refined_to_the_number_that_it_is_told(count: int) -> None:
    features, labels = groups(6, 5, 0.05)
    clusters = Labelling(clusters=count)(features, 2.0, rng())
    assert len(set(clusters.tolist())) == count
    assert count != 6 or evaluate_clusters(labels, clusters).pairwise_f == 1


def test_cfinch_told_more_clusters_than_its_first_level_has_keeps_that_level() -> None:
    features = groups(6, 5, 0.05)[0]
    first = cfinch(features, 2.0).labels[0]
    assert first.max() + 1 == 7
    np.testing.assert_array_equal(Labelling(clusters=9)(features, 2.0, rng()), first)


@pytest.mark.parametrize("clusters_asked", [None, 1, 2, 4, 7, 100])
def test_finch_takes_the_level_nearest_to_a_number_or_the_last_with_more_than_one_cluster(
    clusters_asked: int | None,
) -> None:
    features, _ = groups(20, 5, 0.3)
    levels = cfinch(features)
    assert len(levels.counts) > 2 and levels.counts[-1] == 1
    if clusters_asked is None:
        expected = levels.labels[-2]
    else:
        off = [abs(count - clusters_asked) for count in levels.counts]
        expected = levels.labels[off.index(min(off))]
    clusters = Labelling(algorithm="finch", clusters=clusters_asked)(features, 0.0, rng())
    assert clusters.tolist() == expected.tolist()


def test_finch_between_two_levels_takes_the_finer() -> None:
    """Four pairs, two pairs of pairs, all: levels of 4, 2 and 1 clusters; 3 is as far from 4 as from 2."""
    features = at(0, 1, 10, 11, 90, 91, 100, 101)
    assert cfinch(features).counts == (4, 2, 1)
    clusters = Labelling(algorithm="finch", clusters=3)(features, 0.0, rng())
    assert clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_k_means_finds_groups_that_lie_apart() -> None:
    features, labels = groups(5, 6, 0.05)
    clusters = Labelling(algorithm="k-means", clusters=5)(features, 0.0, rng())
    assert evaluate_clusters(labels, clusters).pairwise_f == 1
    again = Labelling(algorithm="k-means", clusters=5)(features, 0.5, rng())
    assert again.tolist() == clusters.tolist()  # drawn from the generator, and τ means nothing


def test_k_means_of_fewer_images_than_clusters_gives_each_its_own() -> None:
    assert sorted(Labelling(algorithm="k-means", clusters=9)(at(0, 90, 200), 0.0, rng()).tolist()) == [0, 1, 2]


def naive_dbscan(features: NDArray[np.float64], radius: float, core: int) -> list[int]:
    near = [[j for j in range(len(features)) if 1 - features[i] @ features[j] <= radius] for i in range(len(features))]
    cores = [i for i in range(len(features)) if len(near[i]) >= core]
    group: dict[int, int] = {}
    for start in cores:
        if start in group:
            continue
        number, queue = len(set(group.values())), [start]
        while queue:
            i = queue.pop()
            if i not in group:
                group[i] = number
                queue += [j for j in near[i] if j in cores]
    border = {i: [group[j] for j in near[i] if j in group] for i in range(len(features)) if i not in group}
    return [group[i] if i in group else (border[i] + [-1])[0] for i in range(len(features))]


@pytest.mark.parametrize("radius", [0.02, 0.05, 0.1, 0.4])
def test_dbscan_by_naive_loops(radius: float) -> None:
    features, _ = groups(6, 6, 0.07)
    clusters = Labelling(algorithm="dbscan", threshold=0.9, min_samples=4)(features, radius, rng())
    assert clusters.tolist() == in_order(naive_dbscan(features.numpy(), radius, 4), 1)
    assert -1 in clusters or radius > 0.05


def test_dbscan_takes_a_cosine_distance_by_hand() -> None:
    """Neighbours 10° apart: within 11° four of them are in reach of each inner one, and 60° is nobody's neighbour."""
    features = at(0, 10, 20, 30, 60)
    for wide, expected in ((11, [0, 0, 0, 0, -1]), (9, [-1] * 5)):
        clusters = Labelling(algorithm="dbscan", min_samples=3)(features, degrees(wide), rng())
        assert clusters.tolist() == expected


@pytest.mark.parametrize("algorithm", ["c-finch", "dbscan"])
def test_the_threshold_that_is_chosen_is_the_best_of_all_that_are_tried(algorithm: Any) -> None:
    features, labels = groups(8, 6, 0.15, seed=1)
    labelling = Labelling(algorithm=algorithm, min_samples=3)

    def score(threshold: float) -> float:
        return evaluate_clusters(labels, labelling(features, threshold, rng())).pairwise_f

    chosen = labelling.choose(features, labels)
    assert score(chosen) >= max(map(score, GRID)) > min(map(score, GRID))
    assert 0 < chosen < 1


def test_the_choice_looks_at_all_clusters_the_small_ones_as_well() -> None:
    features, labels = groups(5, 4, 0.12)
    assert Labelling(min_cluster_size=50).choose(features, labels) == Labelling().choose(features, labels)


@pytest.mark.parametrize("settings", [{"algorithm": "k-means", "clusters": 2}, {"algorithm": "dbscan"}])
def test_without_scikit_learn_two_of_them_say_what_to_do(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        ValueError, match=r"k-means and dbscan are scikit-learn's, which is not installed; `pip install"
    ):
        Labelling(**settings)(at(0, 10), 0.1, rng())
    assert Labelling()(at(0, 10), 0.1, rng()).tolist() == [0, 0]


# --- clusters as identities -------------------------------------------------------------------------------------------


def faces() -> FaceSet:
    pixels = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    return FaceSet(pixels, np.array([5, 4, 3, 2, 1]), np.full(5, -1), ())


def test_images_in_a_cluster_have_it_for_their_identity_and_the_others_are_left_out() -> None:
    relabelled = faces().clustered(np.array([7, -1, 2, 7, 4]))
    assert relabelled.rows.tolist() == [5, 3, 2, 1] and relabelled.labels.tolist() == [2, 0, 2, 1]
    assert relabelled.names == ("cluster-2", "cluster-4", "cluster-7") and relabelled.labels.dtype == np.int64
    assert relabelled.counts().tolist() == [1, 1, 2]


def test_images_in_no_cluster_at_all_leave_an_empty_set() -> None:
    relabelled = faces().clustered(np.full(5, -1))
    assert (len(relabelled), relabelled.names) == (0, ())


def test_clusters_of_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match="4 clusters for 5 images"):
        faces().clustered(np.zeros(4, dtype=np.int64))
