r"""The classifier that a backbone is trained with: class embeddings W under a loss, and their optimiser.

With x = f_θ(image) an embedding (d,) and y its identity, local training minimises the mean of L(x, W, y) over θ and W,
and over what the loss trains beside W (the bias of SphereFace2). A step of it reads

    labels = classifier.select(labels, rng)                             # y, among the rows of W that the step sees;
                                                                        # the loss draws what it needs of this step
    loss, gradients = classifier.gradients(x, labels, backbone)         # L, and ∂L by name: of θ, W and what is beside
    classifier.step(gradients)                                          # W ← W − η v

There are three of them, and `classifier_for` says which a party has:

| | holds | a step sees |
|---|---|---|
| `DenseClassifier` | W | all rows |
| `ShardedClassifier` | a block of the rows of W, one in each process that plays the party | all rows |
| `SampledClassifier` | one of these two | the rows of the batch's identities, and others at random (partial FC) |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import Party, Tensors
from coalface.training.distributed.shards import Shards
from coalface.training.distributed.softmax import check_shardable, sharded_gradients
from coalface.training.losses.base import CosineLoss
from coalface.training.sgd import SGD

HEAD = "class_embeddings"
"""The name of the class embeddings among the trained tensors."""
LOSS = "loss."
"""What begins the names of the loss's own tensors among the trained ones."""

Criterion = Callable[..., Tensor]
"""(embeddings (n, d), class embeddings, labels (n,), what is trained and given besides by keyword) -> a scalar.

A `CosineLoss`, or what is built of some.
"""
STILL = SGD(lr=0.0)
"""Moves nothing: of a classifier that is looked at and not trained."""


@dataclass(frozen=True)
class ClassifierState:
    """What a classifier hands back."""

    weights: Tensor
    """(k, d) class embeddings, or this process's block of them."""
    extra: Tensors
    """What the loss trains beside them, and its state, by the keyword of its call."""
    velocity: Tensors
    """Momentum by the names of `Classifier.trained`; empty without."""


