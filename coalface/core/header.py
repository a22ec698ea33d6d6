"""The header of an encoding: its grammar, its bounds, where tensors lie, and the reading of its bytes.

The bytes come from elsewhere. The header is matched against one grammar as it stands, and what it speaks of is bounded,
before anything is made of it that takes memory; nothing is ever executed.
"""

from __future__ import annotations

import functools
import json
import math
import re
import typing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coalface.core.declarations import Tensors, kind_of, without_none
from coalface.core.parsing import LONGEST, parse_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""What types are called in the bytes."""

TENSORS = 1 << 17
"""The most tensors of a value that is kept: a state may hold some of each party."""
SENT = 1 << 13
"""The most tensors of a message. A message holds a few models, and a backbone of 200 layers has under 2,000 tensors;
what there is of each identity or party is rows of one."""
FREE = 1 << 30
"""The most bytes of a `free()` field: half a million class embeddings of 512 numbers."""
TENSOR_HEADER = 512
"""The most bytes that a tensor takes of a header."""
_VALUES = 12 * TENSORS + LONGEST
"""The most values that its JSON holds: its type, its shape, where it lies and its mention, for each tensor."""
_REMEMBERED = 1 << 16
"""The longest header of which what it says of its tensors is remembered."""
_EMPTY = torch.empty(0)
_DIMENSIONS = 64
_SIMPLE = r"[ !#-\[\]-~]*+"  # what needs no escape: the bytes are ASCII
_NAME = rf'"{_SIMPLE}(?:\\[ -~]{_SIMPLE})*+"'
_NUMBERS = rf"(?:\d{{1,16}}(?:, ?\d{{1,16}}){{0,{_DIMENSIONS - 1}}})?"
_ENTRY = rf'({_NAME}): ?{{"dtype": ?"(\w{{2,4}})", ?"shape": ?\[({_NUMBERS})\], ?"data_offsets": ?\[({_NUMBERS})\]}}'
_TENSOR = re.compile(_ENTRY.encode())
_HEAD = re.compile(
    rf'{{"__metadata__": ?{{"coalface": ?("{_SIMPLE}(?:\\["\\]{_SIMPLE})*+")}}'
    rf"(?:, ?{re.sub(r'[(](?![?])', '(?:', _ENTRY)})*+}} *".encode()
)
"""The header as `pack` writes it. Anything else is refused at its first wrong byte, before it takes memory: an empty
list takes two bytes in the text and sixty when it has been read."""
_OFFSETS, _MARKS = b'"data_offsets":', ('":true', '": true')
"""One for each tensor in a header, where the quotes of a name are escaped, and in a message's plain values."""
_NUMBER = r"-?\d[\d.eE+-]{0,320}|NaN|-?Infinity"


class WireError(ValueError):
    """Bytes that are not an encoding of the declared class, or a value that has no encoding."""


@functools.cache
def hints(cls: Any) -> dict[str, Any]:
    """The resolved annotations of a declared class."""
    return typing.get_type_hints(cls)


def most_tensors(cls: Any) -> int:
    """The most tensors of a value of class `cls`."""
    return SENT if kind_of(cls) == "message" else TENSORS


@functools.cache
def _form(cls: type) -> re.Pattern[str]:
    """The JSON of a message's plain values."""
    marks = rf"{{(?:{_NAME}: ?true(?:, ?(?=\")|(?=}})))*+}}"
    forms = {Tensor: "true", bool: "true|false", str: _NAME, int: _NUMBER, float: _NUMBER}
    fields = []
    for name, annotation in hints(cls).items():
        inner, optional = without_none(annotation)
        form = marks if inner == Tensors else forms[inner]
        fields.append(rf'"{name}": ?(?:{form}{"|null" if optional else ""})')
    return re.compile("{" + ", ?".join(fields) + "}")


