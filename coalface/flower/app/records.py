"""The content of Flower messages: plain values as JSON, and encoded bytes. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from coalface.core.parsing import parse_json

JOIN, STEP, SETTLE, CHECK = "query.join", "train.step", "query.settle", "query.check"
COUNTERSIGN = "query.countersign"
"""What a node is asked: who it is, to run a step, to forget, to look at its ledger, to sign what the server says."""


def write(values: Mapping[str, Any], data: Mapping[str, bytes | bytearray | memoryview] | None = None) -> RecordDict:
    """A message's content. Bytes go in pieces, and lie at the SuperLink once for all nodes to whom they are sent."""
    content = RecordDict({"said": ConfigRecord({"json": json.dumps(values)})})
    for name, value in (data or {}).items():
        array = Array(dtype="uint8", shape=(len(value),), stype="coalface", data=bytes(value))
        content[name] = ArrayRecord({"bytes": array})
    return content


def read(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(plain values, bytes by name) of a message. Raises KeyError or ValueError for what `write` did not make."""
    values = parse_json(content.config_records["said"]["json"])  # type: ignore[arg-type]  # which refuses the others
    if not isinstance(values, dict):
        raise ValueError("plain values are an object of JSON")
    return values, {name: record["bytes"].data for name, record in content.array_records.items()}
