import math

import pytest
import torch
from problems import check_against, problem
from pytorch_metric_learning.losses import SubCenterArcFaceLoss

from coalface.training.losses.subcenter import SubCenterArcFace


def test_hand_worked_numbers():
    # Two centres a class: the own ones at 60° and 120°, the others at 90° and 180°; lengths do not count.
    embedding = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[-1, math.sqrt(3)], [2, 2 * math.sqrt(3)], [0, 5], [-1, 0]], dtype=torch.float64)
    loss = SubCenterArcFace(scale=4, margin=math.pi / 6, centers=2)
    logits = loss.logits(embedding, weights, torch.tensor([0]))  # cos(60° + 30°) = 0 and cos 90° = 0
    torch.testing.assert_close(logits, torch.zeros(1, 2, dtype=torch.float64))
    logits = loss.logits(embedding, weights, torch.tensor([1]))  # cos 60° = 1/2 and cos(90° + 30°) = −1/2
    torch.testing.assert_close(logits, torch.tensor([[2.0, -2.0]], dtype=torch.float64))
    assert loss(embedding, weights, torch.tensor([1])).item() == pytest.approx(math.log1p(math.exp(4)))


def test_pytorch_metric_learning_gives_the_same_value_and_gradient():
    embeddings, weights, labels = problem(n=40, k=9, d=6, rows=27, dtype=torch.float32)
    degrees = math.degrees(0.5)
    oracle = SubCenterArcFaceLoss(num_classes=9, embedding_size=6, margin=degrees, scale=64, sub_centers=3)
    check_against(oracle, SubCenterArcFace(), embeddings, weights, labels)


def test_what_does_not_fit_is_refused():
    embeddings, weights, labels = problem(k=7)
    with pytest.raises(ValueError, match="7 rows are no multiple of 3: give 3 for a class"):
        SubCenterArcFace()(embeddings, weights, labels)
    assert SubCenterArcFace(centers=2).rows(7) == 14