@dataclass(frozen=True)
class Entry:
    """One piece of an encoding: the header with its plain values, or one tensor."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Table:
    """Where the tensors of an encoding lie, by their names, types and shapes."""

    text: str
    """What the header says of them."""
    entries: tuple[Entry, ...]
    runs: tuple[tuple[torch.dtype, tuple[str, ...], int, int], ...]
    """(type, names, begin, end) of those of one type, which follow each other."""
    size: int


@functools.lru_cache(32)  # the same tensors leave in every round
def table_of(forms: tuple[tuple[str, torch.dtype, torch.Size], ...]) -> Table:
    ordered = sorted(forms, key=lambda form: -form[1].itemsize)  # keeps every tensor aligned
    entries, listed, runs, offset = [], {}, list[Any](), 0
    for name, dtype, shape in ordered:
        if dtype not in NAMES:
            raise WireError(f"{name}: {dtype} has no encoding; use one of {list(DTYPES)}.")
        end = offset + shape.numel() * dtype.itemsize
        listed[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        entries.append(Entry(name, "tensor", tuple(shape), NAMES[dtype], end - offset))
        if runs and runs[-1][0] == dtype:
            runs[-1] = (dtype, [*runs[-1][1], name], runs[-1][2], end)
        else:
            runs.append((dtype, [name], offset, end))
        offset = end
    text = json.dumps(listed, separators=(",", ":"))[1:-1]
    return Table(text, tuple(entries), tuple((d, tuple(n), b, e) for d, n, b, e in runs), offset)


def read_tensors(data: bytearray | memoryview, cls: type, longest: int | None = None) -> tuple[dict[str, Tensor], Any]:
    label, most = cls.__name__, most_tensors(cls)
    longest = most * TENSOR_HEADER if longest is None else longest
    try:
        view = memoryview(data)
        length = int.from_bytes(view[:8], "little")
        if length > min(longest, len(view) - 8):
            raise WireError(f"{label}: {len(view):,} bytes with a header of {length:,}; at most {longest:,} are read.")
        listed = bytes(view[8 : 8 + length]).count(_OFFSETS)
        if listed > most:
            raise WireError(f"{label}: {listed:,} tensors; at most {most:,} are read.")
        head = _HEAD.fullmatch(view, 8, 8 + length)
        if head is None:
            raise WireError(f"{label}: the bytes are not an encoding: their header is not of its form.")
        begin, end = head.span(1)
        if kind_of(cls) == "message" and end - begin > LONGEST + 2 * (length - end + begin):
            raise WireError(f"{label}: {end - begin:,} bytes of plain values, for {length - end + begin:,} of tensors.")
        plain = json.loads(str(view[begin:end], "ascii"))
        if listed > 2 * plain.count("true"):  # one that is narrowed has scales beside it
            raise WireError(f"{label}: {listed:,} tensors, more than its plain values speak of.")
        if kind_of(cls) != "message":  # floats of files may be infinite, and `validate` names the others
            skeleton = parse_json(plain, longest=longest, values=_VALUES, any_number=True)
        elif sum(map(plain.count, _MARKS)) > 2 * listed + LONGEST // 8:  # a name, or a text, may hold one too
            raise WireError(f"{label}: {listed:,} tensors, fewer than its plain values speak of.")
        elif _form(cls).fullmatch(plain):
            skeleton = json.loads(plain)
        else:
            raise WireError(f"{label}: the bytes do not hold its fields; sender and receiver must run one version.")
        listed_text = bytes(view[end : 8 + length])
        runs, body = (_runs if length <= _REMEMBERED else _runs.__wrapped__)(listed_text, label)
        if 8 + length + body != len(view):
            raise WireError(f"{label}: {len(view)} bytes, but its header speaks of {8 + length + body}.")
        tensors: dict[str, Tensor] = {}
        for run in runs:
            count, offset = sum(run.counts), 8 + length + run.begin
            flat = (
                torch.frombuffer(view, dtype=run.dtype, count=count, offset=offset) if count else _EMPTY.to(run.dtype)
            )
            parts = zip(run.names, flat.split_with_sizes(run.counts), run.shapes, strict=True)
            tensors.update((name, part.view(shape)) for name, part, shape in parts)
    except WireError:
        raise
    except Exception as error:  # of bytes from elsewhere, any
        raise WireError(f"{label}: the bytes are not an encoding ({type(error).__name__}: {error}).") from error
    return tensors, skeleton


@dataclass
class _Run:
    """Tensors of one type that follow each other."""

    dtype: torch.dtype
    begin: int
    names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@functools.lru_cache(32)  # the same tensors come in every round
def _runs(text: bytes, label: str) -> tuple[list[_Run], int]:
    """What the header says of tensors, and the bytes of them all. Raises WireError where these are not in a row."""
    runs: list[_Run] = []
    names: set[str] = set()
    expected = 0
    for entry in _TENSOR.finditer(text):
        name, dtype, shape = json.loads(entry[1]), DTYPES[entry[2].decode()], _numbers(entry[3])
        begin, end = _numbers(entry[4])
        count = math.prod(shape)
        if name in names or begin != expected or end - begin != count * dtype.itemsize:
            raise WireError(f"{label}: tensor {name!r} does not lie where its header says, or is there twice.")
        if not runs or runs[-1].dtype != dtype:
            runs.append(_Run(dtype, begin))
        runs[-1].names.append(name)
        runs[-1].shapes.append(shape)
        runs[-1].counts.append(count)
        names.add(name)
        expected = end
    return runs, expected


def _numbers(text: bytes) -> list[int]:
    return [int(number) for number in text.split(b",") if number]
