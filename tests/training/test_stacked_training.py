"""Many parties that train as one: held against each party by itself, a plain loop, and numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from torch import Tensor, nn

from coalface.core.method import Party, Tensors, generator
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny
from coalface.models import build
from coalface.models.groups import Backbone, freeze_batchnorm
from coalface.training.classifier import HEAD, DenseClassifier
from coalface.training.local_training import Learner, learn
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.curricularface import CurricularFace
from coalface.training.losses.elasticface import ElasticFace
from coalface.training.sgd import SGD
from coalface.training.stacked_training import (
    embed_stacked,
    learn_together,
    stacked,
    train_together,
    unstackable_reason,
)

EXACT = Tiny(parties=6, double=True)
"""Silos of 12, 11, 10, 12, 11 and 10 images of two identities, half of which are turned at random."""
WORK = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, weight_decay=0.01)


def members(build: Tiny = EXACT, round_: int = 1) -> list[Party]:
    """All parties, who share one network as those of a process do."""
    first = naive.party("silo-0", build, round_)
    parties = [naive.party(f"silo-{i}", build, round_) for i in range(build.parties)]
    return [replace(party, backbone=first.backbone) for party in parties]


def tensors_of(learner: Learner) -> Tensors:
    return {HEAD: learner.head, **learner.extra, **{f"velocity {n}": v for n, v in learner.velocity.items()}}


class Scaled(nn.Module):
    """A number for an image: w times its mean, cut off at 0 in place."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.embedding_size = nn.Parameter(torch.ones(1, dtype=torch.float64)), 1
        self.cut_off = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.cut_off(self.w * images.flatten(1).mean(1, keepdim=True))


def half_square(embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
    """The mean of (x − t)² / 2; the target t is the same of all classes."""
    return ((embeddings - weights[labels]) ** 2).mean() / 2


def test_two_parties_of_three_steps_by_hand() -> None:
    """White images, so x = max(w, 0) from w = 1; g = (x − t)·[w > 0] + 0.1 w; v ← v / 2 + g; w ← w − v / 2.

    t = 2: g = −0.9, w = 1.45; g = −0.405, v = −0.855, w = 1.8775; g = 0.06525, v = −0.36225, w = 2.058625.
    t = 0: g = 1.1, w = 0.45; g = 0.495, v = 1.045, w = −0.0725; g = −0.00725, v = 0.51525, w = −0.330125.
    """
    backbone, two = Backbone(Scaled()), members(Tiny(parties=2, double=True))
    white = np.full_like(two[0].data.pixels, 255)
    parties = [replace(party, backbone=backbone, data=replace(party.data, pixels=white)) for party in two]
    targets = [torch.full((2, 1), t, dtype=torch.float64) for t in (2.0, 0.0)]
    batches = [[np.array([0, 1]), np.array([2]), np.array([3, 4])], [np.array([5, 4]), np.array([3]), np.array([2, 0])]]
    together = train_together(
        parties,
        [DenseClassifier(target.requires_grad_(), half_square) for target in targets],
        batches,
        SGD(lr=0.5, momentum=0.5, weight_decay=0.1),
    )
    assert [len(party.data) for party in parties] == [12, 11]
    mean = (12 * 2.058625 - 11 * 0.330125) / 23
    assert together.backbone["w"].item() == pytest.approx(mean, abs=1e-14)
    # (1 − 2)² / 2 twice, (1.45 − 2)² / 2 once, (1.8775 − 2)² / 2 twice
    assert together.parties[0].loss == pytest.approx((1 + 0.15125 + 0.01500625) / 5, abs=1e-14)
    assert backbone.module.w.item() == 1  # the module stays as it was


LOSSES: list[CosineLoss] = [LOSS, CurricularFace(scale=8.0), ElasticFace(scale=8.0)]
"""One that is a formula, one that keeps a state from step to step, and one that draws."""


@pytest.mark.parametrize(
    ("work", "momentum", "loss"),
    [
        (WORK, "reset", LOSSES[0]),
        (WORK, "keep", LOSSES[0]),
        (WORK, "none", LOSSES[1]),
        (WORK, "reset", LOSSES[2]),
        (LocalTraining(epochs=2, batch_size=5, lr=0.1), "keep", LOSSES[1]),  # other steps at each
        (LocalTraining(batch_size=12, lr=0.3), "reset", LOSSES[1]),  # one step
        (LocalTraining(batch_size=12, lr=0.3), "keep", LOSSES[0]),
        (replace(WORK, sample_rate=0.5), "reset", LOSSES[0]),
        (replace(WORK, party_batch_size={"silo-0": 3, "silo-3": 3}), "reset", LOSSES[0]),
    ],
)
def test_two_rounds_together_are_two_rounds_of_each(work: LocalTraining, momentum: Any, loss: CosineLoss) -> None:
    """The mean of the backbones, each loss, and all that each keeps; `pull` is of the party, the head included."""

    def pull(party: Party) -> Any:
        strength = 0.1 * (1 + int(party.name[-1]))
        return lambda trained, images, labels: {
            "up.weight": strength * trained["up.weight"].detach() * images.mean(),
            HEAD: strength * trained[HEAD].detach() * labels.double().mean(),
        }

    theta = EXACT().backbone.shared()
    learners: list[Learner | None] = [None] * 6
    for round_ in (1, 2):
        parties = members(round_=round_)
        share = [len(party.data) / sum(len(p.data) for p in parties) for party in parties]
        pulls = [pull(party) for party in parties]
        backbone, together = learn_together(parties, theta, learners, work, loss, momentum=momentum, pulls=pulls)
        ends = []
        for place, party in enumerate(members(round_=round_)):
            before = learners[place]
            mean_loss, learner = learn(party, theta, before, work, loss, momentum=momentum, pull=pull(party))
            ends.append(party.backbone.shared())
            own_loss, own = together[place]
            assert own_loss == pytest.approx(mean_loss, abs=1e-12)
            assert vars(own.cursor) == vars(learner.cursor) and own.kept == learner.kept == {}
            assert tensors_of(own).keys() == tensors_of(learner).keys()
            assert naive.furthest(tensors_of(own), tensors_of(learner)) < 1e-12
            learners[place] = own
        expected = naive.mean(share, ends)
        assert naive.furthest(backbone, expected) < 1e-13 and naive.furthest(theta, expected) > 1e-4
        theta = backbone


def test_a_loss_that_is_not_finite_names_the_party() -> None:
    parties = members()
    with pytest.raises(FloatingPointError, match="the training loss of silo-"):
        learn_together(parties, parties[0].initial, [None] * 6, replace(WORK, lr=1e200), LOSS, momentum="reset")


class WithStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(1))


