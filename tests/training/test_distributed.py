from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from naive import party
from together import Together
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coalface.experiments.conformance.tiny_federation import WORK, Tiny, raw
from coalface.models.groups import Backbone
from coalface.models.iresnet import IBasicBlock
from coalface.training.classifier import HEAD, sampled_classes
from coalface.training.compute import Compute
from coalface.training.distributed.batchnorm import synchronised
from coalface.training.distributed.shards import Shards
from coalface.training.distributed.softmax import check_shardable, sharded_gradients
from coalface.training.local_training import fresh_head, learn
from coalface.training.losses.base import CosineLoss
from coalface.training.losses.margins import ArcFace, CosFace, Softmax
from coalface.training.losses.registry import LOSSES

CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=(pytest.mark.slow, pytest.mark.ci))])
def together(request: pytest.FixtureRequest) -> Iterator[Together]:
    processes = Together(request.param)
    yield processes
    processes.close()


def apart(tensor: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number where that is above 1."""
    assert tensor.shape == expected.shape and tensor.dtype == expected.dtype
    return ((tensor - expected).abs().max() / expected.abs().max().clamp_min(1)).item() if tensor.numel() else 0.0


# --- loss and gradients -----------------------------------------------------------------------------------------------


def problem(dtype: torch.dtype, n: int, k: int, d: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(n, 5) inputs and a (d, 5) matrix that makes embeddings of them, (k, d) class embeddings, (n,) labels."""
    g = torch.Generator().manual_seed(n * k)
    inputs, matrix, head = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((n, 5), (d, 5), (k, d)))
    return inputs.to(dtype), matrix.to(dtype), head.to(dtype), torch.randint(k, (n,), generator=g)


def shares(shards: Shards, loss: CosineLoss, dtype: torch.dtype, n: int, k: int, rate: float | None) -> Any:
    inputs, matrix, head, labels = problem(dtype, n, k)
    block, first, classes = shards.span(k), shards.span(k).start, k
    if rate is not None:
        rows = sampled_classes(labels, k, rate, np.random.default_rng(3))
        labels, classes = torch.searchsorted(rows, labels), len(rows)
        head = torch.where(torch.isin(torch.arange(k), rows)[:, None], head, torch.nan)  # others are never looked at
        own_rows = rows[(rows >= block.start) & (rows < block.stop)]
        first = int((rows < block.start).sum())
    else:
        own_rows = torch.arange(k)[block]
    embeddings = inputs[shards.span(n)] @ matrix.requires_grad_().T
    value, by_matrix, by_rows = sharded_gradients(
        shards, loss, embeddings, [matrix], head[own_rows], labels, first=first, classes=classes
    )
    return value, by_matrix[0], by_rows, head[own_rows]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("rate", [None, 0.5])
@pytest.mark.parametrize(
    "loss", [ArcFace(32.0, 0.5), CosFace(32.0, 0.35), Softmax(32.0)], ids=lambda loss: type(loss).__name__
)
def test_loss_and_gradients_are_those_of_one_process(
    together: Together, loss: CosineLoss, rate: float | None, dtype: torch.dtype
) -> None:
    for n, k in ((24, 37), (7, 11), (3, 3), (1, 40), (5, 1)):  # also fewer images, or classes, than processes
        by_process = together.run(shares, loss, dtype, n, k, rate)
        inputs, matrix, head, labels = problem(dtype, n, k)
        if rate is not None:
            rows = sampled_classes(labels, k, rate, np.random.default_rng(3))
            head, labels = head[rows], torch.searchsorted(rows, labels)
        value = loss(inputs @ matrix.requires_grad_().T, head.requires_grad_(), labels)
        by_matrix, by_head = torch.autograd.grad(value, [matrix, head])
        for shard in by_process:
            assert all(torch.equal(shard[i], by_process[0][i]) for i in (0, 1))  # bit for bit everywhere
            assert apart(shard[0], value.detach()) < CLOSE[dtype]
            assert apart(shard[1], by_matrix) < CLOSE[dtype]
        assert torch.equal(torch.cat([shard[3] for shard in by_process]), head.detach())  # each row once
        assert apart(torch.cat([shard[2] for shard in by_process]), by_head) < CLOSE[dtype]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_that_cannot_be_split_is_refused(name: str) -> None:
    loss = LOSSES[name]()
    if name in ("softmax", "cosface", "arcface"):
        check_shardable(loss)
        return
    with pytest.raises(
        ValueError, match=rf"{type(loss).__name__} cannot .* several processes.*engine.processes_per_party"
    ):
        check_shardable(loss)


# --- BatchNorm --------------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """Two blocks of an iResNet and BatchNorm over the embedding, 3×8×8 -> 4."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(IBasicBlock(3, 5, 2), IBasicBlock(5, 5, 1))
        self.fc, self.features = nn.Linear(80, 4), nn.BatchNorm1d(4, momentum=None)
        self.features.weight.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.features(self.fc(self.blocks(images).flatten(1)))


def normed(dtype: torch.dtype, n: int) -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = Small().to(dtype)
        for m in module.modules():
            if isinstance(m, _BatchNorm):
                nn.init.uniform_(m.weight, 0.5, 1.5)
                nn.init.normal_(m.bias)
        return module, torch.randn(n, 3, 8, 8).to(dtype), torch.randn(n, 4).to(dtype)


