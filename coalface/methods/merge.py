"""Merge: supervised training on source and targets, pooled, with the targets' true identities. The upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.methods.centralized import Centralized


@dataclass(frozen=True, kw_only=True)
class Merge(Centralized):
    """Plain SGD on the images of both domains at one party, told who is in all of them."""

    title: ClassVar[str] = "pools both domains with the targets' true identities: the upper bound, not a federation"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    domains: ClassVar[frozenset[str]] = frozenset({"source", "target"})
    uses_target_labels: ClassVar[bool] = True
