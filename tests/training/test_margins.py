import math

import pytest
import torch
from problems import check_against, problem
from pytorch_metric_learning.losses import ArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss

from coalface.experiments.recipe import loader
from coalface.training.losses.adaface import AdaFace
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.margins import ArcFace, CosFace, Softmax
from coalface.training.losses.registry import LOSSES
from coalface.training.losses.sphereface import SphereFace
from coalface.training.losses.sphereface2 import SphereFace2
from coalface.training.losses.subcenter import SubCenterArcFace


def test_hand_worked_numbers():
    # One embedding at 60° from its own class (cosine 1/2) and at 90° from the other (cosine 0); lengths do not count.
    embeddings = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[1.0, math.sqrt(3), 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    label = torch.tensor([0])
    # log(1 + e^{-s·f}), with f = 1/2, then 1/2 − 1/4 = 1/4, then cos(60° + 30°) = 0.
    assert Softmax(scale=4)(embeddings, weights, label).item() == pytest.approx(math.log1p(math.exp(-2)))
    assert CosFace(scale=4, margin=0.25)(embeddings, weights, label).item() == pytest.approx(math.log1p(math.exp(-1)))
    assert ArcFace(scale=4, margin=math.pi / 6)(embeddings, weights, label).item() == pytest.approx(math.log(2))
    logits = CosFace(scale=4, margin=0.25).logits(embeddings, weights, label)
    torch.testing.assert_close(logits, torch.tensor([[1.0, 0.0]], dtype=torch.float64))


def test_pytorch_metric_learning_gives_the_same_value_and_gradient():
    embeddings, weights, labels = problem(n=40, k=9, d=6, dtype=torch.float32)
    oracles = {
        Softmax(scale=20): NormalizedSoftmaxLoss(num_classes=9, embedding_size=6, temperature=1 / 20),
        CosFace(scale=64, margin=0.35): CosFaceLoss(num_classes=9, embedding_size=6, margin=0.35, scale=64),
        ArcFace(scale=64, margin=0.5): ArcFaceLoss(num_classes=9, embedding_size=6, margin=math.degrees(0.5), scale=64),
    }
    for loss, oracle in oracles.items():
        check_against(oracle, loss, embeddings, weights, labels)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.2])
def test_arcface_falls_with_the_angle_all_the_way(margin):
    angles = torch.linspace(0, math.pi, 5001, dtype=torch.float64)
    target = ArcFace(margin=margin).target(angles.cos())
    assert (target.diff() < 0).all()
    before = angles < math.pi - margin - 1e-9
    torch.testing.assert_close(target[before], (angles[before] + margin).cos())


def test_the_registry_makes_each_loss_with_the_papers_defaults():
    assert {name: kind() for name, kind in LOSSES.items()} == {
        "softmax": Softmax(scale=64.0),
        "cosface": CosFace(scale=64.0, margin=0.35),
        "arcface": ArcFace(scale=64.0, margin=0.5),
        "sphereface": SphereFace(scale=None, margin_factor=4, annealing=0.0),
        "sphereface2": SphereFace2(scale=30.0, margin=0.4, power=3.0, balance=0.7),
        "subcenter-arcface": SubCenterArcFace(scale=64.0, margin=0.5, centers=3),
        "curricularface": CurricularFace(scale=64.0, margin=0.5, momentum=0.01),
        "elasticface": ElasticFace(scale=64.0, margin=0.5, deviation=0.05, plus=False),
        "adaface": AdaFace(scale=64.0, margin=0.4, concentration=0.333),
        "positive": PositiveHinge(target_cosine=0.9),
    }


def test_a_setting_that_is_none_is_not_carried_to_another_loss(tmp_path):
    resolved = loader.parse({"loss": {"name": "sphereface"}}).resolved()
    assert resolved["loss"]["scale"] is None
    changed = loader.parse(loader.with_value(resolved, "loss.name", "cosface"))
    assert changed.loss == CosFace(scale=64.0, margin=0.35)
