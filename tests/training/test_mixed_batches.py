"""Batches of two domains at one party, and DAN and DANN over them, against loops of bare torch networks in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from worlds import recipe

from coalface.core.method import Party
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.training.classifier import HEAD
from coalface.training.domain_adaptation import mixed_batches
from coalface.training.domain_adaptation.losses import Discrepancy
from coalface.training.domain_adaptation.mixed_batches import Mixed, learn_mixed
from coalface.training.local_work import LocalTraining
from coalface.training.losses.subcenter import SubCenterArcFace

BOTH = frozenset({"source", "target"})
WORLD = Tiny(pooled=True, domains=BOTH, flip=False, double=True)
"""One party: two identities of six images that are known, four that are not."""
WORK = LocalTraining(steps_per_round=4, batch_size=5, lr=0.3, schedule="cosine", momentum=0.8, weight_decay=0.01)


@pytest.fixture
def party() -> Party:
    return naive.party("all", WORLD)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Round by round, the images of each step."""
    drawn_batches: list[list[list[int]]] = []
    plain = mixed_batches.train

    def noting(party: Party, head: Tensor, batches: Any, *arguments: Any, **options: Any) -> Any:
        drawn_batches.append([batch.tolist() for batch in batches])
        return plain(party, head, batches, *arguments, **options)

    monkeypatch.setattr(mixed_batches, "train", noting)
    return drawn_batches


def rounds(party: Party, work: LocalTraining, count: int) -> Mixed:
    mixed, backbone = None, party.initial
    for _ in range(count):
        _, mixed = learn_mixed(party, backbone, mixed, work, Discrepancy(LOSS, 0.5), {})
        backbone = party.backbone.shared()
    assert mixed is not None
    return mixed


