"""What methods for two domains are compared with: supervised training on the source, the targets, or both.

Zhuang et al., "Towards unsupervised domain adaptation for deep face recognition under privacy constraints via federated
learning", 2021, Tables 2 to 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coalface.core.method import Pools, Scenario
from coalface.methods.centralized import Centralized


@dataclass(frozen=True, kw_only=True)
class SourceOnly(Centralized):
    """Plain SGD at the one client that knows who is in its images; the targets take no part."""

    title: ClassVar[str] = "trains on the labelled source alone, without adaptation"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "domains"
    sides: ClassVar[frozenset[str]] = frozenset({"source"})
    pools: ClassVar[Pools] = ""


@dataclass(frozen=True, kw_only=True)
class TargetOnly(Centralized):
    """Plain SGD on all targets' images at one party, which knows their true identities."""

    title: ClassVar[str] = "pools the targets with their true identities: a bound"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "domains"
    sides: ClassVar[frozenset[str]] = frozenset({"target"})


@dataclass(frozen=True, kw_only=True)
class Merge(Centralized):
    """Plain SGD on the images of both domains at one party, which knows their true identities: the upper bound."""

    title: ClassVar[str] = "pools both domains with true identities: the upper bound"
    paper: ClassVar[str] = "Zhuang et al. 2021"
    setting: ClassVar[str] = "cross-silo"
    scenario: ClassVar[Scenario] = "domains"
