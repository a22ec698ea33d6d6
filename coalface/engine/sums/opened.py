"""The record of whose replies a sum was opened over, and of what it costs, on the disk before that is so."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.disk import writing
from coalface.core.method import Abandoned, Mean
from coalface.engine.run_state import Call

FILE = "opened.jsonl"
_DIFFERENCE = (
    "the sums of this round were opened over other parties or by other weights, and the difference would tell single "
    "replies"
)


class Opened:
    """A line of `path` for every call that had a `Mean(once=True)`, or whose sums were noised.

    Where parties add the noise, another one before it says what the sum costs.

    It outlives a kill, and no resume cuts it back. `again` says why a call is not made once more in another way.
    """

    def __init__(self, path: Path, again: str = _DIFFERENCE) -> None:
        self.path, self._again = path, again
        self.entries: dict[tuple[str, int, int], dict[str, Any]] = {}
        """(stage, round, call) -> what its lines say, in their order."""
        self._lines: list[dict[str, Any]] = []
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):  # a sum is opened after its line is whole on the disk
                os.truncate(path, whole)
            try:
                for line in data[:whole].decode().splitlines():
                    self._take_up(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise self._damaged() from None

    def record(
        self, call: Call, aggregate: Sequence[Mean], arrived: Iterable[str], content: str = "", **noised: Any
    ) -> None:
        """Write down what is about to be opened. Raises Abandoned where this call opened something else before.

        Two sums of the same round differ by the replies of those who came or went, so that these could be solved for.
        `content` names the numbers of the sums, where they are noised, and `noised` says how.
        """
        means = [
            dataclasses.asdict(dataclasses.replace(mean, by=dict(mean.by) if isinstance(mean.by, Mapping) else mean.by))
            for mean in aggregate
        ]
        about: dict[str, Any] = {"arrived": sorted(arrived), "means": means}
        about |= {"content": content} if content else {}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        recorded = self.entries.get((call.stage, call.round, call.call), {}).get("sha256")
        if recorded is None:
            self._write(call, {"sha256": digest} | noised)
        elif recorded != digest:
            raise Abandoned(f"step {call.step}: before the run was resumed {self._again}")

    def spend(self, call: Call, **noised: Any) -> None:
        """Write down what a sum costs, before its parties are asked for vectors with noise in them.

        What leaves them is spent, also where the sum is never opened. Raises Abandoned where this call had another cost
        before.
        """
        entry = self.entries.get((call.stage, call.round, call.call))
        if entry is None:
            self._write(call, noised)
        elif any(entry.get(name) != value for name, value in noised.items()):
            raise Abandoned(f"step {call.step}: before the run was resumed {self._again}")

    def _write(self, call: Call, about: Mapping[str, Any]) -> None:
        line = {"stage": call.stage, "round": call.round, "call": call.call, **about}
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take_up(line)

    def _take_up(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        key = line["stage"], line["round"], line["call"]
        self.entries[key] = self.entries.get(key, {}) | line

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the lines say, call by call."""
        return [*self.entries.values()]

    def until(self, stages: Sequence[str], stage: str, number: int) -> list[dict[str, Any]]:
        """The calls up to a round; one that a resumed run repeats does not look at those that came after it."""
        places = [(stages.index(line["stage"]), line["round"]) for line in self.calls]
        return [line for line, place in zip(self.calls, places, strict=True) if place <= (stages.index(stage), number)]

    def record_lines(self) -> dict[str, Any]:
        """What a checkpoint holds of them."""
        return {"lines": len(self._lines), "sha256": self._hash(len(self._lines))}

    def check(self, record: Mapping[str, Any] | None) -> None:
        """Raise ValueError where lines that a checkpoint knows of were removed or changed."""
        if record is None or self._hash(record["lines"]) != record["sha256"]:
            raise self._damaged()

    def _damaged(self) -> ValueError:
        return ValueError(
            f"{self.path} is not as it was written, and what was spent of the protection is counted by it. "
            "Restore it, or start a new run."
        )

    def _hash(self, lines: int) -> str:
        return hashlib.sha256(json.dumps(self._lines[:lines]).encode()).hexdigest()
