"""Paired differences of runs, from their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coalface.evaluation.metrics.bootstrap import Bootstrap
from coalface.evaluation.metrics.paired import PairedDifference
from coalface.experiments.compare import differences, resampled


def paired(
    first: Sequence[Sequence[Mapping[str, Any]]], second: Sequence[Sequence[Mapping[str, Any]]], bootstrap: Bootstrap
) -> dict[str, PairedDifference]:
    """First less second by figure; each side has its runs over the seeds, each run its models."""
    return differences(*(resampled([model for run in side for model in run], bootstrap) for side in (first, second)))
