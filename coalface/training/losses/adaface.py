"""AdaFace: the margin follows the length of the embedding, which tells how good an image is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, check, cosines, lengths, require, sine, wide

_LONG = 1e15
"""Lengths from here on are divided by the longest before they are squared."""


@dataclass(frozen=True)
class LengthStatistics:
    """Mean and standard deviation of the lengths of embeddings: the state of AdaFace, kept by who trains."""

    mean: Tensor
    """Scalar."""
    std: Tensor
    """Scalar, with n − 1; 0 for a single embedding."""


@dataclass(frozen=True)
class AdaFace(CosineLoss):
    """The mean cross-entropy over s·cos θ_j, with s·(cos(θ_y − m·ẑ) − m·ẑ − m) for the own class.

    ẑ = h·(‖x‖ − μ) / (σ + 0.001), cut to ±1 and without gradient: a long embedding, that of a good image, gets a margin
    on the cosine, a short one a margin on the angle. The turned angle is cut to 0…π, where the authors' code cuts it
    0.001 within, and has gradient 0 beyond. μ and σ are those of the batch, or the running ones that are given: the
    loss keeps nothing.

        statistics = loss.statistics(embeddings, statistics)
        value = loss(embeddings, weights, labels, statistics)

    With one class the loss is 0, and so is its gradient.
    Source: Kim et al., "AdaFace" (CVPR 2022), equation 18, in which s is a factor of the additive margin as well.
    """

    scale: float = 64.0
    """s."""
    margin: float = 0.4
    """m."""
    concentration: float = 0.333
    """h: ẑ is ±1 at μ ± σ/h."""
    share: float = 0.01
    """α, the share of the newest batch in the running statistics; 1: the batch's alone. 0.01 is the authors' code's;
    the paper gives 0.99."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)
        require(self, "a concentration of 0 or more", 0 <= self.concentration < math.inf, self.concentration)
        require(self, "0 < share ≤ 1", 0 < self.share <= 1, self.share)

    def first(self) -> LengthStatistics:
        """What the running statistics start from in the authors' code: mean 20, standard deviation 100."""
        return LengthStatistics(mean=torch.tensor(20.0), std=torch.tensor(100.0))

    def statistics(self, embeddings: Tensor, before: LengthStatistics | None = None) -> LengthStatistics:
        """Those of a batch of (n, d) embeddings; with those `before` it: the running ones, α·batch + (1 − α)·before."""
        with torch.no_grad():
            norms = lengths(wide(embeddings)[0])[:, 0]
            # Squares of lengths can overflow where the lengths do not; 1 is multiplied and divided by without a trace.
            reach = torch.where(norms.amax() < _LONG, 1.0, norms.amax())
            mean = (norms / reach).mean() * reach
            std = (norms / reach).std() * reach if len(norms) > 1 else torch.zeros_like(mean)
            if before is not None:
                mean = self.share * mean + (1 - self.share) * before.mean
                std = self.share * std + (1 - self.share) * before.std
        return LengthStatistics(mean=mean, std=std)

    def logits(
        self, embeddings: Tensor, weights: Tensor, labels: Tensor, statistics: LengthStatistics | None = None
    ) -> Tensor:
        """(n, k) scaled cosines, those of the own classes with the margins; arguments and errors as for the loss."""
        check(embeddings, weights, labels)
        scores, own = cosines(embeddings, weights), labels[:, None]
        known = self.statistics(embeddings) if statistics is None else statistics
        with torch.no_grad():
            quality = (
                (lengths(embeddings.to(scores.dtype)) - known.mean) / (known.std + 1e-3) * self.concentration
            ).clamp(-1, 1)
            turn = -self.margin * quality
        cosine = scores.gather(1, own)
        turned = cosine * turn.cos() - sine(cosine) * turn.sin()
        turned = torch.where((turn < 0) & (cosine > turn.cos()), 1.0, turned)  # θ + turn < 0
        turned = torch.where((turn > 0) & (cosine < -turn.cos()), -1.0, turned)  # θ + turn > π
        return scores.scatter(1, own, turned - self.margin * (quality + 1)).mul_(self.scale)

    def __call__(
        self, embeddings: Tensor, weights: Tensor, labels: Tensor, statistics: LengthStatistics | None = None
    ) -> Tensor:
        """The mean loss of the batch, a scalar; `statistics` None: those of the batch."""
        return F.cross_entropy(self.logits(embeddings, weights, labels, statistics), labels)
