"""Source-only: supervised training at the source client. What a target has without any adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.methods.centralized import Centralized


@dataclass(frozen=True, kw_only=True)
class SourceOnly(Centralized):
    """Plain SGD at the one client that knows who is in its images; the targets take no part."""

    title: ClassVar[str] = "the labelled source trains alone; what the targets have without adaptation"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    pooled: ClassVar[bool] = False
    domains: ClassVar[frozenset[str]] = frozenset({"source"})