def through(module: nn.Module, images: Tensor, weights: Tensor) -> list[Tensor]:
    """Output and gradients of one pass."""
    images = images.clone().requires_grad_()
    out = module(images)
    trained = [images, *(p for p in module.parameters() if p.requires_grad)]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), trained)]


def normed_apart(shards: Shards, dtype: torch.dtype, n: int) -> Any:
    module, images, weights = normed(dtype, n)
    part = shards.span(n)
    for _ in range(2):
        with synchronised(module, shards, n):
            out, by_images, *buffers = through(module, images[part], weights[part])
    assert all("forward" not in vars(m) for m in module.modules())
    return shards.gather(out, n), shards.gather(by_images, n), *shards.sum_all(buffers), *module.buffers()


@pytest.mark.parametrize(
    ("n", "dtype", "bound"),
    [(9, torch.float32, 5e-6), (3, torch.float32, 5e-6), (9, torch.float64, 1e-12), (2, torch.float64, 1e-12)],
)
def test_batchnorm_has_the_statistics_and_gradients_of_the_whole_batch(
    together: Together, n: int, dtype: torch.dtype, bound: float
) -> None:
    module, images, weights = normed(dtype, n)
    for _ in range(2):
        expected = through(module, images, weights)
    expected += module.buffers()
    for outputs in together.run(normed_apart, dtype, n):
        for tensor, oracle in zip(outputs, expected, strict=True):
            assert apart(tensor, oracle) < bound


# --- training ---------------------------------------------------------------------------------------------------------


def exact(build: Tiny, round_: int = 1) -> Any:
    """The party of all images, whose arithmetic is float64."""
    client = party("all", build, round_)
    network = Backbone(client.backbone.module.double(), build.policy)
    compute = replace(client.compute, dtype=torch.float64)
    return replace(client, backbone=network, compute=compute, initial=network.shared())


def learned(shards: Shards | None, build: Tiny, settings: dict[str, Any], momentum: Any) -> Any:
    """Two rounds of a party: the losses, the backbone and the private state."""
    learner, expected_losses, shared = None, [], None
    for round_ in (1, 2):
        client = replace(exact(build, round_=round_), shards=shards)
        pull = lambda trained, images, labels: {"up.bias": torch.full_like(trained["up.bias"], 0.1)}  # noqa: E731
        work = replace(WORK, **settings)
        loss, learner = learn(
            client, shared or client.initial, learner, work, ArcFace(16.0, 0.3), momentum=momentum, pull=pull
        )
        shared = client.backbone.shared()
        expected_losses.append(loss)
    assert learner is not None
    return expected_losses, shared, learner


@pytest.mark.parametrize("settings", [{}, {"sample_rate": 0.9}, {"batch_size": 3, "steps_per_round": 4}], ids=str)
@pytest.mark.parametrize("momentum", ["keep", "none"])
def test_rounds_of_a_party_over_several_processes_are_those_of_one(
    together: Together, settings: dict[str, Any], momentum: str
) -> None:
    build = Tiny(norm=True, policy="local", pooled=True)
    expected_losses, shared, learner = learned(None, build, settings, momentum)
    by_process = together.run(learned, build, settings, momentum)
    for losses, backbone, shard in by_process:
        assert losses == pytest.approx(expected_losses, abs=1e-11) and losses == by_process[0][0]
        assert raw(backbone) == raw(by_process[0][1])
        assert all(apart(backbone[name], shared[name]) < 1e-11 for name in shared)
        assert all(apart(shard.kept[name], learner.kept[name]) < 1e-11 for name in learner.kept)
        assert vars(shard.cursor) == vars(learner.cursor) and set(shard.velocity) == set(learner.velocity)
        names = [name for name in shard.velocity if name != HEAD]
        assert all(apart(shard.velocity[n], learner.velocity[n]) < 1e-11 for n in names)
    whole = torch.cat([shard.head for _, _, shard in by_process])
    assert apart(whole, learner.head) < 1e-11
    assert not torch.equal(learner.head, fresh_head(exact(build)))
    if momentum == "keep":
        velocity = torch.cat([shard.velocity[HEAD] for _, _, shard in by_process])
        assert apart(velocity, learner.velocity[HEAD]) < 1e-11


def drawn(shards: Shards, rows: int) -> Tensor:
    return fresh_head(replace(party(), shards=shards), rows)


@pytest.mark.parametrize("rows", [1, 6, 40_001])  # more than are drawn at a time
def test_the_blocks_are_those_of_one_draw(together: Together, rows: int) -> None:
    assert torch.equal(torch.cat(together.run(drawn, rows)), fresh_head(party(), rows))


@pytest.mark.parametrize("part", [slice(0, 3), slice(3, 3), slice(2, 7), slice(0, 7)], ids=str)
def test_a_part_of_a_batch_has_the_pixels_that_it_has_in_the_whole(part: slice) -> None:
    client = party()
    compute = Compute(augment=replace(client.compute.augment, crop=2, colour=0.3, blur=0.5))
    index = np.array([4, 0, 9, 1, 2, 8, 3])
    rng, part_rng = np.random.default_rng(1), np.random.default_rng(1)
    whole, labels = compute.batch(client.data, index, rng)
    cut, part_labels = compute.batch(client.data, index, part_rng, part=part)
    assert torch.equal(cut, whole[part]) and torch.equal(part_labels, labels[part])
    assert rng.random() == part_rng.random()
