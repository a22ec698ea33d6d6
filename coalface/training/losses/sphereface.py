"""SphereFace (A-Softmax): the angle to the own class is multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, check, cosines, lengths, require, wide


@dataclass(frozen=True)
class SphereFace(CosineLoss):
    """The mean cross-entropy over s·cos θ_j, with s·f(θ_y) for the own class: f = (λ cos θ + ψ(θ)) / (1 + λ).

    ψ(θ) = (−1)^q cos(mθ) − 2q for θ in [qπ/m, (q + 1)π/m]: cos(mθ), carried on so that it falls all the way from 1 at
    θ = 0 to 1 − 2m at π (m is `margin_factor`, λ is `annealing`). cos(mθ) is the Chebyshev polynomial T_m(cos θ), so
    the gradient is finite at cos θ = ±1 as well. With one class the loss is 0, and so is its gradient.

    Source: Liu et al., "SphereFace" (CVPR 2017), equations 5 to 7, where s is each embedding's own length; λ is
    that of its authors' code, where it falls from 1000 to 5.
    """

    scale: float | None = None
    """s; None: each embedding's own length ‖x‖, as in the paper. A number: SphereFace on normalised embeddings."""
    margin_factor: int = 4
    """m, 1 or more; 1 is the softmax."""
    annealing: float = 0.0
    """λ, 0 or more: how much of the plain cosine is mixed in. Who anneals takes a new loss: `replace(loss, …)`."""

    def __post_init__(self) -> None:
        scale = 1.0 if self.scale is None else self.scale
        require(self, "scale > 0, or none", 0 < scale < math.inf, scale)
        require(self, "a margin_factor of 1 or more", self.margin_factor >= 1, self.margin_factor)
        require(self, "annealing of 0 or more", 0 <= self.annealing < math.inf, self.annealing)

    def target(self, cosine: Tensor) -> Tensor:
        """f, of the cosine to the own class."""
        m = self.margin_factor
        before, multiple = torch.ones_like(cosine), cosine
        for _ in range(m - 1):
            before, multiple = multiple, 2 * cosine * multiple - before  # T_{i+1} = 2c·T_i − T_{i−1}
        turns = torch.zeros_like(cosine)
        for i in range(1, m):
            turns += (cosine < math.cos(i * math.pi / m)).to(cosine.dtype)  # q; at the cuts both sides give 1 − 2i
        psi = (1 - 2 * (turns % 2)) * multiple - 2 * turns
        return (self.annealing * cosine + psi) / (1 + self.annealing)

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """(n, k) scaled cosines, s·f for the own classes; arguments and errors as for the loss."""
        check(embeddings, weights, labels)
        scores, own_class = cosines(embeddings, weights), labels[:, None]
        marked = scores.scatter(1, own_class, self.target(scores.gather(1, own_class)))
        if self.scale is not None:
            return marked * self.scale
        return marked * lengths(wide(embeddings, weights)[0])

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(embeddings, weights, labels), labels)
