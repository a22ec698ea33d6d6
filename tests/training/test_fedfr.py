"""FedFR's loss (C.-T. Liu et al. 2022, Equations 3 and 5 to 7) against loops over single images, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coalface.core.method import generator
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.models import build
from coalface.models.groups import Backbone
from coalface.training.joint.fedfr import Distilled, JointLoss, drift, frozen, untrained
from coalface.training.losses.margins import CosFace
from coalface.training.losses.sphereface2 import SphereFace2

PUBLIC, OWN, SIZE = 3, 2, 4
"""K_g, K_l, d."""
CLASSES, BINARY = CosFace(scale=30.0, margin=0.4), SphereFace2(scale=30.0, margin=0.4, power=3.0, balance=0.7)
LABELS = torch.tensor([0, 3, 2, 4, 4, 1])
"""Of three public images and three of the client's own."""
LOSS = JointLoss(CLASSES, public=PUBLIC, contrastive=5.0, temperature=0.5, branch=BINARY, weight=10.0)


# --- the paper's equations, an image at a time ------------------------------------------------------------------------


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def l_cos(f: Tensor, rows: Tensor, y: int, s: float = 30.0, m: float = 0.4) -> Tensor:
    """(3)"""
    own_term = torch.exp(s * (cosine(f, rows[y]) - m))
    other_terms = sum(torch.exp(s * cosine(f, rows[j])) for j in range(len(rows)) if j != y)
    return -torch.log(own_term / (own_term + other_terms))


def l_con(f: Tensor, anchor: Tensor, previous: Tensor, tau: float = 0.5) -> Tensor:
    """(5)"""
    near, before = torch.exp(cosine(f, anchor) / tau), torch.exp(cosine(f, previous) / tau)
    return -torch.log(near / (near + before))


def l_bce(
    f: Tensor,
    omega: Tensor,
    k: int | None,
    b: Tensor,
    s: float = 30.0,
    m: float = 0.4,
    t: float = 3.0,
    lam: float = 0.7,
) -> Tensor:
    """(6), with the exponent of g where the public code has it; an image of nobody (k None) is a negative for all."""

    def g(z: Tensor) -> Tensor:
        return 2 * ((z + 1) / 2) ** t - 1

    total = torch.zeros((), dtype=f.dtype)
    for j in range(len(omega)):
        bias, z = (b[j] if b.ndim else b), g(cosine(f, omega[j]))
        if j == k:
            total = total + lam / s * torch.log(1 + torch.exp(-s * (z - m) - bias))
        else:
            total = total + (1 - lam) / s * torch.log(1 + torch.exp(s * (z + m) + bias))
    return total


def l_total(loss: JointLoss, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """(7): the mean over the batch of all three."""
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels.tolist()):
        f = inputs["embeddings"][i]
        total = total + l_cos(f, inputs["weights"], label)
        if loss.contrastive:
            total = total + loss.contrastive * l_con(f, inputs["anchor"][i], inputs["previous"][i], loss.temperature)
        if loss.branch is None:
            continue
        turned = inputs["turn"] @ (f if loss.through else f.detach()) + inputs["shift"]
        mine = label - PUBLIC if label >= PUBLIC else None
        if isinstance(loss.branch, SphereFace2):
            total = total + loss.weight * l_bce(turned, inputs["own"], mine, inputs["bias"])
        elif mine is not None:
            total = total + loss.weight * l_cos(turned, inputs["own"], mine)
    return total / len(labels)


