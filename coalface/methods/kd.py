"""Fine-tuning with knowledge distillation: as `finetune`, held near what everybody's model says of the images.

C.-T. Liu et al. 2022 (FedFR), Table 2, "KD"; Yu et al., "Salvaging federated learning by local adaptation", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coalface.core.method import Tensors
from coalface.methods.fedfr_joint import FedFRJoint, Global, Own
from coalface.methods.finetune import Finetune
from coalface.training.classifier import Criterion
from coalface.training.fedfr import Distilled
from coalface.training.losses.base import MarginSoftmax


@dataclass(frozen=True, kw_only=True)
class Distilling(FedFRJoint):
    """A client's work beside a teacher, which is Θ_g with the class embeddings that the stage begins with."""

    weight: float
    distillation_temperature: float

    def criterion(self, known: int, head: Tensor) -> Criterion:
        assert isinstance(self.loss, MarginSoftmax)  # `KD` looks at it before anybody trains
        return Distilled(self.loss, head, self.weight, self.distillation_temperature)

    def others(self, common: Global, before: Own) -> dict[str, Tensors]:
        return {"anchor": common.backbone}


@dataclass(frozen=True, kw_only=True)
class KD(Finetune):
    """The second stage minimises (1 − α) L_cos + α T² KL(p ‖ q), p by everybody's model."""

    title: ClassVar[str] = "as finetune, and everybody's model goes on teaching"

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
                f"kd distils the logits of a softmax, and {type(self.loss).__name__} has none: take one such as cosface"
            )

    def tuner(self) -> FedFRJoint:
        return Distilling(weight=self.weight, distillation_temperature=self.distillation_temperature, **self.second())
