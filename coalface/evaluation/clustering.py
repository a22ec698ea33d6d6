"""How well the parties' labels of their own images fit who is in them: the lab's judge of it, after a run.

The parties keep their labels, and the truth is the lab's alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coalface.core.method import Models
from coalface.data.faceset import FaceSet
from coalface.engine.server import Server
from coalface.evaluation.metrics.clustering import judge_clusters


def judge(server: Server, models: Models, truth: Mapping[str, FaceSet]) -> dict[str, dict[str, float]]:
    """Party -> figure -> value of every party that labelled its images, as `summary.json` has them below `clusters`."""
    found = {}
    for party, given in server.labelled(models):
        if "labels" in given:
            judged = judge_clusters(truth[party].labels, given["labels"].cpu().numpy())
            found[party] = judged.figures() | {"images": float(judged.images)}
    return found


def mean(clusters: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of every figure over the parties; {} without any."""
    if not clusters:
        return {}
    names = next(iter(clusters.values())).keys()
    return {name: float(np.mean([each[name] for each in clusters.values()])) for name in names}
