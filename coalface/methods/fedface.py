"""FedFace: clients of one identity each fine-tune a pre-trained extractor; the server keeps class embeddings apart.

Aggarwal, Zhou, Jain, "FedFace: Collaborative Learning of Face Recognition Model", 2021, Algorithm 1. The extractor
θ_0 is the recipe's `pretrain`. Its Table 1 compares it with two that nothing keeps apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

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
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import unit
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.losses.spreadout import Spreading, mean_cosine
from coalface.training.one_identity import (
    check_nothing_kept,
    first_centres,
    first_directions,
    train_many,
    train_one,
)
from coalface.training.stacked_training import unstackable_reason

PRESETS = {
    "paper": Spreading(margin=0.7, step=0.01),  # v is not in the text; 0.01 is λη
    "official": Spreading(margin=0.7, step=0.01, steps=10, momentum=0.9, reduce="mean", tangent=True),
}
"""The constants of the server's step: the text's, and those of the code that its authors published.

In that code a client's w_i is a placeholder without a gradient; here it is trained, as Algorithm 1 has it."""


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """θ_t."""


@message
class Centre:
    """Down, to each its own and to nobody else."""

    centre: Tensor = content("template")
    """(1, d) w_i at length one; zeros before the client's first round, in which it starts from its mean feature."""


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
    """θ_t."""
    centres: Tensors
    """Client -> (1, d) w_i at length one, of those that have one."""


@dataclass(frozen=True, kw_only=True)
class FedFace(Method):
    """Squared hinge on the own class at each client; at the server θ = Σ n_i θ_i / n and W ← W − λ ∇ reg_sp(W)."""

    title: ClassVar[str] = "one identity a client; the server spreads class embeddings"
    paper: ClassVar[str] = "Aggarwal et al. 2021"
    setting: ClassVar[str] = "cross-device"
    scenario: ClassVar[Scenario] = "devices"

    rounds: int = 200
    sample: int | None = None
    """Clients a round, drawn anew each round; None: all, as the paper has it."""
    local: LocalTraining = LocalTraining()
    target_cosine: float = 0.9
    """m, the cosine from which on an image's loss is 0 (7)."""
    head_init: Literal["mean", "random"] = "mean"
    """A class embedding's start: the client's mean feature, or a direction that the server draws."""
    fixed: bool = False
    """Clients do not train their class embeddings; the server's step, if there is one, moves them still."""
    spreadout: bool = True
    """False: the server leaves the class embeddings as they come (Table 2)."""
    preset: Literal["paper", "official"] = "paper"
    """The constants of the server's step: those of the text, or of the authors' code."""
    spreading: Spreading | None = None
    """The server's step; None: the preset's."""
    presets: ClassVar[Mapping[str, Spreading]] = PRESETS

    def __post_init__(self) -> None:
        PositiveHinge(self.target_cosine)  # which says what it cannot be
        if self.spreading is not None and self.preset != "paper":
            raise ValueError(
                f"preset={self.preset} and spreading both say what the server's step is, and the preset would be lost: "
                "give one of them"
            )

    def init(self, fed: Federation) -> State:
        check_nothing_kept(fed)
        return State(backbone=fed.initial, centres=first_directions(fed) if self.head_init == "random" else {})

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        zeros = torch.zeros(1, fed.embedding_size, dtype=next(iter(fed.initial.values())).dtype)
        before = {client: state.centres.get(client, zeros) for client in chosen}
        answer = fed.ask(
            self.train,
            common=Global(backbone=state.backbone),
            each={client: Centre(centre=w) for client, w in before.items()},  # line 4
            aggregate=[Mean("backbone", by="images")],
        )  # lines 5 to 9
        accepted = {client: w for client, w in answer.each["centre"].items() if self.accepts(w, before[client])}
        centres = state.centres | accepted
        if centres:
            names = sorted(centres)
            matrix = self.spread(torch.cat([centres[client] for client in names]))  # line 10
            centres = dict(zip(names, matrix.split([len(centres[client]) for client in names]), strict=True))
            fed.log(**({"cosine": mean_cosine(matrix)} if len(matrix) > 1 else {}))
        fed.log(loss=answer.mean("loss", by="images"))
        return State(backbone=answer.aggregated["backbone"], centres=centres)

    def accepts(self, sent: Tensor, before: Tensor) -> bool:
        """Whether what a client sent takes the place of what it had."""
        return bool(sent.any())

    def spread(self, centres: Tensor) -> Tensor:
        """(C, d) class embeddings after the server's step (9), at length one."""
        return (self.spreading or self.presets[self.preset])(centres) if self.spreadout else unit(centres)

    @step(role="trainer")
    def train(self, party: Party, common: Global, each: Centre) -> Update:
        centre = first_centres([party], common.backbone, [each.centre])[0]  # line 2
        trained = train_one(
            party, common.backbone, centre, self.local, PositiveHinge(self.target_cosine), fixed=self.fixed
        )
        images = len(party.data)
        return Update(backbone=party.backbone.shared(), centre=unit(trained.head), images=images, loss=trained.loss)

    @batched("train")
    def train_batched(self, parties: Sequence[Party], common: Global, each: Sequence[Centre]) -> list[Update]:
        centres = first_centres(parties, common.backbone, [message.centre for message in each])
        batch = train_many(
            parties, common.backbone, centres, self.local, PositiveHinge(self.target_cosine), fixed=self.fixed
        )
        return [
            Update(backbone=batch.backbone, centre=unit(centre), images=len(party.data), loss=loss)
            for party, centre, loss in zip(parties, batch.centres, batch.losses, strict=True)
        ]

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return unstackable_reason(backbone)

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=state.backbone, class_embeddings=state.centres)


@dataclass(frozen=True, kw_only=True)
class PositiveOnly(FedFace):
    """`fedface` without mean initialisation and without spreadout, the paper's FedAvg (Table 1). It must collapse."""

    title: ClassVar[str] = "positive losses alone, which must collapse"
    paper: ClassVar[str] = "Aggarwal et al. 2021, Table 1"
    learns: ClassVar[bool] = False

    head_init: Literal["mean", "random"] = "random"
    spreadout: bool = False


@dataclass(frozen=True, kw_only=True)
class RandomInit(PositiveOnly):
    """The same with class embeddings that are drawn and then fixed: features are pulled to meaningless directions."""

    title: ClassVar[str] = "random class embeddings that nobody trains"

    fixed: bool = True
