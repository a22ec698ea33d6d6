r"""What draws the features of two domains together where one party holds the images of both: MMD, and an adversary.

**Multi-kernel MMD** between n source and m target vectors, with L Gaussian kernels of which each counts alike,

    k(x, y) = (1/L) Σ_{u=1..L} exp(−‖x − y‖² / (2^{u − (L+1)/2} γ)),    γ the mean of ‖x − y‖² over all pairs,
    MMD² = (1/n²) Σ_{s,s'} k + (1/m²) Σ_{t,t'} k − (2/nm) Σ_{s,t} k ≥ 0,

γ without gradient. The paper of DAN learns the kernels' weights and takes an estimate in linear time (Long et al.,
"Learning transferable features with deep adaptation networks", ICML 2015, Equations 1 to 5); with batches of tens of
images the whole sums cost nothing and vary less. Here x are unit features, the only layer that is adapted.

**Adversary.** A discriminator D tells the domains of features apart by cross-entropy; the features get that gradient
times −λ_p (gradient reversal; Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016, Equations 8
to 18), λ_p = 2 / (1 + e^{−10 p}) − 1 at the share p of the training that is done.

Both are written as a loss of a mixed batch in which label −1 marks an image of the target, whose identity is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.training.losses.base import CosineLoss, unit

UNKNOWN = -1
"""The label of an image whose identity is not known."""


def mk_mmd(source: Tensor, target: Tensor, kernels: int = 5) -> Tensor:
    """MMD² of (n, d) and (m, d) vectors, a scalar; see above. Raises ValueError where one of them is empty."""
    if not len(source) or not len(target) or kernels < 1:
        raise ValueError(
            f"the discrepancy is one of two sets of vectors under some kernels; got {len(source)}, {len(target)} "
            f"vectors and {kernels} kernels"
        )
    vectors = torch.cat([source, target])
    squares = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()
    count = len(vectors)
    width = squares.detach().sum() / max(1, count * (count - 1))
    width = width.clamp_min(torch.finfo(vectors.dtype).eps ** 2)  # where all are equal: nothing to divide by
    scales = 2.0 ** (torch.arange(kernels, dtype=vectors.dtype, device=vectors.device) - (kernels - 1) / 2)
    alike = torch.exp(-squares / (scales[:, None, None] * width)).mean(0)
    n = len(source)
    return alike[:n, :n].mean() + alike[n:, n:].mean() - 2 * alike[:n, n:].mean()


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, features: Tensor, strength: float) -> Tensor:
        context.strength = strength  # type: ignore[attr-defined]
        return features.view_as(features)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return -context.strength * gradients[0], None  # type: ignore[attr-defined]


def reverse_gradient(features: Tensor, strength: float) -> Tensor:
    """The features as they are; their gradient is multiplied by −`strength`."""
    reversed_: Tensor = _Reversal.apply(features, strength)
    return reversed_


def reversal_at(progress: float) -> float:
    """λ_p = 2 / (1 + e^{−10 p}) − 1 at the share p of the training that is done.

    >>> round(reversal_at(0.0), 3), round(reversal_at(0.5), 3)
    (0.0, 0.987)
    """
    return 2 / (1 + math.exp(-10 * progress)) - 1


def fresh_discriminator(size: int, hidden: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """A discriminator of one hidden layer over (n, `size`) features; weights N(0, 2 / fan-in), biases 0."""
    inner = rng.standard_normal((hidden, size), dtype=np.float32) * math.sqrt(2 / size)
    outer = rng.standard_normal((1, hidden), dtype=np.float32) * math.sqrt(2 / hidden)
    return {
        "inner": torch.from_numpy(inner),
        "inner_bias": torch.zeros(hidden),
        "outer": torch.from_numpy(outer),
        "outer_bias": torch.zeros(1),
    }


def discriminate(features: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """(n,) logits that features are of the target."""
    hidden = F.relu(F.linear(features, weights["inner"], weights["inner_bias"]))
    return F.linear(hidden, weights["outer"], weights["outer_bias"]).view(-1)


@dataclass(frozen=True)
class Discrepancy(CosineLoss):
    """The loss of the source's images + weight · MMD² of the two domains' unit features."""

    of: CosineLoss
    weight: float
    kernels: int = 5

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        is_source, features = labels != UNKNOWN, unit(embeddings)
        classified = self.of(embeddings[is_source], weights, labels[is_source], **extra)
        return classified + self.weight * mk_mmd(features[is_source], features[~is_source], self.kernels)

    def rows(self, classes: int) -> int:
        return self.of.rows(classes)

    def extra(self, classes: int) -> dict[str, Tensor]:
        return self.of.extra(classes)


@dataclass(frozen=True)
class Adversary(CosineLoss):
    """The loss of the source's images + weight · the domains' cross-entropy, against which the features are trained.

    The discriminator's tensors are among `extra`, under the names of `fresh_discriminator`.
    """

    of: CosineLoss
    weight: float
    strength: float
    """λ_p."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        is_source = labels != UNKNOWN
        discriminator = {name: extra.pop(name) for name in ("inner", "inner_bias", "outer", "outer_bias")}
        features = unit(embeddings)
        logits = discriminate(reverse_gradient(features, self.strength), discriminator)
        told_apart = F.binary_cross_entropy_with_logits(logits, (~is_source).to(logits.dtype))
        return self.of(embeddings[is_source], weights, labels[is_source], **extra) + self.weight * told_apart

    def rows(self, classes: int) -> int:
        return self.of.rows(classes)
