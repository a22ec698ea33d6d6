"""insightface's training sets: a folder of `train.rec`, `train.idx` and `property`.

    record 0            flag 2, no payload, labels [h, e]: the images are the records 1 to h − 1
    records 1 to h − 1  an image each: its encoded bytes, after the label (flag 0), or after [label, aligned] (flag 2)
    records h to e − 1  an identity each: flag 2, no payload, labels [a, b]: its images are the records a to b − 1
    property            a line `identities,height,width`

A file without such a record 0 holds images alone. Source: the readers and writers of insightface's recognition code
(`arcface_torch/dataset.py`, `common/face2rec2.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import beside, check_free, put_in_place, writing
from coalface.core.errors import DataError
from coalface.core.text import several
from coalface.data.readers.recordio import FETCH, RecordFile, Records, header, open_records, write_record
from coalface.data.source import DECODER, decode, in_order

EXACT = 1 << 24
"""Up to here a float32, in which the format keeps record numbers and labels, holds every whole number."""
LABELS = 1 << 31
"""Labels from here on are taken for damage."""

_BLOCK = 1 << 18
_AHEAD = 1 << 12  # records whose headers are read at once while their images are decoded


@dataclass(frozen=True)
class RecFiles(Sequence[str]):
    """(n,) `identity/record number` of each image, made when asked for: a set may have millions."""

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    keys: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return RecFiles(self.names, self.labels[i], self.keys[i])
        return f"{self.names[self.labels[i]]}/{self.keys[i]:08d}"


@dataclass(frozen=True, eq=False)
class Rec:
    """The images of a record file, found but not yet decoded: a `Source`."""

    records: RecordFile
    names: tuple[str, ...]
    """The labels that occur, in ascending order, with zeros before them so that they sort as text as well."""
    labels: NDArray[np.int64]
    keys: NDArray[np.int64]
    """(n,) the record of each image."""
    identities: NDArray[np.int64]
    """(k,) the records that give an identity's range; their two labels are its first image and one past the last."""
    announced: tuple[int, int, int] | None
    """Identities, height and width, as the file `property` says; None without one."""
    stamp: str
    faults: dict[int, DataError]
    """What is wrong with the records that were left out, by record; empty unless that was asked for."""
    broken: tuple[str, ...] = ()
    """What is wrong with the header record, the file `property`, and the end of a file without an index, likewise."""

    @property
    def files(self) -> RecFiles:
        """(n,) where each image comes from, as `label/record number`."""
        return RecFiles(self.names, self.labels, self.keys)

    def encoded(self, i: int) -> memoryview:
        """The encoded bytes of an image."""
        return self.records.read_many(self.keys[[i]]).payload(0)

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, (size, size, 1 or 3); DataError names the record of a damaged one."""
        for keys in _blocks(self.keys, _AHEAD):
            records = self.records.read_many(keys)

            def read(i: int, records: Records = records) -> NDArray[np.uint8]:
                where = f"{self.records.path}, record {records.keys[i]}"
                return decode(records.payload(i), where, size=size, grey=grey)

            yield from in_order(read, len(keys))

    def fingerprint(self) -> str:
        """SHA-256 over sizes and times of change of the record file and its index."""
        return self.stamp


def read_rec(path: str | os.PathLike[str], *, damaged: Literal["error", "leave out"] = "error") -> Rec:
    """Open insightface's record file: `path` is the folder that holds `train.rec`, or the `.rec` file.

    The index lies beside it under the same name with `.idx`; where there is none, the file is read through once and
    its records are numbered as they lie. All headers are read and checked here, no image is.

    Raises FileNotFoundError if there is no such file; DataError for a file that is empty or damaged, a record that
    lacks its image, and a label that is no whole number from 0 on. To `leave out` what is damaged, for an inspection:
    what is wrong with each record is in `faults`, with the rest in `broken`, and an error is only what makes the whole
    file unreadable.
    """
    path = Path(path)
    path = path / "train.rec" if path.is_dir() else path
    index = path.with_suffix(".idx")
    broken: list[str] | None = [] if damaged == "leave out" else None
    records = open_records(path, index if index.exists() else None, broken)
    try:
        images, identities, exact = _by_header(records)
    except DataError as error:
        if broken is None:
            raise
        broken.append(str(error))
        images, identities, exact = *_by_form(records), True
    if not len(images):
        raise DataError(f"it has no images, only {len(records.keys):,} records of other kinds; {FETCH}", where=path)
    faults = {} if broken is None else records.faults(images)
    images = images[~np.isin(images, list(faults))] if faults else images
    headers = [(block.label, block.lengths == 0) for block in map(records.read_many, _blocks(images))]
    raw, empty = (np.concatenate(column) for column in zip(*headers, strict=True)) if headers else (images, images > 0)
    if not exact and not np.all(empty):  # a rounded border may have let in a few of the identities' records
        image_count = len(empty) - int(np.argmin(empty[::-1]))
        images, raw, empty = images[:image_count], raw[:image_count], empty[:image_count]
    whole = (raw >= 0) & (raw < LABELS) & (raw == np.floor(raw))
    sound = whole & ~empty
    for key, label, numbered in zip(images[~sound].tolist(), raw[~sound].tolist(), whole[~sound].tolist(), strict=True):
        why = "it has no image" if numbered else f"its label is {label}, which is not a whole number, 0 or more"
        faults[key] = DataError(f"{why}; {FETCH}", where=f"{path}, record {key}")
    if faults and (broken is None or not np.any(sound)):
        raise faults[min(faults)]
    images, raw = images[sound], raw[sound]
    classes, labels = np.unique(raw.astype(np.int64), return_inverse=True)
    width = len(str(classes[-1]))
    names = tuple(f"{label:0{width}d}" for label in classes.tolist())
    stamp = hashlib.sha256(f"insightface records, decoder {DECODER}\n".encode())
    for file in (path, records.index):
        if file is not None:
            status = file.stat()
            stamp.update(f"{status.st_size}\0{status.st_mtime_ns}\n".encode())
    announced = None
    try:
        announced = _property(path.with_name("property"))
    except DataError as error:
        if broken is None:
            raise
        broken.append(str(error))
    labels, broken_texts = labels.astype(np.int64), tuple(broken or ())
    return Rec(records, names, labels, images, identities, announced, stamp.hexdigest(), faults, broken_texts)


def _by_header(records: RecordFile) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """The images' records, the identities' records, and whether the border between them is exact, by record 0.

    A header record has labels and no payload. Any other record 0, or none, means that all records are images. Raises
    DataError where what it announces cannot be.
    """
    keys, where = records.keys, f"{records.path}, record 0"
    zero = records.read_many(keys[:1])
    if keys[0] != 0 or zero.flags[0] == 0 or zero.lengths[0] > 0:
        return keys, keys[:0], True
    border, end = float(zero.label[0]), float(zero.second[0])
    if not (1 <= border <= end < 1 << 62 and border == int(border) and end == int(end)):
        raise DataError(
            f"it should give the first identity's record and one past the last, and gives {border:g} and {end:g}; "
            f"{FETCH}",
            where=where,
        )
    images, identities = keys[(keys > 0) & (keys < border)], keys[(keys >= border) & (keys < end)]
    exact = end <= EXACT
    if exact and (missing := int(end) - 1 - len(images) - len(identities)):
        raise DataError(
            f"it announces images up to record {border - 1:.0f} and identities up to {end - 1:.0f}, and {missing:,} of "
            f"these records are missing; {FETCH}",
            where=where,
        )
    return images, identities, exact


def _by_form(records: RecordFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The images' and the identities' records without record 0: two labels and no payload make an identity's."""
    keys = records.keys[1:]
    sound = keys[~np.isin(keys, list(records.faults(keys)))]
    headers = [(rows, records.read_many(rows)) for rows in _blocks(sound)]
    identities = np.concatenate([sound[:0], *(rows[(h.lengths == 0) & (h.flags == 2)] for rows, h in headers)])
    return keys[~np.isin(keys, identities)], identities