def frozen(module: nn.Module) -> nn.Module:
    freeze_batchnorm(module)
    return module


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.BatchNorm1d(4), "the backbone has BatchNorm"),
        (nn.Sequential(nn.SyncBatchNorm(4)), "the backbone has BatchNorm"),
        (nn.BatchNorm2d(4, track_running_stats=False), "the backbone has BatchNorm"),
        (WithStatistics(), "the backbone has float buffers"),
        (nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4)), ""),
        (frozen(nn.Sequential(nn.BatchNorm2d(4))), ""),
        (nn.Sequential(frozen(nn.BatchNorm2d(4)), nn.BatchNorm2d(4)), "the backbone has BatchNorm"),
    ],
)
def test_what_a_party_s_own_batch_changes_cannot_be_stacked(module: nn.Module, reason: str) -> None:
    assert unstackable_reason(Backbone(module)).startswith(reason) and bool(
        unstackable_reason(Backbone(module))
    ) == bool(reason)


@pytest.mark.parametrize(
    ("name", "last"),
    by_default(
        2, [("cnn-small", False), ("cnn-small", True), ("feduv-cnn", False), ("sphere20", False), ("vit-tiny", False)]
    ),
)
def test_every_backbone_without_statistics_is_stacked(name: str, last: bool) -> None:
    """Embeddings and gradients of two parties are those of each; torch warns of nothing that it does one by one."""
    size = 112 if name in ("sphere20", "vit-tiny") else 64
    module = build(name, size=size, channels=3, generator=generator(0, "backbone")).double().train()
    images = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 2, 3, size, size)))
    if last:  # as with engine.channels_last
        module = module.to(memory_format=torch.channels_last)
        images = images.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (2, 2))
    theta = stacked(module, 2)
    embeddings = embed_stacked(module, theta, images)
    gradients = torch.autograd.grad(embeddings.square().sum(), list(theta.values()))
    for place in range(2):
        own = module(images[place])
        assert torch.allclose(embeddings[place], own, rtol=1e-10, atol=1e-10)
        alone = torch.autograd.grad(own.square().sum(), [p for p in module.parameters() if p.requires_grad])
        for together, single in zip(gradients, alone, strict=True):
            assert torch.allclose(together[place], single, rtol=1e-10, atol=1e-10 * float(single.abs().max()))
