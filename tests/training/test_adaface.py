import math

import pytest
import torch
from problems import problem

from coalface.training.losses.adaface import AdaFace
from coalface.training.losses.margins import CosFace

# One class at 60° (cosine 1/2), another at 90° (cosine 0).
WEIGHTS = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("quality", "target"),
    [
        # m = π/6: cos(60° − 30°·ẑ) − (1 + ẑ)·π/6.
        (0.0, 0.5 - math.pi / 6),
        (-1.0, 0.0),
        (-0.5, math.cos(math.radians(75)) - math.pi / 12),
        (1.0, math.sqrt(3) / 2 - math.pi / 3),
    ],
)
def test_hand_worked_margins(quality, target):
    cosine, z = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[quality]], dtype=torch.float64)
    torch.testing.assert_close(AdaFace(margin=math.pi / 6).target(cosine, z), torch.full_like(z, target))


def test_hand_worked_qualities_and_loss():
    # Lengths 5, 7 and 9: mean 7, deviation √(8/2) = 2, so at h = 1.0005 ẑ is −1, 0 and 1; at half of it ∓1/2.
    batch = torch.tensor([[3.0, 4.0, 0.0], [7.0, 0.0, 0.0], [0.0, 0.0, 9.0]], dtype=torch.float64)
    assert AdaFace(concentration=1.0005).quality(batch).view(-1).tolist() == pytest.approx([-1, 0, 1])
    assert AdaFace(concentration=0.50025).quality(batch).view(-1).tolist() == pytest.approx([-0.5, 0, 0.5])
    assert AdaFace(concentration=5.0).quality(batch).view(-1).tolist() == [-1, 0, 1]  # cut
    loss = AdaFace(scale=4, margin=math.pi / 6, concentration=1.0005)
    logits = loss.logits(batch, WEIGHTS, torch.zeros(3, dtype=torch.int64))
    first = 4 * (0.5 - math.pi / 6)  # of the image of mean length, at 60° from its class and 90° from the other
    torch.testing.assert_close(logits[1], torch.tensor([first, 0.0], dtype=torch.float64))


def test_a_turned_angle_is_cut_to_a_half_circle():
    angles = torch.linspace(0, math.pi, 1001, dtype=torch.float64)[:, None]
    for quality, turn, additive in [(1.0, -0.4, 0.8), (-1.0, 0.4, 0.0)]:
        cosine = angles.cos().requires_grad_()
        target = AdaFace(margin=0.4).target(cosine, torch.full_like(angles, quality))
        torch.testing.assert_close(target, (angles + turn).clamp(0, math.pi).cos() - additive)
        (gradient,) = torch.autograd.grad(target.sum(), cosine)
        beyond = (angles + turn < -1e-9) | (angles + turn > math.pi + 1e-9)
        assert beyond.any() and (gradient[beyond] == 0).all() and gradient.isfinite().all()


def test_lengths_get_no_gradient():
    embeddings, weights, labels = problem()
    embeddings.requires_grad_()
    (gradient,) = torch.autograd.grad(AdaFace()(embeddings, weights, labels), embeddings)
    assert (gradient * embeddings).sum(1).abs().max() < 1e-12  # none along the embedding


def test_a_single_image_and_images_of_one_length_have_no_quality_to_tell():
    embeddings, weights, labels = problem(n=1)
    expected = CosFace(margin=0.4)(embeddings, weights, labels)
    torch.testing.assert_close(AdaFace()(embeddings, weights, labels), expected)
    twice = embeddings.repeat(2, 1), weights, labels.repeat(2)
    torch.testing.assert_close(AdaFace()(*twice), expected)
