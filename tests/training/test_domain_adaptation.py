"""What draws two domains together, against naive sums, numbers worked by hand and torch written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from coalface.training.domain_adaptation.losses import (
    Adversary,
    Discrepancy,
    fresh_discriminator,
    mk_mmd,
    reversal_at,
    reverse_gradient,
)
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.margins import CosFace
from coalface.training.losses.registry import LOSSES

LOSS = CosFace(scale=8.0, margin=0.2)


def vectors(count: int, seed: int, size: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, size)))


def number(value: Tensor) -> float:
    return float(value.detach())


def gamma(every: list[Tensor]) -> float:
    """The mean of ‖x − y‖² over all pairs of different vectors."""
    squares = [float(((x - y) ** 2).sum()) for i, x in enumerate(every) for j, y in enumerate(every) if i != j]
    return sum(squares) / len(squares)


def naive(source: Tensor, target: Tensor, kernels: int, width: float | None = None) -> float:
    """MMD² by two loops over all pairs and one over the kernels."""
    width = gamma([*source, *target]) if width is None else width

    def k(x: Tensor, y: Tensor) -> float:
        square = float(((x - y) ** 2).sum())
        bands = [2 ** (u - (kernels + 1) / 2) * width for u in range(1, kernels + 1)]
        return sum(math.exp(-square / band) for band in bands) / kernels

    def mean(xs: Tensor, ys: Tensor) -> float:
        return sum(k(x, y) for x in xs for y in ys) / (len(xs) * len(ys))

    return mean(source, source) + mean(target, target) - 2 * mean(source, target)


# --- MMD --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [1, 2, 5])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (5, 3)])
def test_mmd_is_its_double_sum(n: int, m: int, kernels: int) -> None:
    source, target = vectors(n, 0), vectors(m, 1) + 0.5
    assert number(mk_mmd(source, target, kernels)) == pytest.approx(naive(source, target, kernels), abs=1e-13)


def test_mmd_of_one_vector_each_by_hand() -> None:
    """With one kernel and γ = ‖x − y‖² the sums are 1 + 1 − 2/e, however far apart the two are."""
    for distance in (0.1, 3.0):
        x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.0, distance]], dtype=torch.float64)
        assert number(mk_mmd(x, y, 1)) == pytest.approx(2 - 2 / math.e, abs=1e-14)
        assert number(mk_mmd(x, y, 3)) == pytest.approx(2 - 2 * (math.exp(-2) + math.exp(-1) + math.exp(-0.5)) / 3)


def test_the_gradient_of_mmd_is_that_at_a_width_that_is_held() -> None:
    source, target = vectors(3, 0), vectors(2, 1)
    width = gamma([*source, *target])
    stacked = torch.cat([source, target]).requires_grad_()
    (slope,) = torch.autograd.grad(mk_mmd(stacked[:3], stacked[3:], 3), stacked)
    step, numeric, free = 1e-5, torch.zeros_like(stacked), torch.zeros_like(stacked)
    for i in range(5):
        for j in range(4):
            ends = [stacked.detach().clone() for _ in range(2)]
            for end, sign in zip(ends, (1, -1), strict=True):
                end[i, j] += sign * step
            for into, at in ((numeric, width), (free, None)):
                above, below = (naive(end[:3], end[3:], 3, at) for end in ends)
                into[i, j] = (above - below) / (2 * step)
    assert torch.allclose(slope, numeric, atol=1e-9)
    assert not torch.allclose(slope, free, atol=1e-3)  # of a γ that moves along


@pytest.mark.parametrize("flush", [False, True])
def test_mmd_of_a_model_that_gives_all_images_one_embedding_is_zero_with_gradient_zero(flush: bool) -> None:
    torch.set_flush_denormal(flush)  # as runs do
    vectors = torch.full((4, 3), 0.5).requires_grad_()
    value = mk_mmd(vectors[:2], vectors[2:])
    (gradient,) = torch.autograd.grad(value, vectors)
    assert number(value) == 0 and torch.equal(gradient, torch.zeros(4, 3))


# --- the gradient's reversal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0, 2.5])
def test_the_gradient_is_reversed_and_the_features_are_not(strength: float) -> None:
    features = vectors(5, 0).requires_grad_()
    weights = vectors(5, 1)
    assert torch.equal(reverse_gradient(features, strength), features)
    (plain,) = torch.autograd.grad((features.square() * weights).sum(), features)
    (turned,) = torch.autograd.grad((reverse_gradient(features, strength).square() * weights).sum(), features)
    assert torch.equal(turned, -strength * plain)


def test_the_reversal_grows_from_nothing_to_one() -> None:
    assert reversal_at(0.0) == 0.0
    assert reversal_at(0.1) == pytest.approx((math.e - 1) / (math.e + 1))  # 2 / (1 + 1/e) − 1
    assert reversal_at(0.25) == pytest.approx(math.tanh(1.25))  # 2 / (1 + e^{−x}) − 1 = tanh(x / 2)
    assert reversal_at(1.0) == pytest.approx(0.9999092, abs=1e-7)
    steps = [reversal_at(share / 10) for share in range(11)]
    assert steps == sorted(steps) and len(set(steps)) == 11


# --- losses of a mixed batch ------------------------------------------------------------------------------------------

LABELS = torch.tensor([2, -1, 0, 0, -1, -1, 1])


def mixed() -> tuple[Tensor, Tensor]:
    return (3 * vectors(7, 0)).requires_grad_(), vectors(3, 1).requires_grad_()


def by_domain(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """The unit features of the source's and of the target's images of `LABELS`."""
    features = embeddings / embeddings.norm(dim=1, keepdim=True)
    return features[[0, 2, 3, 6]], features[[1, 4, 5]]


def close(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    return all(torch.allclose(a, b, atol=1e-12) for a, b in zip(left, right, strict=True))


def test_the_discrepancy_is_the_loss_of_the_source_and_the_mmd_of_unit_features() -> None:
    embeddings, weights = mixed()
    loss = Discrepancy(LOSS, 0.7, kernels=3)
    value = loss(embeddings, weights, LABELS)
    source, target = by_domain(embeddings)
    expected = LOSS(embeddings[[0, 2, 3, 6]], weights, torch.tensor([2, 0, 0, 1])) + 0.7 * mk_mmd(source, target, 3)
    assert number(value) == pytest.approx(number(expected), abs=1e-13)
    mmd = naive(*(features.detach() for features in by_domain(embeddings)), 3)
    alone = number(LOSS(embeddings[[0, 2, 3, 6]], weights, torch.tensor([2, 0, 0, 1])))
    assert number(value) == pytest.approx(alone + 0.7 * mmd, abs=1e-13)
    gradients = [torch.autograd.grad(figure, (embeddings, weights)) for figure in (value, expected)]
    assert close(*gradients)
    assert (gradients[0][0][[1, 4, 5]].norm(dim=1) > 1e-3).all()  # the target's features are drawn as well
    assert loss.rows(3) == 3 and loss.extra(3) == {}


def adversary(weight: float, strength: float = 0.6) -> tuple[Adversary, dict[str, Tensor]]:
    drawn = fresh_discriminator(4, 6, np.random.default_rng(0))
    drawn |= {"inner_bias": torch.full((6,), 0.1), "outer_bias": torch.full((1,), -0.2)}
    return Adversary(LOSS, weight, strength), {n: t.double().requires_grad_() for n, t in drawn.items()}


def told_apart(features: Tensor, extra: dict[str, Tensor]) -> Tensor:
    """The cross-entropy of the domains, image by image, of features in the order of `LABELS`."""
    losses = []
    for feature, label in zip(features, LABELS, strict=True):
        hidden = (extra["inner"] @ feature + extra["inner_bias"]).clamp(min=0)
        share = 1 / (1 + torch.exp(-(extra["outer"][0] @ hidden + extra["outer_bias"][0])))
        losses.append(-torch.log(share if label == -1 else 1 - share))
    return torch.stack(losses).mean()


def test_the_adversary_is_the_loss_of_the_source_and_the_cross_entropy_of_the_domains() -> None:
    embeddings, weights = mixed()
    loss, extra = adversary(0.7)
    value = loss(embeddings, weights, LABELS, **extra)
    classified = LOSS(embeddings[[0, 2, 3, 6]], weights, torch.tensor([2, 0, 0, 1]))
    domains = told_apart(embeddings / embeddings.norm(dim=1, keepdim=True), extra)
    assert number(value) == pytest.approx(number(classified + 0.7 * domains), abs=1e-12)
    trained = (embeddings, weights, *extra.values())
    gradients = torch.autograd.grad(value, trained)
    by_class = torch.autograd.grad(classified, trained[:2])
    by_domains = torch.autograd.grad(domains, (embeddings, *extra.values()))
    assert torch.allclose(gradients[0], by_class[0] - 0.6 * 0.7 * by_domains[0], atol=1e-12)  # −λ_p · weight
    assert torch.allclose(gradients[1], by_class[1], atol=1e-12)
    assert close(gradients[2:], tuple(0.7 * g for g in by_domains[1:]))  # the discriminator's own is as it is
    assert by_domains[0].norm() > 0.01


@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_can_be_held_by_both(name: str) -> None:
    """With as many rows of class embeddings, and the same tensors beside them, as the loss by itself has."""
    of: CosineLoss = LOSSES[name]()
    embeddings = mixed()[0]
    weights = vectors(of.rows(3), 2).requires_grad_()
    first_values = {n: t.double() for n, t in of.extra(3).items()}
    adversarial, extra = adversary(0.5)
    for loss, beside in ((Discrepancy(of, 0.5), {}), (replace(adversarial, of=of), extra)):
        assert loss.rows(3) == of.rows(3)
        value = loss(embeddings, weights, LABELS, **first_values, **beside)
        (gradient,) = torch.autograd.grad(value, embeddings)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
        assert (gradient[LABELS < 0] != 0).any()


def test_a_fresh_discriminator_is_drawn_from_its_generator_alone() -> None:
    first, again, different = (fresh_discriminator(50, 40, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[n], again[n]) for n in first) and not torch.equal(first["inner"], different["inner"])
    assert {n: tuple(t.shape) for n, t in first.items()} == {
        **{"inner": (40, 50), "inner_bias": (40,)},
        **{"outer": (1, 40), "outer_bias": (1,)},
    }
    assert float(first["inner"].std()) == pytest.approx(math.sqrt(2 / 50), rel=0.05)
    assert not first["inner_bias"].any() and not first["outer_bias"].any()
