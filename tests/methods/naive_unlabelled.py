"""A tiny labelled source and two unlabelled targets: clients in bare torch, naive clusters, and who was asked what."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core import codec
from coalface.core.method import Method, Tensors
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData
from coalface.engine.transport import Reply, StepFailed
from coalface.experiments.conformance.tiny_federation import LOSS, Ran, Tiny, run
from coalface.methods.fedfr_uda import FedFRUDA
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.local_work import Cursor, LocalTraining

BOTH = frozenset({"source", "target"})
WORLD = Tiny(domains=BOTH, flip=False, double=True)
"""silo-0 is the source, of two identities of six images; silo-1 and silo-2 are targets of 11 and of 10 images."""
LR = 0.001
WORK = LocalTraining(steps_per_round=3, batch_size=5, lr=LR, schedule="cosine", momentum=0.8, weight_decay=0.01)
TAU = 0.15
PAIRS = Labelling(threshold=TAU, min_cluster_size=2)


def made(**changes: Any) -> FedFRUDA:
    settings = {"local": WORK, "labelling": PAIRS, "constraint": 0.5, "rounds": 4} | changes
    return FedFRUDA(loss=settings.pop("loss", LOSS), **settings)


def naive_cfinch(features: NDArray[np.float64], threshold: float) -> list[int]:
    """Clusters of unit features: join first neighbours nearer than the threshold, until nothing joins."""
    clusters = [[i] for i in range(len(features))]
    while len(clusters) > 1:
        sums = [features[members].sum(0) for members in clusters]
        means = [total / np.linalg.norm(total) for total in sums]
        links = []
        for i, mean in enumerate(means):
            distances = [math.inf if i == j else 1 - float(mean @ other_mean) for j, other_mean in enumerate(means)]
            nearest = min(range(len(means)), key=distances.__getitem__)
            if distances[nearest] < threshold:
                links.append((i, nearest))
        if not links:
            break
        group = list(range(len(clusters)))
        for i, j in links:
            group = [group[i] if g == group[j] else g for g in group]
        clusters = [sum((clusters[i] for i in range(len(group)) if group[i] == g), []) for g in dict.fromkeys(group)]
    components = [0] * len(features)
    for number, members in enumerate(clusters):
        for member in members:
            components[member] = number
    return components


def in_order(clusters: Iterable[int], smallest: int) -> list[int]:
    """Clusters numbered by first appearance, −1 for those of fewer images."""
    labels = list(clusters)
    numbers: dict[int, int] = {}
    large = [c if c >= 0 and labels.count(c) >= smallest else -1 for c in labels]
    return [-1 if c < 0 else numbers.setdefault(c, len(numbers)) for c in large]


class Client:
    """One of them, in bare torch: its images, labels, class embeddings and place in the data."""

    def __init__(self, name: str, build: Tiny) -> None:
        self.party, self.net = naive.party(name, build), build().backbone.module
        pixels = torch.from_numpy(self.party.data.take(np.arange(len(self.party.data)))).permute(0, 3, 1, 2)
        self.images = ((pixels.float() - 127.5) / 127.5).double()
        self.labels = torch.from_numpy(self.party.data.labels)
        self.mine = np.arange(len(self.images))
        self.head: Tensor | None = None
        self.cursor, self.velocity = Cursor(), dict[str, Tensor]()

    def features(self, weights: Tensors) -> Tensor:
        self.net.load_state_dict(weights, strict=False)
        with torch.no_grad():
            embeddings = self.net.eval()(self.images)
        return embeddings / embeddings.norm(dim=1, keepdim=True)

    def label(self, weights: Tensors, threshold: float, smallest: int) -> None:
        clusters = torch.tensor(in_order(naive_cfinch(self.features(weights).numpy(), threshold), smallest))
        self.mine, self.labels = np.flatnonzero(clusters >= 0), clusters
        # After training a new pass begins: the images that come first are others than those that came first before.
        self.cursor = self.cursor if self.head is None else Cursor(epoch=self.cursor.epoch + 1)
        self.head = None

    def means(self, weights: Tensors) -> Tensor:
        features = self.features(weights)
        means = [features[self.labels == k].mean(0) for k in range(int(self.labels.max()) + 1)]
        return torch.stack([mean / mean.norm() for mean in means])

    def train(self, stage: str, weights: Tensors, lr: float, pulled: float, keep: bool) -> Tensors:
        party = replace(self.party, stage=stage, data=self.party.data.select(self.mine))
        batches, self.cursor = WORK.batches(party, self.cursor)
        self.net.load_state_dict(weights, strict=False)
        self.net.train()
        assert self.head is not None
        trained = dict(self.net.named_parameters()) | {"head": nn.Parameter(self.head.clone())}
        velocity = {n: self.velocity.get(n, torch.zeros_like(p)) for n, p in trained.items()}
        for batch in batches:
            index = self.mine[batch]
            value = LOSS(self.net(self.images[index]), trained["head"], self.labels[index])
            distance = sum((p - weights[n]).square().sum() for n, p in trained.items() if n != "head")
            gradients = torch.autograd.grad(value + pulled / 2 * distance, list(trained.values()))
            for (name, p), gradient in zip(trained.items(), gradients, strict=True):
                velocity[name] = 0.8 * velocity[name] + gradient + 0.01 * p.detach()
                p.data -= lr * velocity[name]
        self.head, self.velocity = trained["head"].detach(), velocity if keep else {}
        return {n: t.detach().clone() for n, t in self.net.state_dict().items() if t.is_floating_point()}


# --- listening --------------------------------------------------------------------------------------------------------


@dataclass
class Heard:
    """Who was asked for what, and the replies; those that `failing` names fail."""

    failing: Callable[[Request], bool] = lambda request: False
    asked: list[tuple[str, int, str, str]] = field(default_factory=list)
    """(stage, round, step, party)"""
    replies: list[tuple[str, Any]] = field(default_factory=list)
    method: Method | None = None

    def transport(self) -> type[InProcess]:
        heard = self

        class Listening(InProcess):
            def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
                for request, reply in super().exchange(requests):
                    heard.asked.append((request.stage, request.round, request.step, request.party))
                    if heard.failing(request):
                        yield request, StepFailed(f"{request.party}: as the test wants it")
                        continue
                    assert heard.method is not None
                    cls = heard.method.steps[request.step][1].reply
                    assert cls is not None and not isinstance(reply, Exception)
                    heard.replies.append((request.step, codec.decode(bytearray(reply.data), cls)))
                    yield request, reply

        return Listening

    def of(self, step: str) -> list[tuple[str, int, str]]:
        return [(stage, round_, party) for stage, round_, which, party in self.asked if which == step]


def heard(
    method: Method, folder: Path, build: Callable[[], FederatedData] = WORLD, **options: Any
) -> tuple[Ran, Heard]:
    recorder = Heard(method=method, **{k: options.pop(k) for k in ("failing",) if k in options})
    return run(method, folder, build, transport=recorder.transport(), **options), recorder


def metrics(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
