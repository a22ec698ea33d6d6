"""The consensus-aware loss: by a naive loop, by hand, and what it does where an image lies within a cluster."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coalface.training.losses.base import MarginSoftmax
from coalface.training.losses.consensus import ConsensusAware
from coalface.training.losses.margins import ArcFace, CosFace, Softmax

ANGLE = 0.6


def problem(n: int = 9, k: int = 4, q: int = 5, d: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, w, c = (torch.randn(rows, d, generator=draw, dtype=torch.float64) for rows in (n, k, q))
    c[0] = 2 * x[0] + 0.1 * c[0]  # the first image lies within the first cluster
    return x, w, torch.randint(k, (n,), generator=draw), c


def angle_of(a: Tensor, b: Tensor) -> Tensor:
    return torch.acos(a @ b / ((a @ a).sqrt() * (b @ b).sqrt()))


def naive(x: Tensor, w: Tensor, labels: Tensor, c: Tensor, loss: MarginSoftmax, angle: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, y in zip(x, labels.tolist(), strict=True):
        own = loss.scale * loss.target(torch.cos(angle_of(row, w[y])).view(1, 1)).view(())
        terms = [own] + [loss.scale * torch.cos(angle_of(row, w[j])) for j in range(len(w)) if j != y]
        terms += [loss.scale * torch.cos((angle_of(row, q) - angle).clamp_min(0)) for q in c]
        total = total + torch.logsumexp(torch.stack(terms), 0) - own
    return total / len(x)


@pytest.mark.parametrize("angle", [0.0, ANGLE, math.pi / 2])
@pytest.mark.parametrize("loss", [Softmax(scale=3.0), CosFace(scale=8.0, margin=0.2), ArcFace(scale=8.0, margin=0.3)])
def test_it_is_the_naive_loop_and_so_is_its_gradient(loss: MarginSoftmax, angle: float) -> None:
    *arguments, c = problem()
    results = []
    for form in (ConsensusAware(loss, c, angle), lambda x, w, y: naive(x, w, y, c, loss, angle)):
        x, w = (t.clone().requires_grad_() for t in arguments[:2])
        value = form(x, w, arguments[2])
        results.append((value.detach(), *torch.autograd.grad(value, (x, w))))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_by_hand() -> None:
    """x = w_0 at right angles to w_1; clusters at 90 and 30 degrees, of radius 30: cos 60° = 1/2, and within it 1."""
    x = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    w = torch.eye(2, dtype=torch.float64)
    c = torch.tensor([[0.0, 1.0], [math.cos(math.pi / 6), math.sin(math.pi / 6)]], dtype=torch.float64)
    loss = ConsensusAware(CosFace(scale=2.0, margin=0.5), c, math.pi / 6 + 1e-12)
    own = math.exp(2 * (1 - 0.5))
    expected = -math.log(own / (own + 1 + math.exp(2 * 0.5) + math.exp(2)))
    assert loss(x, w, torch.tensor([0])).item() == pytest.approx(expected, abs=1e-9)


def test_it_pushes_away_from_a_cluster_and_within_it_does_not() -> None:
    """Of one class alone, so that all of the gradient is the cluster's."""
    w, c = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    for degrees, pushed in ((40.0, True), (80.0, False)):  # 50 and 10 degrees from the cluster, of radius 0.6 (34)
        at = math.radians(degrees)
        x = torch.tensor([[math.cos(at), math.sin(at)]], dtype=torch.float64, requires_grad=True)
        still = w.expand(1, 2)
        cluster, alone = (
            torch.autograd.grad(ConsensusAware(Softmax(scale=4.0), others, ANGLE)(x, still, torch.tensor([0])), x)[0]
            for others in (c, torch.empty(0, 2, dtype=torch.float64))
        )
        assert float(alone.abs().max()) == 0  # a softmax over one class
        toward_own = torch.tensor([[math.sin(at), -math.cos(at)]], dtype=torch.float64)
        assert float((-cluster * toward_own).sum()) > 0  # either way it turns to its own class
        share = ConsensusAware(Softmax(scale=4.0), c, ANGLE)(x, still, torch.tensor([0])).item()
        probability = 1 - math.exp(-share)
        own_pull = 4.0 * probability * math.sin(at)  # s (1 − p_y) of the slope of cos θ_y
        push = 4.0 * probability * math.sin(math.pi / 2 - at - ANGLE) if pushed else 0.0
        assert float(cluster.norm()) == pytest.approx(own_pull + push, rel=1e-9)


def test_without_clusters_it_is_the_loss_itself() -> None:
    x, w, labels, c = problem()
    for loss in (CosFace(scale=8.0, margin=0.2), ArcFace()):
        torch.testing.assert_close(ConsensusAware(loss, c[:0], ANGLE)(x, w, labels), loss(x, w, labels))


def test_an_angle_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="angle"):
        ConsensusAware(Softmax(), torch.eye(2), 2.0)
