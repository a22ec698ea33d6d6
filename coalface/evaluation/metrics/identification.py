"""Closed-set identification: is the gallery image most like a query one of its identity? Rank-1, and rank-k.

`docs/figures.md` writes the convention down. Functions return fractions; `Identification.figures` alone speaks in
percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import check_unit, exactly, slices
from coalface.evaluation.metrics.figure import Figure

RANK = Figure("rank-")
FIGURES = (RANK,)

TIE = 1e-10
"""Cosines that differ by no more are equal: it is far above what the order of a float64 sum changes, and far below the
rounding of float32 embeddings."""


@dataclass(frozen=True, eq=False)
class Identification:
    """Where each of q queries found its identity in a gallery."""

    ranks: NDArray[np.int64]
    """(q,) the rank of the best image of the query's own identity, 1 the first; every image of another identity that
    is as like the query stands before it."""

    def right(self, k: int = 1) -> NDArray[np.bool_]:
        """(q,) whether one of the k most similar images has the query's identity, however ties are broken."""
        if k < 1:
            raise ValueError(f"there is no rank {k}: ranks count from 1")
        return self.ranks <= k

    def figures(self, ks: Sequence[int] = (1,)) -> dict[str, float]:
        """`rank-1` and so on, in percent, unrounded."""
        return {RANK.at(k): 100 * float(self.right(k).mean()) for k in ks}


def identify(
    queries: NDArray[np.float32],
    gallery: NDArray[np.float32],
    query_identities: NDArray[np.int64],
    gallery_identities: NDArray[np.int64],
    *,
    block: int = 1024,
) -> Identification:
    """Look up unit embeddings (q, d) among unit embeddings (g, d), with the identities of both, (q,) and (g,).

    With s the cosine, a query x of identity y has the rank 1 + #{j : y_j ≠ y, s(x, x_j) ≥ max s(x, x_i) over y_i = y}.
    Ties go against the query: a model that gives all images one embedding has a rank-1 of 0, not of whatever the order
    of the gallery makes of it. Cosines are summed in float64, and equal if they differ by at most `TIE`, so that
    neither `block` nor the place of an image decides; embeddings of length zero have cosine 0 with all.

    Time is O(q g d), memory O(block² + block d) beside the embeddings.

    Raises ValueError where a query's identity is not in the gallery (this is closed-set identification), where an
    embedding has another length than 1 or 0, and where the shapes do not fit.
    """
    check_unit(queries, "query", query_identities)
    check_unit(gallery, "gallery image", gallery_identities)
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} dimensions and the gallery {gallery.shape[1]}: one model each"
        )
    best = mate_scores(queries, gallery, query_identities, gallery_identities)
    before = np.zeros(len(queries), np.int64)
    for part in slices(len(gallery), block):
        images, names = gallery[part].astype(np.float64), gallery_identities[part]
        for some in slices(len(queries), block):
            scores = queries[some].astype(np.float64) @ images.T
            ahead = scores >= best[some, None] - TIE
            ahead &= names != query_identities[some, None]
            before[some] += ahead.sum(axis=1)
    return Identification(1 + before)


def query_and_gallery(
    identities: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which images (n,) of a test set are queries, and which its gallery: places, ascending.

    One image, drawn uniformly, of each identity with two or more is a query; all others are the gallery. Identities
    with one image are in the gallery alone, as distractors. This rule is ours: the paper of FedFR for unsupervised
    domain adaptation has one query of each of 2,793 Caucasian identities of RFW, and a gallery of 6,387 images of
    2,958, which are not all of the others; it does not say how either was chosen. Draw once for all methods, so that
    they are compared on the same queries. Raises ValueError if no identity has two images.

    Examples:
        >>> query_and_gallery(np.array([7, 3, 3, 9]), np.random.default_rng(0))
        (array([2]), array([0, 1, 3]))
    """
    if len(identities) == 0:
        raise ValueError("there are no images to draw queries from: pass at least two of one identity")
    _, counts = np.unique(identities, return_counts=True)
    order = np.argsort(identities, kind="stable")
    chosen = np.cumsum(counts) - counts + rng.integers(0, counts)
    queries = np.sort(order[chosen[counts > 1]])
    if len(queries) == 0:
        raise ValueError("every identity has one image, so a query would find nobody: pass identities with two or more")
    return queries, np.setdiff1d(np.arange(len(identities)), queries)


def mate_scores(
    queries: NDArray[np.float32],
    gallery: NDArray[np.float32],
    query_identities: NDArray[np.int64],
    gallery_identities: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(q,) the highest T of each query with an image of its identity. Raises ValueError where the gallery has none."""
    order = np.argsort(gallery_identities, kind="stable")
    begins, ends = (np.searchsorted(gallery_identities[order], query_identities, side) for side in ("left", "right"))
    counts = ends - begins
    if len(lost := np.flatnonzero(counts < 1)):
        raise ValueError(
            f"the gallery holds no image of the identity of {len(lost):,} of {len(queries):,} queries; the first is "
            f"query {lost[0]:,}, of identity {query_identities[lost[0]]}: a closed set has everybody who is looked for"
        )
    starts = np.cumsum(counts) - counts
    places = order[np.arange(counts.sum()) - np.repeat(starts - begins, counts)]
    scores = exactly(queries, np.repeat(np.arange(len(queries)), counts), gallery, places)
    return np.asarray(np.maximum.reduceat(scores, starts))
