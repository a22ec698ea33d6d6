"""Sound bytes of which one value is another: keys of JSON and YAML, words of lists, arrays of archives.

Mutation of bytes keeps a text that another value would break, or breaks the text: an hour of it has not put a list in
the place of a name.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import yaml
from odd_values import trees
from reader import joined

WORDS = (b"", b"-1", b"0", b"1.5", b"9" * 30, b"1e999", b"nan", b"x", b"../x", b"/x", b"\0", b"\xff", b"a" * 300)
"""What words of a list seldom are."""
ARRAYS: tuple[Any, ...] = (
    *(np.array(value) for value in (0, -1, 1.5, True, "x", b"x", [[0]], [[[]]], [-1, -1], [math.nan] * 3)),
    *(np.array([1 << 63], np.uint64), np.array([-(1 << 63)]), np.array(["NaT"], "datetime64[s]"), np.array([1j])),
    *(np.zeros(0), np.zeros((0, 3), int), np.zeros(3, [("a", "i4")]), np.arange(1000), np.zeros(3, ">u2")),
)
"""What arrays of an archive seldom are."""
_LONGEST = 1 << 16  # of a piece after its length in two bytes


def odd(data: bytes) -> Iterator[bytes]:
    """Bytes with one odd value, whatever they hold: pieces, a header, JSON, YAML, lines, an array, or others."""
    if (pieces := _pieces(data)) is not None:
        yield from _with_one_odd(pieces)
    elif data.startswith(b"\0"):
        yield from (b"\0" + other for other in odd(data[1:]))
    elif data.startswith(b"\x93NUMPY"):
        yield from map(_npy, ARRAYS)
    elif (tree := _json(data)) is not None:
        yield from map(_text, trees(tree))
    elif (tree := _json(data[8 : 8 + (length := int.from_bytes(data[:8], "little"))])) is not None:
        yield from (len(t).to_bytes(8, "little") + t + data[8 + length :] for t in map(_text, trees(tree)))
    elif (tree := _json(data.partition(b"\0")[0])) is not None:
        yield from (b"\0".join((t, data.partition(b"\0")[2])) for t in map(_text, trees(tree)))
    elif (tree := _yaml(data)) is not None:
        yield from map(_text, trees(tree))
    elif _is_text(data):
        lines = data.split(b"\n")
        for place, line in enumerate(lines):
            yield from (b"\n".join((*lines[:place], other, *lines[place + 1 :])) for other in _lines(line))
    else:
        half = len(data) // 2
        yield from (b"", data[:half], data[half:], 2 * data, data[::-1], bytes(len(data)), b"\xff" * len(data))


def _lines(line: bytes) -> Iterable[bytes]:
    """A line with one odd value: JSON whole, without its brackets, or without its end; or words."""
    for begin, end in ((b"", b""), (b"{", b"}"), (b"", b"}")):
        if (tree := _json(begin + line + end)) is not None:
            texts = (_text(other) for other in trees(tree) if isinstance(other, dict) or not end)
            return (text[len(begin) : len(text) - len(end)] for text in texts)
    words = re.split(rb"([\s,;:=]+)", line)
    return (b"".join((*words[:at], word, *words[at + 1 :])) for at in range(0, len(words), 2) for word in WORDS)


def _pieces(data: bytes) -> list[bytes] | None:
    """What lies after lengths in two bytes, if nothing else does."""
    pieces, at = list[bytes](), 0
    while at < len(data):
        begin = at + 2
        at = begin + int.from_bytes(data[at:begin], "big")
        pieces.append(data[begin:at])
    return pieces if at == len(data) and any(pieces) else None


def _with_one_odd(pieces: list[bytes]) -> Iterator[bytes]:
    """The pieces together, one of them odd."""
    for place, piece in enumerate(pieces):
        for other in (other for other in odd(piece) if len(other) < _LONGEST):
            yield joined(*pieces[:place], other, *pieces[place + 1 :])


def _json(data: bytes) -> Any:
    try:
        tree = json.loads(data)
    except ValueError:
        return None
    return tree if isinstance(tree, dict | list) else None


def _yaml(data: bytes) -> Any:
    """The keys and values of YAML that is not JSON; they are written as JSON, which YAML can read."""
    try:
        tree = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    return tree if isinstance(tree, dict) else None


def _text(tree: Any) -> bytes:
    return json.dumps(tree, default=str).encode()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable() or not set(data) & set(range(9))
    except UnicodeDecodeError:
        return False