def problem(loss: JointLoss = LOSS, *, each: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """What the loss is given, by keyword."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"embeddings": (6, SIZE), "weights": (PUBLIC + OWN, SIZE)}
    shapes |= {"anchor": (6, SIZE), "previous": (6, SIZE)} if loss.contrastive else {}
    if loss.branch is not None:
        shapes |= {"turn": (SIZE, SIZE), "shift": (SIZE,), "own": (OWN, SIZE)}
    if isinstance(loss.branch, SphereFace2):
        shapes |= {"bias": (OWN,) if each else ()}
    return {name: torch.tensor(rng.standard_normal(shape)).requires_grad_() for name, shape in shapes.items()}


def called(loss: JointLoss, inputs: dict[str, Tensor], labels: Tensor = LABELS) -> Tensor:
    keywords = {name: tensor for name, tensor in inputs.items() if name not in ("embeddings", "weights")}
    return loss(inputs["embeddings"], inputs["weights"], labels, **keywords)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("through", [True, False])
@pytest.mark.parametrize("contrastive", [0.0, 5.0])
@pytest.mark.parametrize("branch", [BINARY, CLASSES, None])
def test_value_and_gradients_are_those_of_the_loop(branch: Any, contrastive: float, through: bool, each: bool) -> None:
    loss = replace(LOSS, branch=branch, contrastive=contrastive, through=through)
    inputs = problem(loss, each=each)
    fast, slow = called(loss, inputs), l_total(loss, inputs, LABELS)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    gradients, expected = (torch.autograd.grad(value, list(inputs.values())) for value in (fast, slow))
    for name, gradient, oracle in zip(inputs, gradients, expected, strict=True):
        torch.testing.assert_close(gradient, oracle, rtol=1e-10, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")
        assert gradient.abs().max() > 1e-6


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_hand_worked_numbers() -> None:
    """f along the first axis, Φ's row along the second, W's along the first and the third; Π turns f to the third."""
    first, second, third = torch.eye(3, dtype=torch.float64)[:, None]
    rows, omega = torch.cat([second, first, third]), torch.cat([first, third])
    loss = JointLoss(
        CosFace(scale=2.0, margin=0.5), 1, 3.0, 0.5, SphereFace2(scale=4, margin=0.25, power=1, balance=0.7), 10.0
    )
    turn = torch.eye(3, dtype=torch.float64)[[2, 1, 0]]
    inputs = {"anchor": first, "previous": third, "turn": turn, "shift": torch.zeros(3).double(), "own": omega}
    inputs["bias"] = torch.tensor(0.5).double()
    drifted = 3 * math.log(1 + math.exp(-2))  # cosines 1 and 0, over τ: 2 and 0
    # f' lies along the second row of Ω. The image is of the first: cosine 0 to its own, 1 to the other.
    wrong = 0.7 / 4 * softplus(4 * 0.25 - 0.5) + 0.3 / 4 * softplus(4 * 1.25 + 0.5)
    classes = math.log(1 + 2 * math.exp(-2 * 0.5))
    value = loss(first, rows, torch.tensor([1]), **inputs)
    assert float(value) == pytest.approx(classes + drifted + 10 * wrong, abs=1e-12)
    # The same image as a public one: its own row is Φ's, at cosine 0, and both binary classifiers must say no.
    nobody = 0.3 / 4 * (softplus(4 * 0.25 + 0.5) + softplus(4 * 1.25 + 0.5))
    classes = math.log(1 + (math.exp(2) + 1) / math.exp(-1))
    value = loss(first, rows, torch.tensor([0]), **inputs)
    assert float(value) == pytest.approx(classes + drifted + 10 * nobody, abs=1e-12)


# --- the contrastive term ---------------------------------------------------------------------------------------------


def test_while_the_previous_model_is_everybodys_the_term_is_log_2_and_has_no_gradient() -> None:
    embeddings = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    anchor = embeddings.detach() + 1
    value = drift(embeddings, anchor, anchor, 0.5)
    (slope,) = torch.autograd.grad(value, embeddings)
    assert value.item() == pytest.approx(math.log(2)) and slope.abs().max() < 1e-15


# --- the branch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", [True, False])
def test_a_batch_of_public_images_alone(through: bool) -> None:
    """The softmax branch has nothing to say of them, and goes on without an error; the binary one has negatives."""
    public, inputs = torch.tensor([0, 1, 2, 2, 1, 0]), problem()
    loss = replace(LOSS, branch=CLASSES, through=through)
    inputs.pop("bias")
    value = called(loss, inputs, public)
    assert value == called(replace(loss, branch=None), inputs, public)
    slopes = torch.autograd.grad(value, [inputs["turn"], inputs["shift"], inputs["own"], inputs["embeddings"]])
    assert not any(slope.any() for slope in slopes[:3]) and slopes[3].any()
    binary = replace(LOSS, through=through)
    torch.testing.assert_close(called(binary, problem(), public), l_total(binary, problem(), public))


# --- distillation -----------------------------------------------------------------------------------------------------


def l_kd(inputs: dict[str, Tensor], head: Tensor, labels: Tensor, alpha: float, t: float) -> Tensor:
    """(1 − α) L_cos + α T² Σ_j p_j log(p_j / q_j), an image at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels.tolist()):
        f, anchor = inputs["embeddings"][i], inputs["anchor"][i].detach()
        powers = [torch.exp(30 * cosine(anchor, head[j]) / t) for j in range(len(head))]
        pupil_powers = [torch.exp(30 * cosine(f, inputs["weights"][j]) / t) for j in range(len(head))]
        total = total + (1 - alpha) * l_cos(f, inputs["weights"], label)
        for p, q in zip(powers, pupil_powers, strict=True):
            share = p / sum(powers)
            total = total + alpha * t**2 * share * torch.log(share / (q / sum(pupil_powers)))
    return total / len(labels)


