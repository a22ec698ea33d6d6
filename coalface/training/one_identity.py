"""Local training of parties that hold one identity each, one by one, and many of them as one batch.

Where each party takes one SGD step on all of its images, from the weights θ that all are sent, the mean of the parties'
weights is one step on the mean of their gradients: Σ n_i (θ − η g_i) / Σ n_i = θ − η g, g being the gradient of the
mean loss over the images of all. So a batch of many parties' images gives what their mean would be; each class
embedding gets its own party's gradient, which that mean holds with the factor n_i / Σ n_i. All other local work of many
is `coalface.training.stacked_training`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core.method import Federation, Party, Tensors
from coalface.training.classifier import classifier_for
from coalface.training.local_training import Trained, train
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import OwnClassLoss, unit
from coalface.training.sgd import MOMENTUM
from coalface.training.stacked_training import train_together


def check_nothing_kept(fed: Federation) -> None:
    """Raise ValueError where the BatchNorm policy would have clients keep tensors between rounds."""
    if fed.policy != "average":
        raise ValueError(
            f"clients of this method keep nothing between rounds, and with model.batchnorm={fed.policy} "
            "they would keep BatchNorm's tensors: set model.batchnorm=average, or frozen"
        )


def first_directions(fed: Federation) -> Tensors:
    """A (1, d) class embedding at length one for every trainer, which the server draws from N(0, 1).

    It alone may tell them: who knows where each begins can follow whose is in FedFV's fused ones.
    """
    clients, rng = fed.parties("trainer"), fed.secret_stream("class embeddings")
    dtype = next(iter(fed.initial.values())).dtype
    rows = unit(torch.from_numpy(rng.standard_normal((len(clients), fed.embedding_size))).to(dtype))
    return dict(zip(clients, rows.split(1), strict=True))


def first_centres(parties: Sequence[Party], backbone: Tensors, centres: Sequence[Tensor]) -> list[Tensor]:
    """Each party's (1, d) class embedding: what it was sent, or its mean feature where that is all zeros.

    The mean of the unit embeddings of its images, unaugmented, at length one. Source: Aggarwal et al., "FedFace"
    (2021), Algorithm 1, line 2.
    """
    first = [centre.to(party.device) for party, centre in zip(parties, centres, strict=True)]
    new = [place for place, centre in enumerate(first) if not centre.any()]
    if not new:
        return first
    chosen = [parties[place] for place in new]
    module = _loaded(chosen[0], backbone).eval()
    with torch.no_grad():
        images = torch.cat([party.compute.plain(party.data) for party in chosen])
        features = unit(chosen[0].compute.embed(module, images))
    for place, rows in zip(new, features.split([len(party.data) for party in chosen]), strict=True):
        first[place] = unit(rows.mean(0, keepdim=True)).to(centres[place].dtype)
    return first


@torch.no_grad()
def embeddings_of(party: Party, backbone: Tensors) -> Tensor:
    """(n, d) embeddings of a party's images, unaugmented and not brought to length one."""
    return party.compute.embed(_loaded(party, backbone).eval(), party.compute.plain(party.data))


def train_one(
    party: Party,
    backbone: Tensors,
    centre: Tensor,
    work: LocalTraining,
    loss: OwnClassLoss,
    *,
    extra: Tensors | None = None,
    fixed: bool = False,
) -> Trained:
    """One round's local training from `backbone` and a (1, d) class embedding; nothing is kept for the next round.

    Momentum starts from zero. With `fixed` the class embedding stays as it is. Leaves the trained weights in the
    party's module.
    """
    _loaded(party, backbone)
    sgd = work.sgd(party)
    return train(party, classifier_for(party, centre, loss, sgd, extra=extra, fixed=fixed), batches(party, work), sgd)