def _property(path: Path) -> tuple[int, int, int] | None:
    """Identities, height and width as the file says; None where there is none."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        text = file.read(200)
    match = re.fullmatch(rb"\s*(\d{1,9}),(\d{1,9}),(\d{1,9})\s*", text)
    if match is None:
        raise DataError(
            f"it says {text[:40]!r} where a line `identities,height,width` is expected, as 85742,112,112: correct it, "
            "or delete it",
            where=path,
        )
    return int(match[1]), int(match[2]), int(match[3])


def _blocks(rows: NDArray[np.int64], length: int = _BLOCK) -> Iterator[NDArray[np.int64]]:
    return (rows[start : start + length] for start in range(0, len(rows), length))


def write_rec(
    images: Iterable[tuple[int, bytes]], folder: str | os.PathLike[str], *, size: tuple[int, int] = (112, 112)
) -> None:
    """Write encoded images, (label, bytes) in turn, into a new folder as `train.rec`, `train.idx` and `property`.

    The labels are 0, 1, 2, … with the images of each identity together, since an identity's record names a range.
    `size` is the images' height and width, for `property`. Images have flag 0, and their bytes are kept as they are.
    The folder is written beside its place and renamed.

    Raises FileExistsError if something is at `folder`, and ValueError for labels in another order, for an image
    without bytes or too long for a record, without any image, and for more images than `check_room` allows.
    """
    folder = Path(folder)
    check_free(folder)
    with beside(folder) as partial:
        partial.mkdir()
        record, listed = partial / "train.rec", partial / "train.idx"
        with writing(record), open(record, "wb") as out, open(listed, "w", encoding="ascii") as index:
            identities = _write(images, out, index)
        with writing(partial / "property"):
            (partial / "property").write_text(f"{identities},{size[0]},{size[1]}\n", encoding="ascii")
        put_in_place(partial, folder)


def check_room(images: int, identities: int) -> None:
    """Raise ValueError if one record file cannot hold so many images of so many identities.

    They are the records 1 to images + identities, and record 0 says in float32 which comes after the last; float32
    holds every whole number up to 2²⁴. The labels, 0 to identities − 1, are smaller and so are held as well.
    """
    if images + identities + 1 > EXACT:
        raise ValueError(
            f"{several(images, 'image')} of {several(identities, 'identity', 'identities')} are too many for one file: "
            f"record numbers and labels are kept as float32, which holds whole numbers up to {EXACT:,}; split the set "
            "into several files"
        )


def _write(images: Iterable[tuple[int, bytes]], out: BinaryIO, index: TextIO) -> int:
    """Write all the records; returns how many identities there were."""
    key = offset = 0

    def put(record: bytes) -> None:
        nonlocal key, offset
        index.write(f"{key}\t{offset}\n")
        offset += write_record(out, record)
        key += 1

    put(header([0.0, 0.0]))  # of the same length as it has in the end
    first: list[int] = []  # the first image of each identity
    for label, image in images:
        if label == len(first):
            first.append(key)
        elif not first or label != len(first) - 1:
            expected = f"{len(first) - 1} or {len(first)}" if first else "0"
            raise ValueError(
                f"image {key - 1} has label {label} where {expected} was expected: records are written identity by "
                "identity, with the labels 0, 1, 2, …; number the identities without gaps and sort the images by them"
            )
        check_room(key, len(first))
        if not image:
            raise ValueError(f"image {key - 1} (label {label}) has no bytes: replace it from the original")
        try:
            put(header(int(label), id=key) + image)
        except ValueError as error:
            raise ValueError(f"image {key - 1} (label {label}): {error}") from error
    if not first:
        raise ValueError("there are no images to write; check their source")
    border, end = key, key + len(first)
    for a, b in zip(first, [*first[1:], border], strict=True):
        put(header([a, b], id=key))
    out.seek(0)
    write_record(out, header([border, end]))
    return len(first)
