"""Fine-tuning: once a federation has a model for everybody, each client goes on alone with it for its own people.

With distillation (KD) it is held near what everybody's model says of the images.

C.-T. Liu et al. 2022 (FedFR), Table 2, "Fine-tune" and "KD"; Yu et al., "Salvaging federated learning by local
adaptation", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from coalface.core.method import Federation, Party, Stage, Tensors, message, step
from coalface.methods.fedfr_joint import FedFRJoint, Global, Own, State
from coalface.training.classifier import Criterion
from coalface.training.joint.fedfr import Binary, Distilled
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import MarginSoftmax


@message
class Progress:
    """Up, of the second stage: numbers for the curves, no model."""

    images: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Finetune(FedFRJoint):
    """FedFR without its branch; then every client minimises L_cos over [Φ ; W], on its own and hard negative images."""

    title: ClassVar[str] = "FedFR without its branch, then each client trains on alone"

    branch: Literal["binary", "softmax", "none"] = "none"
    binary: Binary = Binary(scale=30.0, margin=0.4)
    """Of no use without a branch."""
    tuning_epochs: int = 4
    """Epochs of the second stage, at `local`'s first learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branch != "none" or self.tuning_epochs < 1:
            raise ValueError(
                f"it has no branch and tunes for 1 epoch or more; got branch={self.branch} and "
                f"tuning_epochs={self.tuning_epochs}: for a branch use fedfr-joint"
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
        trained, _, after = self.tuner().work(party, own, common)
        return Progress(images=len(party.data), loss=trained.loss), replace(after, federated=federated)

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int]:
        if stage == "tune":
            return self.tuner().round_work(stage, round_, role, party, images)
        return super().round_work(stage, round_, role, party, images)

    def tuner(self) -> FedFRJoint:
        """What a client does in the second stage."""
        return FedFRJoint(**self.tuning_settings())

    def tuning_settings(self) -> dict[str, Any]:
        """Those of the first stage, without the contrastive term."""
        unchanged = ("loss", "public", "threshold", "previous", "drop_last", "pseudo_labels")
        local: LocalTraining = replace(self.local, epochs=self.tuning_epochs, steps_per_round=None, total_steps=None)
        changed = {"local": local, "contrastive": 0.0, "branch": "none", "epochs": (), "decay_after": ()}
        return {name: getattr(self, name) for name in unchanged} | {"preset": self.preset} | changed


@dataclass(frozen=True, kw_only=True)
class Distilling(FedFRJoint):
    """A client's work beside a teacher, which is Θ_g with the class embeddings that the stage begins with."""

    weight: float
    distillation_temperature: float

    def criterion(self, public_classes: int, head: Tensor) -> Criterion:
        assert isinstance(self.loss, MarginSoftmax)  # `KD` looks at it before anybody trains
        return Distilled(self.loss, head, self.weight, self.distillation_temperature)

    def references(self, common: Global, before: Own) -> dict[str, Tensors]:
        return {"anchor": common.backbone}


@dataclass(frozen=True, kw_only=True)
class KD(Finetune):
    """The second stage minimises (1 − α) L_cos + α T² KL(p ‖ q), p by everybody's model."""

    title: ClassVar[str] = "finetune with the shared model as a teacher"

    weight: float = 0.5
    """α. The paper of FedFR does not say it."""
    distillation_temperature: float = 4.0
    """T. Nor this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight <= 1 or not self.distillation_temperature > 0:
            raise ValueError(
                f"weight is from 0 to 1 and distillation_temperature above 0; got {self.weight} and "
                f"{self.distillation_temperature}"
            )
        if not isinstance(self.loss, MarginSoftmax):
            raise ValueError(
                f"kd distils the logits of a softmax, and {type(self.loss).__name__} has none: use one such as cosface"
            )

    def tuner(self) -> FedFRJoint:
        return Distilling(
            weight=self.weight, distillation_temperature=self.distillation_temperature, **self.tuning_settings()
        )
