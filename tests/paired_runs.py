"""Lists of pairs drawn again, and paired differences of runs from their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities
from coalface.evaluation.metrics.paired import PairedDifference
from coalface.experiments.comparison.paired import differences, merged, resampled


def small_list(seed: int, people: int = 15, pairs: int = 400, headline: bool = True) -> PairIdentities:
    rng = np.random.default_rng(seed)
    left = rng.integers(people, size=pairs) * 3 + 2  # identity numbers with gaps: the list names some of a larger set
    right = np.where(rng.random(pairs) < 0.4, left, rng.permutation(left))
    counts = rng.random(pairs) < 0.7 if headline else None
    return PairIdentities(left, right, sha256="abc", headline=counts)


def scored(pairs: PairIdentities, seed: int, ties: bool = True, gap: float = 0.4) -> NDArray[np.float64]:
    scores = np.random.default_rng(seed).normal(gap * pairs.same, 0.3)
    return np.round(scores, 1) if ties else scores


def repeated(pairs: PairIdentities, counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The places of the list, each as often as its pair weighs in one draw."""
    count = dict(zip(pairs.people.tolist(), counts.tolist(), strict=True))
    places: list[int] = []
    for place, (a, b) in enumerate(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)):
        if a == b and pairs.headline is not None and not pairs.headline[place]:
            continue
        places += [place] * (count[a] if a == b else count[a] * count[b])
    return np.array(places)


def paired(
    first: Sequence[Sequence[Mapping[str, Any]]], second: Sequence[Sequence[Mapping[str, Any]]], bootstrap: Bootstrap
) -> dict[str, PairedDifference]:
    """First less second by figure; each side has its runs over the seeds 0, 1, …, each run its models."""
    sides = ((resampled(run, bootstrap, seed) for seed, run in enumerate(side)) for side in (first, second))
    return differences(*map(merged, sides))


def naive_interval(drawn: NDArray[np.float64], apart: Sequence[float]) -> tuple[float, float]:
    """By a great many values: every draw with each of the quantiles of t s / √S, for the differences of S seeds."""
    shares = (np.arange(4000) + 0.5) / 4000
    noise = student.ppf(shares, len(apart) - 1) * np.std(apart, ddof=1) / np.sqrt(len(apart))
    low, high = np.nanquantile(drawn[:, None] + noise, [0.025, 0.975])
    return float(low), float(high)
