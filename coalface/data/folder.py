"""Identity folders: `root/IDENTITY/image.jpg`, one folder per person. LFW, as it is distributed, is one of these."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.data.source import DECODER, decode, in_order
from coalface.data.words import shown

SUFFIXES = (".jpg", ".jpeg", ".png", ".pgm", ".bmp", ".webp")
"""The endings that make a file an image, in capitals or not."""


@dataclass(frozen=True, eq=False)
class Folder:
    """The images below `root`, found but not yet read: a `Source`."""

    root: Path
    names: tuple[str, ...]
    files: tuple[str, ...]
    labels: NDArray[np.int64]
    stamp: str
    """SHA-256 over `DECODER` and each image's name, size in bytes and time of change."""

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, (size, size, 1 or 3); ValueError names a damaged file."""

        def read(i: int) -> NDArray[np.uint8]:
            path = self.root / self.files[i]
            return decode(path.read_bytes(), str(path), size=size, grey=grey)

        return in_order(read, len(self.files))

    def fingerprint(self) -> str:
        """The stamp taken when the folder was listed."""
        return self.stamp


def read_folder(root: str | os.PathLike[str]) -> Folder:
    """List the identities and images of `root`, both sorted by the bytes of their names.

    A folder below `root` is an identity if it holds an image. Names that start with a dot are passed over, and so is
    all that is not an image. Only names, sizes and times of change are read here.

    Raises FileNotFoundError if `root` is not a folder, ValueError if no identity is in it.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{shown(root)} is not a folder: give the folder that holds one folder of images per identity"
        )
    found = [(name, f"{name}/{file}") for name in folders_in(root) for file in images_in(root / name)]
    if not found:
        loose = len(images_in(root))
        reason = f"its {loose} images lie in no identity's folder" if loose else "no folder below it holds an image"
        raise ValueError(
            f"{shown(root)} is not a set of identity folders: {reason}. Put the images of each person into a folder of "
            f"that person's name, as {shown(root.name)}/NAME/photo.jpg ({', '.join(SUFFIXES)})"
        )
    return list_images(root, found)


def list_images(root: Path, found: Iterable[tuple[str, str]]) -> Folder:
    """The given images as a `Folder`: each an identity and the image's path below `root`, in the order given.

    Identities are numbered as they first come. Only sizes and times of change are read.
    """
    numbers: dict[str, int] = {}
    files: list[str] = []
    labels: list[int] = []
    stamp = hashlib.sha256(f"decoder {DECODER}\n".encode())
    for name, file in found:
        status = os.stat(root / file)
        stamp.update(os.fsencode(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n"))
        files.append(file)
        labels.append(numbers.setdefault(name, len(numbers)))
    return Folder(root, tuple(numbers), tuple(files), np.array(labels, dtype=np.int64), stamp.hexdigest())


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in `folder` that do not start with a dot, sorted by their bytes."""
    return sorted((e.name for e in os.scandir(folder) if e.is_dir() and _visible(e)), key=os.fsencode)


def images_in(folder: Path) -> list[str]:
    """The names of the image files in `folder`, sorted by their bytes; neither dotted ones nor folders."""
    return sorted((e.name for e in os.scandir(folder) if _is_image(e)), key=os.fsencode)


def _visible(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".")


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES) and _visible(entry) and entry.is_file()
