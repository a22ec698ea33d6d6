"""Open-set search, 1:N: probes are looked up in a gallery that holds some of their subjects.

This is how IJB-A, IJB-B and IJB-C judge identification, with the template features of `templates`. Ranks are those of
`identification`; FPIR is a count, thresholds are exact order statistics of the scores T of `exact`, and ties go against
the model. `docs/figures.md` has the definitions. Functions return fractions; `figures` alone speak in percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import check_unit, exactly, rounding
from coalface.evaluation.metrics.identification import Identification, identify
from coalface.evaluation.metrics.verification import allowed

FPIRS = (0.01, 0.1)
RANKS = (1, 5, 10)

_Floats = NDArray[np.float32]
_Scores = NDArray[np.float64]
_Places = NDArray[np.int64]


@dataclass(frozen=True)
class TpirAtFpir:
    """The true positive identification rate where at most floor(fpir × searches) of others find somebody."""

    fpir: float
    tpir: float
    """Fraction, 0 to 1, of the searches for somebody in the gallery."""
    threshold: float
    false_positives: int
    searches: int
    """Searches for somebody who is not in the gallery."""
    carried: bool
    """False where floor(fpir × searches) is 0."""


@dataclass(frozen=True, eq=False)
class OpenSet:
    """What searching a gallery says of a model."""

    identification: Identification
    """Of the probes whose subject is in the gallery."""
    tpirs: tuple[TpirAtFpir, ...]
    """None where every probe's subject is in the gallery, so that nobody can be mistaken."""

    def figures(self, ks: Sequence[int] = RANKS) -> dict[str, float]:
        """`rank-1`, …, `tpir@fpir=0.01`, … in percent, unrounded; without those that the searches cannot carry."""
        tpirs = {f"tpir@fpir={one.fpir:g}": 100 * one.tpir for one in self.tpirs if one.carried}
        return self.identification.figures(ks) | tpirs


def search(
    probes: _Floats,
    gallery: _Floats,
    probe_subjects: _Places,
    gallery_subjects: _Places,
    *,
    fpirs: Sequence[float] = FPIRS,
    block: int = 1024,
) -> OpenSet:
    """Look up unit templates (p, d) in a gallery (g, d), with the subjects of both, (p,) and (g,).

    A probe is mated if its subject is in the gallery. Its rank is that of `identify`, where ties go against it; its
    score is the highest T with a template of its subject. Of the M probes that are not mated, at most floor(fpir × M)
    may have a T with anybody that reaches the threshold, which lies just above the highest that must not. TPIR is the
    share of the mated probes that have rank 1 and a score that reaches it. IJB searches each of its two galleries with
    the same probes, and `mean_figures` are those of both.

    (insightface's script `ijb_1n.py` counts something else: it puts both galleries together, so that every probe is
    mated, takes the ⌈fpir × p⌉-th highest score of all pairs of a probe and another's template for the threshold, and
    asks for no rank.)

    Time O(p g d), memory O(block (block + g)). Raises ValueError where the shapes do not fit, for features of another
    length than 1 or 0, and if no probe is mated.
    """
    _check_search(probes, gallery, probe_subjects, gallery_subjects)
    mated = np.isin(probe_subjects, gallery_subjects)
    if not mated.any():
        raise ValueError("no probe's subject is in the gallery: these lists do not belong together")
    found = identify(probes[mated], gallery, probe_subjects[mated], gallery_subjects, block=block)
    if mated.all():
        return OpenSet(found, ())
    scores = _mates(probes[mated], gallery, probe_subjects[mated], gallery_subjects)
    others = np.sort(_highest(probes[~mated], gallery, block))
    return OpenSet(found, tuple(_tpir(scores, found.right(1), others, fpir) for fpir in fpirs))


def mean_figures(results: Sequence[OpenSet], ks: Sequence[int] = RANKS) -> dict[str, float]:
    """The mean over galleries, in percent, of each figure that all of them carry: IJB-B and IJB-C have two."""
    figures = [result.figures(ks) for result in results]
    return {
        name: math.fsum(one[name] for one in figures) / len(figures)
        for name in figures[0]
        if all(name in one for one in figures)
    }


def _tpir(scores: _Scores, first: NDArray[np.bool_], others: _Scores, fpir: float) -> TpirAtFpir:
    """`others` ascend."""
    count = allowed(fpir, len(others))
    if count >= len(others):
        threshold = min(float(others[0]), float(scores.min()))
    else:
        threshold = float(np.nextafter(others[len(others) - 1 - count], np.inf))
    taken = int(np.count_nonzero(first & (scores >= threshold)))
    wrong = int(np.count_nonzero(others >= threshold))
    return TpirAtFpir(float(fpir), taken / len(scores), threshold, wrong, len(others), count >= 1)


def _mates(probes: _Floats, gallery: _Floats, probe_subjects: _Places, gallery_subjects: _Places) -> _Scores:
    """(p,) the highest T of each probe with a template of its subject."""
    order = np.argsort(gallery_subjects, kind="stable")
    begins, ends = (np.searchsorted(gallery_subjects[order], probe_subjects, side) for side in ("left", "right"))
    counts = ends - begins
    starts = np.cumsum(counts) - counts
    column = order[np.arange(counts.sum()) - np.repeat(starts - begins, counts)]
    values = exactly(probes, np.repeat(np.arange(len(probes)), counts), gallery, column)
    return np.maximum.reduceat(values, starts)


def _highest(probes: _Floats, gallery: _Floats, block: int) -> _Scores:
    """(p,) the highest T of each probe with anybody."""
    found = np.empty(len(probes))
    there, error = gallery.astype(np.float64), rounding(probes.shape[1], double=True)
    for start in range(0, len(probes), block):
        products = probes[start : start + block].astype(np.float64) @ there.T
        row, column = np.nonzero(products >= products.max(axis=1, keepdims=True) - 2 * error)
        values = exactly(probes, row + start, gallery, column)
        found[start : start + block] = np.maximum.reduceat(values, np.searchsorted(row, np.arange(len(products))))
    return found


def _check_search(probes: _Floats, gallery: _Floats, probe_subjects: _Places, gallery_subjects: _Places) -> None:
    for features, subjects, what in (
        (probes, probe_subjects, "probe"),
        (gallery, gallery_subjects, "gallery template"),
    ):
        check_unit(features, what)
        if subjects.shape != (len(features),):
            raise ValueError(f"features {features.shape} with subjects {subjects.shape}: give one for each {what}")
    if probes.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"probes have {probes.shape[1]} dimensions and the gallery {gallery.shape[1]}: one model for both"
        )
