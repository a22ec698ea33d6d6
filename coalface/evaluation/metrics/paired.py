"""Is one method better than another? A paired bootstrap over identities, from the evidence that runs left.

The same draws serve every method and every seed. The difference of two methods in a draw is that of their means over
seeds; its 2.5 % and 97.5 % quantiles over the draws are the interval. Where seeds are evaluated on lists of their own
(other people each), both methods have the same lists, each with draws of its own.

The interval speaks of the test identities alone, not of the spread over seeds. It errs on the wide side: a
product of counts varies more than the count of a pair drawn by itself, so where methods differ by chance of the pair
and not of the identity, it is up to 1.4 times as wide as it need be (simulated in the tests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.evidence import RESAMPLERS, hits
from coalface.evaluation.metrics.verification import EER


@dataclass(frozen=True, eq=False)
class Resampled:
    """One figure of one run, on the whole list and in every draw."""

    figure: str
    """`accuracy`, `eer` or `tar@far=0.01` and so on."""
    point: float
    """Fraction, on the list as it is."""
    values: NDArray[np.float64]
    """(draws,) fractions; NaN in a draw in which no genuine or no impostor pair is left of those evaluated."""
    short: NDArray[np.bool_]
    """(draws,) True where the kept tail did not reach the threshold: the value is then a lower bound."""
    bootstrap: Bootstrap
    folds: tuple[int, ...] | None = None
    """The folds whose pairs were evaluated; None: all."""


@dataclass(frozen=True)
class PairedDifference:
    """First method less second, in fractions."""

    figure: str
    difference: float
    """Of the means over seeds, on the list as it is."""
    low: float
    """The interval that holds 95 % of the draws."""
    high: float
    verdict: Literal["first", "second", "undecided"]
    """Which is better (of an EER, the lower one); undecided if the interval holds zero."""
    short: int
    """Draws in which the tail of some run was too short: many of them make the interval doubtful."""

    def figures(self) -> dict[str, float | str]:
        """For a table: difference and interval in percent points, and the verdict."""
        numbers = {"difference": 100 * self.difference, "low": 100 * self.low, "high": 100 * self.high}
        return numbers | {"verdict": self.verdict}


def resample(evidence: dict[str, Any], bootstrap: Bootstrap) -> dict[str, Resampled]:
    """The figures of one run in every draw, by name: `accuracy`, `eer`, and `tar@far=0.01` for each FAR it names.

    Evidence of a tail gives TARs alone; evidence of ranks that names no FARs, as it was kept at first, accuracy alone.

    Evidence of some folds gives the figures of their pairs, as `evaluate_pairs` does with `folds`.

    Raises ValueError for evidence of another list, of an unknown form or damaged.
    """
    pairs = bootstrap.pairs
    if evidence.get("list") != pairs.sha256:
        raise ValueError(
            f"the evidence is of pair list {evidence.get('list')}, the comparison is on {pairs.sha256}: "
            "evaluate the run again on this list, or compare on that one"
        )
    if evidence.get("form") not in RESAMPLERS:
        raise ValueError(f"evidence of form {evidence.get('form')!r} is unknown: it must be one of {list(RESAMPLERS)}")
    everybody = Bootstrap(pairs, np.ones((len(pairs.people), 1), dtype=np.int32))
    resampler = RESAMPLERS[evidence["form"]]
    points, drawn = resampler(evidence, everybody), resampler(evidence, bootstrap)
    points, drawn = points | hits(evidence, everybody), drawn | hits(evidence, bootstrap)
    folds = tuple(evidence["folds"]) if "folds" in evidence else None
    empty = np.minimum(*bootstrap.weights_of(folds)) == 0
    return {
        figure: Resampled(figure, float(points[figure][0][0]), np.where(empty, np.nan, values), short, bootstrap, folds)
        for figure, (values, short) in drawn.items()
    }


def compare(first: Sequence[Resampled], second: Sequence[Resampled]) -> PairedDifference:
    """The paired difference of two methods in one figure, each given by its runs over the seeds."""
    runs = [*first, *second]
    if not first or not second:
        raise ValueError("a comparison needs at least one run of each method")
    lists = {run.bootstrap.pairs.sha256: run.bootstrap for run in runs}
    apart = any(run.bootstrap is not lists[run.bootstrap.pairs.sha256] for run in runs)
    if len({run.figure for run in runs}) > 1 or apart or len({run.values.shape for run in runs}) > 1:
        raise ValueError("paired runs need the same figure and the same draws: resample a list's from one Bootstrap")
    if not same_pairs(first, second):
        raise ValueError("the two sides were evaluated on different lists or folds: give each side the same")
    drawn = np.mean([run.values for run in first], axis=0) - np.mean([run.values for run in second], axis=0)
    counted = np.isfinite(drawn)
    if not counted.any():
        raise ValueError("every draw is without genuine or without impostor pairs: the list has too few identities")
    low, high = np.quantile(drawn[counted], [0.025, 0.975])
    return PairedDifference(
        figure=runs[0].figure,
        difference=float(np.mean([run.point for run in first]) - np.mean([run.point for run in second])),
        low=float(low),
        high=float(high),
        verdict=_verdict(runs[0].figure, low, high),
        short=int((counted & np.any([run.short for run in runs], axis=0)).sum()),
    )


def same_pairs(first: Sequence[Resampled], second: Sequence[Resampled]) -> bool:
    """Whether both sides were evaluated on the same lists and folds of them, each as often in proportion."""

    def shares(runs: Sequence[Resampled]) -> dict[tuple[str, tuple[int, ...] | None], Fraction]:
        counts = Counter((run.bootstrap.pairs.sha256, run.folds) for run in runs)
        return {pairs: Fraction(count, len(runs)) for pairs, count in counts.items()}

    return shares(first) == shares(second)


def _verdict(figure: str, low: float, high: float) -> Literal["first", "second", "undecided"]:
    if low <= 0 <= high:
        return "undecided"
    return "first" if (low > 0) != (figure == EER.name) else "second"
