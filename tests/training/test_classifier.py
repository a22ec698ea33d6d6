"""The classifier of local training: dense by hand and against torch's loop, sampled and sharded against dense."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.experiments.conformance.tiny_federation import Tiny, raw
from coalface.training.classifier import (
    HEAD,
    DenseClassifier,
    SampledClassifier,
    ShardedClassifier,
    classifier_for,
)
from coalface.training.distributed.shards import Shards
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.margins import CosFace, Softmax
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.subcenter import SubCenterArcFace
from coalface.training.sgd import SGD

CLASSES, SIZE = 7, 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batches(count: int, images: int = 4) -> list[tuple[Tensor, Tensor]]:
    """(inputs (n, 3), labels (n,)) of some steps."""
    labels = torch.randint(CLASSES, (count, images), generator=torch.Generator().manual_seed(1))
    return [(numbers(images, 3, seed=step), labels[step]) for step in range(count)]


def trained(classifier: Any, sgd: SGD, steps: int = 5, part: slice = slice(None)) -> tuple[Tensor, list[float]]:
    """The matrix A of embeddings x = A input, and the losses, after some steps of it and of the classifier."""
    backbone = {"a": numbers(SIZE, 3, seed=99).requires_grad_()}
    velocity, rng, losses = sgd.start(backbone, {}), np.random.default_rng(5), []
    for inputs, labels in batches(steps):
        labels = classifier.select(labels, rng)
        loss, gradients = classifier.gradients(inputs[part] @ backbone["a"].T, labels, backbone)
        assert list(gradients) == ["a", *classifier.trained]
        sgd.step([backbone["a"]], [gradients["a"]], list(velocity.values()))
        classifier.step(gradients)
        losses.append(loss.item())
    return backbone["a"].detach(), losses


def dense(loss: CosineLoss, sgd: SGD) -> DenseClassifier:
    extra = {name: t.double().requires_grad_() for name, t in loss.extra(CLASSES).items()}
    classifier = DenseClassifier(numbers(loss.rows(CLASSES), SIZE).requires_grad_(), loss, extra=extra, sgd=sgd)
    classifier.velocity = sgd.start(classifier.trained, {})
    return classifier


def test_a_step_worked_by_hand() -> None:
    """x = (1, 0) of class 0, W = I: p_1 = 1 / (1 + e), dL/dw_1 = p_1 (x − 0 · w_1), and w_0 is where it should be."""
    classifier = DenseClassifier(torch.eye(2).requires_grad_(), Softmax(scale=1.0), sgd=SGD(lr=0.5))
    loss, gradients = classifier.gradients(torch.tensor([[4.0, 0.0]]), torch.tensor([0]), {})
    other = 1 / (1 + math.e)
    assert loss.item() == pytest.approx(-math.log(1 - other))
    assert gradients[HEAD].flatten().tolist() == pytest.approx([0.0, 0.0, other, 0.0])
    classifier.step(gradients)
    assert classifier.state().weights.flatten().tolist() == pytest.approx([1.0, 0.0, -0.5 * other, 1.0])


@pytest.mark.parametrize("loss", [CosFace(scale=8.0), SphereFace2(), SubCenterArcFace(scale=8.0)], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dense_steps_are_those_of_torch(loss: Any, momentum: float) -> None:
    sgd = SGD(lr=0.05, momentum=momentum, weight_decay=0.1)
    classifier, start = dense(loss, sgd), dense(loss, sgd)
    matrix, losses = trained(classifier, sgd)
    a = numbers(SIZE, 3, seed=99).requires_grad_()
    optimiser = torch.optim.SGD([a, start.weights, *start.extra.values()], 0.05, momentum, weight_decay=0.1)
    for (inputs, labels), expected_loss in zip(batches(5), losses, strict=True):
        optimiser.zero_grad()
        value = loss(inputs @ a.T, start.weights, labels, **start.extra)
        value.backward()
        optimiser.step()
        assert expected_loss == pytest.approx(value.item(), abs=1e-12)
    state = classifier.state()
    found = {"a": matrix, HEAD: state.weights} | state.extra
    assert naive.furthest(found, {"a": a, HEAD: start.weights} | start.extra) < 1e-12
    assert set(state.velocity) == (set(classifier.trained) if momentum else set())


def test_a_sample_of_all_is_the_dense_one_bit_for_bit() -> None:
    sgd = SGD(lr=0.05, momentum=0.9, weight_decay=0.1)
    whole, sampled = dense(SphereFace2(), sgd), SampledClassifier(dense(SphereFace2(), sgd), rate=0.999)
    assert torch.equal(trained(whole, sgd)[0], trained(sampled, sgd)[0])
    dense_state, sampled_state = whole.state(), sampled.state()
    for dense_tensors, sampled_tensors in (
        (dense_state.extra, sampled_state.extra),
        (dense_state.velocity, sampled_state.velocity),
    ):
        assert raw(dense_tensors) == raw(sampled_tensors)
    assert torch.equal(dense_state.weights, sampled_state.weights)


# --- which one a party has --------------------------------------------------------------------------------------------


def test_a_party_has_the_one_that_its_work_asks_for() -> None:
    party, loss, sgd = naive.party("all", Tiny(pooled=True)), CosFace(), SGD(lr=0.1)
    head = torch.ones(6, 8)
    assert isinstance(classifier_for(party, head, loss, sgd), DenseClassifier)
    assert isinstance(classifier_for(party, head, loss, sgd, sample_rate=1.0), DenseClassifier)
    assert isinstance(classifier_for(party, head, loss, sgd, sample_rate=0.5), SampledClassifier)
    several = replace(party, shards=Shards(None, 1, 2))
    sharded = classifier_for(several, head[3:], loss, sgd)
    assert isinstance(sharded, ShardedClassifier) and (sharded.first, sharded.classes) == (3, 6)


def test_what_is_given_stays_as_it_is_and_what_is_fixed_is_not_trained() -> None:
    party, loss = naive.party("all", Tiny(pooled=True)), SphereFace2()
    head, extra, sgd = torch.ones(6, 8), loss.extra(6), SGD(lr=0.5, momentum=0.9)
    given = {"bias": extra["bias"].clone()}
    for fixed in (False, True):
        classifier = classifier_for(party, head, loss, sgd, extra=extra, fixed=fixed)
        embeddings = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
        _, gradients = classifier.gradients(embeddings, torch.tensor([0, 1, 2, 3]), {})
        classifier.step(gradients)
        assert torch.equal(head, torch.ones(6, 8)) and raw(extra) == raw(given)
        state = classifier.state()
        assert torch.equal(state.weights, head) == fixed and not torch.equal(state.extra["bias"], extra["bias"])
        assert list(state.velocity) == (["loss.bias"] if fixed else ["loss.bias", HEAD])
