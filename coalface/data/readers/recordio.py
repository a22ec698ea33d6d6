"""RecordIO: one file of records and an index of where each begins, as MXNet defines it and insightface uses it.

All numbers are little-endian, and every part of a record begins at a multiple of 4:

    part      uint32 magic 0xCED7230A | uint32 kind << 29 | length | `length` bytes | zeros up to a multiple of 4
    kind      0 a whole record, 1 its first part, 2 a middle one, 3 the last
    record    uint32 flag | float32 label | uint64 id | uint64 id2 | `flag` × float32 labels | payload
    index     a line `record number, tab, offset of its first part` a record, in any order

A record in which the magic lies at a multiple of 4 is cut there into parts, and the magic itself is left out, so that
the magic at a multiple of 4 always begins a part. With flag 0 the record's label is the one in the header, else the
first of those that follow. Source: the format's description in dmlc-core (`recordio.h`) and MXNet (`recordio.py`).
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalface.core.errors import DataError
from coalface.core.text import shown
from coalface.data.readers.text_lines import read_numbers

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
LENGTH_BITS = 29
LONGEST = (1 << LENGTH_BITS) - 1
"""The most bytes that a record may have, 512 MiB less one."""

WHOLE, FIRST, MIDDLE, LAST = range(4)
_HEADER = struct.Struct("<IfQQ")
_FRAME = 8
_WINDOW = 10
"""Words of 4 bytes that are fetched of each record at once: the frame's 2, the header's 6, and 2 labels."""
_LINE = (rb"[0-9]{1,18}",) * 2

Number = TypeVar("Number", int, NDArray[np.int64])


@dataclass(frozen=True, eq=False)
class Records:
    """The headers of n records, and where the payload of each lies in `file.data`."""

    file: RecordFile
    keys: NDArray[np.int64]
    """(n,) their numbers."""
    offsets: NDArray[np.int64]
    """(n,) where each begins, in bytes."""
    flags: NDArray[np.int64]
    """(n,) how many labels follow the header."""
    label: NDArray[np.float32]
    """(n,) the label: the header's, or the first that follows it."""
    second: NDArray[np.float32]
    """(n,) the second label that follows; NaN where there is none."""
    starts: NDArray[np.int64]
    """(n,) the payload's first byte in `file.data`; −1 where the record has several parts."""
    lengths: NDArray[np.int64]
    """(n,) the payload's bytes."""

    def payload(self, i: int) -> memoryview:
        """The payload of the i-th: a view of the map, or a copy where the record has several parts."""
        if self.starts[i] < 0:
            whole = self.file.join(int(self.offsets[i]))
            return memoryview(whole)[len(whole) - int(self.lengths[i]) :]
        start = int(self.starts[i])
        return self.file.view[start : start + int(self.lengths[i])]


