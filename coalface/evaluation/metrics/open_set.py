"""Open-set search, 1:N: probes are looked up in a gallery that holds some of their subjects.

The identification of IJB-A, IJB-B and IJB-C, with the template features of `templates`. Ranks are those of
`identification`; FPIR is a count, thresholds are exact order statistics of the scores T of `exact`, and ties go against
the model. `docs/figures.md` has the definitions. Functions return fractions; `figures` alone speak in percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import Floats, Places, Scores, check_unit, scan
from coalface.evaluation.metrics.identification import Identification, identify, mate_scores
from coalface.evaluation.metrics.verification import Ranked, allowed, ranks_asked

FPIRS = (0.01, 0.1)
RANKS = (1, 5, 10)


@dataclass(frozen=True)
class TpirAtFpir:
    """The true positive identification rate where at most floor(fpir × trials) of others find somebody."""

    fpir: float
    tpir: float
    """Fraction, 0 to 1, of the searches for somebody in the gallery."""
    threshold: float
    false_positives: int
    trials: int
    """Searches for somebody who is not in the gallery; in `personalised`'s `legacy`, pairs with another's template."""
    carried: bool
    """False where no false positive is allowed: there are too few trials."""


@dataclass(frozen=True, eq=False)
class OpenSet:
    """What searching a gallery says of a model."""

    identification: Identification
    """Of the probes whose subject is in the gallery."""
    tpirs: tuple[TpirAtFpir, ...]
    """None where every probe's subject is in the gallery, so that nobody can be mistaken."""

    def figures(self, ks: Sequence[int] = RANKS) -> dict[str, float]:
        """`rank-1`, …, `tpir@fpir=0.01`, … in percent, unrounded; without those that the searches cannot carry."""
        tpirs = {f"tpir@fpir={tpir.fpir:g}": 100 * tpir.tpir for tpir in self.tpirs if tpir.carried}
        return self.identification.figures(ks) | tpirs


def search(
    probes: Floats,
    gallery: Floats,
    probe_subjects: Places,
    gallery_subjects: Places,
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
    check_unit(probes, "probe", probe_subjects)
    mated = np.isin(probe_subjects, gallery_subjects)
    if not mated.any():
        raise ValueError("no probe's subject is in the gallery: these lists do not belong together")
    identification = identify(probes[mated], gallery, probe_subjects[mated], gallery_subjects, block=block)
    if mated.all():
        return OpenSet(identification, ())
    scores = mate_scores(probes[mated], gallery, probe_subjects[mated], gallery_subjects)
    strangers = scan(probes[~mated], gallery, nearest=True).nearest
    return OpenSet(identification, tuple(tpirs_at(fpirs, scores, identification.right(1), strangers)))


def tpirs_at(fpirs: Sequence[float], mated: Scores, first: NDArray[np.bool_], non_mated: Scores) -> list[TpirAtFpir]:
    """TPIR at each FPIR of the scores of mated probes, of which those at rank 1 are `first`, and of the others."""
    highest = np.sort(non_mated)[::-1]
    results = []
    for fpir, rank in zip(fpirs, ranks_asked(fpirs, len(highest)), strict=True):
        count = allowed(fpir, len(highest))
        threshold, wrong = Ranked.of_sorted(highest, rank).allowing(count, len(highest), mated)
        accepted = int((first & (mated >= threshold)).sum())
        results.append(TpirAtFpir(float(fpir), accepted / len(mated), threshold, wrong, len(highest), count >= 1))
    return results


def mean_figures(results: Sequence[OpenSet], ks: Sequence[int] = RANKS) -> dict[str, float]:
    """The mean over galleries, in percent, of each figure that all of them carry: IJB-B and IJB-C have two."""
    figures = [result.figures(ks) for result in results]
    return {
        name: math.fsum(of_gallery[name] for of_gallery in figures) / len(figures)
        for name in figures[0]
        if all(name in of_gallery for of_gallery in figures)
    }
