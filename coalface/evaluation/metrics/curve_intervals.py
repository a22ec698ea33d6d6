"""Intervals of curves: TAR at each FAR, AUC and EER, over draws of the identities of a pair list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.verification import equal_error

WEIGHED, FEWEST = 20_000_000, 200
"""Pairs that are weighed in all draws together, and draws that even the longest list has: 2,000 draws of 6,000 pairs
take 0.2 s of a processor, 200 of 300,000 pairs 1.1 s."""
ENDS = (0.025, 0.975)
"""Quantiles of the draws."""

Ends = tuple[float, float]
"""Where an interval begins and ends, as fractions."""


@dataclass(frozen=True, eq=False)
class CurveIntervals:
    """What 95 % of the draws lie between."""

    tar: NDArray[np.float64]
    """(2, fars) the ends at each FAR."""
    auc: Ends
    eer: Ends


def curve_intervals(
    scores: NDArray[np.float64], places: NDArray[np.int64], bootstrap: Bootstrap, fars: Sequence[float]
) -> CurveIntervals | None:
    """Intervals of the ROC at some FARs, of its AUC and of its EER; None where no draw has pairs of both kinds.

    `scores` (n,) are of the pairs at `places` (n,) of the bootstrap's list, each as often as models scored it. Each
    draw is the list with its pairs as often as they weigh: its thresholds are found anew, by the rules of `tar_at_far`.
    """
    pairs = bootstrap.pairs
    left, right = pairs.sides(places)
    kinds = [np.flatnonzero(pairs.same[places] == kind) for kind in (False, True)]
    impostor, genuine = (kind[np.argsort(scores[kind], kind="stable")] for kind in kinds)
    one, other, owner = left[impostor], right[impostor], left[genuine]
    impostor_scores, genuine_scores = scores[impostor], scores[genuine]
    levels = np.unique(scores)
    impostor_at, genuine_at = (np.searchsorted(of_kind, levels) for of_kind in (impostor_scores, genuine_scores))
    low, high = (np.searchsorted(impostor_scores, genuine_scores, side) for side in ("left", "right"))
    starts = np.flatnonzero(np.diff(impostor_scores, prepend=-np.inf))  # of each group of tied impostors
    missed_at = np.append(np.searchsorted(genuine_scores, impostor_scores[starts[::-1]], side="right"), 0)
    draws = max(FEWEST, WEIGHED // len(scores))
    tars, aucs, eers = [], [], []
    for counts in np.ascontiguousarray(bootstrap.counts[:, :draws].T, dtype=np.int64):
        impostor_below = np.append(0, np.cumsum(counts[one] * counts[other]))
        genuine_below = np.append(0, np.cumsum(counts[owner]))
        impostors, genuines = impostor_below[-1], genuine_below[-1]
        if not impostors or not genuines:
            continue
        accepted = impostors - impostor_below[starts[::-1]]  # down to each group, the best first
        allowance = np.floor(np.asarray(fars) * impostors + 1e-9)  # 0.29 × 100 is 29
        missed = genuine_below[missed_at[np.searchsorted(accepted, allowance, side="right")]]
        tars.append(1 - missed / genuines)
        below = impostor_below[low] + impostor_below[high]
        aucs.append((np.diff(genuine_below) @ below) / (2 * impostors * genuines))
        far = 1 - np.append(impostor_below[impostor_at] / impostors, 1)
        eers.append(equal_error(far, np.append(genuine_below[genuine_at] / genuines, 1)))
    if not tars:
        return None
    auc, eer = (tuple(np.quantile(values, ENDS).tolist()) for values in (aucs, eers))
    return CurveIntervals(np.quantile(tars, ENDS, axis=0), auc, eer)
