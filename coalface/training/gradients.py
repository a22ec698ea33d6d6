"""Gradients at other weights than the module's own, which leave the module and the streams of training as they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from coalface.core.method import Party, Tensors
from coalface.training.classifier import HEAD, LOSS, whole_classifier
from coalface.training.distributed.batchnorm import synchronised
from coalface.training.local_training import Learner, fresh_head, load_batch
from coalface.training.local_work import Cursor, LocalTraining, by_epochs
from coalface.training.losses.base import CosineLoss, check_pure


def gradient(party: Party, at: Tensors, images: Tensor, labels: Tensor, loss: CosineLoss) -> Tensors:
    """The gradient of a batch's loss by the backbone's trained parameters, all of training standing at `at`.

    `at` has the trained tensors by name, as `training.local_training.Pull` gets them: the backbone's, the class
    embeddings under `HEAD`, and the loss's own. The module is in training mode, so BatchNorm takes the statistics of
    the batch; its running ones stay as they are. Where several processes play the party, images are as
    `load_batch` gives them. Raises ValueError as `check_pure`.
    """
    check_pure(loss)
    module = party.backbone.module
    weights = {name: at[name].detach().requires_grad_() for name in party.backbone.parameters}
    scratch = {name: buffer.clone() for name, buffer in module.named_buffers()}
    extra = {name.removeprefix(LOSS): t.detach() for name, t in at.items() if name.startswith(LOSS)}
    classifier = whole_classifier(party, at[HEAD].detach(), loss, extra=extra)
    with synchronised(module, party.shards, len(labels)):
        embeddings = party.compute.embed(lambda x: functional_call(module, weights | scratch, (x,)), images)
        return classifier.gradients(embeddings, labels, weights)[1]


def full_gradient(
    party: Party,
    backbone: Tensors,
    learner: Learner | None,
    work: LocalTraining,
    loss: CosineLoss,
    *,
    batches: int | None = None,
) -> Tensors:
    """∇f(x): the mean over a party's images of the gradient by the backbone's trained parameters x, plus λ x.

    Taken at `backbone` with the class embeddings as the party's last round left them, in batches of `work.batch_size`
    of a permutation and with flips that come from a stream of their own; `batches` of them, or all (None). λ is
    `work.weight_decay`. Loads the backbone into the module, in training mode, and leaves it there.
    """
    party.backbone.load(backbone, learner.kept if learner else None)
    party.backbone.module.train()
    classes, images = len(party.data.names), len(party.data)
    rng = party.stream(party.stage, "gradient", party.round)
    parameters = {name: p.detach() for name, p in party.backbone.parameters.items()}
    extra = learner.extra if learner else loss.extra(classes)
    head = learner.head if learner else fresh_head(party, loss.rows(classes))
    at = parameters | {LOSS + name: t.to(party.device) for name, t in extra.items()} | {HEAD: head.to(party.device)}
    indices, _ = by_epochs(images, work.batch_size, 1, Cursor(), lambda epoch: rng.permutation(images))
    total, images_seen = {name: torch.zeros_like(p) for name, p in parameters.items()}, 0
    for index in indices[:batches]:
        pixels, labels = load_batch(party, index, rng)
        for name, g in gradient(party, at, pixels, labels, loss).items():
            total[name].add_(g, alpha=len(index))
        images_seen += len(index)
    return {name: (t / images_seen).add_(parameters[name], alpha=work.weight_decay) for name, t in total.items()}
