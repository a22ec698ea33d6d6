"""Positive losses alone: what FedAvg comes to at one identity a client. It must collapse.

Aggarwal et al., "FedFace", 2021, Table 1, its FedAvg: random class embeddings, trained, and nothing keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coalface.methods.fedface import FedFace


@dataclass(frozen=True, kw_only=True)
class PositiveOnly(FedFace):
    """`fedface` without mean initialisation and without spreadout."""

    title: ClassVar[str] = "positive losses alone, which must collapse"
    paper: ClassVar[str] = "Aggarwal et al. 2021, Table 1"
    setting: ClassVar[str] = "cross-device"

    head_init: Literal["mean", "random"] = "random"
    spreadout: bool = False
