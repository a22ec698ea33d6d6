"""Local training: SGD with momentum over a backbone and its class embeddings, state in and state out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.checks import unknown_name
from coalface.core.method import Party, Tensors, private
from coalface.training.classifier import STILL, Classifier, Criterion, classifier_for
from coalface.training.distributed.batchnorm import synchronised
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import CosineLoss
from coalface.training.sgd import MOMENTUM, SGD, Momentum, MomentumState

_DRAWN = 1 << 14  # rows that are drawn at a time where they are not kept

Beside = Callable[[Tensor], Tensors]
"""images (n, c, h, w) of a step -> what the loss is given besides by keyword, such as another model's embeddings."""

Pull = Callable[[Tensors, Tensor, Tensor], Tensors]
"""(trained, images (n, c, h, w), labels (n,)) of a step -> what it adds to the gradients, by name.

`trained` are the parameters that the step trains, by name on the party's device: those of the backbone, the class
embeddings under `coalface.training.classifier.HEAD`, and what the loss trains beside them. A name that `pull` leaves
out gets nothing added; one that is not trained is passed over. Autograd is on, so detach what it uses.
"""


@private
class Learner:
    """What a party keeps of its training from round to round; none of it is ever sent."""

    head: Tensor
    """(k, d) class embeddings of its identities; with a loss of several rows a class, all of them. Where several
    processes play the party, this one's block."""
    extra: Tensors
    """What the loss trains beside them, such as the bias of SphereFace2, and its state; empty for most."""
    kept: Tensors
    """What the BatchNorm policy keeps from the wire."""
    velocity: Tensors
    """Momentum by parameter name, the class embeddings' under `HEAD`; empty unless it is kept."""
    cursor: Cursor


def fresh_head(party: Party, rows: int | None = None) -> Tensor:
    """(k, d) class embeddings for the party's identities, drawn from N(0, 0.01²) by a stream of its own.

    `rows` in place of k is for a loss that has several rows for a class. Where several processes play the party, each
    gets its block of the one draw.
    """
    rows = len(party.data.names) if rows is None else rows
    block = party.shards.span(rows) if party.shards is not None else slice(0, rows)
    rng, size = party.stream(party.stage, "head"), party.backbone.embedding_size
    for at in range(0, block.start, _DRAWN):  # numbers of the blocks before it
        rng.standard_normal((min(_DRAWN, block.start - at), size), dtype=np.float32)
    drawn = rng.standard_normal((block.stop - block.start, size), dtype=np.float32)
    dtype = next((p.dtype for p in party.backbone.parameters.values()), torch.float32)
    return torch.from_numpy(drawn).mul_(0.01).to(party.device, dtype)


def learn(
    party: Party,
    backbone: Tensors,
    learner: Learner | None,
    work: LocalTraining,
    loss: CosineLoss,
    *,
    momentum: MomentumState,
    head_momentum: MomentumState | None = None,
    fixed_head: bool = False,
    pull: Pull | None = None,
    criterion: Criterion | None = None,
    beside: Beside | None = None,
) -> tuple[float, Learner]:
    """One round's local training: the party's module goes from `backbone` to the weights after `work`.

    `learner` is what the party kept of its last round, None before its first. Returns the mean training loss and what
    the party keeps. What the velocity of SGD starts from says `momentum` of the backbone, and `head_momentum` of the
    class embeddings and of what the loss trains beside them (None: as `momentum`): zero ("reset"), the party's own of
    its last round ("keep"), or there is no momentum ("none"). With `fixed_head` these stay as they are, and the
    backbone alone is trained. `pull(trained, images, labels)` gives what each step adds to its gradients, by name: see
    `Pull` and `pull_towards`. `criterion` is minimised in place of `loss`, whose class embeddings, and what it trains
    beside them, it takes, with what `beside` gives of the images by keyword (see `Beside`); the loss that is returned
    is the criterion's.

    Raises RecipeError for an unknown momentum, ValueError where class embeddings are to be sampled and the loss does
    not allow it, and where several processes play the party and the loss cannot be split among them.
    """
    for kind in (momentum, head_momentum or momentum):
        if kind not in MOMENTUM:
            raise unknown_name(kind, MOMENTUM, "momentum of learn()")
    of_backbone, of_head = MOMENTUM[momentum], MOMENTUM[head_momentum or momentum]
    party.backbone.load(backbone, learner.kept if learner else None)
    batches, cursor = work.batches(party, learner.cursor if learner else Cursor())
    classifier = learners_classifier(party, learner, work, loss, of_head, criterion, fixed=fixed_head)
    velocity = learner.velocity if learner else {}
    sgd = work.sgd(party, of_backbone)
    trained = train(party, classifier, batches, sgd, velocity=velocity, pull=pull, beside=beside)
    kept_velocity = of_backbone.keep(trained.backbone_velocity) | of_head.keep(trained.head_velocity)
    return trained.loss, trained.learner(cursor, party.backbone.kept(), kept_velocity)


def learners_classifier(
    party: Party,
    learner: Learner | None,
    work: LocalTraining,
    loss: CosineLoss,
    momentum: Momentum,
    criterion: Criterion | None = None,
    *,
    fixed: bool = False,
) -> Classifier:
    """The classifier that a party's round begins with: what it kept of its last one, or a fresh one before its first.

    With `fixed` its steps move nothing. Raises ValueError as `learn`.
    """
    classes = len(party.data.names)
    return classifier_for(
        party,
        learner.head if learner else fresh_head(party, loss.rows(classes)),
        criterion or loss,
        STILL if fixed else work.sgd(party, momentum),
        extra=learner.extra if learner else loss.extra(classes) | loss.state(classes),
        velocity=learner.velocity if learner else {},
        sample_rate=work.sample_rate,
    )