@dataclass(frozen=True, eq=False)
class RecordFile:
    """A record file, memory-mapped, and its index, in ascending order of the record numbers."""

    path: Path
    index: Path | None
    """The index that was read; None where the records were found by reading through the file."""
    view: memoryview
    """The whole file, a read-only map."""
    keys: NDArray[np.int64]
    """(N,) the record numbers, ascending."""
    offsets: NDArray[np.int64]
    """(N,) where each begins, in bytes."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """(bytes of the file,) the map as an array."""
        return np.frombuffer(self.view, np.uint8)

    def read_many(self, keys: ArrayLike) -> Records:
        """The records of these numbers in one call, in the order asked: headers parsed, payloads as places in the map.

        Raises DataError, which names the record, for a number that the index lacks and for the first record that is cut
        short or damaged, or that the index puts where none begins.
        """
        records, faults = self._survey(keys)
        if faults:
            raise faults[min(faults)]
        return records

    def faults(self, keys: ArrayLike) -> dict[int, DataError]:
        """What is wrong with which of these records, by record number; payloads are not looked into."""
        records, faults = self._survey(keys)
        return {int(records.keys[row]): fault for row, fault in faults.items()}

    def join(self, offset: int) -> bytes:
        """The record that begins at `offset`, header included, put together from its parts."""
        return MAGIC_BYTES.join(self.view[start : start + length] for start, length in _parts(self.view, offset))

    def _survey(self, keys: ArrayLike) -> tuple[Records, dict[int, DataError]]:
        """The records asked for, and what is wrong by row; a faulty row's figures mean nothing."""
        numbers = np.asarray(keys).astype(np.int64, casting="safe") if np.size(keys) else np.zeros(0, np.int64)
        rows = np.minimum(np.searchsorted(self.keys, numbers), len(self.keys) - 1)
        if np.any(missing := self.keys[rows] != numbers):
            raise DataError(
                f"{f'the index {self.index}' if self.index else 'the file'} has no record of this number, only "
                f"{len(self.keys):,} from {self.keys[0]} to {self.keys[-1]}; {_remedy(self.index)}",
                where=f"{self.path}, record {numbers[missing][0]}",
            )
        offsets = self.offsets[rows]
        size = len(self.view)
        # What lies after the end of the file is read as its last word; the checks below let no such word count.
        words = np.frombuffer(self.view, "<u4", size // 4)
        rows = words[np.minimum(offsets[:, None] // 4 + np.arange(_WINDOW), len(words) - 1)]
        kinds = rows[:, 1] >> LENGTH_BITS
        lengths = (rows[:, 1] & LONGEST).astype(np.int64)
        flags = rows[:, 2].astype(np.int64)
        label = np.where(flags > 0, rows[:, 8], rows[:, 3]).view("<f4")
        second = np.where(flags > 1, rows[:, 9].view("<f4"), np.float32(np.nan))
        before = _HEADER.size + 4 * flags
        starts, payload_lengths = offsets + _FRAME + before, lengths - before

        faults: dict[int, DataError] = {}
        bad = np.zeros(len(numbers), bool)
        for wrong, reason in (
            (offsets + _FRAME > size, "outside"),
            ((offsets % 4 != 0) | (rows[:, 0] != MAGIC) | (kinds >= MIDDLE), "astray"),
            (offsets + _FRAME + _padded(lengths) > size, "cut"),
            ((kinds == WHOLE) & (payload_lengths < 0), "short"),
        ):
            for row in np.flatnonzero(wrong & ~bad).tolist():
                faults[row] = self._fault(int(numbers[row]), int(offsets[row]), reason)
            bad |= wrong

        begin = functools.cache(self._begin)  # no index can make the same parts be walked often
        for row in np.flatnonzero((kinds == FIRST) & ~bad).tolist():
            try:
                total, head = begin(int(offsets[row]))
            except ValueError as reason:
                faults[row] = self._fault(int(numbers[row]), int(offsets[row]), str(reason))
                continue
            flag, header_label, *_ = _HEADER.unpack_from(head)
            follow = np.frombuffer(head, "<f4", min(flag, 2), _HEADER.size)
            flags[row], starts[row], payload_lengths[row] = flag, -1, total - _HEADER.size - 4 * flag
            label[row] = follow[0] if flag else header_label
            second[row] = follow[1] if flag > 1 else np.nan
        return Records(self, numbers, offsets, flags, label, second, starts, payload_lengths), faults

    def _begin(self, offset: int) -> tuple[int, bytes]:
        """The length of a record in parts, and its header with two labels where it has them; ValueError has a reason
        of `_REASONS`.
        """
        parts = _parts(self.view, offset)
        total = sum(length for _, length in parts) + len(MAGIC_BYTES) * (len(parts) - 1)
        needed = _HEADER.size + 8
        few = parts[: needed // len(MAGIC_BYTES) + 1]  # even empty parts bring a magic each
        head = MAGIC_BYTES.join(self.view[start : start + min(length, needed)] for start, length in few)[:needed]
        if total < _HEADER.size or total < _HEADER.size + 4 * _HEADER.unpack_from(head)[0]:
            raise ValueError("short")
        return total, head

    def _fault(self, key: int, offset: int, reason: str) -> DataError:
        remedy = {"astray": _remedy(self.index), "outside": _BOTH}.get(reason, FETCH)
        text = _REASONS[reason].format(offset=offset, size=len(self.view))
        return DataError(f"{text}; {remedy}", where=f"{self.path}, record {key}")


_REASONS = {
    "outside": "the index puts it at byte {offset:,}, outside the file of {size:,} bytes",
    "astray": "no record begins at byte {offset:,}, where the index puts it",
    "cut": "it begins at byte {offset:,} and goes on after the end of the file ({size:,} bytes)",
    "short": "at byte {offset:,} it is too short for the header and the labels that it claims",
    "parts": "its parts, from byte {offset:,} on, do not follow one another",
}
FETCH = "fetch the file again from where it came, or write it anew"
_BOTH = "fetch both files again: this one is cut short, or the index is another file's"


def open_records(
    path: str | os.PathLike[str], index: str | os.PathLike[str] | None, broken: list[str] | None = None
) -> RecordFile:
    """Map a record file and read its index; without one, read through the file and number the records as they lie.

    Raises FileNotFoundError for a missing file, DataError for an empty or damaged one. Where there is a list for what
    is `broken`, damage that is met on reading through is noted there, and the records before it are kept.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} is not a file; give a record file such as train.rec")
    if path.stat().st_size < _FRAME:
        raise DataError(f"it is empty, or cut short; {FETCH}", where=path)
    with open(path, "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if index is None:
        offsets = np.fromiter(_scan(path, view, broken), np.int64)
        return RecordFile(path, None, view, np.arange(len(offsets)), offsets)
    keys, offsets = read_index(index)
    return RecordFile(path, Path(index), view, keys, offsets)


def read_index(path: str | os.PathLike[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The record numbers of an index, ascending, and their offsets in bytes; the lines may come in any order.

    Raises DataError for a line that is anything but two numbers, and for a number that stands there twice.
    """
    path = Path(path)
    pairs = read_numbers(path, _LINE, "a record number, a tab and an offset", separator=b"\t", remedy=_remedy(path))
    keys, offsets = np.concatenate(list(pairs)).T
    if np.any(np.diff(keys) <= 0):
        order = np.argsort(keys, kind="stable")
        keys, offsets = keys[order], offsets[order]
        if np.any(twice := np.diff(keys) == 0):
            raise DataError(f"it lists record {keys[1:][twice][0]} more than once; {_remedy(path)}", where=path)
    return keys, offsets


def header(label: float | Sequence[float], *, id: int = 0) -> bytes:
    """A record's header: flag 0 for a number, else the flag is how many labels follow."""
    if isinstance(label, int | float):
        return _HEADER.pack(0, label, id, 0)
    return _HEADER.pack(len(label), 0.0, id, 0) + struct.pack(f"<{len(label)}f", *label)


def write_record(out: BinaryIO, record: bytes) -> int:
    """Write a record (header and payload), in parts where it holds the magic at a multiple of 4; bytes written."""
    if len(record) > LONGEST:
        raise ValueError(
            f"a record of {len(record):,} bytes is too long: the format has {LENGTH_BITS} bits for a length, "
            f"{LONGEST:,} bytes; store the image smaller"
        )
    cuts = [match.start() for match in re.finditer(re.escape(MAGIC_BYTES), record) if match.start() % 4 == 0]
    begins, ends = [0, *(at + len(MAGIC_BYTES) for at in cuts)], [*cuts, len(record)]
    length = 0
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        kind = WHOLE if not cuts else FIRST if number == 0 else LAST if number == len(cuts) else MIDDLE
        out.write(struct.pack("<II", MAGIC, kind << LENGTH_BITS | end - begin))
        out.write(record[begin:end])
        out.write(bytes(-(end - begin) % 4))
        length += _FRAME + _padded(end - begin)
    return length


def _scan(path: Path, data: memoryview, broken: list[str] | None) -> Iterator[int]:
    """Where each record begins, found by going from one to the next."""
    offset = number = 0
    while offset < len(data):
        try:
            start, length = _parts(data, offset)[-1]
        except ValueError as reason:
            where = f"{path}, record {number}, at byte {offset:,}"
            fault = "it is cut short" if str(reason) == "cut" else "it is damaged"
            if broken is None or number == 0:
                raise DataError(f"{fault}; {FETCH}", where=where) from None
            text = f"{fault}, and {len(data) - offset:,} bytes from there on are left out; {FETCH}"
            broken.append(str(DataError(text, where=where)))
            return
        yield offset
        offset, number = start + _padded(length), number + 1


def _parts(data: memoryview, offset: int) -> list[tuple[int, int]]:
    """The first byte and the length of each part of the record that begins at `offset`; ValueError as `_begin`."""
    parts: list[tuple[int, int]] = []
    while True:
        if offset + _FRAME > len(data):
            raise ValueError("cut")
        magic, word = struct.unpack_from("<II", data, offset)
        kind, length = word >> LENGTH_BITS, word & LONGEST
        if magic != MAGIC or kind not in ((MIDDLE, LAST) if parts else (WHOLE, FIRST)):
            raise ValueError("parts")
        if offset + _FRAME + _padded(length) > len(data):
            raise ValueError("cut")
        if kind in (FIRST, MIDDLE) and length % 4:
            raise ValueError("parts")
        parts.append((offset + _FRAME, length))
        if kind in (WHOLE, LAST):
            return parts
        offset += _FRAME + length


def _remedy(index: Path | None) -> str:
    if index is None:
        return FETCH
    return f"fetch both files again, or delete {index.name}: the records are then found by reading through the other"


def _padded(length: Number) -> Number:
    return (length + 3) // 4 * 4
