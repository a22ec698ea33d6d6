"""FedAwS: federated learning with only positive labels, by averaging with spreadout.

Yu, Rawat, Menon, Kumar, "Federated Learning with Only Positive Labels", ICML 2020: class embeddings start at random,
clients pull at their own, the server pushes all apart, or each from its k nearest alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from coalface.methods.fedface import FedFace
from coalface.training.losses.spreadout import Spreading


@dataclass(frozen=True, kw_only=True)
class FedAwS(FedFace):
    """`fedface`, which grew from it, with class embeddings that start at random; margin and step as there (ours)."""

    title: ClassVar[str] = "one identity a client; random class embeddings, kept apart"
    paper: ClassVar[str] = "Yu et al. 2020"
    setting: ClassVar[str] = "cross-device"

    head_init: Literal["mean", "random"] = "random"
    top_k: int | None = None
    """Each class embedding is pushed from so many nearest ones alone; None: from all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not None and self.spreading is not None and self.spreading.top_k not in (None, self.top_k):
            raise ValueError(f"top_k is {self.top_k} and spreading.top_k is {self.spreading.top_k}; give one of them")
        if self.top_k is not None:
            Spreading(top_k=self.top_k)  # which says what it cannot be

    def spread(self, centres: Tensor) -> Tensor:
        if not self.spreadout or self.top_k is None:
            return super().spread(centres)
        return replace(self.spreading or self.presets[self.preset], top_k=self.top_k)(centres)
