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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from coalface.core.method import Backbone, Party, Tensors
from coalface.training.classifier import Classifier
from coalface.training.local_training import Learner, Pull, Trained, add_to, learners_classifier
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import CosineLoss
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
        [learners_classifier(party, learner, work, loss, of_head) for party, learner in started],
        [batches for batches, _ in begun],
        work.sgd(first, of_backbone),
        velocities=[learner.velocity if learner else {} for learner in learners] if of_backbone.kept else None,
        pulls=pulls,
    )
    results = [
        Learner(
            head=trained.head,
            extra=trained.extra,
            kept={},
            velocity=of_backbone.keep(trained.backbone_velocity) | of_head.keep(trained.head_velocity),
            cursor=cursor,
        )
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
        images, sizes = self._images(indices), list(map(len, indices))
        embeddings = self.parties[0].compute.embed(self.module, images)
        weight = float(self.shares.sum())
        losses, slopes, added = [], [], {name: torch.zeros_like(p) for name, p in theta.items()}
        parts = zip(embeddings.detach().split(sizes), images.split(sizes), strict=True)
        for place, (rows, pixels) in enumerate(parts):
            share = float(self.shares[place]) / weight
            loss, by_rows, pulled = self._head_step(place, indices[place], rows, pixels, theta)
            losses.append(loss)
            slopes.append(by_rows * share)
            for name, tensor in pulled.items():
                added[name].add_(tensor, alpha=share)
        gradients = torch.autograd.grad(embeddings, list(theta.values()), torch.cat(slopes)) if theta else ()
        weights = [p.detach().clone() for p in theta.values()]
        if self.pulls:
            gradients = torch._foreach_add(gradients, list(added.values()))
        replace(sgd, momentum=0.0).step(weights, gradients, [])
        torch._foreach_mul_(weights, weight)
        return dict(zip(theta, weights, strict=True)), torch.stack(losses).tolist()

    def stacked(
        self, steps: Sequence[Batches], sgd: SGD, velocities: Sequence[Tensors] | None
    ) -> tuple[Tensors, list[float], list[Tensors]]:
        """(Σ share_i θ_i, each party's loss, each one's momentum), with a copy of the weights for each party."""
        theta = stacked(self.module, len(self.parties))
        carried = {
            name: torch.stack([v[name] if name in v else torch.zeros_like(p[0]) for v in velocities or ()])
            for name, p in theta.items()
            if any(name in v for v in velocities or ())
        }
        speeds = list(sgd.start(theta, carried).values()) if carried else []
        totals, trained_images = torch.zeros(len(self.parties), dtype=torch.float64, device=self.parties[0].device), 0
        for indices in steps:
            images = self._images(indices).unflatten(0, (len(self.parties), -1))
            embeddings = self.parties[0].compute.embed(lambda x: embed_stacked(self.module, theta, x), images)
            losses, slopes, added = [], [], []
            for place, rows in enumerate(embeddings.detach()):
                own = {name: t.detach()[place] for name, t in theta.items()} if self.pulls else {}
                loss, by_rows, pulled = self._head_step(place, indices[place], rows, images[place], own)
                losses.append(loss)
                slopes.append(by_rows)
                added.append(pulled)
            gradients = dict(
                zip(theta, torch.autograd.grad(embeddings, list(theta.values()), torch.stack(slopes)), strict=True)
            )
            if self.pulls:
                add_to(gradients, {name: torch.stack([a[name] for a in added]) for name in added[0]})
            sgd.step(list(theta.values()), list(gradients.values()), speeds)
            totals += torch.stack(losses) * len(indices[0])
            trained_images += len(indices[0])
        means = {
            name: torch.tensordot(self.shares.to(t.device, t.dtype), t.detach(), dims=1) for name, t in theta.items()
        }
        own_speeds = [{n: s[place] for n, s in zip(theta, speeds, strict=False)} for place in range(len(self.parties))]
        return means, (totals / max(1, trained_images)).tolist(), own_speeds

    def _images(self, indices: Batches) -> Tensor:
        parts = zip(self.parties, indices, strict=True)
        return self.parties[0].compute.many([(party.data, index, party.rng) for party, index in parts])

    def _head_step(
        self, place: int, index: NDArray[np.int64], embeddings: Tensor, pixels: Tensor, theta: Tensors
    ) -> tuple[Tensor, Tensor, Tensors]:
        """A step of a party's classifier: (L, ∂L/∂ embeddings, what is pulled of the backbone)."""
        party, classifier = self.parties[place], self.classifiers[place]
        labels = classifier.select(torch.from_numpy(party.data.labels[index]).to(party.device), party.rng)
        embeddings.requires_grad_()
        loss, gradients = classifier.gradients(embeddings, labels, {"": embeddings})
        slopes, pulled = gradients.pop(""), dict[str, Tensor]()
        if self.pulls:
            pulled = self.pulls[place](theta | classifier.trained, pixels, labels)
            add_to(gradients, pulled)
        classifier.step(gradients)
        return loss.detach().double(), slopes, {name: t for name, t in pulled.items() if name in theta}


def stacked(module: nn.Module, parties: int) -> Tensors:
    """A copy of a module's trained parameters for each of so many parties: name -> (P, …)."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return {name: p.expand(parties, *p.shape).clone().requires_grad_() for name, p in trained.items()}


def embed_stacked(module: nn.Module, theta: Tensors, images: Tensor) -> Tensor:
    """(P, n, d) embeddings of images (P, n, …), those of party i by its weights θ_i of `theta` (P, …)."""
    embed = torch.vmap(lambda weights, some: functional_call(module, weights, (some,)))
    embeddings: Tensor = embed(theta, images)
    return embeddings


def unstackable_reason(backbone: Backbone) -> str:
    """Why parties' copies of a backbone cannot be trained as one; empty where they can."""
    module = backbone.module
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()):
        return "the backbone has BatchNorm, whose statistics are of a party's own batch"
    if any(buffer.is_floating_point() for buffer in module.buffers()):
        return "the backbone has float buffers, such as running statistics, that a party's own batches may change"
    return ""
