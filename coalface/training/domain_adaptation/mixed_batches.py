"""Training on two domains at one party: every batch holds as many images of the source as of the target.

A target's image has the label −1, and the loss is one for such batches, as `coalface.training.domain_adaptation.losses`
has them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from coalface.core.method import Party, Tensors, private
from coalface.training.classifier import classifier_for
from coalface.training.domain_adaptation.losses import UNKNOWN
from coalface.training.features import mean_head, unit_features
from coalface.training.local_training import Learner, fresh_head, train
from coalface.training.local_work import Cursor, LocalTraining, by_iterations
from coalface.training.losses.base import CosineLoss


@private
class Mixed:
    """What the party keeps from round to round."""

    learner: Learner
    """Its class embeddings, what the loss trains beside them, momentum, and where it stands in the source."""
    target: Cursor
    """Where it stands in the target."""


def learn_mixed(
    party: Party, backbone: Tensors, state: Mixed | None, work: LocalTraining, loss: CosineLoss, extra: Tensors
) -> tuple[float, Mixed]:
    """One round at a party with images of both domains: the mean loss, and what it keeps; momentum goes on throughout.

    A step takes `work.batch_size` images of the source and as many of the target, each from its own permutation. The
    class embeddings start at the mean features of their identities (of a loss with several rows for a class at random),
    and what the loss trains beside them at `extra`. Raises ValueError where several processes play the party, where
    class embeddings are to be sampled, or where a domain has no image.
    """
    if party.shards is not None:
        raise ValueError("a batch of two domains is not split over processes: leave engine.processes_per_party out")
    if (work.sample_rate or 1) < 1:
        raise ValueError("local.sample_rate: in a batch of two domains all class embeddings are trained; leave it out")
    of_source = np.flatnonzero(party.data.labels != UNKNOWN)
    of_target = np.flatnonzero(party.data.labels == UNKNOWN)
    if not len(of_source) or not len(of_target):
        raise ValueError(f"{party.name} holds {len(of_source)} images of the source and {len(of_target)} of the target")
    source = replace(party, data=party.data.select(of_source))
    learner = state.learner if state else _begin(source, backbone, loss, extra)
    source_batches, cursor = work.batches(source, learner.cursor)

    def order(epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return party.stream(party.stage, "target epoch", epoch).permutation(len(of_target))

    steps, begin = len(source_batches), state.target if state else Cursor()
    target_batches, target = by_iterations(len(of_target), work.batch_size, steps, begin, order)
    party.backbone.load(backbone, learner.kept)
    sgd, velocity = work.sgd(party), learner.velocity
    classifier = classifier_for(party, learner.head, loss, sgd, extra=learner.extra, velocity=velocity)
    pairs = zip(source_batches, target_batches, strict=True)
    mixed = [np.concatenate([of_source[s], of_target[t]]) for s, t in pairs]
    trained = train(party, classifier, mixed, sgd, velocity=velocity)
    learner = trained.learner(cursor, party.backbone.kept(), trained.velocity)
    return trained.loss, Mixed(learner=learner, target=target)


def _begin(party: Party, backbone: Tensors, loss: CosineLoss, extra: Tensors) -> Learner:
    features, classes = unit_features(party, party.data, backbone), len(party.data.names)
    if (rows := loss.rows(classes)) == classes:
        head = mean_head(features, torch.from_numpy(party.data.labels).to(features.device), classes)
    else:
        head = fresh_head(party, rows)
    extra = {name: tensor.to(head.dtype) for name, tensor in extra.items()}
    return Learner(head=head, extra=extra, kept=party.backbone.kept(), velocity={}, cursor=Cursor())
