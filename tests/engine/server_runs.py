"""What the tests of the server share: what a run left, a stop and a resume, and a method that asks anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toys import Control, Moves, State

from coalface.core import codec
from coalface.core.method import Federation
from coalface.engine.party.commits import Commit
from coalface.experiments.conformance.tiny_federation import Ran, Stop, Tiny, run, stopping


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def controls(ran: Ran) -> dict[str, Control]:
    """The private control variate of every party, as it lies on the disk after the run."""
    totals = {}
    for party in ran.server.at.party_stats:
        (path,) = (ran.folder / "parties" / party).glob("*.commit")
        stored = Commit.open(path).read("Control")
        assert stored is not None
        totals[party] = codec.decode(stored, Control)
    return totals


def listed(folder: Path) -> dict[str, int]:
    """The bytes that each party's ledger lists."""
    ledgers = {path.stem: path.read_text().splitlines() for path in (folder / "ledger").glob("*.jsonl")}
    return {party: sum(json.loads(line)["bytes"] for line in lines) for party, lines in ledgers.items()}


def stopped_and_resumed(method: Any, folder: Path, after: int, build: Any = Tiny(), **rules: Any) -> Ran:  # noqa: B008
    with pytest.raises(Stop):
        run(method, folder, build, transport=stopping(after), **rules)
    return run(method, folder, build, **rules)


@dataclass(frozen=True, kw_only=True)
class Asks(Moves):
    """Asks whatever a test wants to see asked."""

    asks: Callable[[Moves, Federation, State], Any]

    def round(self, fed: Federation, state: State) -> State:
        self.asks(self, fed, state)
        return state