def permutations(party: Party, name: str, images: list[int], numbers: int) -> list[int]:
    """The images in the order of epoch 0, then of epoch 1, and so on."""
    epochs = range(1 + numbers // len(images))
    drawn = [party.stream("train", name, epoch).permutation(len(images)) for epoch in epochs]
    return [images[place] for place in np.concatenate(drawn)][:numbers]


def test_a_batch_has_as_many_images_of_each_domain_and_goes_on_across_epochs_and_rounds(
    party: Party, steps: list[list[list[int]]]
) -> None:
    mixed = rounds(party, WORK, 3)
    source_places = [i for i, label in enumerate(party.data.labels) if label >= 0]
    unknown = [i for i, label in enumerate(party.data.labels) if label < 0]
    assert (len(source_places), len(unknown)) == (12, 24)
    every = [step for of_round in steps for step in of_round]
    assert [len(of_round) for of_round in steps] == [4, 4, 4] and {len(step) for step in every} == {10}
    assert [i for step in every for i in step[:5]] == permutations(party, "epoch", source_places, 60)
    assert [i for step in every for i in step[5:]] == permutations(party, "target epoch", unknown, 60)
    assert (mixed.learner.cursor.epoch, mixed.learner.cursor.offset) == (4, 12)
    assert (mixed.target.epoch, mixed.target.offset) == (2, 12)


def test_a_target_with_fewer_images_than_a_batch_gives_all_it_has(party: Party, steps: list[list[list[int]]]) -> None:
    few = replace(party, data=party.data.select(np.arange(15)))  # three of the target
    rounds(few, WORK, 1)
    assert all(sorted(step[5:]) == [12, 13, 14] for step in steps[0])


# --- the methods ------------------------------------------------------------------------------------------------------


def naive_mmd(source: Tensor, target: Tensor, kernels: int) -> Tensor:
    every = torch.cat([source, target])
    squares = (every[:, None] - every[None]).square().sum(2)
    width = squares.detach().sum() / (len(every) * (len(every) - 1))
    alike = sum(torch.exp(-squares / (2 ** (u - (kernels + 1) / 2) * width)) for u in range(1, kernels + 1)) / kernels
    assert isinstance(alike, Tensor)
    n = len(source)
    return alike[:n, :n].mean() + alike[n:, n:].mean() - alike[:n, n:].mean() - alike[n:, :n].mean()


class Plain:
    """The pooled party, its network and class embeddings in bare torch."""

    def __init__(self, work: LocalTraining) -> None:
        party = naive.party("all", WORLD)
        faces = party.data
        self.net: nn.Module = WORLD().backbone.module
        pixels = torch.from_numpy(faces.take(np.arange(len(faces)))).permute(0, 3, 1, 2)
        self.images, self.labels = ((pixels.float() - 127.5) / 127.5).double(), torch.from_numpy(faces.labels)
        self.work = work
        source_places = np.flatnonzero(faces.labels >= 0).tolist()
        unknown = np.flatnonzero(faces.labels < 0).tolist()
        self.order = permutations(party, "epoch", source_places, 100), permutations(party, "target epoch", unknown, 100)
        with torch.no_grad():
            features = nn.functional.normalize(self.net(self.images[source_places]))
        means = torch.stack([features[self.labels[source_places] == k].mean(0) for k in range(2)])
        self.head = nn.Parameter(means / means.norm(dim=1, keepdim=True))
        self.beside: list[nn.Parameter] = []

    def optimiser(self) -> torch.optim.SGD:
        trained = [*self.net.parameters(), self.head, *self.beside]
        momentum, decay = self.work.momentum, self.work.weight_decay
        return torch.optim.SGD(trained, lr=1.0, momentum=momentum, weight_decay=decay)

    def train(self, count: int, step: Any) -> dict[str, Tensor]:
        """`step(classified, source features, target features, share done)` gives the gradients' loss."""
        optimiser, place = self.optimiser(), 0
        for round_ in range(count):
            optimiser.param_groups[0]["lr"] = self.work.lr * (1 + math.cos(math.pi * round_ / count)) / 2
            assert self.work.steps_per_round is not None
            for _ in range(self.work.steps_per_round):
                of_source, of_target = (order[place : place + self.work.batch_size] for order in self.order)
                place += self.work.batch_size
                embedded = self.net(self.images[of_source])
                classified = LOSS(embedded, self.head, self.labels[of_source])
                target = nn.functional.normalize(self.net(self.images[of_target]))
                optimiser.zero_grad()
                step(classified, nn.functional.normalize(embedded), target, round_ / count)
                optimiser.step()
        return dict(self.net.named_parameters())


@pytest.mark.parametrize("weight", [0.0, 0.9])
def test_dan_is_its_loop_and_without_weight_that_of_the_source_alone(tmp_path: Path, weight: float) -> None:
    models = run(recipe("dan", rounds=3, local=WORK, weight=weight, kernels=3)[0], tmp_path, WORLD)
    plain = Plain(WORK)

    def step(classified: Tensor, source: Tensor, target: Tensor, progress: float) -> None:
        (classified if not weight else classified + weight * naive_mmd(source, target, 3)).backward()

    assert naive.furthest(models.state.backbone, plain.train(3, step)) < 1e-10
    mixed = naive.kept(tmp_path, "all", Mixed)
    assert float((mixed.learner.head - plain.head).detach().abs().max()) < 1e-10
    assert set(mixed.learner.velocity) == {*models.state.backbone, HEAD}


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_dann_is_its_loop(tmp_path: Path, weight: float) -> None:
    """Two losses in place of a reversed gradient: F − λ_p · weight · C for the features, weight · C for the other."""
    models = run(recipe("dann", rounds=3, local=WORK, weight=weight, hidden=7)[0], tmp_path, WORLD)
    plain, party = Plain(WORK), naive.party("all", WORLD)
    rng = party.stream("train", "discriminator")
    inner = rng.standard_normal((7, 8), dtype=np.float32) * math.sqrt(2 / 8)
    outer = rng.standard_normal((1, 7), dtype=np.float32) * math.sqrt(2 / 7)
    drawn = [torch.from_numpy(inner), torch.zeros(7), torch.from_numpy(outer), torch.zeros(1)]
    plain.beside = [nn.Parameter(t.double()) for t in drawn]

    def step(classified: Tensor, source: Tensor, target: Tensor, progress: float) -> None:
        inner, inner_bias, outer, outer_bias = plain.beside
        logits = torch.relu(torch.cat([source, target]) @ inner.T + inner_bias) @ outer.T[:, 0] + outer_bias
        share = torch.sigmoid(logits)
        right = torch.cat([1 - share[: len(source)], share[len(source) :]])
        apart = weight * -right.log().mean()
        strength = math.tanh(5 * progress)
        (classified - strength * apart).backward(retain_graph=True)
        for p, gradient in zip(plain.beside, torch.autograd.grad(apart, plain.beside), strict=True):
            p.grad = gradient

    assert naive.furthest(models.state.backbone, plain.train(3, step)) < 1e-10
    mixed = naive.kept(tmp_path, "all", Mixed)
    names = ("inner", "inner_bias", "outer", "outer_bias")
    for name, expected in zip(names, plain.beside, strict=True):
        assert float((mixed.learner.extra[name] - expected).detach().abs().max()) < 1e-10
    moved = mixed.learner.extra["inner"].float() - torch.from_numpy(inner)
    assert float(moved.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["dan", "dann"])
def test_a_loss_with_several_rows_for_a_class_is_trained_as_well(name: str, tmp_path: Path) -> None:
    method = recipe(name, local=replace(WORK, lr=0.05), loss=SubCenterArcFace(scale=8.0, margin=0.1, centers=3))[0]
    run(method, tmp_path, WORLD)
    assert naive.kept(tmp_path, "all", Mixed).learner.head.shape == (6, 8)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_sampled_class_embeddings_are_refused(party: Party) -> None:
    with pytest.raises(ValueError, match=r"local\.sample_rate: in a batch of two domains all class embeddings"):
        learn_mixed(party, party.initial, None, replace(WORK, sample_rate=0.5), Discrepancy(LOSS, 1.0), {})
    rounds(party, replace(WORK, sample_rate=1.0), 1)


@pytest.mark.parametrize(
    ("images", "said"),
    [(slice(0, 12), "all holds 12 images of the source and 0 of"), (slice(12, 36), "all holds 0 images of the source")],
)
def test_a_party_without_one_of_the_domains_is_refused(party: Party, images: slice, said: str) -> None:
    alone = replace(party, data=party.data.select(np.arange(36)[images]))
    with pytest.raises(ValueError, match=said):
        learn_mixed(alone, party.initial, None, WORK, Discrepancy(LOSS, 1.0), {})
