"""A contrast of each image with the public people that are nearest to it, by their mean features alone.

After Qiu et al., "AdaFedFR: federated face recognition with adaptive inter-class representation learning", 2024, whose
text was not at hand: the formulas are this project's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coalface.training.classifier import Criterion
from coalface.training.losses.base import unit, wide


@dataclass(frozen=True)
class HardMeans:
    """L_ada = mean_i log(1 + Σ_{j ∈ H_i} e^{(cos(f_i, μ_j) − cos(f_i, w_{y_i}) + m) / τ}).

    H_i are the means μ_j that come within the margin of the image's own class embedding, cos(f_i, μ_j) >
    cos(f_i, w_{y_i}) − m, the k nearest where there are more. An image with none has the loss 0 and no gradient. With
    all means in H_i and τ = 1/s it is CosFace over the own row and all means.
    """

    nearest: int
    """k, at most."""
    margin: float
    """m, a cosine."""
    temperature: float
    """τ."""

    def __call__(self, embeddings: Tensor, own: Tensor, means: Tensor) -> Tensor:
        """A scalar, of (n, d) embeddings f, (n, d) the class embedding w_{y_i} of each, and (K, d) means."""
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings, own, means = wide(embeddings, own, means)
            features = unit(embeddings)
            excess = features @ unit(means).T - (features * unit(own)).sum(1, keepdim=True) + self.margin
        hardest = excess.topk(min(self.nearest, len(means)), dim=1).values
        powers = torch.where(hardest > 0, hardest / self.temperature, -torch.inf)
        return torch.logsumexp(torch.cat([torch.zeros_like(excess[:, :1]), powers], dim=1), dim=1).mean()


@dataclass(frozen=True)
class JointMeansLoss:
    """L = L_joint over W + α L_ada: FedFR's loss of the client's own people, and their contrast with the means.

    The class embeddings are [M ; W]: a row for each mean, then the party's own.
    """

    joint: Criterion
    """A `coalface.training.joint.fedfr.JointLoss` of no public rows."""
    hard: HardMeans
    weight: float
    """α."""
    means: int
    """K."""
    learned: bool
    """M's rows take the gradient of L_ada; else they stay where they are."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **beside: Tensor) -> Tensor:
        """A scalar, of (n, d) embeddings, (K + k, d) class embeddings and (n,) labels 0 to k − 1."""
        means, own = weights[: self.means], weights[self.means :]
        total = self.joint(embeddings, own, labels, **beside)
        if not self.weight or not self.means:
            return total
        return total + self.weight * self.hard(embeddings, own[labels], means if self.learned else means.detach())