def whole_backbone(party: Party, shared: Tensors, kept: Tensors | None) -> Tensors:
    """A party's own backbone by name: what is shared, with what the BatchNorm policy keeps at the party.

    `kept` is as the party has it, None before it has trained. The party's module is left loaded with it.
    """
    party.backbone.load(shared, kept)
    return {**party.backbone.shared(), **party.backbone.kept()}


@dataclass(frozen=True)
class Trained:
    """What local training gives, beside the module that it leaves trained."""

    head: Tensor
    """(k, d) class embeddings, or this process's block of them."""
    extra: Tensors
    loss: float
    """The mean over the images."""
    backbone_velocity: Tensors
    """Momentum of the backbone by name; empty without."""
    head_velocity: Tensors
    """That of the classifier, by the names of `Classifier.trained`."""

    @property
    def velocity(self) -> Tensors:
        """All momentum by name."""
        return self.backbone_velocity | self.head_velocity

    def learner(self, cursor: Cursor, kept: Tensors, velocity: Tensors) -> Learner:
        """What the party keeps: `kept` by the BatchNorm policy, and so much of the momentum."""
        return Learner(head=self.head, extra=self.extra, kept=kept, velocity=velocity, cursor=cursor)


def train(
    party: Party,
    classifier: Classifier,
    batches: Sequence[NDArray[np.int64]],
    sgd: SGD,
    *,
    fixed_backbone: bool = False,
    velocity: Tensors | None = None,
    pull: Pull | None = None,
    beside: Beside | None = None,
) -> Trained:
    """Train the party's module, by `sgd`, and a classifier on some batches of the party's data.

    A step minimises L(f_θ(images), W, labels): θ, the module's trained parameters, by `sgd`, W by the classifier's own.
    With `fixed_backbone` θ stays as it is; BatchNorm still takes the statistics of its batches, and its running ones
    move. `velocity` carries momentum in, by name; what it lacks starts from zero. `pull` gives gradients to add,
    `beside` what the loss is to know of the images besides. Where several processes play the party, `pull` gets this
    one's part of the images with the labels of them all. Raises FloatingPointError when the loss is not finite, and
    ValueError as `classifier_for`.
    """
    module = party.backbone.module
    if not module.training:  # to say it again to every layer takes as long as a small batch's loss
        module.train()
    theta: Tensors = {**party.backbone.parameters} if not fixed_backbone else {}
    carried = velocity is not None and not theta.keys().isdisjoint(velocity)
    speeds = list(sgd.start(theta, velocity or {}).values()) if carried else []
    total, images = torch.zeros((), dtype=torch.float64, device=party.device), 0
    for index in batches:
        pixels, labels = load_batch(party, index, party.rng)
        labels = classifier.select(labels, party.rng)  # y, among the rows of W that this step sees
        with synchronised(module, party.shards, len(index)):
            with torch.set_grad_enabled(bool(theta)):
                embeddings = party.compute.embed(module, pixels)  # x = f_θ(images)
            inputs = beside(pixels) if beside is not None else {}
            loss, gradients = classifier.gradients(embeddings, labels, theta, **inputs)  # L(x, W, y); ∂L/∂θ, ∂L/∂W
        if pull is not None:
            add_to(gradients, pull(theta | classifier.trained, pixels, labels))
        sgd.step(list(theta.values()), [gradients[name] for name in theta], speeds)
        classifier.step(gradients)
        total += loss.detach().double() * len(index)
        images += len(index)
    mean = float(total) / max(1, images)
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"the training loss is {mean} at learning rate {sgd.lr:g}; lower local.lr or check the images"
        )
    state = classifier.state()
    return Trained(state.weights, state.extra, mean, dict(zip(theta, speeds, strict=False)), state.velocity)


def load_batch(party: Party, index: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Augmented images, and the labels (n,) of the whole batch, on the device.

    The images are all n of them, or at a party of several processes those of `span(n)`, with the pixels that they would
    have in the whole batch.
    """
    if party.shards is None:
        images, labels = party.compute.batch(party.data, index, rng)
    else:
        images, _ = party.compute.batch(party.data, index, rng, part=party.shards.span(len(index)))
        labels = torch.from_numpy(party.data.labels[index]).to(party.device)
    return images, labels


def pull_towards(anchor: Tensors, strength: float, device: torch.device) -> Pull:
    """A proximal term: the gradient μ (w − a) of (μ/2) ‖w − a‖² over the trained parameters w that the anchor a has.

    μ is the `strength`. Source: Li et al., MLSys 2020.
    """
    anchor = {name: a.to(device) for name, a in anchor.items()}

    def pull(trained: Tensors, images: Tensor, labels: Tensor) -> Tensors:
        return {name: strength * (w.detach() - anchor[name]) for name, w in trained.items() if name in anchor}

    return pull


def add_to(gradients: Tensors, added: Tensors) -> None:
    """Add what there is of `added` to gradients by name."""
    if not (names := [name for name in gradients if name in added]):
        return
    sums = torch._foreach_add([gradients[name] for name in names], [added[name] for name in names])
    gradients.update(zip(names, sums, strict=True))
