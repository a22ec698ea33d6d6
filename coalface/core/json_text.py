"""JSON from elsewhere, read strictly; and JSON as it is written here, which every reader takes."""

from __future__ import annotations

import json
import math
import re
from typing import Any

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
