"""The file names in a pack's index, which stay on the disk: of five million, only their places are in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError

_BETWEEN = b'], "files": ['
"""In `index.json`, between the identities' names and the files'; within a name its quotes would be escaped."""
_BLOCK = 1 << 20


class FileNames(Sequence[str]):
    """(n,) the strings of a JSON list in a file, each parsed when it is asked for: DataError for one that is none."""

    def __init__(self, file: Path, starts: NDArray[np.integer[Any]]) -> None:
        """`starts` is (n + 1,): where each string's first quote stands, and where that of one more would."""
        self._file = file
        with open(file, "rb") as opened:
            self._text = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        places = range(len(self))[index]
        return tuple(map(self._at, places)) if isinstance(places, range) else self._at(places)

    def _at(self, place: int) -> str:
        return str(self._parsed(self._text[self._starts[place] : self._starts[place + 1] - 2]))

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _BLOCK >> 8):
            last = min(first + (_BLOCK >> 8), len(self))
            yield from self._parsed(b"[%b]" % self._text[self._starts[first] : self._starts[last] - 2])

    def _parsed(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise DataError(f"it is damaged ({error}); pack its source again", where=self._file) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def surely_plain(self, longest: int) -> bool:
        """Whether all have at most so many letters, all ASCII, and name files in folders none of which is hidden.

        All are looked through at once, some hundred times as fast as one by one. Where it is False, they may be plain.
        """
        if int(np.diff(self._starts).max()) - 4 > longest:
            return False
        letters = np.frombuffer(self._text, dtype=np.uint8)
        for start in range(int(self._starts[0]), int(self._starts[-1]), _BLOCK):
            text = letters[start : start + _BLOCK + 1]
            ends = (text == ord('"')) | (text == ord("/"))
            unnamed = ends[:-1] & (ends[1:] | (text[1:] == ord(".")))  # nothing between two ends, or hidden
            if unnamed.any() or (text < 32).any() or (text > 126).any() or (text == ord("\\")).any():
                return False
        return True


def read_names(file: Path, count: int) -> tuple[tuple[str, ...], FileNames] | None:
    """The identities' names and the files of `count` images, of an index as `write_pack` writes it.

    None for a text of another form, or of another number of files: `json` then says what it is.
    """
    size = file.stat().st_size
    quotes: NDArray[np.integer[Any]] = np.empty(2 * count, dtype=np.uint32 if size < 1 << 32 else np.uint64)
    filled, head = 0, b""
    with open(file, "rb") as opened:
        while _BETWEEN not in head and (block := opened.read(_BLOCK)):
            head += block
        names_text, between, _ = head.partition(_BETWEEN)
        opened.seek(place := len(names_text) + len(between))
        while block := opened.read(_BLOCK):
            quotes_in_block = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord('"'))
            if filled + len(quotes_in_block) > len(quotes):
                return None
            quotes[filled : filled + len(quotes_in_block)] = quotes_in_block + place
            filled, place = filled + len(quotes_in_block), place + len(block)
        opened.seek(max(0, size - 3))
        ends = opened.read() == b'"]}'
    first, last = quotes[::2], quotes[1::2]
    if not (between and ends and filled == 2 * count and first[0] == len(names_text) + len(between)):
        return None
    if last[-1] != size - 3 or (first[1:] != last[:-1] + 3).any():  # a `", "` after each, also after one with escapes
        return None
    try:
        index = json.loads(names_text + b"]}")
    except (ValueError, RecursionError):
        return None
    names = index.get("names") if isinstance(index, dict) and len(index) == 1 else None
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        return None
    return tuple(names), FileNames(file, np.append(first, np.array(size, dtype=quotes.dtype)))
