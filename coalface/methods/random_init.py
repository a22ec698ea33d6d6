"""Random class embeddings that stay as they are: features are pulled to directions that mean nothing.

Aggarwal et al., "FedFace", 2021, Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coalface.methods.fedface import FedFace


@dataclass(frozen=True, kw_only=True)
class RandomInit(FedFace):
    """`fedface` with class embeddings that are drawn and then fixed."""

    title: ClassVar[str] = "random class embeddings that nobody trains"
    paper: ClassVar[str] = "Aggarwal et al. 2021, Table 1"
    setting: ClassVar[str] = "cross-device"

    head_init: Literal["mean", "random"] = "random"
    fixed: bool = True
    spreadout: bool = False
