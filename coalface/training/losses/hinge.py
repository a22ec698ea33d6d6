"""Hinges: losses that look at the own class alone, for parties that hold one identity and no other class embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import OwnClassLoss, check, require, unit, wide


@dataclass(frozen=True)
class PositiveHinge(OwnClassLoss):
    """The squared hinge on positives: the mean of max(0, m − cos θ_y)², m being `target_cosine`.

    Nothing keeps classes apart: without a regulariser beside it all embeddings may fall together.

    Source: Aggarwal et al., "FedFace" (2021), its positive loss; after Yu et al., "FedAwS" (ICML 2020).
    """

    target_cosine: float = 0.9
    """m, a cosine, -1 to 1: from it on the loss is 0."""

    def __post_init__(self) -> None:
        require(self, "a target cosine from -1 to 1", -1 <= self.target_cosine <= 1, self.target_cosine)

    def each(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        check(embeddings, weights, labels)
        embeddings, weights = wide(embeddings, weights)
        cosine = (unit(embeddings) * unit(weights[labels])).sum(1)
        return F.relu(self.target_cosine - cosine).square()


@dataclass(frozen=True)
class OnCodes(OwnClassLoss):
    """The hinge on codewords: the mean of max(0, 1 − ⟨v_y, z⟩ / c) with z = `projected`(g, W').

    Codewords v (k, c) of ±1, of any dtype, take the place of the class embeddings; W' is `extra`, (c, d) `projection`.

    Source: Hosseini et al., "Federated learning of user verification models without sharing embeddings" (FedUV, ICML
    2021), its positive loss.
    """

    scaled: bool = False

    def each(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        embeddings, projection, weights = wide(embeddings, extra["projection"], weights)
        z = projected(embeddings, projection, scaled=self.scaled)
        check(z, weights, labels)
        if weights.device.type == "cpu" and not torch.all(weights.abs() == 1):
            raise ValueError("codes hold more than 1 and -1: give codewords of ±1, for bits 0 and 1 take 2·bits − 1")
        return F.relu(1 - (z * weights[labels]).mean(1))


def projected(embeddings: Tensor, projection: Tensor, *, scaled: bool) -> Tensor:
    """(n, c) z = W' g of embeddings (n, d); `scaled`: brought to the length √c of a codeword.

    ⟨v, z⟩ / c is then the cosine between codeword and projection, at most 1. Without, one long z for everybody meets
    all codewords that are linearly independent, ⟨v_y, z⟩ = c for every y, and the hinge is 0 though nobody is told from
    anybody; up to c codewords can be. Source: L. Liu et al., "FedFV" (2022), section 4.2, names a scaling layer at the
    end of FedUV's network, and no formula.
    """
    z = embeddings @ projection.T
    return unit(z) * z.shape[1] ** 0.5 if scaled else z
