r"""Losses over the cosines between embeddings and class embeddings.

With x the unit vector of an embedding, w_j that of class embedding j, y its identity and cos θ_j = ⟨x, w_j⟩, every loss
here is the mean over the batch of the cross-entropy

    −log( e^{s·f(cos θ_y)} / (e^{s·f(cos θ_y)} + Σ_{j≠y} e^{s·cos θ_j}) )

and they differ in f alone, which holds the margin. All of them compute in the widest dtype of embeddings and class
embeddings, and in float32 at least, under autocast as well. A vector of length zero has cosine 0 with everything and
gets gradient 0. With one class only the loss is 0, and so is its gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CosineLoss(ABC):
    """What the losses share: a scale s, and f by which they differ."""

    scale: float = 64.0
    """s, the factor on every cosine before the softmax."""

    @abstractmethod
    def target(self, cosine: Tensor) -> Tensor:
        """f: the cosine to the own class, (n, 1), with the margin taken off."""

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """(n, k) scaled cosines, those of the own classes less the margin.

        `embeddings` (n, d) and `weights` (k, d), the class embeddings, of any length; `labels` (n,) int64, 0 to k − 1.

        Raises ValueError where the shapes do not fit, or a label names no class.
        """
        _check(embeddings, weights, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            dtype = torch.promote_types(torch.promote_types(embeddings.dtype, weights.dtype), torch.float32)
            cosines = unit(embeddings.to(dtype)) @ unit(weights.to(dtype)).T
            own = labels[:, None]
            return cosines.scatter(1, own, self.target(cosines.gather(1, own))).mul_(self.scale)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the batch, a scalar; arguments and errors as for `logits`."""
        return F.cross_entropy(self.logits(embeddings, weights, labels), labels)


@dataclass(frozen=True)
class Softmax(CosineLoss):
    """Normalised softmax: f(c) = c, no margin. Source: Wang et al., "NormFace" (ACM MM 2017)."""

    def target(self, cosine: Tensor) -> Tensor:
        return cosine


@dataclass(frozen=True)
class CosFace(CosineLoss):
    """A margin m on the cosine: f(c) = c − m. Source: Wang et al., "CosFace" (CVPR 2018), equation 4."""

    margin: float = 0.35
    """m, in units of cosine."""

    def target(self, cosine: Tensor) -> Tensor:
        return cosine - self.margin


@dataclass(frozen=True)
class ArcFace(CosineLoss):
    """A margin m on the angle: f(cos θ) = cos(θ + m). Source: Deng et al., "ArcFace" (CVPR 2019), equation 3.

    cos(θ + m) would rise again past θ = π − m. From there on f(cos θ) = cos θ − m·sin(π − m), as in insightface: f
    falls with θ everywhere (with a step down at π − m, of 0.12 for m = 0.5), so the gradient always pulls towards the
    own class. At cos θ = ±1, where dθ/dcos θ is infinite, the part of the gradient through sin θ is taken as 0.
    """

    margin: float = 0.5
    """m, in radians, 0 to π."""

    def target(self, cosine: Tensor) -> Tensor:
        # A cosine beside ±1 leaves 1 − cosine² at about eps: the clamp alters only what is 0, or below it by rounding.
        sine = (1 - cosine * cosine).clamp_min(torch.finfo(cosine.dtype).tiny).sqrt()
        turned = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        beyond = cosine - self.margin * math.sin(self.margin)
        return torch.where(cosine > -math.cos(self.margin), turned, beyond)


LOSSES: dict[str, type[CosineLoss]] = {"softmax": Softmax, "cosface": CosFace, "arcface": ArcFace}


def unit(vectors: Tensor) -> Tensor:
    """(n, d) vectors at length one; a vector of zeros stays one, with gradient 0 instead of an infinite one."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.masked_fill(length == 0, math.inf)


def _check(embeddings: Tensor, weights: Tensor, labels: Tensor) -> None:
    if embeddings.ndim != 2 or weights.ndim != 2 or embeddings.shape[1] != weights.shape[1]:
        raise ValueError(
            f"embeddings {tuple(embeddings.shape)} and class embeddings {tuple(weights.shape)} do not fit: "
            "give (n, d) and (k, d)"
        )
    if labels.shape != embeddings.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels are {labels.dtype} {tuple(labels.shape)}: give one int64 for each of {len(embeddings)} embeddings"
        )
    if len(labels) == 0:
        raise ValueError("the loss of an empty batch is not defined: leave empty batches out")
    if labels.device.type == "cpu":  # elsewhere the look would wait for the device, which checks by itself
        low, high = (int(v) for v in labels.aminmax())
        if low < 0 or high >= len(weights):
            wrong = low if low < 0 else high
            raise ValueError(f"label {wrong} names no class: there are {len(weights)}, numbered from 0")
