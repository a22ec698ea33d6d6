"""Lists of whole numbers with millions of lines, such as IJB's pairs of templates: checked line by line, read fast."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import shown

LARGEST = 999_999_999
"""The largest number that a list may hold: of a template, for example."""

CHUNK = 2**24
"""Bytes of a list of numbers that are looked at together."""

LONGEST = 2**16
"""Bytes after which a line of numbers must have ended."""

_SPACES = b" \t\r\n"
_ALLOWED = np.zeros(256, bool)
_ALLOWED[list(b"0123456789" + _SPACES)] = True


def not_a_line(where: str, line: str, wanted: str) -> ValueError:
    """What to raise of a line that is not what it should be."""
    return ValueError(f"{where}: {line.strip()[:80]!r} is not {wanted}; fetch the list again")


class Lines:
    """The number of the line that a row of numbers was read from."""

    def __init__(self, before: int, lines: Sequence[int] | None) -> None:
        self._before, self._lines = before, lines

    def __call__(self, row: int) -> int:
        return self._before + (row if self._lines is None else self._lines[row]) + 1


def numbers_of(
    path: Path, columns: int, wanted: str, separator: bytes = b""
) -> Iterator[tuple[Lines, NDArray[np.int64]]]:
    """The (n, columns) numbers of a list, and their lines, some 16 MiB of its text at a time."""
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} is missing: fetch the data set's protocol again")
    before, rest, empty = 0, b"", True
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        while text := file.read(CHUNK):
            end = text.rfind(b"\n") + 1
            if not end:
                rest += text
                if len(rest) > LONGEST:
                    raise ValueError(f"{shown(path)}, line {before + 1:,}: it does not end; fetch the list again")
                continue
            part, rest = rest + text[:end], text[end:]
            lines, numbers = _parsed(path, part, columns, wanted, separator, before)
            before += part.count(b"\n")
            if len(numbers):
                empty = False
                yield lines, numbers
    if rest.strip(_SPACES):
        empty = False
        yield _parsed(path, rest + b"\n", columns, wanted, separator, before)
    if empty:
        raise ValueError(f"{shown(path)} is empty: fetch it again")


def _parsed(
    path: Path, text: bytes, columns: int, wanted: str, separator: bytes, before: int
) -> tuple[Lines, NDArray[np.int64]]:
    """The numbers of whole lines, of which the first has the number `before` + 1."""
    lines = None
    if not _regular(text, columns, separator):
        # Lines without anything are passed over; every other must be as it should.
        lines = []
        pattern = re.compile(
            rb"\s*" + (rb"\s*" + separator + rb"\s*" if separator else rb"\s+").join([rb"\d+"] * columns)
        )
        each = text.split(b"\n")
        for n, line in enumerate(each):
            if line.strip(_SPACES):
                if not pattern.fullmatch(line.rstrip(_SPACES)):
                    what = line.decode("utf-8", "backslashreplace")
                    raise not_a_line(f"{shown(path)}, line {before + n + 1:,}", what, wanted)
                lines.append(n)
        text = b"\n".join(each[n] for n in lines)
    found = Lines(before, lines)
    plain = text.replace(separator, b" ") if separator else text
    numbers = np.fromstring(plain, np.int64, sep=" ") if plain else np.empty(0, np.int64)
    numbers = numbers.reshape(-1, columns)
    if numbers.size and numbers.max() > LARGEST:
        row = int(numbers.max(axis=1).argmax())
        raise ValueError(
            f"{shown(path)}, line {found(row):,}: a number is above {LARGEST:,}, which none of these lists needs; "
            "fetch the list again"
        )
    return found, numbers


def _regular(text: bytes, columns: int, separator: bytes) -> bool:
    """Whether every line is so many whole numbers, with white space or a separator between them, and a line feed."""
    codes = np.frombuffer(text, np.uint8)
    allowed = _ALLOWED.copy()
    allowed[list(separator)] = True
    if not allowed[codes].all():
        return False
    digit = codes >= ord("0")  # of what is allowed
    before = np.concatenate([[False], digit[:-1]])
    starts = np.flatnonzero(digit & ~before)
    ends = np.flatnonzero(codes == ord("\n"))
    if len(starts) != columns * len(ends):
        return False
    # As many numbers as there should be, those of a line all after the end of the line before: then none has too few.
    rows = starts.reshape(-1, columns)
    if not ((rows[:, -1] < ends).all() and (rows[1:, 0] > ends[:-1]).all()):
        return False
    if not separator:
        return True
    places = np.flatnonzero(codes == separator[0])
    if len(places) != (columns - 1) * len(ends):
        return False
    between = places.reshape(-1, columns - 1)
    return bool((between > rows[:, :-1]).all() and (between < rows[:, 1:]).all())
