"""Solo: every party trains alone on what it has. The lower bound that a federation has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Federation, Method, Models, Party, Tensors, message, private, state, step
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace, CosineLoss


@message
class Progress:
    """Up: numbers for the curves, no model."""

    images: int
    loss: float


@private
class Own(Learner):
    """The party's whole model, and what its training keeps."""

    backbone: Tensors


@state
class State:
    """At the server: nothing."""


@dataclass(frozen=True, kw_only=True)
class Solo(Method):
    """Plain SGD at each party for as many rounds of local work as the federation has; momentum goes on throughout."""

    title: ClassVar[str] = "each party trains alone; nothing but progress numbers is sent"
    paper: ClassVar[str] = "the lower bound"
    setting: ClassVar[str] = "any"

    rounds: int = 20
    local: LocalTraining = LocalTraining()
    loss: CosineLoss = CosFace(scale=30.0, margin=0.35)

    def init(self, fed: Federation) -> State:
        return State()

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train)
        fed.log(loss=answer.mean("loss", by="images"))
        return state

    @step(role="trainer")
    def train(self, party: Party, own: Own | None) -> tuple[Progress, Own]:
        begin = own.backbone if own else party.initial
        loss, learner = learn(party, begin, own, self.local, self.loss, momentum="keep")
        return Progress(images=len(party.data), loss=loss), Own(**vars(learner), backbone=party.backbone.shared())

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Own | None) -> Tensors:
        return whole_backbone(party, own.backbone if own else party.initial, own.kept if own else None)

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=None)
