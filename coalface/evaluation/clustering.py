"""How well the parties' labels of their own images fit who is in them: as the lab evaluates it, after a run.

The parties keep their labels, and the truth is the lab's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coalface.core.local_results import PSEUDO_LABELS
from coalface.core.method import Models
from coalface.data.faceset import FaceSet
from coalface.engine.server import Server
from coalface.evaluation.base import Evaluator
from coalface.evaluation.metrics.clustering import evaluate_clusters


class Clustering(Evaluator):
    """Holds the labels that parties have for their own images against the `truth`, party -> images with identities."""

    def __init__(self, truth: Mapping[str, FaceSet]) -> None:
        self.truth = truth

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """Party -> figure -> value of every party that labelled its images, under `clusters`."""
        figures = {}
        for party, results in server.local_results(PSEUDO_LABELS, models):
            if "labels" in results:
                evaluated = evaluate_clusters(self.truth[party].labels, results["labels"].cpu().numpy())
                figures[party] = evaluated.figures() | {"images": float(evaluated.images)}
        return {"clusters": figures} if figures else {}


def mean(clusters: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of every figure over the parties; {} without any."""
    names = next(iter(clusters.values()), {})
    return {name: float(np.mean([figures[name] for figures in clusters.values()])) for name in names}
