from __future__ import annotations

from dataclasses import replace

import naive
import numpy as np
import pytest
from naive import party
from together import Together

from coalface.core.method import Tensors
from coalface.experiments.conformance.tiny_federation import LOSS, WORK, Tiny
from coalface.training.classifier import HEAD
from coalface.training.distributed.shards import Shards
from coalface.training.gradients import full_gradient, gradient
from coalface.training.local_training import Learner, fresh_head, learn
from coalface.training.losses.sphereface2 import SphereFace2

EXACT = Tiny(flip=False, double=True, norm=True)
WHOLE = replace(WORK, batch_size=64, weight_decay=0.01)


def after_a_round(build: Tiny) -> tuple[Tensors, Learner]:
    """A backbone and a learner with some training behind them."""
    client = party(build=build)
    _, learner = learn(client, client.initial, None, WORK, LOSS, momentum="keep")
    return client.backbone.shared(), learner


def test_a_full_gradient_is_the_mean_over_all_images_and_the_weight_decay() -> None:
    """One batch against a bare network; the class embeddings are the party's own, as its last round left them."""
    backbone, learner = after_a_round(EXACT)
    gradient_ = full_gradient(party(build=EXACT), backbone, learner, WHOLE, LOSS)
    silo = naive.Silo("silo-1", EXACT, WORK)
    ((pixels, labels),) = silo.everything()
    expected, _, _ = silo.gradients(backbone, learner.head, pixels, labels)
    assert naive.furthest(gradient_, {n: g + 0.01 * backbone[n] for n, g in expected.items()}) < 1e-12
    first = full_gradient(
        party(build=EXACT), backbone, None, WHOLE, LOSS
    )  # of a party that has no class embeddings yet
    expected, _, _ = silo.gradients(backbone, silo.head, pixels, labels)
    assert naive.furthest(first, {n: g + 0.01 * backbone[n] for n, g in expected.items()}) < 1e-12


def test_batches_count_by_their_images_and_a_number_of_them_is_a_part_of_all() -> None:
    """Without BatchNorm the mean does not depend on how the images are cut: 11 images as 4 + 4 + 3, or at once."""
    build = replace(EXACT, norm=False)
    backbone, learner = after_a_round(build)
    whole = full_gradient(party(build=build), backbone, learner, WHOLE, LOSS)
    cut = replace(WHOLE, batch_size=4)
    assert naive.furthest(full_gradient(party(build=build), backbone, learner, cut, LOSS), whole) < 1e-12
    some = full_gradient(party(build=build), backbone, learner, cut, LOSS, batches=2)
    assert naive.furthest(some, whole) > 1e-4
    assert naive.furthest(full_gradient(party(build=build), backbone, learner, cut, LOSS, batches=9), whole) < 1e-12


def test_a_gradient_is_at_the_weights_given_and_not_at_the_modules() -> None:
    """All of training stands at the point: backbone, class embeddings and what the loss has beside them."""
    loss = SphereFace2()
    client = party(build=EXACT)
    client.backbone.load(client.initial)
    client.backbone.module.train()
    parameters_ = {n: p.detach() for n, p in client.backbone.parameters.items()}
    head = fresh_head(client)
    extra = {n: t.double() + 0.3 for n, t in loss.extra(2).items()}
    at = {n: 0.5 * w for n, w in parameters_.items()} | {HEAD: head} | {f"loss.{n}": t for n, t in extra.items()}
    pixels, labels = client.compute.batch(client.data, np.arange(len(client.data)), client.rng)
    gradient_ = gradient(client, at, pixels, labels, loss)
    net = EXACT().backbone.module.train()
    net.load_state_dict(net.state_dict() | {n: 0.5 * w for n, w in parameters_.items()})
    loss(net(pixels), head, labels, **extra).backward()
    assert naive.furthest(gradient_, {n: p.grad for n, p in net.named_parameters() if p.grad is not None}) < 1e-12


def sharded_gradient(shards: Shards, backbone: Tensors, learner: Learner) -> Tensors:
    block = replace(learner, head=learner.head[shards.span(len(learner.head))].clone())
    return full_gradient(
        replace(party(build=EXACT), shards=shards), backbone, block, replace(WHOLE, batch_size=5), LOSS
    )


@pytest.mark.slow
@pytest.mark.ci
def test_at_a_party_of_two_processes_it_is_that_of_one() -> None:
    backbone, learner = after_a_round(EXACT)
    whole = full_gradient(party(build=EXACT), backbone, learner, replace(WHOLE, batch_size=5), LOSS)
    pair = Together(2)
    try:
        for gradient_ in pair.run(sharded_gradient, backbone, learner):
            assert naive.furthest(gradient_, whole) < 1e-12
    finally:
        pair.close()
