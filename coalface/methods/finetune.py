"""Fine-tuning: once a federation has a model for everybody, each client goes on alone with it for its own people.

C.-T. Liu et al. 2022 (FedFR), Table 2, "Fine-tune"; Yu et al., "Salvaging federated learning by local adaptation",
2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from coalface.core.method import Federation, Party, Stage, message, step
from coalface.methods.fedfr_joint import FedFRJoint, Global, Own, State
from coalface.training.local_work import LocalTraining


@message
class Progress:
    """Up, of the second stage: numbers for the curves, no model."""

    images: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Finetune(FedFRJoint):
    """FedFR without its branch; then every client minimises L_cos over [Φ ; W], on its own and hard negative images."""

    title: ClassVar[str] = "FedFR without a branch, then each client goes on alone for its own people"

    branch: Literal["binary", "softmax", "none"] = "none"
    tuning_epochs: int = 4
    """Epochs of the second stage, at `local`'s first learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branch != "none" or self.tuning_epochs < 1:
            raise ValueError(
                f"it has no branch and tunes for 1 epoch or more; got branch={self.branch} and "
                f"tuning_epochs={self.tuning_epochs}: for a branch take fedfr-joint"
            )

    def stages(self) -> tuple[Stage, ...]:
        federate = Stage("federate", self.rounds, begin=lambda fed, _: self.init(fed), round=self.round)
        return federate, Stage("tune", 1, begin=lambda _, before: before, round=self.alone)

    def alone(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.tune, common=Global(backbone=state.backbone, classifier=state.classifier))
        fed.log(loss=answer.mean("loss", by="images"))
        return state

    @step(role="trainer")
    def tune(self, party: Party, own: Own | None, common: Global) -> tuple[Progress, Own]:
        party.backbone.load(common.backbone, own.kept if own else None)
        federated = {name: tensor.clone() for name, tensor in party.backbone.kept().items()}
        loss, _, _, kept = self.tuner().work(party, own, common)
        return Progress(images=len(party.data), loss=loss), replace(kept, federated=federated)

    def tuner(self) -> FedFRJoint:
        """What a client does in the second stage."""
        return FedFRJoint(**self.second())

    def second(self) -> dict[str, Any]:
        """Its settings: those of the first stage, without the contrastive term."""
        same = ("loss", "public", "threshold", "previous", "drop_last")
        local: LocalTraining = replace(self.local, epochs=self.tuning_epochs, steps_per_round=None, total_steps=None)
        changed = {"local": local, "contrastive": 0.0, "branch": "none", "epochs": (), "decay_after": ()}
        return {name: getattr(self, name) for name in same} | {"preset": self.preset} | changed
