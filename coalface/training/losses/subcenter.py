"""Sub-center ArcFace: several class embeddings for each class, of which the nearest counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from coalface.training.losses.base import MarginSoftmax, cosines, require
from coalface.training.losses.margins import ArcFace


@dataclass(frozen=True)
class SubCenterArcFace(MarginSoftmax):
    """ArcFace over cos θ_j = max_i ⟨x, w_{j,i}⟩, so that noisy images of a class can gather at a centre of their own.

    Rows j·c to j·c + c − 1 of `weights` (k·c, d) are the c sub-centres of class j; only the nearest gets gradient.

    Source: Deng et al., "Sub-center ArcFace" (ECCV 2020).
    """

    margin: float = 0.5
    """m, in radians, 0 to π."""
    centers: int = 3
    """c, 1 or more; 1 is ArcFace."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)
        require(self, "1 center a class or more", self.centers >= 1, self.centers)

    def rows(self, classes: int) -> int:
        """k·c."""
        return classes * self.centers

    def cosines(self, embeddings: Tensor, weights: Tensor) -> Tensor:
        if len(weights) % self.centers:
            raise ValueError(f"{len(weights)} rows are no multiple of {self.centers}: give {self.centers} for a class")
        return cosines(embeddings, weights).unflatten(1, (-1, self.centers)).max(dim=2).values

    def target(self, cosine: Tensor) -> Tensor:
        return ArcFace(margin=self.margin).target(cosine)
