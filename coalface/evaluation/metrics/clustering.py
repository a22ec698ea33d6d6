"""Clusterings against known identities: pairwise and BCubed precision, recall and F, NMI, counts.

Everything follows from the contingency table, of which only the cells that are not empty are kept: sorting costs
n log n, and no pair of images is ever looked at. `docs/figures.md` writes the conventions down. Functions return
fractions; `Clusters.figures` alone speaks in percent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalface.evaluation.metrics.figure import COUNT, Figure

SHARES = tuple(f"{way}_{measure}" for way in ("pairwise", "bcubed") for measure in ("precision", "recall", "f")) + (
    "nmi",
    "kept",
)
COUNTS = ("clusters", "identities", "images")
FIGURES = (*map(Figure, SHARES), *(Figure(name, unit=COUNT, better="") for name in COUNTS))

NOISE = -1
"""The predicted label of an image that is in no cluster."""


@dataclass(frozen=True)
class Clusters:
    """What a clustering of n images is worth. All but the counts are fractions, 0 to 1."""

    pairwise_precision: float
    """Of the pairs of images that share a cluster, how many share the identity; 1 where no pair shares a cluster."""
    pairwise_recall: float
    """Of the pairs of images that share an identity, how many share a cluster; 1 where no pair shares an identity."""
    pairwise_f: float
    """2 TP / (pairs in one cluster + pairs of one identity); 1 where there is neither kind."""
    bcubed_precision: float
    """The mean over images of the share of their cluster that has their identity, themselves included."""
    bcubed_recall: float
    """The mean over images of the share of their identity that is in their cluster, themselves included."""
    bcubed_f: float
    """The harmonic mean of the two means."""
    nmi: float
    """Mutual information over the arithmetic mean of the two entropies; 1 where both put all images together."""
    clusters: int
    """Clusters that were predicted; images that are in none are not counted."""
    identities: int
    kept: float
    """The share of the images that are in a cluster."""
    images: int

    def figures(self) -> dict[str, float]:
        """The figures by name, unrounded: the fractions in percent, `clusters` and `identities` as counts."""
        figures = {name: 100 * getattr(self, name) for name in SHARES}
        return figures | {"clusters": float(self.clusters), "identities": float(self.identities)}


def evaluate_clusters(true: ArrayLike, predicted: ArrayLike) -> Clusters:
    """Evaluate predicted clusters (n,) by the true identities (n,), both integers whose order means nothing.

    With n_ij images of identity i in cluster j, a_i = Σ_j n_ij and b_j = Σ_i n_ij:

    - pairwise: TP = Σ n_ij(n_ij − 1)/2, precision TP / Σ b_j(b_j − 1)/2, recall TP / Σ a_i(a_i − 1)/2;
    - BCubed: precision Σ n_ij² / b_j / n, recall Σ n_ij² / a_i / n;
    - NMI: Σ (n_ij / n) ln(n n_ij / (a_i b_j)) over (H(a) + H(b)) / 2.

    An image whose predicted label is −1 is in no cluster. It counts as a cluster of its own in every figure, so that
    leaving out what is hard costs recall, and cannot buy a better F; `kept` says how many are left. What the figures
    are on the images kept, `evaluate_clusters(true[kept], predicted[kept])` tells.

    Counts of pairs are exact integers up to 3 · 10⁹ images. Raises ValueError for no images, for labels that are no
    integers or not one for each image, for predicted labels below −1 and for negative identities.

    Sources: Bagga and Baldwin, LREC workshop 1998, and Amigó et al., Information Retrieval 12 (2009) (BCubed); Vinh,
    Epps and Bailey, JMLR 11 (2010) (NMI).

    >>> found = evaluate_clusters([0, 0, 1, 1], [0, 0, 0, 1])
    >>> found.pairwise_precision, found.pairwise_recall, found.bcubed_recall
    (0.3333333333333333, 0.5, 0.75)
    """
    identity, clustered = _labels(true, "true identity", 0), _labels(predicted, "predicted label", NOISE)
    if len(identity) != len(clustered):
        raise ValueError(
            f"{len(identity):,} identities for {len(clustered):,} predicted labels: give both of each image"
        )
    count = len(identity)
    if count == 0:
        raise ValueError("there are no images to evaluate a clustering on: pass at least one")
    noise = clustered == NOISE
    rows, a = _numbered(identity)
    columns = np.empty(count, np.int64)
    columns[~noise], sizes = _numbered(clustered[~noise])
    alone = int(noise.sum())
    columns[noise] = len(sizes) + np.arange(alone)
    b = np.concatenate([sizes, np.ones(alone, np.int64)])
    cells, n = np.unique(rows * len(b) + columns, return_counts=True)
    i, j = np.divmod(cells, len(b))

    true_pairs, together, alike = _pairs(n), _pairs(b), _pairs(a)
    square = n.astype(np.float64) ** 2
    precision, recall = float((square / b[j]).sum() / count), float((square / a[i]).sum() / count)
    nmi = 1.0
    if (
        not len(n) == len(a) == len(b)
    ):  # else each identity is one cluster: logarithms would miss 1 by an ulp, or give 0/0
        log_a, log_b = np.log(a / count), np.log(b / count)
        mutual = float((n / count * (np.log(n / count) - log_a[i] - log_b[j])).sum())
        entropies = -float((a / count * log_a).sum()) - float((b / count * log_b).sum())
        nmi = min(1.0, max(0.0, 2 * mutual / entropies))
    return Clusters(
        pairwise_precision=true_pairs / together if together else 1.0,
        pairwise_recall=true_pairs / alike if alike else 1.0,
        pairwise_f=2 * true_pairs / (together + alike) if together + alike else 1.0,
        bcubed_precision=precision,
        bcubed_recall=recall,
        bcubed_f=2 * precision * recall / (precision + recall),
        nmi=nmi,
        clusters=len(sizes),
        identities=len(a),
        kept=1 - alone / count,
        images=count,
    )


def _labels(values: ArrayLike, kind: str, least: int) -> NDArray[np.int64]:
    labels = np.asarray(values)
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and labels.size):
        raise ValueError(f"the {kind} of each image is an integer, (n,); got {labels.dtype} {labels.shape}")
    if labels.size and (worst := int(labels.min())) < least:
        but = ", but for −1, an image in no cluster" if least == NOISE else ""
        raise ValueError(f"image {int(labels.argmin()):,} has the {kind} {worst}: number from 0 on{but}")
    return labels.astype(np.int64)


def _numbered(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels as places 0, 1, … among those that occur, and how often each does."""
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return places.astype(np.int64), counts.astype(np.int64)


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())
