"""The record of whose replies a sum was opened over, on the disk before it is opened."""

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


class Opened:
    """A line of `path` for every call that had a `Mean(once=True)`, or whose sums were noised.

    It outlives a kill, and no resume cuts it back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[tuple[str, int, int], dict[str, Any]] = {}
        """(stage, round, call) -> its line, in their order."""
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):  # a sum is opened after its line is whole on the disk
                os.truncate(path, whole)
            for line in data[:whole].decode().splitlines():
                entry = json.loads(line)
                self.entries[entry["stage"], entry["round"], entry["call"]] = entry

    def record(
        self, call: Call, aggregate: Sequence[Mean], arrived: Iterable[str], content: str = "", **noised: Any
    ) -> None:
        """Write down what is about to be opened. Raises Abandoned where this call opened something else before.

        Two sums of the same round differ by the replies of those who came or went, so that these could be solved for.
        `content` names the numbers of the sums, where they are noised, and `noised` says how.
        """
        call_key = (call.stage, call.round, call.call)
        means = [dataclasses.replace(mean, by=_plain(mean.by)) for mean in aggregate]
        about: dict[str, Any] = {"arrived": sorted(arrived), "means": [dataclasses.asdict(mean) for mean in means]}
        about |= {"content": content} if content else {}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        if call_key not in self.entries:
            entry = {"stage": call.stage, "round": call.round, "call": call.call, "sha256": digest} | noised
            with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.entries[call_key] = entry
        elif self.entries[call_key]["sha256"] != digest:
            raise Abandoned(
                f"step {call.step}: before the run was resumed the sums of this round were opened over other parties "
                "or by other weights, and the difference would tell single replies"
            )


def _plain(by: str | Mapping[str, float] | None) -> str | dict[str, float] | None:
    return dict(by) if isinstance(by, Mapping) else by
