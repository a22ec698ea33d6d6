"""The form that the losses share: (embeddings, class embeddings, labels) → scalar, over their cosines.

With x the unit vector of an embedding, w_j that of class embedding j and y its identity, cos θ_j = ⟨x, w_j⟩. All is
computed in the widest dtype of embeddings and class embeddings, and in float32 at least, under autocast as well. A
vector of length zero has cosine 0 with everything and gets gradient 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coalface.core.checks import TypedSettings


@dataclass(frozen=True)
class CosineLoss(TypedSettings, ABC):
    """A loss over the cosines between embeddings and class embeddings; the object holds hyper-parameters alone.

    What changes while it trains goes in and comes out. A local step reads

        drawn = loss.draw(n, rng)                                    # at random, for this step alone
        state = loss.advance(embeddings, weights, labels, **state)   # kept at the party from step to step
        loss(embeddings, weights, labels, **extra, **state, **drawn)
    """

    @abstractmethod
    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of the batch, a scalar.

        `embeddings` (n, d) and `weights` (`rows(k)`, d), the class embeddings, both of any length; `labels` (n,) int64,
        0 to k − 1. What `extra(k)`, `state(k)` and `draw` name can be given by keyword.

        Raises ValueError where the shapes do not fit, or a label names no class.
        """

    def rows(self, classes: int) -> int:
        """How many rows the class embeddings of that many classes have: one each, unless a loss says otherwise."""
        return classes

    def extra(self, classes: int) -> dict[str, Tensor]:
        """What is trained beside backbone and class embeddings, by keyword of the call, at its first values."""
        return {}

    def state(self, classes: int) -> dict[str, Tensor]:
        """What `advance` changes from step to step, by keyword of the call, at its first values."""
        return {}

    def advance(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **state: Tensor) -> dict[str, Tensor]:
        """The state with which the loss of this batch is taken; without gradient, in the shapes of `state`."""
        return {}

    def draw(self, images: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """What is drawn for the step of a batch of so many images, by keyword of the call."""
        return {}


@dataclass(frozen=True)
class MarginSoftmax(CosineLoss):
    r"""The mean cross-entropy over scaled cosines, with a margin on that of the own class.

        −log( e^{s·f(cos θ_y)} / (e^{s·f(cos θ_y)} + Σ_{j≠y} e^{s·cos θ_j}) )

    The losses of this family differ in f, which holds the margin. With one class the loss is 0, and so is its gradient.
    """

    scale: float = 64.0
    """s, the factor on every cosine before the softmax; above 0."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)

    @abstractmethod
    def target(self, cosine: Tensor) -> Tensor:
        """f: the cosine to the own class, (n, 1), with the margin taken off."""

    def cosines(self, embeddings: Tensor, weights: Tensor) -> Tensor:
        """(n, k) cosines, one for each class."""
        return cosines(embeddings, weights)

    def logits(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """(n, k) scaled cosines, those of the own classes less the margin; arguments and errors as for the loss."""
        check_shapes(embeddings, weights, labels)
        cosines = self.cosines(embeddings, weights)
        check_labels(labels, cosines.shape[1])
        own_class = labels[:, None]
        return cosines.scatter(1, own_class, self.target(cosines.gather(1, own_class))).mul_(self.scale)

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(embeddings, weights, labels), labels)


@dataclass(frozen=True)
class OwnClassLoss(CosineLoss):
    """A loss of an image that looks at the class embedding of its own identity and at nobody else's trained one."""

    @abstractmethod
    def each(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        """(n,) the loss of each image; arguments as those of the call."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        return self.each(embeddings, weights, labels, **extra).mean()


_looks: ContextVar[bool] = ContextVar("looks", default=True)


@contextmanager
def without_looks() -> Iterator[None]:
    """Within, losses look at no number of their arguments, which many that are computed as one do not let them."""
    token = _looks.set(False)
    try:
        yield
    finally:
        _looks.reset(token)


def unit(vectors: Tensor) -> Tensor:
    """(n, d) vectors at length one; a vector of zeros stays one, with gradient 0 instead of an infinite one.

    Vectors whose squares lie beyond the numbers of their dtype, of 1e19 or 1e-23 in float32, are brought near length
    one first: by their largest entry, without gradient, since the direction does not depend on it.
    """
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    if not _ordinary(length):
        vectors = vectors / _reach(vectors, length)
        length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.masked_fill(length == 0, math.inf)


def lengths(vectors: Tensor) -> Tensor:
    """(n, 1) the lengths of (n, d) vectors, also of those whose squares lie beyond the numbers of their dtype."""
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    if _ordinary(length):
        return length
    reach = _reach(vectors, length)
    return torch.linalg.vector_norm(vectors / reach, dim=1, keepdim=True) * reach


def _ordinary(length: Tensor) -> bool:
    """Whether no length is 0, not finite, or so small that the squares in it lost digits.

    Elsewhere than on the CPU the look would wait for the device, and `without_looks` there is none: then the answer is
    no, and the long way is taken.
    """
    if length.device.type != "cpu" or not length.numel() or not _looks.get():
        return False
    low, high = (bound.item() for bound in length.detach().aminmax())
    return _least(length.dtype) <= low and high < math.inf


def _least(dtype: torch.dtype) -> float:
    """The length down to which all digits of the squares are there: 3e-16 in float32."""
    info = torch.finfo(dtype)
    return math.sqrt(info.tiny / info.eps)


def _reach(vectors: Tensor, length: Tensor) -> Tensor:
    """(n, 1) the largest absolute entry of vectors of no ordinary length; 1 for others, which it leaves bit for bit.

    Where that entry is below the dtype's smallest normal number, 1e-38 in float32, the vector counts as zeros.
    """
    tiny = torch.finfo(length.dtype).tiny
    with torch.no_grad():
        most = torch.linalg.vector_norm(vectors, ord=math.inf, dim=1, keepdim=True)
        odd = ((length < _least(length.dtype)) | (length == math.inf)) & (most >= tiny) & (most < math.inf)
        return torch.where(odd, most, 1.0)


def wide(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the widest of their dtypes, and in float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def cosines(embeddings: Tensor, weights: Tensor) -> Tensor:
    """(n, r) cosines between (n, d) embeddings and the (r, d) rows of `weights`; see above for the dtype."""
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings, weights = wide(embeddings, weights)
        return unit(embeddings) @ unit(weights).T


def own_cosines(embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
    """(n,) the cosine of each embedding to its own class embedding."""
    with torch.autocast(embeddings.device.type, enabled=False):
        embeddings, weights = wide(embeddings, weights[labels])
        return (unit(embeddings) * unit(weights)).sum(1)


def require(loss: CosineLoss, requirement: str, holds: bool, value: float) -> None:
    """Raise ValueError, naming the loss, unless what it needs of its settings holds."""
    if not holds:
        raise ValueError(f"{type(loss).__name__} needs {requirement}; got {value}")


def sine(cosine: Tensor) -> Tensor:
    """√(1 − cosine²); at ±1, where its slope is infinite, the gradient is taken as 0."""
    # A cosine beside ±1 leaves 1 − cosine² at about eps: the clamp alters only what is 0, or below it by rounding.
    return (1 - cosine * cosine).clamp_min(torch.finfo(cosine.dtype).tiny).sqrt()


def check_pure(loss: CosineLoss) -> None:
    """Raise ValueError for a loss that is not the same of the same batch: one that draws, or keeps a state."""
    if type(loss).draw is not CosineLoss.draw or loss.state(2):
        raise ValueError(
            f"{type(loss).__name__} draws at random or keeps a state, which this method has no place for: use a loss "
            "such as cosface"
        )


def check(embeddings: Tensor, weights: Tensor, labels: Tensor, lowest: int = 0) -> None:
    """Raise ValueError where the arguments of a loss with one row a class do not fit."""
    check_shapes(embeddings, weights, labels)
    check_labels(labels, len(weights), lowest)


def check_shapes(embeddings: Tensor, weights: Tensor, labels: Tensor) -> None:
    """Raise ValueError where the shapes of a loss's arguments do not fit."""
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


def check_labels(labels: Tensor, classes: int, lowest: int = 0) -> None:
    """Raise ValueError where a label lies outside `lowest` to `classes` − 1."""
    if labels.device.type != "cpu" or not _looks.get():  # a look would wait for the device, which checks by itself
        return
    low, high = (int(v) for v in labels.aminmax())
    if low < lowest or high >= classes:
        wrong = low if low < lowest else high
        none = "; -1 stands for none of them" if lowest == -1 else ""
        raise ValueError(f"label {wrong} names no class: there are {classes}, numbered from 0{none}")
