"""Federations as plain loops over bare torch networks: what methods must agree with.

Only the first weights, the first class embeddings and the order of the images are the project's own. With a world of
`flip=False` nothing else is drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core import codec
from coalface.core.method import Party, Tensors
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run, setup
from coalface.methods.fedavg import FedAvg
from coalface.models.groups import Backbone
from coalface.training.compute import Compute
from coalface.training.local_training import fresh_head
from coalface.training.local_work import Cursor, LocalTraining
from coalface.training.losses.base import CosineLoss


def party(name: str = "silo-1", build: Tiny = Tiny(), round_: int = 1, rounds: int = 2) -> Party:  # noqa: B008 - frozen
    """What a step would see at a party."""
    context = setup(FedAvg(), Path("unused"), build).context(build())
    return context.party(Request("test", name, "train", round_, rounds, 2, 1, "train", None, None, None, (0, None)))


class Silo:
    """A party: its images, its class embeddings with their momentum, and its place in the data."""

    def __init__(self, name: str, build: Tiny, work: LocalTraining) -> None:
        self.name, self._work, self._cursor = name, work, Cursor()
        self._party = party(name, build)
        self.images = len(self._party.data)
        self.net: nn.Module = build().backbone.module.train()
        self.head = fresh_head(self._party)
        self.head_velocity = torch.zeros_like(self.head)
        self.loss: CosineLoss = LOSS

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The pixels and labels of every step of the next round."""
        batches, self._cursor = self._work.batches(self._party, self._cursor)
        return [self._taken(index) for index in batches]

    def everything(self) -> list[tuple[Tensor, Tensor]]:
        """All images as one batch."""
        return [self._taken(np.arange(self.images))]

    def _taken(self, index: Any) -> tuple[Tensor, Tensor]:
        batch: tuple[Tensor, Tensor] = self._party.compute.batch(self._party.data, index, np.random.default_rng(0))
        return batch

    def gradients(self, at: Tensors, head: Tensor, pixels: Tensor, labels: Tensor) -> tuple[Tensors, Tensor, Tensors]:
        """The loss's gradients by the backbone's parameters and by the class embeddings; the buffers afterwards."""
        self.net.load_state_dict({**self.net.state_dict(), **at})
        self.net.zero_grad()
        head = head.clone().requires_grad_()
        self.loss(self.net(pixels), head, labels).backward()
        assert head.grad is not None
        gradients = {name: p.grad.clone() for name, p in self.net.named_parameters() if p.grad is not None}
        running = {n: b.clone() for n, b in self.net.named_buffers() if b.is_floating_point()}
        return gradients, head.grad, running

    def step_head(self, gradient: Tensor, lr: float) -> None:
        """One step of SGD with momentum on the class embeddings."""
        self.head_velocity = self._work.momentum * self.head_velocity + gradient + self._work.weight_decay * self.head
        self.head = self.head - lr * self.head_velocity


def silos(build: Tiny, work: LocalTraining) -> list[Silo]:
    """Every party of a world."""
    return [Silo(name, build, work) for name in sorted(build().data)]


def shares(parties: list[Silo]) -> list[float]:
    """The weights w_i by images."""
    return [silo.images / sum(s.images for s in parties) for silo in parties]


def mean(weights: list[float], terms: list[Tensors]) -> Tensors:
    """Σ w_i x_i."""
    return {n: torch.stack([w * x[n] for w, x in zip(weights, terms, strict=True)]).sum(0) for n in terms[0]}


def zeros(build: Tiny) -> Tensors:
    """A zero for every trained parameter."""
    return {name: torch.zeros_like(p) for name, p in build().backbone.module.named_parameters()}


