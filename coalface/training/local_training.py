"""Local training: SGD with momentum over a backbone and its class embeddings, state in and state out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Party, Tensors, private
from coalface.training.distributed import classifier
from coalface.training.distributed.batchnorm import synchronised
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import CosineLoss

_DRAWN = 1 << 14  # rows that are drawn at a time where they are not kept
HEAD = "class_embeddings"
"""The name of the class embeddings among the trained tensors."""


Criterion = Callable[..., Tensor]
"""(embeddings (n, d), class embeddings, labels (n,), what is trained and given besides by keyword) -> a scalar.

A `CosineLoss`, or what is built of some.
"""
Beside = Callable[[Tensor], Tensors]
"""images (n, c, h, w) of a step -> what the loss is given of them besides, by keyword, without gradient.

For example what another model says of the same images.
"""


def sgd_step(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocity: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    spend: bool = False,
) -> None:
    """One step of SGD in place: v ← β v + (g + λ w); w ← w − η v.

    η is `lr`, β `momentum`, λ `weight_decay`; `velocity` v starts at zero. The same as `torch.optim.SGD`. With `spend`
    the gradients are written over, which spares the memory of as much again.
    """
    if not parameters:  # of a backbone that is frozen
        return
    with torch.no_grad():
        steps = list(gradients)
        if weight_decay:
            if spend:
                torch._foreach_add_(steps, list(parameters), alpha=weight_decay)
            else:
                steps = list(torch._foreach_add(steps, list(parameters), alpha=weight_decay))
        if momentum:
            torch._foreach_mul_(list(velocity), momentum)
            torch._foreach_add_(list(velocity), steps)
            steps = list(velocity)
        torch._foreach_add_(list(parameters), steps, alpha=-lr)


MomentumState = Literal["reset", "keep", "none"]
"""The momentum at the start of a round: zero, the party's own of its last round, or no momentum at all."""

Pull = Callable[[Tensors, Tensor, Tensor], Tensors]
"""(the trained tensors by name, images (n, c, h, w), labels (n,) of a step) -> gradients to add, by name.

For example the gradient of a proximal term, or a correction of client drift.
"""


@private
class Learner:
    """What a party keeps of its training from round to round; none of it is ever sent."""

    head: Tensor
    """(k, d) class embeddings of its identities; with a loss of several rows a class, all of them. Where several
    processes play the party, this one's block."""
    extra: Tensors
    """What the loss trains beside them, such as the bias of SphereFace2; empty for most."""
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
    pull: Pull | None = None,
) -> tuple[float, Learner]:
    """One round's local training: the party's module goes from `backbone` to the weights after `work`.

    Returns the mean training loss and what the party keeps. `momentum` is the backbone's, `head_momentum` that of the
    class embeddings and of what the loss trains beside them (None: as the backbone's). `pull` gives gradients to add.
    Raises ValueError where class embeddings are to be sampled and the loss has several rows for a class, and where
    several processes play the party and the loss cannot be split among them.
    """
    head_momentum = head_momentum or momentum
    classes = len(party.data.names)
    if (work.sample_rate or 1) < 1 and loss.rows(classes) != classes:
        raise ValueError(
            f"local.sample_rate: {type(loss).__name__} has several class embeddings for a class and cannot sample them"
        )
    party.backbone.load(backbone, learner.kept if learner else None)
    batches, cursor = work.batches(party, learner.cursor if learner else Cursor())
    trained = train(
        party,
        learner.head if learner else fresh_head(party, loss.rows(classes)),
        batches,
        loss,
        extra=learner.extra if learner else loss.extra(classes),
        lr=work.lr_at(party.round, party.rounds),
        momentum=0.0 if momentum == "none" else work.momentum,
        head_momentum=0.0 if head_momentum == "none" else work.momentum,
        weight_decay=work.weight_decay,
        velocity=learner.velocity if learner else {},
        pull=pull,
        sample_rate=work.sample_rate,
    )
    keeps = {True: momentum == "keep", False: head_momentum == "keep"}
    in_backbone = {name for name, _ in party.backbone.module.named_parameters()}
    kept = Learner(
        head=trained.head,
        extra=trained.extra,
        kept=party.backbone.kept(),
        velocity={name: v for name, v in trained.velocity.items() if keeps[name in in_backbone]},
        cursor=cursor,
    )
    return trained.loss, kept


@dataclass(frozen=True)
class Trained:
    """What local training gives, beside the module that it leaves trained."""

    head: Tensor
    """(k, d) class embeddings, or this process's block of them."""
    extra: Tensors
    loss: float
    """The mean over the images."""
    velocity: Tensors
    """Momentum by name; empty without."""


def sampled_classes(labels: Tensor, classes: int, rate: float, rng: np.random.Generator) -> Tensor:
    """(m,) sorted numbers of the class embeddings of one step: all classes of the batch, and others at random.

    m is the share `rate` of the classes, rounded, and never less than the batch needs. Source: An et al., "Killing two
    birds with one stone: efficient and robust training of face recognition CNNs by partial FC", CVPR 2022.
    """
    own = torch.unique(labels).cpu().numpy()
    others = np.setdiff1d(np.arange(classes), own, assume_unique=True)
    more = max(0, round(rate * classes) - len(own))
    drawn = np.concatenate([own, rng.choice(others, size=more, replace=False)]) if more else own
    return torch.from_numpy(np.sort(drawn)).to(labels.device)


