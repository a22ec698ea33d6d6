"""Whether the identities' records of an insightface file fit the images that they name, for an inspection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import several, shown
from coalface.data.readers.records import EXACT, Rec


def misfits(rec: Rec) -> Iterator[str]:
    """What is wrong with the identities' records, each with its number; nothing for a file without any.

    Identity k's record gives a range [a, b) of records. The ranges begin before they end, lie among the images, do not
    overlap, and leave out no image; the images of a range have one label, which is k, or, in a file whose labels have
    gaps, above that of the range before. Ranges that reach above `EXACT`, where numbers are rounded, are passed over.
    """
    if not len(rec.identities):
        return
    path, border = shown(rec.records.path), int(rec.identities[0])
    faults = rec.records.faults(rec.identities)
    yield from map(str, faults.values())
    readable = rec.identities[~np.isin(rec.identities, list(faults))]
    records = rec.records.read_many(readable)
    sound: list[tuple[int, int, int]] = []
    columns = (readable, records.flags, records.lengths, records.label, records.second)
    for key, flag, length, a, b in zip(*(column.tolist() for column in columns), strict=True):
        where = f"{path}, record {key}"
        if flag != 2 or length:
            yield f"{where}: it should be an identity's range, two labels without an image, and is something else"
        elif not (a < b and a.is_integer() and b.is_integer()):
            yield f"{where}: its range, {a:g} to {b:g}, is empty"
        elif a < 1 or b > border:
            yield f"{where}: its range, {a:.0f} to {b - 1:.0f}, reaches beyond the images, records 1 to {border - 1}"
        elif b <= EXACT:
            sound.append((key, int(a), int(b)))
    yield from _overlaps(path, sound)
    yield from _labels(path, rec, border, sound)
    if border <= EXACT and len(sound) == len(rec.identities):
        yield from _left_out(path, rec.keys, sound)
    last = int(rec.identities[-1])
    if last <= EXACT and (after := int(np.count_nonzero(rec.records.keys > last))):
        yield f"{path}, record 0: it announces records up to {last}, and the file has {several(after, 'record')} more"


def _overlaps(path: str, ranges: list[tuple[int, int, int]]) -> Iterator[str]:
    furthest, owner = 0, -1
    for a, key, b in sorted((a, key, b) for key, a, b in ranges):
        if a < furthest:
            yield f"{path}, record {key}: its range, {a} to {b - 1}, overlaps that of record {owner}"
        if b > furthest:
            furthest, owner = b, key


def _left_out(path: str, keys: NDArray[np.int64], ranges: list[tuple[int, int, int]]) -> Iterator[str]:
    covered = np.zeros(len(keys), bool)
    for begin, end in np.searchsorted(keys, [bounds[1:] for bounds in ranges]).tolist():
        covered[begin:end] = True
    if len(outside := keys[~covered]):
        yield (
            f"{path}, record {outside[0]}: no identity's range holds it (so for {several(len(outside), 'image')} of "
            f"{len(keys):,})"
        )


def _labels(path: str, rec: Rec, border: int, ranges: list[tuple[int, int, int]]) -> Iterator[str]:
    """Ranges with several labels, and with the label of another identity."""
    numbers = np.array([int(name) for name in rec.names])
    uniform: list[tuple[int, int]] = []  # identities' records and the label of their images
    for key, a, b in ranges:
        begin, end = np.searchsorted(rec.keys, (a, b))
        labels = rec.labels[begin:end]
        if not len(labels):
            continue  # all of them damaged, which is said of each
        first = int(labels[0])
        if np.any(strange := labels != first):
            odd_key = rec.keys[begin:end][strange][0]
            label = numbers[labels[strange][0]]
            yield (
                f"{path}, record {key}: the images of its range, {a} to {b - 1}, have several labels: record "
                f"{rec.keys[begin]} has {numbers[first]} and record {odd_key} has {label}"
            )
        else:
            uniform.append((key, int(numbers[first])))
    in_place = 2 * sum(label == key - border for key, label in uniform) > len(uniform)
    before = -1
    for key, label in uniform:
        if label != key - border if in_place else label <= before:
            yield f"{path}, record {key}: it is identity {key - border}, and its images have the label {label}"
        before = label
