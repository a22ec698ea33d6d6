"""Target-only: supervised training on the targets' images, pooled, with their true identities. A bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.methods.centralized import Centralized


@dataclass(frozen=True, kw_only=True)
class TargetOnly(Centralized):
    """Plain SGD on all targets' images at one party, told who is in them."""

    title: ClassVar[str] = "pools the targets' images with their true identities: a bound, not a federation"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    domains: ClassVar[frozenset[str]] = frozenset({"target"})
    uses_target_labels: ClassVar[bool] = True