def train(
    party: Party,
    head: Tensor,
    batches: Sequence[NDArray[np.int64]],
    loss: Criterion,
    *,
    extra: Tensors | None = None,
    lr: float,
    momentum: float,
    head_momentum: float | None = None,
    weight_decay: float,
    velocity: Tensors | None = None,
    pull: Pull | None = None,
    beside: Beside | None = None,
    sample_rate: float | None = None,
    fixed_head: bool = False,
) -> Trained:
    """Train the party's module, (k, d) class embeddings and what the loss has beside them on some batches of its data.

    `extra` are the loss's own tensors (`CosineLoss.extra`), with the momentum (`head_momentum`; None: as the module's)
    and weight decay of the class embeddings. `velocity` carries momentum in, by name; what it lacks starts from zero.
    `pull` gives gradients to add, `beside` what the loss is to know of the images besides. With `sample_rate` a
    step sees, and alters, only those class embeddings that `sampled_classes` draws; with `fixed_head` none is
    altered. Where several processes play the party, `head` and its momentum are this one's block, and `pull` gets
    its part of the images with the labels of them all. Raises FloatingPointError when the loss is not finite, and
    ValueError as `learn`.
    """
    shards, classes = party.shards, len(head)
    if shards is not None:
        if fixed_head:
            raise ValueError(
                "fixed class embeddings are not split over processes: leave out engine.processes_per_party"
            )
        if beside is not None or not isinstance(loss, CosineLoss):
            raise ValueError(
                "several losses over one batch are not split over processes: leave out engine.processes_per_party"
            )
        classifier.check_shardable(loss)
        classes = len(party.data.names)
    block = shards.span(classes) if shards is not None else slice(0, classes)
    module = party.backbone.module.train()
    head = head.to(party.device, copy=True).requires_grad_(not fixed_head)
    named: Tensors = {name: p for name, p in module.named_parameters() if p.requires_grad}
    border = len(named)  # the backbone's parameters are before it, those of the classifier from it on
    own = {name: t.to(party.device, copy=True).requires_grad_() for name, t in (extra or {}).items()}
    named |= {f"loss.{name}": tensor for name, tensor in own.items()}
    if not fixed_head:
        named[HEAD] = head  # the last of all
    parameters = list(named.values())
    rates = [momentum] * border + [momentum if head_momentum is None else head_momentum] * (len(named) - border)
    carried = velocity or {}
    buffers = [
        (carried[name].to(p.device, copy=True) if name in carried else torch.zeros_like(p)) if rate else p.new_empty(0)
        for (name, p), rate in zip(named.items(), rates, strict=True)
    ]
    total, images = torch.zeros((), dtype=torch.float64, device=head.device), 0
    for index in batches:
        pixels, labels = classifier.batch(party, index, party.rng)
        rows, first, of = None, block.start, classes
        if sample_rate is not None and sample_rate < 1 and not fixed_head:
            rows = sampled_classes(labels, classes, sample_rate, party.rng)
            labels, of = torch.searchsorted(rows, labels), len(rows)
            if shards is not None:
                first, beyond = (int((rows < end).sum()) for end in (block.start, block.stop))
                rows = rows[first:beyond] - block.start  # those of this block
            named[HEAD] = parameters[-1] = head.detach()[rows].requires_grad_()
            if rates[-1]:
                whole, buffers[-1] = buffers[-1], buffers[-1][rows]
        with synchronised(module, shards, len(index)):
            embeddings = party.compute.embed(module, pixels)
            if shards is None or not isinstance(loss, CosineLoss):
                known = beside(pixels) if beside is not None else {}
                value = loss(embeddings, named.get(HEAD, head), labels, **own, **known)
                gradients = list(torch.autograd.grad(value, parameters))
            else:
                value, gradients, by_head = classifier.gradients(
                    shards, loss, embeddings, parameters[:-1], named[HEAD], labels, first=first, classes=of
                )
                gradients.append(by_head)
        if pull is not None:
            added = pull(named, pixels, labels)
            places = [place for place, name in enumerate(named) if name in added]
            sums = torch._foreach_add([gradients[i] for i in places], [added[n] for n in named if n in added])
            for place, summed in zip(places, sums, strict=True):
                gradients[place] = summed
        for part, rate in ((slice(0, border), momentum), (slice(border, None), rates[-1])):
            trained = parameters[part], gradients[part], buffers[part]
            spend = shards is not None and part.stop is None  # one process's block may be most of its memory
            sgd_step(*trained, lr=lr, momentum=rate, weight_decay=weight_decay, spend=spend)
        if rows is not None:
            head.detach()[rows] = parameters[-1].detach()
            if rates[-1]:
                whole[rows] = buffers[-1]
                buffers[-1] = whole
        total += value.detach().double() * len(index)
        images += len(index)
    mean = float(total) / max(1, images)
    if not math.isfinite(mean):
        raise FloatingPointError(
            f"the training loss is {mean} at learning rate {lr:g}; lower local.lr or check the images"
        )
    found = {name: tensor.detach() for name, tensor in own.items()}
    moving = {name: v for (name, v), rate in zip(zip(named, buffers, strict=True), rates, strict=True) if rate}
    return Trained(head.detach(), found, mean, moving)
