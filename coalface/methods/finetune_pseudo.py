"""Fine-tuning on pseudo labels: as FedFR for domain adaptation, but the source client trains no more.

Zhuang et al. 2021 (FedFR), Tables 2 to 5, "fine-tune" and "P + C". With one target client it is plain fine-tuning at
that client; with several, their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.methods.fedfr_uda import FedFRUDA


@dataclass(frozen=True, kw_only=True)
class FinetunePseudo(FedFRUDA):
    """The source pre-trains and chooses τ; then the targets alone train, on their clusters."""

    title: ClassVar[str] = "the targets train on clusters of their images; the source helps no more"

    constraint: float = 0.0
    source: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source or self.constraint:
            raise ValueError(
                "finetune-pseudo trains without the source client: leave `source` and `constraint` out, or take "
                "fedfr-uda"
            )
