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
class AdaFace(CosineLoss):
    """The mean cross-entropy over s·cos θ_j, with s·(cos(θ_y − m·ẑ) − m·ẑ − m) for the own class.

    ẑ = h·(‖x‖ − μ) / (σ + 0.001), cut to ±1 and without gradient: a long embedding, that of a good image, gets a margin
    on the cosine, a short one a margin on the angle. The turned angle is cut to 0…π, where the authors' code cuts it
    0.001 within, and has gradient 0 beyond. μ and σ are those of the batch's lengths (σ with n − 1; of a single image
    0): the loss keeps no running ones. With one class the loss is 0, and so is its gradient.

    Source: Kim et al., "AdaFace" (CVPR 2022), equation 18, in which s is a factor of the additive margin as well.
    """

    scale: float = 64.0
    """s."""
    margin: float = 0.4
    """m."""
    concentration: float = 0.333
    """h: ẑ is ±1 at μ ± σ/h."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)
        require(self, "a concentration of 0 or more", 0 <= self.concentration < math.inf, self.concentration)

    def quality(self, embeddings: Tensor) -> Tensor:
        """(n, 1) ẑ of a batch of (n, d) embeddings."""
        with torch.no_grad():
            norms = lengths(wide(embeddings)[0])
            # Squares of lengths can overflow where the lengths do not; 1 is multiplied and divided by without a trace.
            reach = torch.where(norms.amax() < _LONG, 1.0, norms.amax())
            mean = (norms / reach).mean() * reach
            std = (norms / reach).std() * reach if len(norms) > 1 else torch.zeros_like(mean)
            return ((norms - mean) / (std + 1e-3) * self.concentration).clamp(-1, 1)

    def target(self, cosine: Tensor, quality: Tensor) -> Tensor:
        """cos(θ_y − m·ẑ) − m·ẑ − m, of (n, 1) cosines to the own class and ẑ."""
        turn = -self.margin * quality
        turned = cosine * turn.cos() - sine(cosine) * turn.sin()
        turned = torch.where((turn < 0) & (cosine > turn.cos()), 1.0, turned)  # θ + turn < 0
        turned = torch.where((turn > 0) & (cosine < -turn.cos()), -1.0, turned)  # θ + turn > π
        return turned - self.margin * (quality + 1)

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """(n, k) scaled cosines, those of the own classes with the margins; arguments and errors as for the loss."""
        check(embeddings, weights, labels)
        scores, own_class = cosines(embeddings, weights), labels[:, None]
        quality = self.quality(embeddings).to(scores.dtype)
        return scores.scatter(1, own_class, self.target(scores.gather(1, own_class), quality)).mul_(self.scale)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(embeddings, weights, labels), labels)
