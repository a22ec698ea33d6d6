"""FedUV: each client pulls its images towards a codeword, which is not sent; a code keeps the codewords apart.

Hosseini, Park, Yun, Louizos, Soriaga, Welling, "Federated Learning of User Verification Models without Sharing
Embeddings", ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.local_results import OWN_SCORES, Probes
from coalface.core.method import (
    Backbone,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Scenario,
    Stage,
    Tensors,
    batched,
    content,
    message,
    private,
    state,
    step,
)
from coalface.training.bch_codes import BCH, Codebook, code_scores, warm_up_threshold
from coalface.training.local_work import LocalTraining
from coalface.training.losses.hinge import OnCodes, projected
from coalface.training.one_identity import (
    check_nothing_kept,
    embeddings_of,
    train_many,
    train_one,
)
from coalface.training.stacked_training import unstackable_reason

SIZES = {127: 64, 255: 63, 511: 67}
"""Length -> message bits of the codes in use, of minimum distances 21, 61 and 175."""


@message
class Number:
    """Down, until all of a round's clients have a codeword."""

    user: int = content("code")
    """The number that begins the client's message to the code, so that no two codewords are the same."""
    users: int
    """How many numbers there are."""


@message
class Done:
    """Up, where a client has drawn its codeword or found its threshold."""

    images: int


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors
    """θ."""
    projection: Tensor = content("weight")
    """(c, d) W', shared as the backbone is."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_i."""
    projection: Tensor = content("weight")
    """W'_i."""
    images: int
    """n_i."""
    loss: float


@message
class Projection:
    """What a client verifies with, beside its codeword."""

    projection: Tensor = content("weight")
    """(c, d) W'."""


@private
class Code:
    """What is kept at the client and not sent."""

    codeword: Tensor
    """(1, c) v_i of ±1."""
    threshold: float | None
    """The lowest score v_iᵀ z / c that it accepts; None before its warm-up."""


@state
class State:
    """At the server."""

    backbone: Tensors
    projection: Tensor = content("weight")
    enrolled: dict[str, bool]
    """The clients that have drawn a codeword."""


