import math

import pytest
import torch
from problems import problem

from coalface.training.losses.adaface import AdaFace, LengthStatistics
from coalface.training.losses.margins import ArcFace, CosFace

# One class at 60° (cosine 1/2), another at 90° (cosine 0).
WEIGHTS = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
OWN = torch.tensor([0])


def known(mean, std):
    return LengthStatistics(mean=torch.tensor(mean).double(), std=torch.tensor(std).double())


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        # m = π/6 and h = 1: ẑ = (‖x‖ − 20) / 10, cut to ±1; cos(60° − 30°·ẑ) − (1 + ẑ)·π/6.
        (20.0, 0.5 - math.pi / 6),
        (10.0, 0.0),
        (1.0, 0.0),
        (15.0, math.cos(math.radians(75)) - math.pi / 12),
        (30.0, math.sqrt(3) / 2 - math.pi / 3),
        (99.0, math.sqrt(3) / 2 - math.pi / 3),
    ],
)
def test_hand_worked_numbers(length, kept):
    loss = AdaFace(scale=4, margin=math.pi / 6, concentration=1.0)
    embedding = torch.tensor([[length, 0.0, 0.0]], dtype=torch.float64)
    logits = loss.logits(embedding, WEIGHTS, OWN, known(20.0, 9.999))
    torch.testing.assert_close(logits, torch.tensor([[4 * kept, 0.0]], dtype=torch.float64))
    value = loss(embedding, WEIGHTS, OWN, known(20.0, 9.999))
    assert value.item() == pytest.approx(math.log1p(math.exp(-4 * kept)))


def test_the_statistics_of_a_batch_and_the_running_ones():
    loss = AdaFace(share=0.25)
    batch = torch.tensor([[3.0, 4.0], [0.0, -7.0], [9.0, 0.0]])  # lengths 5, 7, 9: mean 7, deviation √(8/2) = 2
    assert [v.item() for v in vars(loss.statistics(batch)).values()] == pytest.approx([7, 2])
    running = loss.statistics(batch, loss.first())  # a quarter new: 7/4 + 15, 2/4 + 75
    assert [v.item() for v in vars(running).values()] == pytest.approx([16.75, 75.5])
    assert not running.mean.requires_grad
    newest = AdaFace(share=1.0).statistics(batch, loss.first())
    assert [v.item() for v in vars(newest).values()] == pytest.approx([7, 2])


def test_without_statistics_those_of_the_batch_are_taken_and_nothing_is_kept():
    loss = AdaFace()
    given = problem()
    first = loss(*given)
    assert torch.equal(first, loss(*given, loss.statistics(given[0])))
    loss(10 * given[0], *given[1:])
    assert torch.equal(first, loss(*given))
    assert not torch.equal(first, loss(*given, loss.first()))


def test_short_embeddings_get_arcface_and_those_of_mean_length_cosface():
    embeddings, weights, labels = problem()
    loss = AdaFace(margin=0.4)
    short = loss(embeddings, weights, labels, known(1e6, 1.0))  # ẑ = −1
    torch.testing.assert_close(short, ArcFace(margin=0.4)(embeddings, weights, labels))
    middle = loss(embeddings, weights, labels, known(0.0, 1e12))  # ẑ = 0
    torch.testing.assert_close(middle, CosFace(margin=0.4)(embeddings, weights, labels))


def test_a_turned_angle_is_cut_to_a_half_circle():
    angles = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    embeddings = torch.stack([angles.cos(), angles.sin()], 1)
    classes, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64), torch.zeros(1001, dtype=torch.int64)
    for mean, turn, additive in [(-1e6, -0.4, 0.8), (1e6, 0.4, 0.0)]:  # ẑ = 1, ẑ = −1
        embeddings.requires_grad_()
        logits = AdaFace(scale=1.0, margin=0.4).logits(embeddings, classes, labels, known(mean, 1.0))
        torch.testing.assert_close(logits[:, 0], (angles + turn).clamp(0, math.pi).cos() - additive)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum(), embeddings)
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
