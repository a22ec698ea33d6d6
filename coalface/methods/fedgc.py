"""FedGC: each client trains a softmax over its own classes, and the server corrects the class embeddings of all.

After Niu and Deng, "Federated learning for face recognition with gradient correction", AAAI 2022. Ours where the text
at hand says nothing: λ, s, the first class embeddings, which each client draws, and that all of it is taken at length
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.method import (
    Federation,
    Mean,
    Models,
    Party,
    Tensors,
    batched,
    content,
    free,
    message,
    state,
    step,
)
from coalface.methods import fedavg
from coalface.methods.fedavg import FedAvg, Global
from coalface.methods.fedface_multi import fits
from coalface.training.local_training import Learner
from coalface.training.losses.base import unit
from coalface.training.losses.cross_client import Correction
from coalface.training.losses.spreadout import mean_cosine


@message
class Classes:
    """Down, to each its own and to nobody else."""

    classes: Tensor = content("template")
    """(k, d) W_k at length one, as the server has corrected it; (0, d) to a client that has sent none yet."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_k."""
    classes: Tensor = free("template")
    """(k, d) W_k: the server learns the class embedding of each of the client's people."""
    images: int
    """n_k."""
    loss: float


@state
class State(fedavg.State):
    """At the server: θ, and W."""

    classes: Tensors
    """Client -> (k, d) W_k at length one, of those that have sent it."""


@dataclass(frozen=True, kw_only=True)
class FedGC(FedAvg):
    """θ = Σ n_k θ_k / n; W ← W − λ ∇Reg(W), Reg the softmax between the classes of different clients.

    A client that was not asked, or did not answer, keeps its W_k at the server, where it is corrected with the others.
    """

    title: ClassVar[str] = "after FedGC: the server corrects each client's softmax"
    paper: ClassVar[str] = "after Niu & Deng 2022"
    setting: ClassVar[str] = "cross-silo"

    correction: Correction = Correction()
    """The server's step."""

    def __post_init__(self) -> None:
        if self.loss.rows(2) != 2:
            raise ValueError(
                f"loss: {type(self.loss).__name__} has several class embeddings for a class, and the server would not "
                "know which belong together; use a loss such as cosface"
            )

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, classes={})

    def round(self, fed: Federation, state: State) -> State:  # type: ignore[override]
        chosen = fed.sample("trainer", self.sample)
        none = torch.zeros(0, fed.embedding_size, dtype=next(iter(fed.initial.values())).dtype)
        answer = fed.ask(
            self.train,
            common=Global(backbone=state.backbone),
            each={client: Classes(classes=state.classes.get(client, none)) for client in chosen},
            aggregate=[Mean("backbone", by="images")],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        sent = answer.each["classes"]
        classes = state.classes | {c: w for c, w in sent.items() if fits(w, state.classes.get(c, none))}
        if names := sorted(classes):
            counts = torch.tensor([len(classes[client]) for client in names])
            weights = torch.cat([classes[client] for client in names])  # W ← [W_1 … W_K]
            value, weights = self.correction(weights, torch.arange(len(names)).repeat_interleave(counts))
            classes = dict(zip(names, weights.split(counts.tolist()), strict=True))
            fed.log(correction=value / len(weights), **({"cosine": mean_cosine(weights)} if len(weights) > 1 else {}))
        return State(backbone=answer.aggregated["backbone"], classes=classes)

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global, each: Classes) -> tuple[Update, Learner]:
        if party.shards is not None:
            raise ValueError(
                "class embeddings that are sent are not split over processes: leave out engine.processes_per_party"
            )
        update, learner = super().train(party, _corrected(own, each), common)
        return _with_classes(update, learner), learner

    @batched("train")
    def train_batched(
        self, parties: Sequence[Party], own: Sequence[Learner | None], common: Global, each: Sequence[Classes]
    ) -> list[tuple[Update, Learner]]:
        before = [_corrected(learner, sent) for learner, sent in zip(own, each, strict=True)]
        trained = super().train_batched(parties, before, common)
        return [(_with_classes(update, learner), learner) for update, learner in trained]

    def models(self, fed: Federation, state: State) -> Models:  # type: ignore[override]
        return replace(Models.by_policy(fed, Global(backbone=state.backbone)), class_embeddings=state.classes)


def _corrected(own: Learner | None, each: Classes) -> Learner | None:
    """What the client kept, with its class embeddings as the server has corrected them; what it has not sent stays."""
    return own if own is None or not len(each.classes) else replace(own, head=each.classes)


def _with_classes(update: fedavg.Update, learner: Learner) -> Update:
    return Update(**vars(update), classes=unit(learner.head).cpu())