@dataclass(frozen=True, kw_only=True)
class FedUV(Method):
    """The hinge max(0, 1 − v_iᵀ z / c) at each client, z = W' g(x) at length √c; θ and W' are averaged by images.

    The codeword stays at its client, but W' tells of it: without `scaled` a client's own change of W' is v_i times a
    row, and with it so much like one at first that the signs are v_i, and later most of them. So whoever sees single
    updates has v_i. Its secrecy needs sums over many (see `coalface.training.bch_codes.Codebook`).
    """

    title: ClassVar[str] = "one identity a client; codewords in place of class embeddings"
    paper: ClassVar[str] = "Hosseini et al. 2021"
    setting: ClassVar[str] = "cross-device"
    scenario: ClassVar[Scenario] = "devices"

    rounds: int = 15_000
    sample: int | None = 8
    """Clients a round, drawn anew each round; None: all."""
    local: LocalTraining = LocalTraining()
    length: int = 511
    """c, the bits of a codeword: 127, 255 or 511."""
    scaled: bool = True
    """W' g(x) is brought to the length of a codeword, so that a score is a cosine; False: taken as it is."""
    quantile: float = 0.9
    """The share of a client's own images that its threshold accepts, in its warm-up after training."""

    def __post_init__(self) -> None:
        if self.length not in SIZES:
            raise ValueError(f"length is {self.length}; codewords have 127, 255 or 511 bits")
        if not 0 < self.quantile <= 1:
            raise ValueError(f"quantile is {self.quantile}; give a share above 0 and at most 1, such as 0.9")

    @cached_property
    def code(self) -> BCH:
        """The code of this length."""
        return BCH(self.length, SIZES[self.length])

    def init(self, fed: Federation) -> State:
        check_nothing_kept(fed)
        Codebook(self.code, len(fed.parties("trainer")))  # more clients than it can tell apart are refused
        dtype, d = next(iter(fed.initial.values())).dtype, fed.embedding_size
        drawn = fed.stream("projection").standard_normal((self.length, d)) / d**0.5
        return State(backbone=fed.initial, projection=torch.from_numpy(drawn).to(dtype), enrolled={})

    def round(self, fed: Federation, state: State) -> State:
        everyone = fed.parties("trainer")
        chosen = fed.sample("trainer", self.sample) if self.sample is not None else everyone
        enrolled = dict(state.enrolled)
        if not enrolled.keys() >= set(chosen):
            # the others too, who keep theirs: a secure sum over the new ones would be over too few
            places = {client: place for place, client in enumerate(everyone)}
            numbers = {client: Number(user=places[client], users=len(everyone)) for client in chosen}
            enrolled |= dict.fromkeys(fed.ask(self.enrol, each=numbers).arrived, True)
        answer = fed.ask(
            self.train,
            to=[client for client in chosen if client in enrolled],
            common=Global(backbone=state.backbone, projection=state.projection),
            aggregate=[Mean("backbone", by="images"), Mean("projection", by="images")],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        return State(
            backbone=answer.aggregated["backbone"], projection=answer.aggregated["projection"], enrolled=enrolled
        )

    @step(role="trainer")
    def enrol(self, party: Party, own: Code | None, each: Number) -> tuple[Done, Code]:
        if own is None:
            codeword = Codebook(self.code, each.users).codeword(each.user, party.secret_rng)
            own = Code(codeword=codeword[None], threshold=None)
        return Done(images=len(party.data)), own

    @step(role="trainer")
    def train(self, party: Party, own: Code | None, common: Global) -> Update:
        extra, loss = {"projection": common.projection}, OnCodes(self.scaled)
        trained = train_one(party, common.backbone, _codeword(own), self.local, loss, extra=extra, fixed=True)
        projection, images = trained.extra["projection"], len(party.data)
        return Update(backbone=party.backbone.shared(), projection=projection, images=images, loss=trained.loss)

    @batched("train")
    def train_batched(self, parties: Sequence[Party], own: Sequence[Code | None], common: Global) -> list[Update]:
        extra, codewords = {"projection": common.projection}, [_codeword(code) for code in own]
        loss = OnCodes(self.scaled)
        batch = train_many(parties, common.backbone, codewords, self.local, loss, extra=extra, fixed=True)
        projection = batch.extra["projection"]
        return [
            Update(backbone=batch.backbone, projection=projection, images=len(party.data), loss=mean)
            for party, mean in zip(parties, batch.losses, strict=True)
        ]

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return unstackable_reason(backbone)

    def warm_up(self, fed: Federation, state: State) -> State:
        """Every client that has a codeword sets its threshold, and tells nobody."""
        sent = Global(backbone=state.backbone, projection=state.projection)
        fed.ask(self.set_threshold, to=sorted(state.enrolled), common=sent)
        return state

    @step(role="trainer")
    def set_threshold(self, party: Party, own: Code | None, common: Global) -> tuple[Done, Code]:
        codeword = _codeword(own)
        scores = self._scores(party, embeddings_of(party, common.backbone), common.projection, codeword)
        value = warm_up_threshold(scores, self.quantile)
        return Done(images=len(party.data)), Code(codeword=codeword, threshold=value)

    def stages(self) -> tuple[Stage, ...]:
        train = Stage("train", self.rounds, begin=lambda fed, _: self.init(fed), round=self.round)
        return train, Stage("warm-up", 1, begin=lambda fed, state: state, round=self.warm_up)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        return self.local.work(party, images) if stage == "train" else (0, 0)

    @step(role="trainer", local=OWN_SCORES)
    def verify(self, party: Party, own: Code | None, common: Projection, each: Probes) -> Tensors:
        """The scores vᵀ z / c of embeddings g(x), and the threshold; nothing without a codeword."""
        if own is None:
            return {}
        scores = self._scores(party, each.embeddings.to(party.device), common.projection, own.codeword)
        if own.threshold is None:
            return {"scores": scores.cpu()}
        return {"scores": scores.cpu(), "threshold": torch.tensor([own.threshold], dtype=torch.float64)}

    def _scores(self, party: Party, embeddings: Tensor, projection: Tensor, codeword: Tensor) -> Tensor:
        """(n,) vᵀ z / c of (n, d) embeddings on the party's device."""
        z = projected(embeddings, projection.to(party.device), scaled=self.scaled)
        return code_scores(z, codeword[0].to(party.device))

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=state.backbone, common=Projection(projection=state.projection))


def _codeword(own: Code | None) -> Tensor:
    if own is None:
        raise ValueError("this client has drawn no codeword: it must be asked to enrol before it trains")
    return own.codeword