class Classifier(ABC):
    """Class embeddings under a loss: see above."""

    @property
    @abstractmethod
    def trained(self) -> Tensors:
        """What a step trains: the loss's own tensors as `loss.NAME`, then W as `HEAD`, or the rows that the step sees.

        What does not require gradients, such as codewords in the place of W or a loss's state, is not among them.
        """

    @abstractmethod
    def select(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """The labels (n,) of a batch, 0 to k − 1, as numbers of the rows that its step sees.

        All draws of the step are made here, in this order: which rows it sees, then what the loss draws.
        """

    @abstractmethod
    def gradients(
        self, embeddings: Tensor, labels: Tensor, backbone: Tensors, **beside: Tensor
    ) -> tuple[Tensor, Tensors]:
        """(L, its gradients by name: of the `backbone`'s tensors, then of `trained`) of (n, d) embeddings.

        The embeddings come with their graph; `labels` as `select` gave them; `beside` is given to the loss by keyword.
        Raises ValueError as the loss does.
        """

    @abstractmethod
    def step(self, gradients: Tensors) -> None:
        """A step of the optimiser on `trained`, in place."""

    @abstractmethod
    def state(self) -> ClassifierState:
        """What has been trained so far, without gradients."""


@dataclass(eq=False)
class WholeClassifier(Classifier):
    """A classifier whose steps see every row of W, or of the block of W that this process holds."""

    weights: Tensor
    """(k, d) W, or the block."""
    loss: Any
    """A `Criterion`."""
    _: KW_ONLY
    extra: Tensors = field(default_factory=dict)
    """What the loss trains beside W, and without `requires_grad` its state, by the keyword of its call."""
    sgd: SGD = STILL
    velocity: Tensors = field(default_factory=dict)
    """As `SGD.start` has it for `trained`."""
    drawn: Tensors = field(default_factory=dict, init=False)
    """What the loss has drawn for this step."""
    spends_gradients: ClassVar[bool] = False
    """Whether a step may write its gradients over, for their memory."""

    @property
    def trained(self) -> Tensors:
        tensors = {**{LOSS + name: tensor for name, tensor in self.extra.items()}, HEAD: self.weights}
        return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}

    def select(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        if isinstance(self.loss, CosineLoss):
            self.drawn = {name: t.to(labels.device) for name, t in self.loss.draw(len(labels), rng).items()}
        return labels

    def step(self, gradients: Tensors) -> None:
        trained = self.trained
        slopes, velocity = [gradients[name] for name in trained], list(self.velocity.values())
        self.sgd.step(list(trained.values()), slopes, velocity, spend=self.spends_gradients)

    def state(self) -> ClassifierState:
        extra = {name: tensor.detach() for name, tensor in self.extra.items()}
        return ClassifierState(self.weights.detach(), extra, self.velocity)

    @property
    @abstractmethod
    def classes(self) -> int:
        """k, over all processes."""

    @abstractmethod
    def place(self, drawn: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Which rows of `weights` are among the `drawn` (m,) of W, and where a classifier of these alone lies."""

    def part(self, drawn: Tensor) -> tuple[Self, Tensor]:
        """A classifier of the rows `drawn` (m,) of W alone, and which rows of `weights` these are.

        What the loss trains beside W, with its velocity, and its state are one and the same in both.
        """
        rows, where = self.place(drawn)
        weights = self.weights.detach()[rows].requires_grad_()
        moving = {HEAD: self.velocity[HEAD][rows]} if HEAD in self.velocity else {}
        return replace(self, weights=weights, velocity=self.velocity | moving, **where), rows


@dataclass(eq=False)
class DenseClassifier(WholeClassifier):
    """All of W in one process: L(x, W, y) by the loss itself.

    Examples:
        >>> from coalface.training.losses.margins import Softmax
        >>> head = DenseClassifier(torch.eye(2).requires_grad_(), Softmax(scale=1.0), sgd=SGD(lr=1.0))
        >>> loss, gradients = head.gradients(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), {})
        >>> head.step(gradients)
        >>> round(loss.item(), 4), head.state().weights  # log(1 + e^{−1}); only the other class turns away
        (0.3133, tensor([[ 1.0000,  0.0000],
                [-0.2689,  1.0000]]))
    """

    def gradients(
        self, embeddings: Tensor, labels: Tensor, backbone: Tensors, **beside: Tensor
    ) -> tuple[Tensor, Tensors]:
        if isinstance(self.loss, CosineLoss):
            state = {name: tensor for name, tensor in self.extra.items() if not tensor.requires_grad}
            with torch.no_grad():
                for name, advanced in self.loss.advance(embeddings, self.weights, labels, **state).items():
                    state[name].copy_(advanced)
        loss = self.loss(embeddings, self.weights, labels, **self.extra, **self.drawn, **beside)
        parameters = backbone | self.trained
        return loss, dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    @property
    def classes(self) -> int:
        return len(self.weights)

    def place(self, drawn: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return drawn, {}


@dataclass(eq=False)
class ShardedClassifier(WholeClassifier):
    """A block of W in each of the processes that play the party; see `coalface.training.distributed.softmax`.

    Together they have the loss and the gradients of `DenseClassifier`. Raises ValueError for a loss that is more than a
    margin on the softmax over one cosine per class.
    """

    shards: Shards
    first: int
    """`weights` are the rows `first`, `first` + 1, … of W."""
    count: int
    """k, over all processes."""
    spends_gradients: ClassVar[bool] = True  # one process's block may be most of its memory

    def __post_init__(self) -> None:
        check_shardable(self.loss)

    def gradients(
        self, embeddings: Tensor, labels: Tensor, backbone: Tensors, **beside: Tensor
    ) -> tuple[Tensor, Tensors]:
        assert not beside  # which `whole_classifier` sees to
        tensors = list(backbone.values())
        loss, by_backbone, by_rows = sharded_gradients(
            self.shards, self.loss, embeddings, tensors, self.weights, labels, first=self.first, classes=self.count
        )
        return loss, dict(zip(backbone, by_backbone, strict=True)) | dict.fromkeys(self.trained, by_rows)

    @property
    def classes(self) -> int:
        return self.count

    def place(self, drawn: Tensor) -> tuple[Tensor, dict[str, Any]]:
        first, beyond = (int((drawn < end).sum()) for end in (self.first, self.first + len(self.weights)))
        return drawn[first:beyond] - self.first, {"first": first, "count": len(drawn)}


class SampledClassifier(Classifier):
    """Partial FC: a step sees, and alters, the rows of W that `sampled_classes` draws; the others stay as they are.

    Source: An et al., "Killing two birds with one stone: efficient and robust training of face recognition CNNs by
    partial FC", CVPR 2022.
    """

    def __init__(self, whole: WholeClassifier, rate: float) -> None:
        """`rate` is the share of the classes that a step sees, above 0 and up to 1."""
        self._whole, self._rate = whole, rate
        self._part, self._rows = whole.part(torch.arange(0))

    @property
    def trained(self) -> Tensors:
        return self._part.trained

    def select(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        drawn = sampled_classes(labels, self._whole.classes, self._rate, rng)
        self._part, self._rows = self._whole.part(drawn)
        return self._part.select(torch.searchsorted(drawn, labels), rng)

    def gradients(
        self, embeddings: Tensor, labels: Tensor, backbone: Tensors, **beside: Tensor
    ) -> tuple[Tensor, Tensors]:
        return self._part.gradients(embeddings, labels, backbone, **beside)

    def step(self, gradients: Tensors) -> None:
        self._part.step(gradients)
        self._whole.weights.detach()[self._rows] = self._part.weights.detach()
        if HEAD in self._whole.velocity:
            self._whole.velocity[HEAD][self._rows] = self._part.velocity[HEAD]

    def state(self) -> ClassifierState:
        return self._whole.state()


def sampled_classes(labels: Tensor, classes: int, rate: float, rng: np.random.Generator) -> Tensor:
    """(m,) sorted numbers of the class embeddings of one step: all classes of the batch, and others at random.

    m is the share `rate` of the classes, rounded, and never less than the batch needs.
    """
    positives = torch.unique(labels).cpu().numpy()
    negatives = np.setdiff1d(np.arange(classes), positives, assume_unique=True)
    missing = max(0, round(rate * classes) - len(positives))
    drawn = np.concatenate([positives, rng.choice(negatives, size=missing, replace=False)]) if missing else positives
    return torch.from_numpy(np.sort(drawn)).to(labels.device)


def check_sampleable(loss: CosineLoss) -> None:
    """Raise ValueError for a loss of which a step needs more than the drawn rows of W, one for each class."""
    two, three = ({name: t.shape for name, t in (loss.extra(k) | loss.state(k)).items()} for k in (2, 3))
    if loss.rows(2) != 2 or two != three:
        raise ValueError(
            f"{type(loss).__name__} has several class embeddings for a class, or tensors with a row for each class, "
            "and cannot sample them; remove sample_rate, or use another loss"
        )


def whole_classifier(
    party: Party, weights: Tensor, loss: Criterion, *, extra: Tensors, sgd: SGD = STILL
) -> WholeClassifier:
    """A party's classifier over all rows of W; where several processes play it, `weights` is this one's block.

    Raises ValueError where they do and the loss cannot be split among them.
    """
    if party.shards is None:
        return DenseClassifier(weights, loss, extra=extra, sgd=sgd)
    if not isinstance(loss, CosineLoss):
        raise ValueError(
            "several losses over one batch are not split over processes: leave out engine.processes_per_party"
        )
    count = len(party.data.names)
    first = party.shards.span(count).start
    return ShardedClassifier(weights, loss, sgd=sgd, shards=party.shards, first=first, count=count)


def classifier_for(
    party: Party,
    weights: Tensor,
    loss: Criterion,
    sgd: SGD,
    *,
    extra: Tensors | None = None,
    velocity: Tensors | None = None,
    sample_rate: float | None = None,
    fixed: bool = False,
) -> Classifier:
    """A party's classifier, on its device, that leaves what it is given as it is.

    `extra` is what the loss trains beside W (`CosineLoss.extra`) and its state, `velocity` the momentum carried in, by
    name. With a `sample_rate` below 1 a step sees that share of the classes; with `fixed` W is not trained, and all of
    it is seen. Raises ValueError as `whole_classifier` and, with a `sample_rate`, as `check_sampleable`.
    """
    sampled = sample_rate is not None and sample_rate < 1 and not fixed
    if sampled and isinstance(loss, CosineLoss):
        check_sampleable(loss)
    untrained = loss.state(len(party.data.names)) if isinstance(loss, CosineLoss) else {}
    extra_tensors = {
        name: tensor.to(party.device, copy=True).requires_grad_(name not in untrained)
        for name, tensor in (extra or {}).items()
    }
    weights = weights.to(party.device, copy=True).requires_grad_(not fixed)
    whole = whole_classifier(party, weights, loss, extra=extra_tensors, sgd=sgd)
    whole.velocity = sgd.start(whole.trained, velocity or {})
    return SampledClassifier(whole, sample_rate) if sampled and sample_rate is not None else whole
