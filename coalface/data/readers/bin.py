"""`.bin` verification packs of insightface (`lfw.bin`, `cfp_fp.bin`, `agedb_30.bin`, …): encoded images in pairs.

A pack is a pickle of a tuple of two lists: 2n encoded images, those of pair k at 2k and 2k + 1, and n truth values,
whether the two show one person. A pickle is a program, and loading one runs it; `bin_pickle.py` reads it without.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from mmap import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import beside
from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.pairs import PairList
from coalface.data.readers.bin_pickle import Damaged, Machine, Refused
from coalface.data.readers.headers import kind_of
from coalface.data.source import DECODER, decode, in_order

FOLDS = 10
"""Folds of a verification list by position, as insightface's own evaluation makes them."""

_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "pnm": ".ppm", "bmp": ".bmp", "webp": ".webp", None: ".jpg"}


@dataclass(frozen=True, eq=False)
class Bin:
    """The images of a verification pack, found but not yet read: a `Source`, with the pairs that they stand in.

    A pack does not say who is shown. Images are taken for one identity if they form a genuine pair, or are the same
    bytes, or are both linked to a third image in this way; so one person may go by several identities here.
    """

    path: Path
    data: NDArray[np.uint8]
    """The whole file, as a memory map; of one in which images stand as text, a copy, and behind it their bytes."""
    starts: NDArray[np.int64]
    """(2n,) where in the data each encoded image begins."""
    lengths: NDArray[np.int64]
    """(2n,) the bytes of each encoded image."""
    same: NDArray[np.bool_]
    """(n,) whether the images 2k and 2k + 1 show one person."""

    def __len__(self) -> int:
        return len(self.starts)

    def encoded(self, image: int) -> memoryview:
        """The encoded bytes of an image, a view of the data."""
        start = int(self.starts[image])
        return self.data.data[start : start + int(self.lengths[image])]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(2n,) the identity of each image, numbered as they first come; see above for how far it is known."""
        firsts: dict[bytes, int] = {}
        equal = [
            (i, firsts.setdefault(hashlib.blake2b(self.encoded(i), digest_size=16).digest(), i))
            for i in range(len(self))
        ]
        genuine = 2 * np.flatnonzero(self.same)
        return linked(len(self), [*equal, *zip(genuine.tolist(), (genuine + 1).tolist(), strict=True)])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The identities, as numbers: `00000`, `00001`, …."""
        return tuple(f"{k:05}" for k in range(int(self.labels.max()) + 1))

    @cached_property
    def files(self) -> tuple[str, ...]:
        """(2n,) `identity/place.jpg`, the place in the pack in five digits and the ending that the image's kind has."""
        kinds = (_SUFFIXES[kind_of(self.encoded(i))] for i in range(len(self)))
        return tuple(
            f"{self.names[k]}/{i:05}{kind}" for i, (k, kind) in enumerate(zip(self.labels, kinds, strict=True))
        )

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, (size, size, 1 or 3); DataError names the file and the number of a damaged image."""

        def read(i: int) -> NDArray[np.uint8]:
            return decode(self.encoded(i), f"{self.path}, image {i:,}", size=size, grey=grey)

        return in_order(read, len(self))

    def fingerprint(self) -> str:
        """SHA-256 over the decoder, the file's size and time of change, and where its images lie."""
        status = os.stat(self.path)
        digest = hashlib.sha256(f"bin, decoder {DECODER}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        for array in (self.starts, self.lengths, self.same):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def pairs(self) -> PairList:
        """The pairs, for a face set that holds the images in the pack's order, in ten folds by position."""
        left = 2 * np.arange(len(self.same), dtype=np.int64)
        return PairList(self.path.stem, left, left + 1, self.same, folds_by_position(len(left)))


def folds_by_position(pairs: int) -> NDArray[np.int64] | None:
    """(pairs,) the fold of each pair: consecutive parts, the first pairs mod `FOLDS` one longer. None if too few.

    This is how insightface's `verification.py` cuts a list (scikit-learn's KFold without shuffling).
    """
    if pairs < FOLDS:
        return None
    sizes = [pairs // FOLDS + (fold < pairs % FOLDS) for fold in range(FOLDS)]
    return np.repeat(np.arange(FOLDS, dtype=np.int64), sizes)


def linked(count: int, links: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """(count,) the group of each of `count` things, linked things being in one group; numbered as they first come."""
    parent = list(range(count))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for a, b in links:
        a, b = sorted((root(a), root(b)))
        parent[b] = a
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(root(i), len(numbers)) for i in range(count)], dtype=np.int64)


def read_bin(path: str | os.PathLike[str]) -> Bin:
    """Find the images and pairs of a verification pack; nothing in the file is executed.

    Raises FileNotFoundError without a file, and DataError, with the byte and a remedy, if the file is empty, cut short,
    damaged, no pack, or holds instructions that none of the forms in use needs.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} is not a file; give a verification pack such as lfw.bin")
    if path.stat().st_size == 0:
        raise DataError("it is empty; fetch it again", where=path)
    data = np.memmap(path, dtype=np.uint8, mode="r")
    assert isinstance(data.base, mmap)
    machine = Machine(data.base)
    try:
        spans, same = machine.run()
    except (Refused, Damaged) as error:
        text = f"the pack is cut short or damaged ({error}); fetch it again"
        if isinstance(error, Refused):
            text = (
                f"{error}, which no verification pack needs; nothing of it was run. If it came from a source that you "
                "trust, make it anew from its images and their list, by `coalface data convert FOLDER NEW.bin --pairs "
                "LIST` (in Python: write_bin); otherwise delete it, and load it with nothing else"
            )
        where = f"{path}, at byte {machine.at:,}, after {several(machine.images(), 'whole image')}"
        raise DataError(text, where=where) from None
    texts = np.frombuffer(machine.made, np.uint8)
    return Bin(
        path,
        np.concatenate([data, texts]) if len(texts) else data,
        np.array([span.start for span in spans], dtype=np.int64),
        np.array([span.length for span in spans], dtype=np.int64),
        np.array(same, dtype=bool),
    )


def write_bin(path: str | os.PathLike[str], images: Iterable[bytes | memoryview], same: Iterable[bool]) -> None:
    """Write 2n encoded images and n truth values as a verification pack, bytes in pickle protocol 3.

    insightface's own loader reads it: `pickle.load(f, encoding="bytes")`. One image is in memory at a time. The pack
    is written beside `path` and renamed when it is whole; what was at `path` is replaced.

    Raises ValueError for no image, an empty one, one of 4 GiB or more, or unless there are two images to each value.
    """
    path = Path(path)
    count = 0
    with beside(path) as partial, open(partial, "wb") as out:
        out.write(b"\x80\x03](")
        for image in images:
            if not 0 < len(image) < 1 << 32:
                raise ValueError(
                    f"image {count:,} has {several(len(image), 'byte')}: a pack holds images of 1 byte to 4 GiB"
                )
            out.write(b"e(" if count and count % 1000 == 0 else b"")  # as picklers do: lists grow by 1,000
            out.write(b"C" + bytes([len(image)]) if len(image) < 256 else b"B" + struct.pack("<I", len(image)))
            out.write(image)
            count += 1
        truths = [b"\x88" if value else b"\x89" for value in same]
        if count == 0 or count != 2 * len(truths):
            raise ValueError(
                f"{several(count, 'image')} and {several(len(truths), 'pair')}: a pack needs at least one pair, "
                "and the two images of pair k at the places 2k and 2k + 1"
            )
        parts = (b"".join(truths[i : i + 1000]) for i in range(0, len(truths), 1000))
        out.write(b"e](" + b"e(".join(parts) + b"e\x86.")
        out.close()
        os.replace(partial, path)
