"""FedAvg for face recognition (FedPav): the backbone is averaged, class embeddings are not sent.

What is sent tells of them all the same: see `coalface.experiments.plan.messages.what_can_be_read`.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017; with class
embeddings that are not sent, Zhuang et al., "Performance optimization of federated person re-identification via
benchmark analysis", ACM MM 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from coalface.training.local_training import Learner, Pull, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss
from coalface.training.sgd import MomentumState
from coalface.training.stacked_training import learn_together, unstackable_reason


@message
class Global:
    """Down, the same for all."""

    backbone: Tensors = content("aggregate")
    """Θ_{r−1}."""


@message
class Update:
    """Up."""

    backbone: Tensors
    """θ_i after local training."""
    images: int
    """n_i."""
    loss: float
    """The mean over the local steps."""


@state
class State:
    """At the server."""

    backbone: Tensors
    """Θ_r."""


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging of the backbone, weighted by images: Θ_r = Σ n_i θ_i / Σ n_i."""

    title: ClassVar[str] = "averages backbones; class embeddings are not sent (FedPav)"
    paper: ClassVar[str] = "McMahan et al. 2017; Zhuang et al. 2020"
    setting: ClassVar[str] = "any"
    fixed_head: ClassVar[bool] = False
    """Whether class embeddings stay as they were drawn, and the backbone alone is trained."""

    rounds: int = 20
    sample: int | None = None
    """Parties a round, drawn anew each round; None: all."""
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)
    momentum: MomentumState = "reset"
    """Zero at the start of a round (`reset`), kept from the party's last round (`keep`), or unused (`none`)."""
    head_momentum: MomentumState | None = None
    """The same of the class embeddings; None: as the backbone's."""

    def init(self, fed: Federation) -> State:
        return State(backbone=fed.initial)

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(
            self.train,
            to=fed.sample("trainer", self.sample),
            common=Global(backbone=state.backbone),
            aggregate=[Mean("backbone", by="images")],
        )
        fed.log(loss=answer.mean("loss", by="images"))
        return State(backbone=answer.aggregated["backbone"])

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            fixed_head=self.fixed_head,
            pull=self.pull(party, common.backbone),
        )
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss), learner

    @batched("train")
    def train_batched(
        self, parties: Sequence[Party], own: Sequence[Learner | None], common: Global
    ) -> list[tuple[Update, Learner]]:
        pulls = [self.pull(party, common.backbone) for party in parties]
        backbone, trained = learn_together(
            parties,
            common.backbone,
            own,
            self.local,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
            fixed_head=self.fixed_head,
            pulls=[pull for pull in pulls if pull is not None],
        )
        return [
            (Update(backbone=backbone, images=len(party.data), loss=loss), learner)
            for party, (loss, learner) in zip(parties, trained, strict=True)
        ]

    def unbatchable_reason(self, backbone: Backbone) -> str:
        return super().unbatchable_reason(backbone) or unstackable_reason(backbone)

    def pull(self, party: Party, backbone: Tensors) -> Pull | None:
        """What local steps add to their gradients: nothing."""
        return None

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Learner | None, common: Global) -> Tensors:
        return whole_backbone(party, common.backbone, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models.by_policy(fed, Global(backbone=state.backbone))
