"""DANN: supervised training on the source, against a discriminator that tells the domains of features apart.

Ganin et al., "Domain-adversarial training of neural networks", JMLR 2016. One party holds the images of both domains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Tensors, message, state, step
from coalface.training.domain_adaptation.losses import Adversary, fresh_discriminator, reversal_at
from coalface.training.domain_adaptation.mixed_batches import Mixed, learn_mixed
from coalface.training.local_training import whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss


@message
class Global:
    """Down."""

    backbone: Tensors


@message
class Update:
    """Up."""

    backbone: Tensors
    images: int
    loss: float


@state
class State:
    """At the server."""

    backbone: Tensors


@dataclass(frozen=True, kw_only=True)
class DANN(Method):
    """L = F_s(w) + weight · cross-entropy of the domains; the features get the discriminator's gradient times −λ_p."""

    title: ClassVar[str] = "pools both domains; their features are trained against a discriminator of domains"
    paper: ClassVar[str] = "Ganin et al. 2016"
    setting: ClassVar[str] = "cross-silo"
    pooled: ClassVar[bool] = True
    domains: ClassVar[frozenset[str]] = frozenset({"source", "target"})

    rounds: int = 20
    local: LocalTraining = LocalTraining(steps_per_round=100)
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    weight: float = 1.0
    """Of the domain classifier's loss, beside that of the source."""
    hidden: int = 128
    """Units of the discriminator's hidden layer."""

    def __post_init__(self) -> None:
        if not self.weight >= 0 or self.hidden < 1:
            raise ValueError(f"weight is 0 or more and hidden 1 or more; got {self.weight} and {self.hidden}")

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train, common=Global(backbone=state.backbone))
        fed.log(loss=answer.mean("loss"))
        (backbone,) = answer.each["backbone"].values()
        return State(backbone=backbone)

    @step(role="trainer")
    def train(self, party: Party, own: Mixed | None, common: Global) -> tuple[Update, Mixed]:
        done = (party.round - 1) / max(1, party.rounds)  # λ_p is constant within a round, as the learning rate is
        loss = Adversary(self.loss, self.weight, reversal_at(done))
        fresh = fresh_discriminator(
            party.backbone.embedding_size, self.hidden, party.stream(party.stage, "discriminator")
        )
        extra = self.loss.extra(len(party.data.names)) | fresh
        mean, kept = learn_mixed(party, common.backbone, own, self.local, loss, extra)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=mean), kept

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Mixed | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.learner.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        if fed.policy == "average":
            return Models(shared=state.backbone)
        return Models(shared=None, common=Global(backbone=state.backbone))