def batches(party: Party, work: LocalTraining) -> list[NDArray[np.int64]]:
    """The batches of this round, as indices into the party's images; where the round stands says where it goes on."""
    images, rounds_before = len(party.data), party.round - 1
    batch = min(work.party_batch_size.get(party.name, work.batch_size), images)
    if work.steps_per_round is None:
        if work.epochs == 1 and images <= work.batch_size:
            return [np.arange(images)]
        return work.batches(party, Cursor(epoch=rounds_before * work.epochs))[0]
    epoch, offset = divmod(rounds_before * work.steps_per_round * batch, images)
    return work.batches(party, Cursor(epoch=epoch, offset=offset))[0]


@dataclass(frozen=True)
class TrainedBatch:
    """What the local training of many parties gives."""

    backbone: Tensors
    """Σ n_i θ_i / Σ n_i."""
    extra: Tensors
    """The same mean of what the loss trains beside the class embeddings."""
    centres: tuple[Tensor, ...]
    """Each party's (1, d) class embedding."""
    losses: tuple[float, ...]


def train_many(
    parties: Sequence[Party],
    backbone: Tensors,
    centres: Sequence[Tensor],
    work: LocalTraining,
    loss: OwnClassLoss,
    *,
    extra: Tensors | None = None,
    fixed: bool = False,
) -> TrainedBatch:
    """What `train_one` gives of each party, as one batch; for backbones without an `unstackable_reason`."""
    first, counts = parties[0], torch.tensor([len(party.data) for party in parties])
    module, steps = _loaded(first, backbone).train(), [batches(party, work) for party in parties]
    if any(len(own) > 1 or len(own[0]) < len(party.data) for party, own in zip(parties, steps, strict=True)):
        sgd, pairs = work.sgd(first), zip(parties, centres, strict=True)
        classifiers = [classifier_for(p, centre, loss, sgd, extra=extra, fixed=fixed) for p, centre in pairs]
        together = train_together(parties, classifiers, steps, sgd)
        shares = zip((counts.double() / counts.sum()).tolist(), together.parties, strict=True)
        weighed = [{name: t * share for name, t in trained.extra.items()} for share, trained in shares]
        return TrainedBatch(
            backbone=together.backbone,
            extra={name: torch.stack([tensors[name] for tensors in weighed]).sum(0) for name in extra or {}},
            centres=tuple(trained.head for trained in together.parties),
            losses=tuple(trained.loss for trained in together.parties),
        )
    sgd = work.sgd(first, MOMENTUM["none"])
    images = first.compute.many([(party.data, own[0], party.rng) for party, own in zip(parties, steps, strict=True)])
    owner = torch.repeat_interleave(torch.arange(len(parties)), counts).to(first.device)
    heads = torch.cat([centre.to(first.device) for centre in centres]).requires_grad_(not fixed)
    beside = {name: t.to(first.device, copy=True).requires_grad_() for name, t in (extra or {}).items()}
    shared = [p for p in module.parameters() if p.requires_grad] + list(beside.values())
    image_losses = loss.each(first.compute.embed(module, images), heads, owner, **beside)
    gradients = list(torch.autograd.grad(image_losses.mean(), [*shared, *([] if fixed else [heads])]))
    if not fixed:
        share = counts.to(first.device, heads.dtype)[:, None] / len(owner)
        sgd.step([heads], [gradients.pop() / share], [])
    sgd.step(shared, gradients, [])
    losses = torch.zeros(len(parties), dtype=torch.float64)
    losses.index_add_(0, owner.cpu(), image_losses.detach().double().cpu())
    return TrainedBatch(
        backbone=first.backbone.shared(),
        extra={name: t.detach() for name, t in beside.items()},
        centres=heads.detach().split(1),
        losses=tuple((losses / counts).tolist()),
    )


def _loaded(party: Party, backbone: Tensors) -> nn.Module:
    if len(party.data.names) != 1:
        raise ValueError(
            f"{party.name} holds {len(party.data.names)} identities, and this method trains one class embedding a "
            "party: set data.scenario=devices"
        )
    party.backbone.load(backbone)
    return party.backbone.module