@pytest.mark.parametrize(("alpha", "t"), [(0.5, 4.0), (1.0, 1.0), (0.2, 7.0)])
def test_distillation_is_that_of_the_loop(alpha: float, t: float) -> None:
    inputs, head = problem(replace(LOSS, branch=None)), problem(seed=1)["weights"].detach()
    fast = Distilled(CLASSES, head, alpha, t)(
        inputs["embeddings"], inputs["weights"], LABELS, anchor=inputs["anchor"].detach()
    )
    slow = l_kd(inputs, head, LABELS, alpha, t)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    by = [inputs["embeddings"], inputs["weights"]]
    for gradient, oracle in zip(*(torch.autograd.grad(value, by) for value in (fast, slow)), strict=True):
        torch.testing.assert_close(gradient, oracle, rtol=1e-10, atol=1e-12)


def test_distillation_by_hand() -> None:
    """The teacher sees cosines 1 and 0, the pupil 0 and 1, at s/T = 2: p = (a, 1 − a), q = (1 − a, a), a = σ(2)."""
    rows = torch.eye(2, dtype=torch.float64)
    a = 1 / (1 + math.exp(-2))
    apart = a * math.log(a / (1 - a)) + (1 - a) * math.log((1 - a) / a)
    loss = Distilled(CosFace(scale=6.0, margin=0.0), rows, 0.25, 3.0)
    value = loss(rows[1:], rows, torch.tensor([1]), anchor=rows[:1])
    assert float(value) == pytest.approx(0.75 * math.log(1 + math.exp(-6)) + 0.25 * 9 * apart, abs=1e-12)


# --- other models of the party's backbone -----------------------------------------------------------------------------


def test_frozen_models_answer_in_evaluation_mode_and_leave_the_network_as_it_is() -> None:
    party = naive.party("silo-0", Tiny(norm=True, double=True))
    module, images = party.backbone.module.train(), party.compute.plain(party.data)
    shifted = {name: tensor + 0.1 for name, tensor in party.backbone.shared().items()}
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    embeddings = frozen(party, {"one": shifted, "two": party.backbone.shared()})(images)
    assert module.training and all(module.state_dict()[name].equal(tensor) for name, tensor in before.items())
    assert not any(tensor.requires_grad for tensor in embeddings.values())
    alone = Tiny(norm=True, double=True)().backbone.module.eval()
    for name, model in (("one", shifted), ("two", before)):
        alone.load_state_dict({**alone.state_dict(), **model})
        torch.testing.assert_close(embeddings[name], alone(images).detach(), rtol=1e-13, atol=1e-13)
    module.eval()
    frozen(party, {"one": shifted})(images)
    assert not module.training


class Positions(nn.Module):
    """A layer of the project's network with a weight of no layer, as the positions of a transformer are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_size = 8
        self.cnn = build("cnn-small", size=32, channels=1, embedding_size=8, generator=generator(0, "backbone"))
        self.positions = nn.Parameter(torch.arange(8.0))

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.cnn(images) + self.positions
        return embeddings


def test_an_untrained_network_has_fresh_weights_throughout() -> None:
    """It follows from its generator alone, and takes nothing from the model that the party holds, nor from torch's."""
    network = Positions()
    party = replace(naive.party("silo-0", Tiny()), backbone=Backbone(network))
    first = untrained(party, np.random.default_rng(0))
    drawn = {n for n, p in network.named_parameters() if p.unique().numel() > 1}
    assert drawn and not any(first[n].equal(party.backbone.shared()[n]) for n in drawn)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.add_(1)
    state = torch.random.get_rng_state()
    again, different = untrained(party, np.random.default_rng(0)), untrained(party, np.random.default_rng(1))
    assert torch.random.get_rng_state().equal(state)
    assert first.keys() == party.backbone.shared().keys() and all(again[n].equal(first[n]) for n in first)
    assert not any(different[n].equal(first[n]) for n in drawn)
    module: nn.Module = party.backbone.module
    module.load_state_dict({**module.state_dict(), **first})
    embeddings = module.eval()(party.compute.plain(party.data).repeat(1, 1, 2, 2))
    assert embeddings.isfinite().all() and embeddings.std(0).max() > 0
