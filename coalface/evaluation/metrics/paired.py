"""Is one method better than another? A paired bootstrap over identities and seeds, from the evidence that runs left.

The same draws of identities serve every method and every seed. The difference of two methods in a draw is that of their
means over seeds, d̄_b, plus what other seeds might have given: with the differences d_1 … d_S of the S seeds on the
whole list, of standard deviation s, it is d̄_b + t_b s / √S, where t_b is drawn from Student's t with S − 1 degrees of
freedom. The 2.5 % and 97.5 % quantiles over the draws are the interval. With all identities counted alike it is the
t interval of the mean over seeds; to draw S seeds again would be too narrow, as three or five of them know little of
their own spread. One seed knows nothing of it: its interval is of the identities alone and decides nothing.
Where seeds are evaluated on lists of their own (other people each), both methods have the same lists, each with
draws of its own, and s holds the spread over people a second time.

The interval errs on the wide side: a product of counts varies more than the count of a pair drawn by itself, so where
methods differ by chance of the pair and not of the identity, it is up to 1.4 times as wide as it need be (simulated in
the tests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coalface.core.method import generator
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
    if evidence.get("form") not in RESAMPLERS:
        raise ValueError(f"evidence of form {evidence.get('form')!r} is unknown: it must be one of {list(RESAMPLERS)}")
    everybody = Bootstrap(pairs, np.ones((len(pairs.people), 1), dtype=np.int32))
    resampler = RESAMPLERS[evidence["form"]]
    points, drawn = resampler(evidence, everybody), resampler(evidence, bootstrap)
    points, drawn = points | hits(evidence, everybody), drawn | hits(evidence, bootstrap)
    folds = tuple(evidence["folds"]) if "folds" in evidence else None
    empty = np.minimum(*bootstrap.weights_of(folds)) == 0
    better = {EER.name: EER.better}
    runs = {
        figure: Resampled(
            figure,
            float(points[figure][0][0]),
            np.where(empty, np.nan, values),
            short,
            bootstrap,
            folds,
            better.get(figure, "higher"),
            seed=seed,
        )
        for figure, (values, short) in drawn.items()
    }
    none_short = np.zeros(len(empty), dtype=bool)
    for figure, (point, values, which) in drawn_figures(evidence, bootstrap).items():
        runs[figure] = Resampled(figure, point, values, none_short, bootstrap, folds, which, scale=1.0, seed=seed)
    return runs


def compare(first: Sequence[Resampled], second: Sequence[Resampled]) -> PairedDifference:
    """The paired difference of two methods in one figure, each given by its runs over the seeds.

    Both sides have the same seeds, or none in common: then the spreads of both sides add up, with the degrees of
    freedom of the one that has fewer.
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
    seeds = [sorted({run.seed for run in side}) for side in (first, second)]
    if seeds[0] != seeds[1] and set(seeds[0]) & set(seeds[1]):
        raise ValueError("the two sides have other seeds: give the runs of those that both have")
    points, values = zip(*(_means_by_seed(side) for side in (first, second)), strict=True)
    by_seed = [points[0] - points[1]] if seeds[0] == seeds[1] else points
    noise = training_noise(by_seed, len(runs[0].values), generator(2048, "seeds", runs[0].figure))
    drawn = values[0] - values[1] + noise
    counted = np.isfinite(drawn)
    if not counted.any():
        raise ValueError("every draw is without genuine or without impostor pairs: the list has too few identities")
    low, high = np.quantile(drawn[counted], [0.025, 0.975])
    fewest = min(map(len, by_seed))
    return PairedDifference(
        figure=runs[0].figure,
        difference=float(points[0].mean() - points[1].mean()),
        low=float(low),
        high=float(high),
        verdict=_verdict(runs[0].better, low, high) if fewest > 1 else "undecided",
        seeds=fewest,
        short=int((counted & np.any([run.short for run in runs], axis=0)).sum()),
        scale=runs[0].scale,
    )


def _means_by_seed(runs: Sequence[Resampled]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(seeds,) the points of the seeds, ascending, and (draws,) the mean over seeds in every draw."""
    by_seed = [[run for run in runs if run.seed == seed] for seed in sorted({run.seed for run in runs})]
    points = np.array([np.mean([run.point for run in of_seed]) for of_seed in by_seed])
    return points, np.mean([np.mean([run.values for run in of_seed], axis=0) for of_seed in by_seed], axis=0)


def training_noise(by_seed: Sequence[NDArray[np.float64]], draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(draws,) how far the mean over other seeds might lie from this one: t_b s / √S; zeros where S is 1.

    `by_seed` has the (S,) differences of paired seeds, or the (S,) figures of each side by itself.
    """
    fewest = min(map(len, by_seed))
    if fewest < 2:
        return np.zeros(draws)
    error = np.sqrt(sum(values.var(ddof=1) / len(values) for values in by_seed))
    noise: NDArray[np.float64] = error * rng.standard_t(fewest - 1, draws)
    return noise


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
