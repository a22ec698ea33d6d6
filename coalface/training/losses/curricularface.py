"""CurricularFace: other classes that come too near count more, the more so the further training has come."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, check, cosines, own_cosines, require
from coalface.training.losses.margins import ArcFace


@dataclass(frozen=True)
class CurricularFace(CosineLoss):
    """ArcFace in which cos θ_j (t + cos θ_j) stands for cos θ_j of another class j that is hard: cos θ_j > f(cos θ_y).

    f is that of `ArcFace`. The state t is a running mean of the batches' mean cos θ_y: t ← α·mean + (1 − α)·t, 0 at
    first, without gradient; a step sees the t that has its own batch in it, as in the authors' code.

    Source: Huang et al., "CurricularFace: adaptive curriculum learning loss for deep face recognition" (CVPR 2020).
    """

    scale: float = 64.0
    """s."""
    margin: float = 0.5
    """m, in radians, 0 to π."""
    momentum: float = 0.01
    """α, the weight of the newest batch in t, 0 to 1."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)
        require(self, "a momentum from 0 to 1", 0 <= self.momentum <= 1, self.momentum)

    def state(self, classes: int) -> dict[str, Tensor]:
        """`t`, a scalar, 0."""
        return {"t": torch.zeros(())}

    def advance(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **state: Tensor) -> dict[str, Tensor]:
        check(embeddings, weights, labels)
        mean = own_cosines(embeddings, weights, labels).mean()
        return {"t": self.momentum * mean + (1 - self.momentum) * state["t"]}

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor, t: Tensor | None = None) -> Tensor:
        """(n, k) scaled scores; arguments and errors as for the loss."""
        check(embeddings, weights, labels)
        scores, own_class = cosines(embeddings, weights), labels[:, None]
        target = ArcFace(margin=self.margin).target(scores.gather(1, own_class))
        hard = scores * (scores if t is None else scores + t)
        return torch.where(scores > target, hard, scores).scatter(1, own_class, target).mul_(self.scale)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, t: Tensor | None = None) -> Tensor:
        """As every loss; `t`, a scalar, is the state, None: 0."""
        return F.cross_entropy(self.logits(embeddings, weights, labels, t), labels)
