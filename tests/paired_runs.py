"""Paired differences of runs, from their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.paired import PairedDifference
from coalface.experiments.compare import differences, merged, resampled


def paired(
    first: Sequence[Sequence[Mapping[str, Any]]], second: Sequence[Sequence[Mapping[str, Any]]], bootstrap: Bootstrap
) -> dict[str, PairedDifference]:
    """First less second by figure; each side has its runs over the seeds 0, 1, …, each run its models."""
    sides = ((resampled(run, bootstrap, seed) for seed, run in enumerate(side)) for side in (first, second))
    return differences(*map(merged, sides))
