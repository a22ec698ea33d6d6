"""Local training of many parties at once, each from the same backbone: state in and state out, as of each by itself.

Parties whose batches are of the same sizes train as one: their weights are stacked, θ (P, …), and a step embeds all of
their images in one call, in which image j of party i meets θ_i. Where a party takes one step and keeps no momentum of
its backbone, nothing is stacked: the mean of the parties' weights is one step on the mean of their gradients,
Σ n_i (θ − η g_i) / Σ n_i = θ − η Σ n_i g_i / Σ n_i, and g_i is taken of all images at once. Each party has its own
draws, class embeddings and loss either way, as `coalface.training.local_training` takes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from coalface.core.method import Backbone, Party, Tensors
from coalface.models.groups import has_constant_buffers
from coalface.training.classifier import HEAD, Classifier, DenseClassifier
from coalface.training.local_training import Learner, Pull, Trained, add_to, learners_classifier
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import CosineLoss, without_looks
from coalface.training.sgd import MOMENTUM, SGD, MomentumState

Batches = Sequence[NDArray[np.int64]]
"""The images of each step, as indices into a party's data."""


@dataclass(frozen=True)
class TrainedTogether:
    """What the local training of many parties gives."""

    backbone: Tensors
    """Σ n_i θ_i / Σ n_i, of what parties share."""
    parties: list[Trained]


def learn_together(
    parties: Sequence[Party],
    backbone: Tensors,
    learners: Sequence[Learner | None],
    work: LocalTraining,
    loss: CosineLoss,
    *,
    momentum: MomentumState,
    head_momentum: MomentumState | None = None,
    fixed_head: bool = False,
    pulls: Sequence[Pull] = (),
) -> tuple[Tensors, list[tuple[float, Learner]]]:
    """What `learn` gives of each party, with the mean of their backbones by images; see there for the arguments.

    `pulls` has one for each party, or none. For backbones without an `unstackable_reason`.
    """
    of_backbone, of_head = MOMENTUM[momentum], MOMENTUM[head_momentum or momentum]
    first = parties[0]
    first.backbone.load(backbone)
    started = list(zip(parties, learners, strict=True))
    begun = [work.batches(party, learner.cursor if learner else Cursor()) for party, learner in started]
    together = train_together(
        parties,
        [learners_classifier(party, learner, work, loss, of_head, fixed=fixed_head) for party, learner in started],
        [batches for batches, _ in begun],
        work.sgd(first, of_backbone),
        velocities=[learner.velocity if learner else {} for learner in learners] if of_backbone.kept else None,
        pulls=pulls,
    )
    results = [
        trained.learner(cursor, {}, of_backbone.keep(trained.backbone_velocity) | of_head.keep(trained.head_velocity))
        for trained, (_, cursor) in zip(together.parties, begun, strict=True)
    ]
    return together.backbone, [(t.loss, learner) for t, learner in zip(together.parties, results, strict=True)]


def train_together(
    parties: Sequence[Party],
    classifiers: Sequence[Classifier],
    batches: Sequence[Batches],
    sgd: SGD,
    *,
    velocities: Sequence[Tensors] | None = None,
    pulls: Sequence[Pull] = (),
) -> TrainedTogether:
    """What `train` gives of each party from the weights in the module, which it leaves as they are.

    `velocities` carry momentum of the backbone in, and then it is given out; with None it starts from zero and is lost.
    Raises FloatingPointError where a party's loss is not finite.
    """
    module = parties[0].backbone.module
    module.train()
    images = [len(party.data) for party in parties]
    shared, trained = parties[0].backbone.shared(), dict[int, Trained]()
    mean = {name: torch.zeros_like(p) for name, p in module.named_parameters() if p.requires_grad}
    for places in _alike(batches, single=velocities is None):
        block = _Block(
            module,
            [parties[i] for i in places],
            [classifiers[i] for i in places],
            [pulls[i] for i in places] if pulls else [],
            torch.tensor([images[i] / sum(images) for i in places], dtype=torch.float64),
        )
        steps = [[batches[i][step] for i in places] for step in range(len(batches[places[0]]))]
        if len(steps) == 1 and velocities is None:
            weights, losses = block.one_step(steps[0], sgd)
            speeds: list[Tensors] = [{} for _ in places]
        else:
            weights, losses, speeds = block.stacked(steps, sgd, [velocities[i] for i in places] if velocities else None)
        torch._foreach_add_([mean[name] for name in weights], list(weights.values()))
        for place, loss, speed in zip(places, losses, speeds, strict=True):
            if not math.isfinite(loss):
                raise FloatingPointError(f"the training loss of {parties[place].name} is {loss}")
            state = classifiers[place].state()
            trained[place] = Trained(state.weights, state.extra, loss, speed, state.velocity)
    return TrainedTogether(shared | mean, [trained[place] for place in range(len(parties))])


