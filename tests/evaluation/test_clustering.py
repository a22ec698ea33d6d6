"""Figures of a clustering against loops over all pairs and all images, scikit-learn, and numbers worked by hand."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from coalface.evaluation.metrics.clustering import Clusters, evaluate_clusters

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 4)), min_size=1, max_size=30)


def apart(predicted):
    """Images that are in no cluster as clusters of their own."""
    return [label if label >= 0 else 1000 + i for i, label in enumerate(predicted)]


def naive_pairwise(true, predicted):
    together = alike = true_pairs = 0
    for i, j in itertools.combinations(range(len(true)), 2):
        together += predicted[i] == predicted[j]
        alike += true[i] == true[j]
        true_pairs += predicted[i] == predicted[j] and true[i] == true[j]
    precision = true_pairs / together if together else 1.0
    recall = true_pairs / alike if alike else 1.0
    return (
        precision,
        recall,
        2 * precision * recall / (precision + recall) if true_pairs else float(together + alike == 0),
    )


def naive_bcubed(true, predicted):
    precisions, recalls = [], []
    for i in range(len(true)):
        mates = [k for k in range(len(true)) if predicted[k] == predicted[i]]
        kin = [k for k in range(len(true)) if true[k] == true[i]]
        precisions.append(sum(true[k] == true[i] for k in mates) / len(mates))
        recalls.append(sum(predicted[k] == predicted[i] for k in kin) / len(kin))
    precision, recall = sum(precisions) / len(true), sum(recalls) / len(true)
    return precision, recall, 2 / (1 / precision + 1 / recall)


def pairwise(clusters: Clusters):
    return clusters.pairwise_precision, clusters.pairwise_recall, clusters.pairwise_f


def bcubed(clusters: Clusters):
    return clusters.bcubed_precision, clusters.bcubed_recall, clusters.bcubed_f


@settings(max_examples=30, deadline=None)
@given(LABELS)
def test_every_figure_equals_its_loop_and_scikit_learn(labels):
    true, predicted = map(list, zip(*labels, strict=True))
    clusters, whole = evaluate_clusters(true, predicted), apart(predicted)
    assert pairwise(clusters) == pytest.approx(naive_pairwise(true, whole), abs=1e-12)
    assert bcubed(clusters) == pytest.approx(naive_bcubed(true, whole), abs=1e-12)
    assert clusters.nmi == pytest.approx(normalized_mutual_info_score(true, whole), abs=1e-9)
    (_, fp), (fn, tp) = pair_confusion_matrix(true, whole)
    assert clusters.pairwise_f == (2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 1)
    assert (clusters.identities, clusters.clusters) == (len(set(true)), len({k for k in predicted if k >= 0}))
    assert clusters.kept == pytest.approx(sum(k >= 0 for k in predicted) / len(true))


def test_by_hand():
    # Identities aaaa bb c; clusters {a a a b}, {a b}, {c}.
    clusters = evaluate_clusters([0, 0, 0, 0, 1, 1, 2], [5, 5, 5, 7, 5, 7, 9])
    # Pairs in one cluster: 6 + 1 + 0; of one identity: 6 + 1; in both: 3.
    assert pairwise(clusters) == pytest.approx((3 / 7, 3 / 7, 3 / 7))
    precision = (3 * 3 / 4 + 1 / 2 + 1 / 4 + 1 / 2 + 1) / 7
    recall = (3 * 3 / 4 + 1 / 4 + 1 / 2 + 1 / 2 + 1) / 7
    assert bcubed(clusters) == pytest.approx((precision, recall, 2 * precision * recall / (precision + recall)))
    cells = [(3, 4, 4), (1, 4, 2), (1, 2, 4), (1, 2, 2), (1, 1, 1)]  # n_ij, a_i, b_j
    mutual = sum(n / 7 * math.log(7 * n / (a * b)) for n, a, b in cells)
    entropy = sum(k / 7 * math.log(7 / k) for k in (4, 2, 1))
    assert clusters.nmi == pytest.approx(mutual / entropy)
    assert (clusters.clusters, clusters.identities, clusters.kept, clusters.images) == (3, 3, 1, 7)


def test_leaving_out_what_is_hard_does_not_buy_a_better_f():
    true = np.repeat(np.arange(10), 10)
    labels = np.where(np.arange(100) % 10 < 2, true, -1)  # two images of each identity are put together, and rightly
    left_out, alone, in_cluster = evaluate_clusters(true, labels), evaluate_clusters(true, apart(labels)), labels >= 0
    assert (left_out.pairwise_precision, left_out.kept, left_out.clusters) == (1, pytest.approx(0.2), 10)
    assert left_out.pairwise_recall == pytest.approx(1 / 45)
    assert evaluate_clusters(true[in_cluster], labels[in_cluster]).pairwise_f == 1
    assert dataclasses.replace(left_out, kept=1.0, clusters=90) == alone


ALONE, ONE = list(range(6)), [3] * 6


@pytest.mark.parametrize(
    ("true", "predicted", "pairs", "cubes", "nmi"),
    [
        ([4], [-1], (1, 1, 1), (1, 1, 1), 1),
        ([0, 0, 0, 1, 1, 1], ALONE, (1, 0, 0), (1, 1 / 3, 1 / 2), None),  # nothing said, nothing wrong
        ([0, 0, 0, 1, 1, 1], [-1] * 6, (1, 0, 0), (1, 1 / 3, 1 / 2), None),
        ([0, 0, 0, 1, 1, 1], ONE, (6 / 15, 1, 4 / 7), (1 / 2, 1, 2 / 3), 0),
        (ALONE, ONE, (0, 1, 0), (1 / 6, 1, 2 / 7), 0),
        (ONE, ALONE, (1, 0, 0), (1, 1 / 6, 2 / 7), 0),
        (ALONE, ALONE, (1, 1, 1), (1, 1, 1), 1),
    ],
)
def test_edges(true, predicted, pairs, cubes, nmi):
    clusters = evaluate_clusters(true, predicted)
    assert pairwise(clusters) == pytest.approx(pairs) and bcubed(clusters) == pytest.approx(cubes)
    assert nmi is None or clusters.nmi == nmi


def test_what_is_no_clustering_is_refused():
    for true, predicted, message in (
        ([], [], "there are no images"),
        ([0, 1], [0], "2 identities for 1 predicted labels"),
        ([0.0, 1.0], [0, 1], "got float64"),
        ([0, 1], [-2, 1], "image 0 has the predicted label -2"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_clusters(true, predicted)