def furthest(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of any number, and infinity where the names differ."""
    if set(actual) != set(expected):
        return float("inf")
    return max(float((actual[n] - expected[n]).detach().abs().max()) for n in expected)


def kept(folder: Path, party: str, cls: type) -> Any:
    """A party's private state of a class when the run has come to its end; None where it never took part."""
    paths = list((folder / "parties" / party).glob("*.commit"))
    assert len(paths) <= 1  # the accepted one: the others are forgotten at the end of a stage
    states = Commit.open(paths[0]).states() if paths else {}
    return codec.decode(states[cls.__name__], cls) if cls.__name__ in states else None


def watched(method: type, monkeypatch: pytest.MonkeyPatch, name: str = "round") -> list[Any]:
    """The state that each round of a method leaves, or each `init`, from here on."""
    states: list[Any] = []
    plain = getattr(method, name)

    @functools.wraps(plain)
    def noted(*arguments: Any) -> Any:
        states.append(plain(*arguments))
        return states[-1]

    monkeypatch.setattr(method, name, noted)
    return states


# --- a federation whose numbers can be worked by hand -----------------------------------------------------------------


class Number(nn.Module):
    """One weight w, 0 at first; the embedding of an image of one pixel p in [−1, 1] is w − p."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_size = 1
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return self.w - images.flatten(1)


@dataclass(frozen=True)
class Square(CosineLoss):
    """The mean of e²/2: on `Number`, a party whose pixels are all p has f(w) = (w − p)²/2 and f′(w) = w − p."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return embeddings.square().mean() / 2 + 0 * weights.sum()


def line() -> FederatedData:
    """Party a has one image of pixel 1, party b three of pixel −1: f(w) = (w − 1)²/8 + 3 (w + 1)²/8, least at −1/2."""
    pixels = np.array([255, 0, 0, 0], dtype=np.uint8).reshape(4, 1, 1, 1)
    rows = {"a": np.arange(1), "b": np.arange(1, 4)}
    data = {p: FaceSet(pixels, r, np.zeros(len(r), dtype=np.int64), (f"person {p}",)) for p, r in rows.items()}
    return FederatedData(data, Backbone(Number()), Compute(augment=Augment(flip=False), dtype=torch.float64))


BY_HAND = LocalTraining(steps_per_round=2, batch_size=4, lr=0.5, momentum=0.5, weight_decay=0.0)
"""K = 2, η = β = 1/2."""


def worked(method: type, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[dict[str, float]]:
    """The numbers in a method's state after each of two rounds over `line`."""
    states = watched(method, monkeypatch)
    run(method(rounds=2, local=BY_HAND, loss=Square(), **settings), folder, line)
    return [{name: float(tensors["w"]) for name, tensors in vars(state).items()} for state in states]


def fold_rates(
    scores: list[float], is_genuine: list[bool], fold: list[int], folds: Collection[int] | None = None
) -> list[float]:
    """What is right of each fold (of `folds`, or all) by the best threshold of all others, by trying every score; of
    equally good ones the lower middle."""
    rates = []
    for f in sorted(set(fold) if folds is None else folds):
        train = [(s, g) for s, g, k in zip(scores, is_genuine, fold, strict=True) if k != f]
        rightly = {cut: sum((s >= cut) == g for s, g in train) for cut in sorted({s for s, _ in train} | {2.0})}
        equal = [cut for cut, count in rightly.items() if count == max(rightly.values())]
        best = equal[(len(equal) - 1) // 2]
        test = [(s >= best) == g for s, g, k in zip(scores, is_genuine, fold, strict=True) if k == f]
        rates.append(sum(test) / len(test))
    return rates


def naive_accuracy(
    scores: list[float], is_genuine: list[bool], fold: list[int], folds: Collection[int] | None = None
) -> float:
    """The mean of `fold_rates`, in percent."""
    rates = fold_rates(scores, is_genuine, fold, folds)
    return 100 * sum(rates) / len(rates)


@torch.no_grad()
def embedding(module: nn.Module, pixels: NDArray[np.uint8]) -> Tensor:
    """(d,) what a network gives for one image (height, width) or (height, width, channels), in float64."""
    image = torch.from_numpy(np.atleast_3d(pixels).astype(np.float32)).permute(2, 0, 1)
    return module.eval()((image[None] - 127.5) / 127.5)[0].double()  # type: ignore[no-any-return]
