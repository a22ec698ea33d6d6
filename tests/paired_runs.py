"""Paired differences of runs, from their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.paired import PairedDifference
from coalface.experiments.comparison.paired import differences, merged, resampled


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
