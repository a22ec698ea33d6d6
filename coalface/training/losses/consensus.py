"""The consensus-aware loss: a softmax over the own classes, with others' clusters among what an image is not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, MarginSoftmax, cosines, require, sine


@dataclass(frozen=True, eq=False)
class ConsensusAware(CosineLoss):
    r"""A margin softmax whose denominator also holds the clusters of others, of radius ρ around their centres c_q.

        −log( e^{s f(cos θ_y)} / (e^{s f(cos θ_y)} + Σ_{j≠y} e^{s cos θ_j} + Σ_q e^{s cos(max(θ_q − ρ, 0))}) )

    θ_q is the angle of the embedding to c_q, and θ_q − ρ that to the nearest direction of the cluster. Within a cluster
    its term is e^s, the most there is, and has no gradient: the loss then pulls to the own class, and does not push
    out. Without a cluster it is the softmax alone. The centres get no gradient.

    After "Improving Federated Learning Face Recognition via Privacy-Agnostic Clusters" (PrivacyFace, ICLR 2022).
    """

    loss: MarginSoftmax
    """s, and f with its margin."""
    others: Tensor
    """(q, d) c_q, of any length but 0."""
    angle: float
    """ρ in radians, 0 to π/2."""

    def __post_init__(self) -> None:
        require(self, "an angle from 0 to π/2", 0 <= self.angle <= math.pi / 2, self.angle)

    def rows(self, classes: int) -> int:
        return self.loss.rows(classes)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        own = self.loss.logits(embeddings, weights, labels)
        cosine = cosines(embeddings, self.others.to(embeddings.device))
        nearer = cosine * math.cos(self.angle) + sine(cosine) * math.sin(self.angle)  # cos(θ − ρ)
        near = torch.where(cosine < math.cos(self.angle), nearer, 1.0)
        return F.cross_entropy(torch.cat([own, self.loss.scale * near.to(own.dtype)], dim=1), labels)
