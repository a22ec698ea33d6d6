import math

import pytest
import torch
from problems import check_against, problem
from pytorch_metric_learning.losses import SphereFaceLoss

from coalface.training.losses.sphereface import SphereFace

# One embedding of length 3 at 60° from its own class (cosine 1/2) and at 90° from the other (cosine 0).
EMBEDDING = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
WEIGHTS = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
OWN = torch.tensor([0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # 4 · 60° = 240° lies in the second of four parts: ψ = −cos 240° − 2 = −3/2; times the length 3.
        (SphereFace(), math.log1p(math.exp(4.5))),
        (SphereFace(scale=2.0), math.log1p(math.exp(3))),
        # (λ/2 − 3/2) / (1 + λ): −1/2 for λ = 1, 1/2 for ever larger λ.
        (SphereFace(annealing=1.0), math.log1p(math.exp(1.5))),
        (SphereFace(annealing=1e12), math.log1p(math.exp(-1.5))),
        # 2 · 60° = 120° lies in the first of two parts: ψ = cos 120° = −1/2; 3 · 60° = 180° ends the first: ψ = −1.
        (SphereFace(margin_factor=2), math.log1p(math.exp(1.5))),
        (SphereFace(margin_factor=3), math.log1p(math.exp(3))),
        (SphereFace(margin_factor=1), math.log1p(math.exp(-1.5))),
    ],
)
def test_hand_worked_numbers(loss, expected):
    assert loss(EMBEDDING, WEIGHTS, OWN).item() == pytest.approx(expected)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8])
def test_psi_is_the_multiple_angle_at_first_and_falls_without_a_step(m):
    angles = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    psi = SphereFace(margin_factor=m).target(angles.cos())
    first = angles <= math.pi / m
    torch.testing.assert_close(psi[first], (m * angles[first]).cos())
    assert (psi.diff() <= 1e-12).all() and psi.diff().abs().max() < 2 * m * math.pi / 20000
    assert psi[-1].item() == pytest.approx(1 - 2 * m)


def test_the_slope_at_both_ends_is_the_square_of_the_factor():
    ends = torch.tensor([1.0, -1.0, 1 + 2e-16, -1 - 2e-16], dtype=torch.float64, requires_grad=True)
    SphereFace(margin_factor=4).target(ends).sum().backward()  # T_m'(±1) = ±m² for even m, and q = 3 at −1
    torch.testing.assert_close(ends.grad, torch.full((4,), 16.0, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of the other library, not ours
@pytest.mark.parametrize("m", [2, 3, 4])
def test_pytorch_metric_learning_gives_the_same_value_and_gradient(m):
    embeddings, weights, labels = problem(n=40, k=9, d=6, dtype=torch.float32)
    oracle = SphereFaceLoss(num_classes=9, embedding_size=6, margin=m, scale=1)
    check_against(oracle, SphereFace(margin_factor=m), embeddings, weights, labels)
