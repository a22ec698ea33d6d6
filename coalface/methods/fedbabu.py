"""FedBABU: class embeddings stay as they were drawn while the backbone is federated; then each party tunes both.

Oh, Kim, Yun, "FedBABU: toward enhanced representation for federated image classification", ICLR 2022, Algorithm 1. With
one identity a party, `random-init` is its kin: directions that nobody trains, with a loss that needs no second class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Federation, Party, Stage, Tensors, step
from coalface.methods.fedavg import FedAvg, Global, State
from coalface.methods.solo import Own, Progress
from coalface.training.local_training import Learner, learn, whole_backbone
from coalface.training.local_work import LocalTraining


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedAvg):
    """`fedavg` of the backbone under class embeddings at their first values; then a stage at each party alone.

    There it trains backbone and class embeddings for `tuning_epochs` and keeps the result as its own model; the global
    one stays as it is. A rate as high as training's undoes the model. The paper tunes the head, or all of the network;
    here all, since faces are compared by embeddings, in which the head has no part. In the paper all clients have one
    head over all classes; here each has a row for each of its own people. It fails where a party has more people than
    directions nearly at right angles fit in an embedding; of one identity a softmax has no gradient, and nothing is
    trained.
    """

    title: ClassVar[str] = "averages backbones under fixed class embeddings, then tunes"
    paper: ClassVar[str] = "Oh et al. 2022"
    setting: ClassVar[str] = "any"
    fixed_head: ClassVar[bool] = True

    tuning_epochs: int = 5
    """Passes over a party's images in the second stage."""
    tuning_lr: float | None = None
    """η there, ours; None: a tenth of `local.lr`."""

    def __post_init__(self) -> None:
        if self.tuning_epochs < 1:
            raise ValueError(f"tuning_epochs is {self.tuning_epochs}; give 1 or more")
        if self.tuning_lr is not None and not 0 < self.tuning_lr < math.inf:
            raise ValueError(f"tuning_lr is {self.tuning_lr}; give a number above 0, such as {self.local.lr / 10:g}")

    def stages(self) -> tuple[Stage, ...]:
        train = Stage("train", self.rounds, begin=lambda fed, _: self.init(fed), round=self.round)
        return train, Stage("tune", 1, begin=lambda _, before: before, round=self.personalise)

    def personalise(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.tune, common=Global(backbone=state.backbone))
        fed.log(loss=answer.mean("loss", by="images"))
        return state

    @step(role="trainer")
    def tune(self, party: Party, own: Learner | None, common: Global) -> tuple[Progress, Own]:
        loss, learner = learn(
            party,
            common.backbone,
            own,
            self.tuning,
            self.loss,
            momentum=self.momentum,
            head_momentum=self.head_momentum,
        )
        return Progress(images=len(party.data), loss=loss), Own(backbone=party.backbone.shared(), learner=learner)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        return (self.tuning if stage == "tune" else self.local).work(party, images)

    @property
    def tuning(self) -> LocalTraining:
        """The work of the second stage."""
        lr = self.local.lr / 10 if self.tuning_lr is None else self.tuning_lr
        return replace(self.local.in_epochs(self.tuning_epochs), lr=lr)

    @step(role="trainer", local=PERSONAL_MODEL)
    def personal(self, party: Party, own: Own | None) -> Tensors:
        return whole_backbone(party, own.backbone, own.learner.kept) if own else {}
