"""PFM: the momentum of the backbone is federated, spread over the local steps; that of the class embeddings is local.

Bai et al., "Federated Face Recognition", 2021, equations 1 to 6 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import (
    Backbone,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Tensors,
    batched,
    content,
    message,
    state,
    step,
)
from coalface.methods.fedavg import Update
from coalface.training.local_training import Learner, Pull, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState
from coalface.training.stacked_training import learn_together, unstackable_reason


class OfSteps(TypedDict):
    """The momentum of local steps (1), (2): that of the backbone is the server's."""

    momentum: MomentumState
    head_momentum: MomentumState


MOMENTUM: OfSteps = {"momentum": "none", "head_momentum": "keep"}


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors = content("aggregate")
    """Θ_{r−1}."""
    momentum: Tensors = content("aggregate")
    """M_{r−1}, of the parameters alone, in units of a gradient: a lower learning rate shrinks its step at once."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """Θ_r."""
    momentum: Tensors
    """M_r."""


@dataclass(frozen=True, kw_only=True)
class PFM(Method):
    """Partially Federated Momentum: M_r = (Θ_{r−1} − Θ_r) / η_r, of which each of K local steps applies β M_{r−1} / K.

    Class embeddings have SGD's momentum at their party, which no round resets. With one trainer and K = 1 it is SGD
    with momentum. K is `local.steps_per_round`, or with `local.epochs` the steps that a trainer's epochs have; β is
    `local.momentum`; the weights w_i are the shares of the images.
    """

    title: ClassVar[str] = "spreads the global momentum over the local steps (PFM)"
    paper: ClassVar[str] = "Bai et al. 2021"
    setting: ClassVar[str] = "cross-silo"

    rounds: int = 20
    sample: int | None = None
    """Trainers a round, drawn anew each round; None: all."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=64.0, margin=0.35)

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial, momentum=fed.zeros())

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample)
        sent = Global(backbone=state.backbone, momentum=state.momentum)
        answer = fed.ask(self.train, to=chosen, common=sent, aggregate=[Mean("backbone", by="images")])
        fed.log(loss=answer.mean("loss", by="images"))
        backbone = answer.aggregated["backbone"]  # (4)
        lr = self.local.lr_at(fed.round, self.rounds)
        return State(
            backbone=backbone,
            momentum={name: (state.backbone[name] - backbone[name]) / lr for name in state.momentum},  # (6)
        )

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        pull = self.pull(party, common)
        loss, learner = learn(party, common.backbone, own, self.local, self.loss, pull=pull, **MOMENTUM)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), learner

    @batched("train")
    def train_batched(
        self, parties: Sequence[Party], own: Sequence[Learner | None], common: Global
    ) -> list[tuple[Update, Learner]]:
        pulls = [self.pull(party, common) for party in parties]
        backbone, trained = learn_together(
            parties, common.backbone, own, self.local, self.loss, pulls=pulls, **MOMENTUM
        )
        return [
            (Update(backbone=backbone, images=len(party.data), loss=loss), learner)
            for party, (loss, learner) in zip(parties, trained, strict=True)
        ]

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return unstackable_reason(backbone)

    def pull(self, party: Party, common: Global) -> Pull:
        """What local steps add to their gradients: β M_{r−1} / K (3)."""
        share = self.local.momentum / self.local.count(len(party.data))
        push = {name: (share * m).to(party.device) for name, m in common.momentum.items()}
        return lambda trained, images, labels: push

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone, momentum=state.momentum))
