"""Is one method better than another? A paired bootstrap over identities and seeds, from the evidence that runs left.

The same draws of identities serve every method and every seed. In draw b the difference of two methods is that of
their means over seeds, d̄_b. What other seeds might have given comes on top: where the S seeds' differences on the
whole list have the standard deviation s, their mean is off by t s / √S, with t of Student's distribution with S − 1
degrees of freedom. The interval lies between the 2.5 % and 97.5 % quantiles of d̄_b + t s / √S over all draws and all
t. Where draws do not differ it is the t interval of the mean over seeds; to draw S seeds again would be too narrow, as
three or five of them know little of their own spread. One seed knows nothing of it: its interval is of the identities
alone and decides nothing.

The interval errs on the wide side. What differs by seed and identity is in both parts; where seeds are evaluated on
lists of their own (other people each, both methods on the same), so is what differs by identity. And a product of
counts varies more than the count of a pair drawn by itself: where methods differ by chance of the pair and not of the
identity, the first part is up to 1.4 times as wide as it need be. The tests simulate all of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.evidence import RESAMPLERS, drawn_figures, hits
from coalface.evaluation.metrics.verification import EER


@dataclass(frozen=True, eq=False)
class Resampled:
    """One figure of one run, on the whole list and in every draw."""

    figure: str
    """`accuracy`, `eer` or `tar@far=0.01` and so on."""
    point: float
    """Fraction, on the list as it is; of a plug-in's figure in its own unit."""
    values: NDArray[np.float64]
    """(draws,) the same; NaN in a draw in which no genuine or no impostor pair is left of those evaluated."""
    short: NDArray[np.bool_]
    """(draws,) True where the kept tail did not reach the threshold: the value is then a lower bound."""
    bootstrap: Bootstrap
    folds: tuple[int, ...] | None = None
    """The folds whose pairs were evaluated; None: all."""
    better: str = "higher"
    """Which way is better, as in `Figure`."""
    scale: float = 100.0
    """What makes the figure's unit of a value: percent of a fraction."""
    seed: int = 0
    """The run's."""


@dataclass(frozen=True)
class PairedDifference:
    """First method less second, in fractions; of a plug-in's figure in its own unit."""

    figure: str
    difference: float
    """Of the means over seeds, on the list as it is."""
    low: float
    """The interval that holds 95 % of the draws."""
    high: float
    verdict: Literal["first", "second", "undecided"]
    """Which is better (of an EER, the lower one); undecided if neither is, the interval holds zero, or of one seed."""
    seeds: int
    """Of the side that has fewer."""
    short: int
    """Draws in which the tail of some run was too short: many of them make the interval doubtful."""
    scale: float = 100.0
    """As in `Resampled`."""

    @property
    def in_unit(self) -> tuple[float, float, float]:
        """Difference, low and high in the figure's unit: mostly percent points."""
        return self.scale * self.difference, self.scale * self.low, self.scale * self.high

    def figures(self) -> dict[str, float | str]:
        """For a table: difference and interval in the figure's unit, and the verdict."""
        return {**dict(zip(("difference", "low", "high"), self.in_unit, strict=True)), "verdict": self.verdict}


def resample(evidence: dict[str, Any], bootstrap: Bootstrap, seed: int = 0) -> dict[str, Resampled]:
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
    if str(evidence.get("form")) not in RESAMPLERS:
        raise ValueError(f"evidence of form {evidence.get('form')!r} is unknown: it must be one of {list(RESAMPLERS)}")
    try:
        return _resampled(evidence, bootstrap, seed)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # of numbers from a file
        raise ValueError(f"the evidence is damaged ({error}): evaluate the run again") from error


def _resampled(evidence: dict[str, Any], bootstrap: Bootstrap, seed: int) -> dict[str, Resampled]:
    pairs = bootstrap.pairs
    everybody = Bootstrap(pairs, np.ones((len(pairs.people), 1), dtype=np.int32))
    resampler = RESAMPLERS[evidence["form"]]
    points, drawn = resampler(evidence, everybody), resampler(evidence, bootstrap)
    points, drawn = points | hits(evidence, everybody), drawn | hits(evidence, bootstrap)
    folds = tuple(evidence["folds"]) if "folds" in evidence else None
    empty = np.minimum(*bootstrap.weights_of(folds)) == 0
    runs: dict[str, Resampled] = {}
    for figure, (values, short) in drawn.items():
        better: str = EER.better if figure == EER.name else "higher"
        point, values = float(points[figure][0][0]), np.where(empty, np.nan, values)
        runs[figure] = Resampled(figure, point, values, short, bootstrap, folds, better, seed=seed)
    none_short = np.zeros(len(empty), dtype=bool)
    for figure, (point, values, better) in drawn_figures(evidence, bootstrap).items():
        runs[figure] = Resampled(figure, point, values, none_short, bootstrap, folds, better, scale=1.0, seed=seed)
    return runs


