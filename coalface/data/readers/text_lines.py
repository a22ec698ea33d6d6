"""Lists as text: their lines, and lists of whole numbers with millions of lines, such as IJB's pairs of templates."""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import shown

NUMBER = rb"[0-9]{1,9}"
"""A whole number of a list, as a pattern: up to `LARGEST`."""
LARGEST = 999_999_999
CHUNK = 2**24
"""Bytes of a list of numbers that are looked at together."""
LONGEST = 2**16
"""Bytes that a line may have beyond a chunk."""
FETCH = "fetch the list again"


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """File and line number, and the text, of each line of a list that is not blank.

    Raises FileNotFoundError where the list is missing, and DataError where it is no text, or empty.
    """
    _check_exists(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"not a text file: byte {error.start + 1:,} is not UTF-8; {FETCH}", where=path) from None
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError(f"it is empty; {FETCH}", where=path)
    yield from lines


def read_numbers(
    path: Path, fields: Sequence[bytes], meaning: str, *, separator: bytes = rb"[ \t]+", remedy: str = FETCH
) -> Iterator[NDArray[np.int64]]:
    """The (n, len(fields)) numbers of a list, some 16 MiB of its text at a time, so that no line can fill the memory.

    `fields` and the `separator` between them are patterns; `meaning` says in an error what a line should be. Blank
    lines are passed over. Raises FileNotFoundError where the list is missing, and DataError with the line for another
    form, and where the list is empty.
    """
    _check_exists(path)
    pattern = rb"(?: *+%b)?[ \t\r]*+\n" % separator.join(fields)
    lines = re.compile(rb"(?:%b)*+" % pattern)  # possessive: the time is linear
    before, rows = 0, 0
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        while text := file.read(CHUNK) + file.readline(LONGEST):
            text = text if text.endswith(b"\n") else text + b"\n"
            end = lines.match(text).end()  # type: ignore[union-attr]  # it matches nothing at the least
            if end < len(text):
                line = text[end : end + LONGEST].split(b"\n")[0].decode("utf-8", "backslashreplace")
                number = before + text.count(b"\n", 0, end) + 1
                raise line_error(f"{path}, line {number}", line, meaning, remedy)
            before += text.count(b"\n")
            plain = text.replace(b",", b" ")
            numbers = np.fromstring(plain, np.int64, sep=" ") if plain.strip() else np.empty(0, np.int64)
            rows += len(numbers)
            yield numbers.reshape(-1, len(fields))
    if not rows:
        raise DataError(f"it is empty; {remedy}", where=path)


def whole_number(text: str, where: str) -> int:
    """The number that a field of a line holds; DataError where it holds another thing."""
    if not re.fullmatch(NUMBER, text.encode("utf-8", "backslashreplace")):
        raise DataError(f"{text[:80]!r} should be a number; {FETCH}", where=where)
    return int(text)


def csv_fields(where: str, line: str, separator: str = ",") -> list[str]:
    """The fields of a line of a CSV file. Raises DataError for what is none."""
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error as error:
        raise DataError(f"not a line of a CSV file ({error}); {FETCH}", where=where) from None


def line_error(where: str, line: str, meaning: str, remedy: str = FETCH) -> DataError:
    """What to raise of a line that is not what it should be."""
    return DataError(f"{line.strip()[:80]!r} is not {meaning}; {remedy}", where=where)


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} does not exist; fetch the data set's protocol again")
