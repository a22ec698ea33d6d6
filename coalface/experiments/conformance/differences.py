"""What differs between two runs of a method that should have ended in the same bytes, by class and field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from coalface.core import codec
from coalface.core.method import Method
from coalface.engine.party.commits import Commit
from coalface.experiments.conformance.tiny_federation import Ran, raw

ANOTHER_ORDER = "the same tensors in another order"


def first_difference(method: Method, expected: Ran, other: Ran) -> str:
    """`Class.field: what differs` of the first thing that does; empty where all bytes are the same."""
    own, own_of_other = ({party: raw(model) for party, model in ran.own_models().items()} for ran in (expected, other))
    if expected.bytes() == other.bytes() and own == own_of_other:
        return ""
    return next(_differences(method, expected, other), "the bytes of a file that no class is read from")


def _differences(method: Method, expected: Ran, other: Ran) -> Iterator[str]:
    yield from _of_values(type(expected.state).__name__, expected.state, other.state)
    private, of_other = private_states(method, expected.folder), private_states(method, other.folder)
    for (party, name), value in private.items():
        if (party, name) in of_other:
            yield from (f"at {party}, {text}" for text in _of_values(name, value, of_other[party, name]))
    for party in sorted({party for party, _ in private.keys() ^ of_other.keys()}):
        yield f"at {party}, private state that one of the two runs alone has"
    models = other.own_models()
    for party, model in expected.own_models().items():
        yield from (f"at {party}, its own {text}" for text in _of_values("model", model, models.get(party)))
    for file in ["metrics.jsonl", *sorted(f"ledger/{path.name}" for path in (expected.folder / "ledger").iterdir())]:
        yield from _of_lines(file, _lines(expected.folder / file), _lines(other.folder / file))


def private_states(method: Method, folder: Path) -> dict[tuple[str, str], Any]:
    """(party, class) -> the private state that lies there."""
    classes = {c.__name__: c for _, d in method.steps.values() for c in (d.own, d.keeps) if c is not None}
    return {
        (path.parent.name, name): codec.decode(bytearray(stored), classes[name])
        for path in sorted((folder / "parties").rglob("*.commit"))
        for name, stored in Commit.open(path).states().items()
    }


def _of_values(path: str, expected: Any, other: Any) -> Iterator[str]:
    if isinstance(expected, Tensor) and isinstance(other, Tensor):
        if expected.shape != other.shape or expected.dtype != other.dtype:
            yield f"{path}: {tuple(expected.shape)} {expected.dtype}, and {tuple(other.shape)} {other.dtype}"
        elif raw({"": expected}) != raw({"": other}):
            yield f"{path}: values differ by up to {float((expected.double() - other.double()).abs().max()):.3g}"
    elif isinstance(expected, dict) and isinstance(other, dict):
        if expected.keys() != other.keys():
            yield f"{path}: {sorted(expected.keys() ^ other.keys())[:3]} in one of the two alone"
            return
        inner = [text for name in expected for text in _of_values(f"{path}, {name!r}", expected[name], other[name])]
        yield from inner
        if not inner and list(expected) != list(other):
            yield f"{path}: {ANOTHER_ORDER}"
    elif isinstance(expected, tuple) and isinstance(other, tuple) and len(expected) == len(other):
        for place, (item, of_other) in enumerate(zip(expected, other, strict=True)):
            yield from _of_values(f"{path}[{place}]", item, of_other)
    elif hasattr(expected, "__coalface_kind__") and type(expected) is type(other):
        for name, value in vars(expected).items():
            yield from _of_values(f"{path}.{name}", value, getattr(other, name))
    elif expected != other:
        yield f"{path}: {str(expected)[:80]}, and {str(other)[:80]}"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _of_lines(file: str, expected: list[dict[str, Any]], other: list[dict[str, Any]]) -> Iterator[str]:
    """The first line that differs, and in what; of a ledger, whether the same tensors left in another order."""
    for line, of_other in zip(expected, other, strict=False):
        if line != of_other:
            where = f"{file}, round {line.get('round')}"
            if "name" in line:
                same = sorted(_sent(expected)) == sorted(_sent(other))
                yield f"{where}, step {line['step']}: {ANOTHER_ORDER if same else line['name'] + ' is another'}"
            else:
                key = next(key for key in {**line, **of_other} if line.get(key) != of_other.get(key))
                yield f"{where}: {key} is {line.get(key)}, and {of_other.get(key)}"
            return
    if len(expected) != len(other):
        yield f"{file}: {len(expected)} lines, and {len(other)}"


def _sent(lines: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    return [(line["round"], line["name"], line["sha256"]) for line in lines if line["name"] != "header"]