def _alike(batches: Sequence[Batches], *, single: bool) -> list[list[int]]:
    """The places of parties that train as one: with batches of the same sizes, or with one step each if `single`."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, steps in enumerate(batches):
        groups.setdefault(() if single and len(steps) == 1 else tuple(map(len, steps)), []).append(place)
    return list(groups.values())


@dataclass(frozen=True)
class _Block:
    """Parties that train as one."""

    module: nn.Module
    """With the weights that all start from."""
    parties: Sequence[Party]
    classifiers: Sequence[Classifier]
    pulls: Sequence[Pull]
    shares: Tensor
    """(P,) of a party in the images of the client batch."""

    def one_step(self, indices: Batches, sgd: SGD) -> tuple[Tensors, list[float]]:
        """(Σ share_i θ_i, each party's loss) after one step of each, in which momentum has no part."""
        theta: Tensors = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        images, labels = self._load(indices)
        sizes, weight = [len(index) for index in indices], float(self.shares.sum())
        embeddings = self.parties[0].compute.embed(self.module, images)
        parts = embeddings.detach().split(sizes), images.split(sizes)
        losses, slopes, pulled = self._head_steps(*parts, labels, [theta] * len(sizes))
        shares = (self.shares / weight).to(embeddings.device, embeddings.dtype)
        by_image = shares.repeat_interleave(torch.tensor(sizes, device=shares.device))[:, None]
        gradients = dict(
            zip(theta, torch.autograd.grad(embeddings, list(theta.values()), torch.cat(slopes) * by_image), strict=True)
        )
        for share, added in zip(shares.tolist(), pulled, strict=False):
            for name, tensor in added.items():
                gradients[name] = gradients[name] + share * tensor
        weights = [p.detach().clone() for p in theta.values()]
        replace(sgd, momentum=0.0).step(weights, list(gradients.values()), [])
        return {name: t.mul_(weight) for name, t in zip(theta, weights, strict=True)}, losses.tolist()

    def stacked(
        self, steps: Sequence[Batches], sgd: SGD, velocities: Sequence[Tensors] | None
    ) -> tuple[Tensors, list[float], list[Tensors]]:
        """(Σ share_i θ_i, each party's loss, each one's momentum), with a copy of the weights for each party."""
        count = len(self.parties)
        theta = stacked(self.module, count)
        carried = {
            name: torch.stack([v[name].to(t.device) if name in v else torch.zeros_like(t[0]) for v in velocities or ()])
            for name, t in theta.items()
            if any(name in v for v in velocities or ())
        }
        speeds = list(sgd.start(theta, carried).values()) if carried else []
        total, trained_images = torch.zeros(count, dtype=torch.float64, device=self.parties[0].device), 0
        for indices in steps:
            images, labels = self._load(indices)
            images = images.unflatten(0, (count, -1))
            embeddings = self.parties[0].compute.embed(lambda x: embed_stacked(self.module, theta, x), images)
            thetas = [{n: t.detach()[place] for n, t in theta.items()} for place in range(count)] if self.pulls else []
            losses, slopes, pulled = self._head_steps(embeddings.detach().unbind(), images.unbind(), labels, thetas)
            gradients = dict(
                zip(theta, torch.autograd.grad(embeddings, list(theta.values()), torch.stack(slopes)), strict=True)
            )
            if pulled:
                add_to(gradients, {name: torch.stack([added[name] for added in pulled]) for name in pulled[0]})
            sgd.step(list(theta.values()), list(gradients.values()), speeds)
            total += losses * len(indices[0])
            trained_images += len(indices[0])
        means = {n: torch.tensordot(self.shares.to(t.device, t.dtype), t.detach(), dims=1) for n, t in theta.items()}
        own_speeds = [{n: s[place] for n, s in zip(theta, speeds, strict=False)} for place in range(count)]
        return means, (total / max(1, trained_images)).tolist(), own_speeds

    def _load(self, indices: Batches) -> tuple[Tensor, list[Tensor]]:
        """The augmented images (N, c, h, w) of all, and the labels (n,) of each among its classifier's rows."""
        parts, compute = list(zip(self.parties, indices, strict=True)), self.parties[0].compute
        images = compute.many([(party.data, index, party.rng) for party, index in parts])
        labels = torch.from_numpy(np.concatenate([party.data.labels[index] for party, index in parts]))
        own_labels = labels.to(images.device).split(list(map(len, indices)))
        parties = zip(self.parties, self.classifiers, own_labels, strict=True)
        return images, [classifier.select(own, party.rng) for party, classifier, own in parties]

    def _head_steps(
        self,
        embeddings: Sequence[Tensor],
        images: Sequence[Tensor],
        labels: Sequence[Tensor],
        thetas: Sequence[Tensors],
    ) -> tuple[Tensor, list[Tensor], list[Tensors]]:
        """A step of each classifier: (L (P,), ∂L/∂ its embeddings, what `pulls` add to the backbone's gradients)."""
        results, pulled = head_gradients(self.classifiers, embeddings, labels), []
        for place, (_, _, gradients) in enumerate(results):
            if self.pulls:
                trained = thetas[place] | self.classifiers[place].trained
                added = self.pulls[place](trained, images[place], labels[place])
                add_to(gradients, added)
                pulled.append({name: t for name, t in added.items() if name in thetas[place]})
            self.classifiers[place].step(gradients)
        losses = torch.stack([loss for loss, _, _ in results]).detach().double()
        return losses, [slopes for _, slopes, _ in results], pulled


HeadGradients = tuple[Tensor, Tensor, Tensors]
"""Of a classifier: L, ∂L/∂ embeddings (n, d), and what `Classifier.step` is given."""


def head_gradients(
    classifiers: Sequence[Classifier], embeddings: Sequence[Tensor], labels: Sequence[Tensor]
) -> list[HeadGradients]:
    """The gradients of each classifier of its own detached embeddings (n, d); those of the same form at once."""
    groups: dict[Any, list[int]] = {}
    for place, (classifier, rows) in enumerate(zip(classifiers, embeddings, strict=True)):
        groups.setdefault(_form(classifier, rows) or place, []).append(place)
    results: dict[int, HeadGradients] = {}
    for places in groups.values():
        parts = [classifiers[i] for i in places], [embeddings[i] for i in places], [labels[i] for i in places]
        try:
            gradients = _at_once(*parts) if len(places) > 1 else _one_by_one(*parts)
        except RuntimeError:  # the loss looks at numbers, or does what cannot be done for many
            gradients = _one_by_one(*parts)
        results |= zip(places, gradients, strict=True)
    return [results[place] for place in range(len(classifiers))]


def _form(classifier: Classifier, embeddings: Tensor) -> tuple[Any, ...] | None:
    """Alike for classifiers that differ in W alone; None where a loss has something of its own besides."""
    if not isinstance(classifier, DenseClassifier) or classifier.extra or classifier.drawn:
        return None
    return id(classifier.loss), len(embeddings), classifier.weights.shape, classifier.weights.requires_grad


def _one_by_one(
    classifiers: Sequence[Classifier], embeddings: Sequence[Tensor], labels: Sequence[Tensor]
) -> list[HeadGradients]:
    results = []
    for classifier, rows, own in zip(classifiers, embeddings, labels, strict=True):
        loss, gradients = classifier.gradients(rows.requires_grad_(), own, {"": rows})
        results.append((loss, gradients.pop(""), gradients))
    return results


def _at_once(
    classifiers: Sequence[Classifier], embeddings: Sequence[Tensor], labels: Sequence[Tensor]
) -> list[HeadGradients]:
    dense = [classifier for classifier in classifiers if isinstance(classifier, DenseClassifier)]  # as all are
    rows = torch.stack(list(embeddings)).requires_grad_()
    weights = torch.stack([classifier.weights.detach() for classifier in dense])
    weights.requires_grad_(dense[0].weights.requires_grad)
    with without_looks():
        losses = torch.vmap(dense[0].loss)(rows, weights, torch.stack(list(labels)))
    by_rows, *by_weights = torch.autograd.grad(losses.sum(), [rows, weights] if weights.requires_grad else [rows])
    gradients: list[Tensors] = [{HEAD: g} for w in by_weights for g in w] or [{} for _ in classifiers]
    return list(zip(losses, by_rows, gradients, strict=True))


def stacked(module: nn.Module, parties: int) -> Tensors:
    """A copy of a module's trained parameters for each of so many parties: name -> (P, …)."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    copies = {name: torch.empty(parties, *p.shape, dtype=p.dtype, device=p.device) for name, p in trained.items()}
    return {name: copies[name].copy_(p).requires_grad_() for name, p in trained.items()}


def embed_stacked(module: nn.Module, theta: Tensors, images: Tensor) -> Tensor:
    """(P, n, d) embeddings of images (P, n, …), those of party i by its weights θ_i of `theta` (P, …)."""
    embed = torch.vmap(lambda weights, some: functional_call(module, weights, (some,)))
    with sdpa_kernel(SDPBackend.MATH):  # fused attention is taken party by party
        embeddings: Tensor = embed(theta, images.contiguous())  # vmap knows no channels_last
    return embeddings


def unstackable_reason(backbone: Backbone) -> str:
    """Why parties' copies of a backbone cannot be trained as one; empty where they can."""
    module = backbone.module
    moving = [layer for layer in module.modules() if not has_constant_buffers(layer)]
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in moving):
        return "the backbone has BatchNorm, whose statistics are of a party's own batch unless they are frozen"
    if any(buffer.is_floating_point() for layer in moving for buffer in layer.buffers(recurse=False)):
        return "the backbone has float buffers, such as running statistics, that a party's own batches may change"
    return ""
