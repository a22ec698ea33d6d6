"""The contrast with the nearest means, against loops and numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.training.joint.fedfr import JointLoss
from coalface.training.joint.hard_means import HardMeans, JointMeansLoss
from coalface.training.losses.margins import CosFace


def rows(n: int, seed: int, d: int = 6) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))


def cosine(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum() / (left.norm() * right.norm())


def by_loop(hard: HardMeans, embeddings: Tensor, own: Tensor, means: Tensor) -> tuple[Tensor, list[int]]:
    """(L_ada, how many negatives each image has): all means sorted, one by one."""
    total, counts = torch.zeros((), dtype=torch.float64), []
    for f, w in zip(embeddings, own, strict=True):
        genuine = cosine(f, w)
        near = sorted((c for mean in means if (c := cosine(f, mean)) > genuine - hard.margin), key=torch.Tensor.item)
        powers = [torch.exp((c - genuine + hard.margin) / hard.temperature) for c in near[::-1][: hard.nearest]]
        total = total + torch.log(1 + sum(powers, torch.zeros((), dtype=torch.float64)))
        counts.append(len(powers))
    return total / len(embeddings), counts


@pytest.mark.parametrize(("nearest", "margin", "temperature"), [(1, 0.4, 0.1), (3, 0.0, 1.0), (50, -0.3, 0.05)])
def test_it_is_the_loop_and_so_are_its_gradients(nearest: int, margin: float, temperature: float) -> None:
    hard, inputs = HardMeans(nearest, margin, temperature), [rows(9, 1), rows(9, 2), rows(12, 3)]
    fast, slow = ([t.clone().requires_grad_() for t in inputs] for _ in range(2))
    loss, (expected, counts) = hard(*fast), by_loop(hard, *slow)
    assert len(set(counts)) > 1 or nearest == 1  # k is each image's own, up to `nearest`
    assert max(counts) <= nearest
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    for left, right in zip(torch.autograd.grad(loss, fast), torch.autograd.grad(expected, slow), strict=True):
        assert (left - right).abs().max() < 1e-12


def test_numbers_by_hand() -> None:
    """f = (1, 0); w at 60°, so cos ½; means at 0°, 60°, 90° and 180°: cos 1, ½, 0 and −1, m = 0.4, τ = 0.1.

    Above ½ − 0.4 are two, whose excesses are 0.9 and 0.4. With k = 1: log(1 + e⁹); with k = 2: log(1 + e⁹ + e⁴).
    """
    at = [(math.cos(a), math.sin(a)) for a in map(math.radians, (60, 0, 60, 90, 180))]
    own, *means = torch.tensor(at, dtype=torch.float64)
    f, stacked = torch.tensor([[3.0, 0.0]], dtype=torch.float64), torch.stack(means)
    expected = {1: math.log(1 + math.e**9), 2: math.log(1 + math.e**9 + math.e**4)}
    for nearest in (1, 2, 3, 9):
        loss = HardMeans(nearest, 0.4, 0.1)(f, 2 * own[None], 5 * stacked).item()
        assert loss == pytest.approx(expected[min(nearest, 2)], abs=1e-12)


def test_an_image_that_the_margin_keeps_off_has_no_loss_and_no_gradient() -> None:
    f = torch.tensor([[1.0, 0.1]], dtype=torch.float64, requires_grad=True)
    means = torch.tensor([[-1.0, 0.2], [0.1, -1.0]], dtype=torch.float64)
    loss = HardMeans(4, 0.4, 0.1)(f, torch.tensor([[1.0, 0.0]], dtype=torch.float64), means)
    assert loss.item() == 0 and not torch.autograd.grad(loss, f)[0].any()


def test_with_every_mean_within_the_margin_it_is_cosface_over_the_own_row_and_all_means() -> None:
    f, own, means = rows(1, 5), rows(1, 6), rows(7, 7)
    expected = CosFace(scale=10.0, margin=2.0)(f, torch.cat([own, means]), torch.tensor([0]))
    assert HardMeans(7, 2.0, 0.1)(f, own, means).item() == pytest.approx(expected.item(), abs=1e-10)


@pytest.mark.parametrize("learned", [True, False])
def test_beside_fedfrs_loss_the_means_are_no_classes_and_take_a_gradient_if_they_are_learned(learned: bool) -> None:
    cosface, hard = CosFace(scale=16.0, margin=0.1), HardMeans(2, 0.4, 0.1)
    joint = JointLoss(cosface, public=0, contrastive=0.0, temperature=0.5, branch=None, weight=0.0)
    f, weights, labels = rows(5, 1), rows(7, 2).requires_grad_(), torch.tensor([0, 2, 1, 2, 0])
    loss = JointMeansLoss(joint, hard, 3.0, means=4, learned=learned)(f, weights, labels)
    means, own = weights.detach()[:4], weights.detach()[4:]
    expected = cosface(f, own, labels) + 3 * hard(f, own[labels], means)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    (slopes,) = torch.autograd.grad(loss, weights)
    assert bool(slopes[:4].any()) == learned and bool(slopes[4:].any())


def test_without_means_it_is_fedfrs_loss_alone() -> None:
    cosface = CosFace(scale=16.0, margin=0.1)
    joint = JointLoss(cosface, public=0, contrastive=0.0, temperature=0.5, branch=None, weight=0.0)
    loss = JointMeansLoss(joint, HardMeans(2, 0.4, 0.1), 3.0, means=0, learned=True)
    f, weights, labels = rows(5, 1), rows(3, 2), torch.tensor([0, 2, 1, 2, 0])
    assert loss(f, weights, labels).item() == cosface(f, weights, labels).item()
