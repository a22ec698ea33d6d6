"""FedFV: clients train a softmax against equivalent class embeddings, which the server fuses from those of others.

L. Liu, Zhang, Gao, Yu, Cheng, "FedFV: federated face verification via equivalent class embeddings", 2022, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.method import (
    Backbone,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Scenario,
    Tensors,
    batched,
    content,
    message,
    state,
    step,
)
from coalface.training.fedfv import AgainstOthers, equivalent_embeddings
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import unit
from coalface.training.losses.spreadout import mean_cosine
from coalface.training.one_identity import (
    check_nothing_kept,
    first_directions,
    train_many,
    train_one,
)
from coalface.training.stacked_training import unstackable_reason


@message
class Global:
    """Down, the same for all that were selected."""

    backbone: Tensors
    """θ."""
    others: Tensor = content("template")
    """(n, d) W̃, equivalent class embeddings of clients that were not selected."""


@message
class Centre:
    """Down, to each its own and to nobody else."""

    centre: Tensor = content("template")
    """(1, d) w_i at length one."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_i."""
    centre: Tensor = content("template")
    """(1, d) w_i at length one."""
    images: int
    """n_i."""
    loss: float


@state
class State:
    """At the server."""

    backbone: Tensors
    """θ."""
    centres: Tensors
    """Client -> (1, d) w_i at length one."""


@dataclass(frozen=True, kw_only=True)
class FedFV(Method):
    """Softmax over [w_i ; W̃] at a client; W̃ is fused from the class embeddings of clients that are not selected.

    With a logit scale s and n equivalent class embeddings the loss of an image cannot fall below
    log(1 + n e^{−2s}): at s = 1, which is the paper's (2), and n = 100 that is 2.68.
    """

    title: ClassVar[str] = "one identity a client; softmax against fused class embeddings"
    paper: ClassVar[str] = "L. Liu et al. 2022"
    setting: ClassVar[str] = "cross-device"
    scenario: ClassVar[Scenario] = "devices"

    rounds: int = 15_000
    sample: int = 8
    """m, the clients that are selected in a round."""
    local: LocalTraining = LocalTraining()
    equivalents: int = 100
    """n, equivalent class embeddings a round, the same for all selected clients."""
    fused: int = 2
    """k, class embeddings that one of them is made of."""
    scale: float = 1.0
    """s, the factor on every cosine before the softmax."""

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale is {self.scale}; give a factor above 0, such as 1")

    def init(self, fed: Federation) -> State:
        check_nothing_kept(fed)
        return State(backbone=fed.initial, centres=first_directions(fed))

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)  # S_t
        unselected = [client for client in fed.parties("trainer") if client not in set(chosen)]  # R_t
        none = torch.zeros(0, fed.embedding_size)
        w = torch.cat([state.centres[client] for client in unselected]) if unselected else none
        drawn = fed.secret_stream("fuse")  # whoever knows who is in a mean takes the means apart
        equivalents = equivalent_embeddings(w, self.equivalents, self.fused, generator=drawn)  # W̃
        answer = fed.ask(
            self.train,
            common=Global(backbone=state.backbone, others=equivalents),
            each={client: Centre(centre=state.centres[client]) for client in chosen},
            aggregate=[Mean("backbone", by="images")],
        )
        centres = state.centres | {client: unit(w) for client, w in answer.each["centre"].items() if w.any()}
        fed.log(loss=answer.mean("loss", by="images"), cosine=mean_cosine(torch.cat(list(centres.values()))))
        return State(backbone=answer.aggregated["backbone"], centres=centres)

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        loss = AgainstOthers(common.others, self.scale)
        trained = train_one(party, common.backbone, each.centre, self.local, loss)
        images = len(party.data)
        return Update(backbone=party.backbone.shared(), centre=unit(trained.head), images=images, loss=trained.loss)

    @batched("train")
    def train_batched(self, parties: Sequence[Party], common: Global, each: Sequence[Centre]) -> list[Update]:
        loss = AgainstOthers(common.others, self.scale)
        batch = train_many(parties, common.backbone, [message.centre for message in each], self.local, loss)
        return [
            Update(backbone=batch.backbone, centre=unit(centre), images=len(party.data), loss=loss)
            for party, centre, loss in zip(parties, batch.centres, batch.losses, strict=True)
        ]

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return unstackable_reason(backbone)

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=state.backbone, class_embeddings=state.centres)
