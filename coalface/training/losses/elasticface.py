"""ElasticFace: each image's margin is drawn anew in each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, check, cosines, require, sine


@dataclass(frozen=True)
class ElasticFace(CosineLoss):
    """ArcFace with a margin m_i ~ N(m, σ²) for each image of a step, cut to 0…π (ElasticFace-Arc).

    With `plus` (ElasticFace-Arc+) a step gives its largest margin to the image that is farthest from its class, and so
    on to the nearest. Past π − m_i it goes on as `ArcFace` does. The paper's σ is 0.05, and 0.0175 with `plus`.

    Source: Boutros et al., "ElasticFace: elastic margin loss for deep face recognition" (CVPR workshops 2022).
    """

    scale: float = 64.0
    """s."""
    margin: float = 0.5
    """m, in radians, 0 to π."""
    deviation: float = 0.05
    """σ; 0 is ArcFace."""
    plus: bool = False
    """Largest margins to the images farthest from their class; else at random."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)
        require(self, "a deviation of 0 or more", 0 <= self.deviation < math.inf, self.deviation)

    def draw(self, images: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """`margins` (n,), the m_i."""
        margins = rng.normal(self.margin, self.deviation, images).clip(0, math.pi)
        return {"margins": torch.from_numpy(margins).float()}

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor, margins: Tensor | None = None) -> Tensor:
        """(n, k) scaled cosines, those of the own classes with the margins; arguments and errors as for the loss."""
        check(embeddings, weights, labels)
        scores, own_class = cosines(embeddings, weights), labels[:, None]
        own = scores.gather(1, own_class)
        m = torch.full_like(own, self.margin) if margins is None else margins.to(own.dtype)[:, None]
        if self.plus:
            ranks = own.detach().argsort(stable=True, dim=0, descending=True)
            m = torch.empty_like(m).scatter_(0, ranks, m.sort(0).values)
        turned = own * m.cos() - sine(own) * m.sin()
        target = torch.where(own > -m.cos(), turned, own - m * m.sin())
        return scores.scatter(1, own_class, target).mul_(self.scale)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, margins: Tensor | None = None) -> Tensor:
        """As every loss; `margins` (n,) as `draw` gives them, None: m for all."""
        return F.cross_entropy(self.logits(embeddings, weights, labels, margins), labels)
