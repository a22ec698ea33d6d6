"""The policy of rounds, and a round in progress."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, Literal

from coalface.engine.faults import SimulatedFaults
from coalface.engine.robust.aggregators import Aggregator
from coalface.privacy.templates import TemplateNoise
from coalface.training.server_optimizers import ServerOptimizer

FEW = 32
"""Parties of a round up to which its line of the metrics has the training loss of each."""


@dataclass(frozen=True)
class RoundPolicy:
    """How a run is conducted: what is not part of the method."""

    run: str
    """The run's name in requests and ledgers."""
    seed: int = 0
    min_reply_fraction: float = 0.5
    """Share of the asked parties whose replies must count, else the round is abandoned."""
    max_abandoned_rounds: int = 5
    """The run ends when so many rounds in a row were abandoned; with 0, as with 1, at the first."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept."""
    evaluate_every: int = 0
    """Rounds between two evaluations by the observers; 0: none during the run."""
    on_error: str = "stop"
    """`stop` ends the run at the first step that fails (a simulation), `exclude` goes on without that party."""
    faults: SimulatedFaults = SimulatedFaults()
    retries: int = 0
    """How often a party is asked the same again that was not reached, or whose reply was lost, late or torn."""
    max_update_norm: float = 30.0
    """How many times the median norm of a call's updates a reply's may be; 0: no bound."""
    equal_steps: bool = False
    """All parties take the same number of local steps; else norms are compared by the root of the party's images."""
    max_share: float | None = None
    """The most that one party can count of a mean whose weights the replies say; None: as much as it says."""
    oversized: Literal["refuse", "clip"] = "refuse"
    """What becomes of a reply beyond it: it does not count, or it counts as one at the bound."""
    countersign: bool = False
    """Each round that counts is signed by the server and by a party of it: see `coalface.privacy.countersign`."""
    aggregator: Aggregator | None = None
    """What takes the place of every weighted mean; None: nothing."""
    server_optimizer: ServerOptimizer | None = None
    """What moves the global backbone in place of its becoming the mean; None: nothing."""
    templates: TemplateNoise | None = None
    """The noise with which templates leave their parties, which is counted here and drawn there; None: without."""


@dataclass
class Round:
    """A round under way: it becomes part of the run when it ends, and nothing of it does when it is abandoned."""

    accepted: dict[str, str] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    """Of the replies that count, by `coalface.engine.receipts.receipt`."""
    asked: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    clipped: dict[str, str] = field(default_factory=dict)
    """Party -> what of its reply was brought within the bound."""
    large: dict[str, str] = field(default_factory=dict)
    """Party -> what of its reply is much larger than what others sent, and may count all the same."""
    bytes: collections.Counter[str] = field(default_factory=collections.Counter)
    metrics: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    """The training loss that each party's last reply says."""
    apart: collections.Counter[str] = field(default_factory=collections.Counter)
    """Why client batches were computed party by party, and how many."""
    seen: dict[str, float] = field(default_factory=dict)
    """When each party's last reply was taken in, by the clock."""
    calls: int = 0

    @property
    def arrived(self) -> set[str]:
        """The parties that were asked and did not fail."""
        return self.asked - set(self.failed)

    def clock(self) -> dict[str, Any]:
        """What the clock says of the round's replies, for its line of the events."""
        return {"seen": self.seen} if len(self.asked) <= FEW else {}

    def record(self, stage: str, number: int, abandoned: str | None) -> dict[str, Any]:
        """The round's line of the metrics; `abandoned` is why it was, None where it counts."""
        line: dict[str, Any] = {"stage": stage, "round": number, "asked": len(self.asked)}
        line |= {"arrived": len(self.arrived), "failed": dict(sorted(self.failed.items()))}
        sent = {f"bytes_{kind}": n for kind, n in self.bytes.items() if n or kind in ("down", "up")}
        line |= {"abandoned": abandoned is not None, "bytes_down": 0, "bytes_up": 0, **sent, **self.metrics}
        if self.clipped:
            line["clipped"] = dict(sorted(self.clipped.items()))
        if large := {
            party: why for party, why in sorted(self.large.items()) if party not in self.failed | self.clipped
        }:
            line["large"] = large
        if len(self.losses) <= FEW:
            line["losses"] = self.losses
        return line if abandoned is None else {**line, "reason": abandoned}
