"""Clients of one identity as plain loops over a bare torch network: what their methods must agree with.

Only the first weights, the images and the order in which a client takes them are the project's own; every slope of a
loss is written out by hand, and torch carries it through the network alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import torch
from torch import Tensor, nn

from coalface.core import codec
from coalface.core.method import Method, Tensors
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run
from coalface.training.local_work import Cursor, LocalTraining

EXACT = Tiny(parties=7, one_identity=True, flip=False, double=True)
"""Seven clients of 4 to 6 images, of which nothing is drawn."""
WHOLE = LocalTraining(epochs=1, batch_size=8, lr=0.3, weight_decay=5e-3)
"""One step on all images, as Algorithm 1 of FedFace has it."""
STEPS = LocalTraining(epochs=2, batch_size=3, lr=0.05, weight_decay=5e-3, momentum=0.5)
"""Several steps, with momentum."""

Slopes = Callable[[Tensor, Tensors], tuple[list[float], Tensor, Tensors]]
"""((n, d) embeddings, what a client trains beside the backbone) -> the loss of each image, and the slopes of their mean
by the embeddings and by the rest."""


class Client:
    """One client: its images and its local training."""

    def __init__(self, name: str, build: Tiny, work: LocalTraining) -> None:
        self._party, self._work = naive.party(name, build), work
        self.images = len(self._party.data)
        self.net: nn.Module = build().backbone.module

    def embeddings(self, theta: Tensors) -> Tensor:
        """(n, d) of all images, by a network that is not in training."""
        self.net.load_state_dict({**self.net.state_dict(), **theta})
        with torch.no_grad():
            return self.net.eval()(self._pixels(np.arange(self.images))).clone()

    def mean_feature(self, theta: Tensors) -> Tensor:
        """(1, d) line 2 of Algorithm 1 of FedFace."""
        total = torch.zeros(1, 8, dtype=torch.float64)
        for row in self.embeddings(theta):
            total += row / row.norm()
        return total / total.norm()

    def _pixels(self, index: Any) -> Tensor:
        pixels: Tensor = self._party.compute.batch(self._party.data, index, np.random.default_rng(0))[0]
        return pixels

    def train(self, round_: int, theta: Tensors, leaves: Tensors, slopes: Slopes, lr: float) -> tuple[Tensors, Tensors]:
        """A round from `theta` and `own`, with momentum from zero; `losses` is then the mean of the images'."""
        work, theta, leaves = self._work, dict(theta), dict(leaves)
        cursor = Cursor()
        for _ in range(round_):  # the work of the rounds before it, whether or not the client was there
            batches, cursor = work.batches(self._party, cursor)
        velocity: Tensors = {}
        losses: list[float] = []
        for index in batches:
            self.net.load_state_dict({**self.net.state_dict(), **theta})
            self.net.train().zero_grad()
            embeddings = self.net(self._pixels(index))
            each, by_embeddings, by_own = slopes(embeddings.detach(), leaves)
            losses += each
            embeddings.backward(by_embeddings)
            by = {n: p.grad for n, p in self.net.named_parameters() if p.grad is not None}
            theta |= {n: b.clone() for n, b in self.net.named_buffers() if b.is_floating_point()}
            for tensors, gradients in ((theta, by), (leaves, by_own)):
                for n, g in gradients.items():
                    velocity[n] = (
                        work.momentum * velocity.get(n, torch.zeros_like(g)) + g + work.weight_decay * tensors[n]
                    )
                    tensors[n] = tensors[n] - lr * velocity[n]
        self.loss = sum(losses) / len(losses)
        return theta, leaves


def clients(build: Tiny, work: LocalTraining) -> dict[str, Client]:
    """Every client of a world by its name."""
    return {name: Client(name, build, work) for name in sorted(build().data)}


def along_cosine(embedding: Tensor, weights: Tensor) -> tuple[float, Tensor, Tensor]:
    """The cosine of two vectors, and its slopes by the one and by the other."""
    a, b = embedding.norm(), weights.norm()
    cosine = float(embedding @ weights / (a * b))
    return cosine, weights / (a * b) - cosine * embedding / a**2, embedding / (a * b) - cosine * weights / b**2


# --- what a run said and left -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """One request, and what was answered."""

    request: Request
    common: Any
    each: Any
    data: bytes
    """The reply as it was sent."""


def hearing(method: Method, heard: list[Heard]) -> type[InProcess]:
    """A transport that notes every request whose reply was sent."""

    class Hearing(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                declared = method.steps[request.step][1]
                common = request.common and declared.common and request.common.message(declared.common)
                each = request.each and declared.each and request.each.message(declared.each)
                assert not isinstance(reply, Exception), reply
                data = bytes(reply.data)
                heard.append(Heard(request, _copied(common), _copied(each), data))
                yield request, reply

    return Hearing


def _copied(message: Any) -> Any:
    return message and replace(message, **{n: codec.copied(v) for n, v in vars(message).items()})


def heard_run(method: Method, folder: Path, build: Tiny = EXACT, **rules: Any) -> tuple[Ran, list[Heard]]:
    """A run, and every request of it."""
    heard: list[Heard] = []
    return run(method, folder, build, transport=hearing(method, heard), **rules), heard


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def counted(heard: Iterable[Heard], step: str, lines: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Who was asked a step in each round, and counts."""
    heard = list(heard)
    return [
        [h.request.party for h in heard if (h.request.step, h.request.round) == (step, line["round"])
         and h.request.party not in line["failed"]]
        for line in lines
    ]  # fmt: skip
