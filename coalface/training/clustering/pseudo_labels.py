"""How a client groups images of which it does not know who is in them, and how a source client chooses the threshold.

Zhuang et al., "Towards unsupervised domain adaptation for deep face recognition under privacy constraints via federated
learning", 2021 (FedFR), Section 3.3; what it is compared with there is DBSCAN (Ester et al., KDD 1996), K-means and
FINCH (Sarfraz et al., CVPR 2019).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.checks import TypedSettings
from coalface.evaluation.metrics.clustering import evaluate_clusters
from coalface.training.clustering.finch import Partitions, auto_threshold, cfinch, drop_small, refine

Algorithm = Literal["c-finch", "finch", "k-means", "dbscan"]
BY_THRESHOLD = ("c-finch", "dbscan")
"""Algorithms that need a distance, and no number of clusters."""


@dataclass(frozen=True, kw_only=True)
class Labelling(TypedSettings):
    """The clusters of a client's features, as pseudo labels."""

    algorithm: Algorithm = "c-finch"
    """How a client clusters its images."""
    threshold: float | Literal["auto"] = "auto"
    """τ: the cosine distance below which C-FINCH joins first neighbours, or within which DBSCAN looks for neighbours.
    `auto`: the one with the best pairwise F on the source client's own labelled images."""
    clusters: int | None = None
    """How many clusters there shall be: K-means needs to be told, FINCH takes its level that is nearest to it (without:
    the last with more than one cluster), C-FINCH is refined to it. No party knows it; it is for comparisons."""
    min_cluster_size: int = 1
    """Clusters of fewer images are dropped: these images are not trained on."""
    min_samples: int = 4
    """DBSCAN: neighbours, itself included, that make an image the core of a cluster."""

    def __post_init__(self) -> None:
        if self.threshold != "auto" and not self.by_threshold:
            raise ValueError(f"{self.algorithm} has no use for a threshold: leave `threshold` out")
        if self.threshold != "auto" and not 0 < self.threshold <= 2:
            raise ValueError(f"threshold is a cosine distance above 0 and up to 2, or auto; got {self.threshold}")
        if self.algorithm == "k-means" and self.clusters is None:
            raise ValueError("k-means has to be told how many clusters there are: give `clusters`")
        if self.clusters is not None and self.clusters < 1:
            raise ValueError(f"clusters is {self.clusters}; give 1 or more, or leave it out")
        if self.algorithm == "dbscan" and self.clusters is not None:
            raise ValueError("dbscan finds the number of clusters by itself: leave `clusters` out")
        if self.min_cluster_size < 1 or self.min_samples < 1:
            raise ValueError(
                f"min_cluster_size and min_samples are 1 or more; got {self.min_cluster_size} and {self.min_samples}"
            )

    @property
    def by_threshold(self) -> bool:
        """Whether the algorithm needs τ."""
        return self.algorithm in BY_THRESHOLD

    def choose(self, features: Tensor, labels: NDArray[np.int64]) -> float:
        """The τ whose clusters of (n, d) unit features fit (n,) known identities best, by pairwise F."""

        def score(identities: NDArray[np.int64], clusters: NDArray[np.int64]) -> float:
            return evaluate_clusters(identities, clusters).pairwise_f

        by = self._dbscan if self.algorithm == "dbscan" else None
        return auto_threshold(features, labels, score, cluster=by)

    def __call__(self, features: Tensor, threshold: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """(n,) the cluster of each of (n, d) unit features, −1 where it was dropped or lies in none."""
        if self.algorithm == "k-means":
            labels = self._k_means(features, rng)
        elif self.algorithm == "dbscan":
            labels = self._dbscan(features, threshold)
        elif self.algorithm == "finch":
            labels = self._level(cfinch(features))
        else:
            levels = cfinch(features, threshold)
            labels = levels.final
            if self.clusters is not None:  # the first level may have fewer
                labels = refine(levels, features, min(self.clusters, levels.counts[0]))
        return drop_small(labels, self.min_cluster_size)

    def _level(self, levels: Partitions) -> NDArray[np.int64]:
        """FINCH's level nearest to the wanted number of clusters, of two the finer; or the last with more than one."""
        if self.clusters is not None:
            count = self.clusters
            return min(levels.labels, key=lambda level: abs(int(level.max()) + 1 - count))
        apart = [level for level in levels.labels if level.max() > 0]
        return apart[-1] if apart else levels.final

    def _k_means(self, features: Tensor, rng: np.random.Generator) -> NDArray[np.int64]:
        """K-means of unit features, the best of ten starts."""
        assert self.clusters is not None
        clusters = min(self.clusters, len(features))
        fitted = _sklearn().KMeans(clusters, n_init=10, random_state=int(rng.integers(2**31)))
        return np.asarray(fitted.fit_predict(features.cpu().numpy()), dtype=np.int64)

    def _dbscan(self, features: Tensor, radius: float) -> NDArray[np.int64]:
        """DBSCAN within a cosine distance ρ, of unit vectors a distance of √(2 ρ); −1 is what it calls noise."""
        fitted = _sklearn().DBSCAN(eps=(2 * radius) ** 0.5, min_samples=self.min_samples)
        return np.asarray(fitted.fit_predict(features.cpu().numpy()), dtype=np.int64)


def _sklearn() -> Any:
    try:
        return importlib.import_module("sklearn.cluster")
    except ModuleNotFoundError:
        raise ValueError(
            "labelling.algorithm: k-means and dbscan are scikit-learn's, which is not installed; "
            "`pip install scikit-learn`, or take c-finch or finch"
        ) from None
