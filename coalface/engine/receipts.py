"""Receipts of accepted replies: each reply's SHA-256 and the head of its party's ledger, in a hash chain.

The next request to a party carries the head of this chain, and the party keeps it in its commit. So each side holds
the other's word: a party that cuts or rewrites its ledger is told by the heads here, a server that does so with this
file by the heads that the parties hold. No resume cuts the file: what a repeated round accepts again is listed already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.engine.party.executor import Request
from coalface.privacy import ledger

FILE = "receipts.jsonl"


class Receipts:
    """The chain of a run's accepted replies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = ledger.Head()
        self._repeated: set[str] = set()

    def restore(self, checkpoint_head: Mapping[str, Any] | None) -> None:
        """Follow the chain, on which a checkpoint had the head `kept`. Raises ValueError where it does not hold."""
        at = ledger.Head(**checkpoint_head) if checkpoint_head else ledger.Head()
        if self.path.exists():
            self.head = ledger.follow(self.path, most=at.lines)
        if self.head != at:
            raise ValueError(
                f"{self.path} does not hold the {at.lines} lines that it had at the last checkpoint: lines were "
                "changed or removed. Restore the file, or start a new run."
            )
        for head, line in ledger.lines(self.path, at) if self.path.exists() else ():
            self.head = head
            self._repeated.add(json.dumps({n: value for n, value in line.items() if n not in ("line", "chain")}))

    def write(self, accepted: Iterable[Mapping[str, Any]]) -> None:
        """Append what `receipt` gave, but for what is listed since the last checkpoint."""
        texts = [json.dumps(entry) for entry in accepted]
        lines = ledger.chained((entry[1:-1] for entry in texts if entry not in self._repeated), self.head)
        if lines:
            ledger.append(self.path, lines, self.head)
            self.head = self.head.after(lines)


def receipt(request: Request, reply: codec.Encoded, head: tuple[int, str] | None) -> dict[str, Any]:
    """What is listed of an accepted reply; `head` is what its party says of its ledger: its lines, the last hash."""
    about: dict[str, Any] = {"run": request.run, "party": request.party, "stage": request.stage}
    about |= {"round": request.round, "call": request.call, "step": request.step}
    lines, last = head or (None, None)
    return about | {"pieces": len(reply.sums), "sha256": combined(reply.sums), "lines": lines, "head": last}


def combined(sums: Iterable[str]) -> str:
    """One SHA-256 for a reply, of those of its pieces, which its ledger lists."""
    return hashlib.sha256("".join(sums).encode()).hexdigest()
