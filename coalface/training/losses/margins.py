"""The margins of the field on a softmax over cosines; the form that they share is in `base.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coalface.training.losses.base import CosineLoss, MarginSoftmax, require, sine

__all__ = ["ArcFace", "CosFace", "CosineLoss", "Softmax"]


@dataclass(frozen=True)
class Softmax(MarginSoftmax):
    """Normalised softmax: f(c) = c, no margin. Source: Wang et al., "NormFace" (ACM MM 2017)."""

    def target(self, cosine: Tensor) -> Tensor:
        return cosine


@dataclass(frozen=True)
class CosFace(MarginSoftmax):
    """A margin m on the cosine: f(c) = c − m. Source: Wang et al., "CosFace" (CVPR 2018), equation 4."""

    margin: float = 0.35
    """m, in units of cosine, 0 to 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "a margin from 0 to 2", 0 <= self.margin <= 2, self.margin)

    def target(self, cosine: Tensor) -> Tensor:
        return cosine - self.margin


@dataclass(frozen=True)
class ArcFace(MarginSoftmax):
    """A margin m on the angle: f(cos θ) = cos(θ + m). Source: Deng et al., "ArcFace" (CVPR 2019), equation 3.

    cos(θ + m) would rise again past θ = π − m. From there on f(cos θ) = cos θ − m·sin(π − m), as in insightface: f
    falls with θ everywhere (with a step down at π − m, of 0.12 for m = 0.5), so the gradient always pulls towards the
    own class. At cos θ = ±1, where dθ/dcos θ is infinite, the part of the gradient through sin θ is taken as 0.
    """

    margin: float = 0.5
    """m, in radians, 0 to π."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "a margin from 0 to π", 0 <= self.margin <= math.pi, self.margin)

    def target(self, cosine: Tensor) -> Tensor:
        height = sine(cosine)  # first: the order decides in which the parts of the gradient are added, so its last bits
        turned = cosine * math.cos(self.margin) - height * math.sin(self.margin)
        beyond = cosine - self.margin * math.sin(self.margin)
        return torch.where(cosine > -math.cos(self.margin), turned, beyond)
