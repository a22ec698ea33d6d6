"""Verification of those who are enrolled: every probe against every template, and the figures of these trials.

A trial is genuine where the probe is of the template's own person. The figures are those of
`coalface.evaluation.metrics.verification` over all trials together; where clients have thresholds, also what these
accept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import slices, unit_rows
from coalface.evaluation.metrics.figure import Figure
from coalface.evaluation.metrics.verification import EER, TAR, check_scores, eer, tar_at_far

ACCEPTED = Figure("accepted")
ACCEPTED_OF_OTHERS = Figure("accepted of others", better="lower")
FIGURES = (ACCEPTED, ACCEPTED_OF_OTHERS)

FARS = (0.1, 0.01, 0.001)
_BLOCK = 1024  # probes at a time


def templates(
    features: NDArray[np.float32], labels: NDArray[np.int64], count: int, *, unit: bool = True
) -> NDArray[np.float64]:
    """(count, d) each identity's template: the mean of its unit features (n, d), at length one; zeros stay zeros.

    Where `unit` is False it is as long as it is. `labels` (n,) are 0 to count − 1. In float64, in the order of the
    rows. Raises ValueError for an identity without any.
    """
    images = np.bincount(labels, minlength=count)
    if len(bad := np.flatnonzero(images == 0)):
        raise ValueError(f"{len(bad)} identities have no image to enrol with, the first is number {bad[0]}")
    sums = np.zeros((count, features.shape[1]))
    np.add.at(sums, labels, features.astype(np.float64))
    means = sums / images[:, None]
    return unit_rows(means) if unit else means


def cosine_scores(enrolled: NDArray[np.float64], probes: NDArray[np.float32]) -> NDArray[np.float64]:
    """(C, M) cosines of C unit templates and M unit probes, in float64."""
    scores = np.empty((len(enrolled), len(probes)))
    for part in slices(len(probes), _BLOCK):
        scores[:, part] = enrolled @ probes[part].astype(np.float64).T
    return scores


@dataclass(frozen=True)
class Verified:
    """What all trials say; fractions, 0 to 1."""

    tars: dict[float, float]
    """FAR -> TAR, where the impostor trials carry that FAR."""
    eer: float
    genuine: int
    impostors: int
    accepted: float | None = None
    """By clients' own thresholds: the share of a client's genuine trials that it accepts, the mean over clients."""
    accepted_of_others: float | None = None
    """The share of its impostor trials."""

    def figures(self) -> dict[str, float]:
        """The figures in percent, unrounded: `tar@far=0.1`, …, `eer`, `accepted`, `accepted of others`."""
        over_all = {TAR.at(far): 100 * tar for far, tar in self.tars.items()} | {EER.name: 100 * self.eer}
        by_thresholds = {ACCEPTED.name: self.accepted, ACCEPTED_OF_OTHERS.name: self.accepted_of_others}
        return over_all | {name: 100 * share for name, share in by_thresholds.items() if share is not None}


def verify(
    scores: NDArray[np.float64], clients: NDArray[np.int64], owners: NDArray[np.int64], thresholds: object = None
) -> Verified:
    """Evaluate the scores (C, M) of M probes against C clients' templates; it takes some 50 bytes a trial.

    `clients` (C,) and `owners` (M,) say whose template and whose probe each is; nobody has two templates. A probe whose
    owner has no template makes impostor trials alone. `thresholds` (C,) are clients' own, NaN where one has none: a
    trial is accepted iff its score is at least the threshold. A client without genuine trials has no part in the mean
    of those.

    Raises ValueError unless there are trials of both kinds and all scores are finite.
    """
    if scores.shape != (len(clients), len(owners)) or len(np.unique(clients)) != len(clients):
        raise ValueError(
            f"scores {scores.shape} of {len(clients)} clients and {len(owners)} probes do not go together: give a row "
            "for each client, once, and a column for each probe"
        )
    same = clients[:, None] == owners[None]
    check_scores(scores.ravel(), same.ravel())
    accepted = _accepted(scores, same, np.asarray(thresholds, dtype=np.float64)) if thresholds is not None else {}
    tars = tar_at_far(scores.ravel(), same.ravel(), FARS)
    return Verified(
        tars={tar.far: tar.tar for tar in tars if tar.carried},
        eer=eer(scores.ravel(), same.ravel()),
        genuine=int(same.sum()),
        impostors=int((~same).sum()),
        **accepted,
    )


def _accepted(
    scores: NDArray[np.float64], same: NDArray[np.bool_], thresholds: NDArray[np.float64]
) -> dict[str, float]:
    if thresholds.shape != (len(scores),):
        raise ValueError(f"{thresholds.shape} thresholds for {len(scores)} clients: give one for each, NaN for none")
    accepted = scores >= thresholds[:, None]
    shares_by_name = {}
    for name, kind in (("accepted", same), ("accepted_of_others", ~same)):
        counts = kind.sum(axis=1)
        counted = ~np.isnan(thresholds) & (counts > 0)
        if counted.any():
            shares = (accepted & kind).sum(axis=1)[counted] / counts[counted]
            shares_by_name[name] = math.fsum(shares) / len(shares)
    return shares_by_name
