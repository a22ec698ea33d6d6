"""JSON and YAML from elsewhere, read strictly; and JSON as it is written here, which every reader takes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from coalface.core.errors import DataError

LONGEST = 1 << 16
"""Bytes of a text that says plain values."""
DEPTH = 32
"""How deep lists and objects may lie in each other."""
LARGEST = 1 << 53
"""Up to here a float holds every whole number, and so does every reader of JSON."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")


def parse_json(
    text: str | bytes, *, longest: int = LONGEST, values: int | None = None, any_number: bool = False
) -> Any:
    """The value of a JSON text that another may have written with bad intent.

    What is longer, deeper or of more `values` than allowed is refused before it is read, as an empty list takes two
    bytes in the text and sixty in memory. Numbers are finite and whole ones at most `LARGEST`; with `any_number` they
    are what Python's json takes. Raises ValueError.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"it is a {type(text).__name__}, not JSON text")
    if len(text) > longest:
        raise ValueError(f"it is longer than {longest:,} bytes")
    data = text.encode() if isinstance(text, str) else text
    if values is not None and sum(data.count(sign) for sign in (b"[", b"{", b",")) > values:
        raise ValueError(f"it holds more than {values:,} values")
    if _is_deep(data):
        raise ValueError(f"its brackets do not match, or lie more than {DEPTH} deep")
    decoded = text if isinstance(text, str) else text.decode()
    if any_number:
        return json.loads(decoded)
    return json.loads(decoded, parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The keys and values of a JSON file. Raises DataError, which ends with the `remedy`, where it holds none."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, and no keys and values")
    except (ValueError, RecursionError) as error:
        raise DataError(f"damaged ({error}): {remedy}", where=path) from None
    return content


def strict_json(value: Any, indent: int | None = None) -> str:
    """The JSON text of a value; a number that is not finite is null, since JSON has no word for it."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_infinite(value), indent=indent, allow_nan=False)


def _is_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return False
    brackets = _STRING.sub(b"", data).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(DEPTH):  # each time the innermost ones go
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _whole(text: str) -> int:
    if len(text) > 17 or abs(number := int(text)) > LARGEST:
        raise ValueError(f"{text[:20]} is larger than {LARGEST}")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _without_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- YAML: no key twice, no aliases that grow, one-line errors ---

YAML_DEPTH = 50
"""How deep lists and mappings may lie in each other."""
_TOO_DEEP = f"lists and mappings lie more than {YAML_DEPTH} deep in each other"
YAML_VALUES = 50_000
"""The most values of a text, those that its aliases repeat included: a few lines of them can stand for billions."""
_CHARACTERS = 1_000_000
_BEFORE_A_VALUE = ",\n:[{"
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; not every PyYAML has it
LONGEST_NUMBER = 200
"""Characters of a number; reading a longer one takes the square of its length."""


def read_text(path: Path) -> str:
    """The text of a file. Raises ValueError, which says no more than that, where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text file: byte {error.start + 1:,} is not UTF-8") from None


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError saying, in one line, what is wrong and where.

    A key that is given twice in a mapping is an error: PyYAML would take the last one without a word.
    """
    if len(text) > _CHARACTERS or sum(map(text.count, _BEFORE_A_VALUE)) > 4 * YAML_VALUES:
        raise ValueError(f"it is too long: at most {_CHARACTERS:,} characters and {YAML_VALUES:,} values are read")
    try:
        _check_events(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(where + " ".join(problem.split())) from None
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:  # of a tag with no value of its kind
        raise ValueError(f"a value does not match its tag ({error})") from None


def _check_events(text: str) -> None:
    """Refuse, event by event, what lies too deep, or holds too many values, before any is made."""
    sizes: dict[str | None, int] = {}
    """Values below an anchor whose value is whole, itself included."""
    values, within = 0, list[tuple[str | None, int]]()
    for event in yaml.parse(text, _Fast):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in within):
                raise _refused("a value holds itself", event)
            values += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                within.append((event.anchor, values))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
            values += 1
        if len(within) > YAML_DEPTH:
            raise _refused(_TOO_DEEP, event)
        if values > YAML_VALUES:
            raise _refused(f"it holds more than {YAML_VALUES:,} values, counting those that aliases repeat", event)


class _Loader(_Fast):
    def construct_scalar(self, node: yaml.Node) -> Any:
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(str(node.value)) > LONGEST_NUMBER:
            raise _refused(f"a number has more than {LONGEST_NUMBER} characters", node)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in keys:
                raise _refused(f"the key {key.value} is given twice: join the two", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(why: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)