def compare(first: Sequence[Resampled], second: Sequence[Resampled]) -> PairedDifference:
    """The paired difference of two methods in one figure, each given by its runs over the seeds.

    Runs of one seed, such as the models of a run, are averaged first. Both sides have the same seeds, or none in
    common: then the variances of both means add up, with the degrees of freedom of the side that has fewer seeds.
    """
    runs = [*first, *second]
    if not first or not second:
        raise ValueError("a comparison needs at least one run of each method")
    lists = {run.bootstrap.pairs.sha256: run.bootstrap for run in runs}
    apart = any(run.bootstrap is not lists[run.bootstrap.pairs.sha256] for run in runs)
    if len({run.figure for run in runs}) > 1 or apart or len({run.values.shape for run in runs}) > 1:
        raise ValueError("paired runs need the same figure and the same draws: resample a list's from one Bootstrap")
    if not same_pairs(first, second):
        raise ValueError("the two sides were evaluated on different lists or folds: give each side the same")
    seeds = [{run.seed for run in side} for side in (first, second)]
    if seeds[0] != seeds[1] and seeds[0] & seeds[1]:
        raise ValueError("the two sides share some of their seeds and not all: give `of_shared_seeds`")
    points, values = zip(*(_by_seed(side) for side in (first, second)), strict=True)
    by_seed = [points[0] - points[1]] if seeds[0] == seeds[1] else points
    drawn = values[0].mean(axis=0) - values[1].mean(axis=0)
    counted = np.isfinite(drawn)
    if not counted.any():
        raise ValueError("every draw is without genuine or without impostor pairs: the list has too few identities")
    low, high = interval(drawn[counted], by_seed)
    fewest = min(map(len, by_seed))
    return PairedDifference(
        figure=runs[0].figure,
        difference=float(points[0].mean() - points[1].mean()),
        low=low,
        high=high,
        verdict=_verdict(runs[0].better, low, high) if fewest > 1 else "undecided",
        seeds=fewest,
        short=int((counted & np.any([run.short for run in runs], axis=0)).sum()),
        scale=runs[0].scale,
    )


def _by_seed(runs: Sequence[Resampled]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(seeds,) points and (seeds, draws) values, by ascending seed."""
    by_seed = [[run for run in runs if run.seed == seed] for seed in sorted({run.seed for run in runs})]
    points = [np.mean([run.point for run in of_seed]) for of_seed in by_seed]
    return np.array(points), np.array([np.mean([run.values for run in of_seed], axis=0) for of_seed in by_seed])


def interval(drawn: NDArray[np.float64], by_seed: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of d̄_b + t s / √S over (draws,) differences of means over seeds and all t.

    `by_seed` has the (S,) differences of paired seeds, or the (S,) figures of each side by itself. Of one seed they are
    those of the draws alone.
    """
    fewest = min(map(len, by_seed))
    error = math.sqrt(sum(values.var(ddof=1) / len(values) for values in by_seed)) if fewest > 1 else 0.0
    if not error:
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(low), float(high)

    def quantile(share: float) -> float:
        """Where the mean over draws of P(d̄_b + t s / √S ≤ x) is the share, by bisection."""
        below, above = drawn.min() - 13 * error, drawn.max() + 13 * error  # 13: beyond t of one degree of freedom
        for _ in range(45):
            middle = (below + above) / 2
            if student((middle - drawn) / error, fewest - 1).mean() < share:
                below = middle
            else:
                above = middle
        return float(middle)

    return quantile(0.025), quantile(0.975)


def student(t: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    """P(T ≤ t) of Student's distribution with whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = np.arctan(t / math.sqrt(freedom))
    cosine, odd = np.cos(angle), freedom % 2
    term = cosine if odd else np.ones_like(angle)
    total = np.zeros_like(angle)
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term = term * cosine**2 * (power - 1) / power
    within = np.sin(angle) * total
    within = 2 / math.pi * (angle + within) if odd else within
    share: NDArray[np.float64] = 0.5 + within / 2
    return share


def of_shared_seeds(
    first: Sequence[Resampled], second: Sequence[Resampled]
) -> tuple[Sequence[Resampled], Sequence[Resampled]]:
    """The runs of the seeds that both sides have; where they have none in common, all."""
    shared = {run.seed for run in first} & {run.seed for run in second}
    if not shared:
        return first, second
    return [run for run in first if run.seed in shared], [run for run in second if run.seed in shared]


def same_pairs(first: Sequence[Resampled], second: Sequence[Resampled]) -> bool:
    """Whether both sides were evaluated on the same lists and folds of them, each as often in proportion."""

    def shares(runs: Sequence[Resampled]) -> dict[tuple[str, tuple[int, ...] | None], Fraction]:
        counts = Counter((run.bootstrap.pairs.sha256, run.folds) for run in runs)
        return {pairs: Fraction(count, len(runs)) for pairs, count in counts.items()}

    return shares(first) == shares(second)


def _verdict(better: str, low: float, high: float) -> Literal["first", "second", "undecided"]:
    if low <= 0 <= high or not better:
        return "undecided"
    return "first" if (low > 0) == (better == "higher") else "second"
