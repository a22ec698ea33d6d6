"""Identity folders: `root/IDENTITY/image.jpg`, one folder per person. LFW, as it is distributed, is one of these."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.source import DECODER, decode, in_order

SUFFIXES = (".jpg", ".jpeg", ".png", ".pgm", ".ppm", ".pnm", ".pbm", ".bmp", ".webp")
"""The endings that make a file an image, in capitals or not."""
FILE_LIMIT = 1 << 29
"""The most bytes of an image's file, 512 MiB less one, as of a record: a sparse file can claim any length."""


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
        """Each image in turn, (size, size, 1 or 3); DataError names a damaged file."""

        def read(i: int) -> NDArray[np.uint8]:
            path = self.root / self.files[i]
            return decode(read_file(path), path, size=size, grey=grey)

        return in_order(read, len(self.files))

    def fingerprint(self) -> str:
        """The stamp taken when the folder was listed."""
        return self.stamp


def read_file(path: Path) -> bytes:
    """The bytes of an image's file; DataError, before anything is read, from `FILE_LIMIT` on."""
    if (length := path.stat().st_size) >= FILE_LIMIT:
        raise DataError(
            f"it has {length:,} bytes, and an image may have {FILE_LIMIT - 1:,}: if it is a photograph, scale it down; "
            "if not, delete it",
            where=path,
        )
    return path.read_bytes()


Faults = list[str] | None
"""Where to note what cannot be read, to go on with the rest; None: that is an error."""


def read_folder(root: str | os.PathLike[str], faults: Faults = None) -> Folder:
    """List the identities and images of `root`, both sorted by the bytes of their names.

    A folder below `root` is an identity if it holds an image. Names that start with a dot are passed over, and so is
    all that is not an image. Only names, sizes and times of change are read here.

    Raises FileNotFoundError if `root` is not a folder, and DataError if no identity is in it, and for what cannot be
    read, unless there are `faults` for it.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{shown(root)} is not a folder; give a folder with one folder of images per identity")
    images = [(name, f"{name}/{file}") for name in folders_in(root, faults) for file in images_in(root / name, faults)]
    if not images and faults:
        raise DataError(faults[0])
    if not images:
        raise DataError(
            f"not a set of identity folders: {_no_identities(root)}. Put the images of each person into a folder "
            f"named after that person, as {root.name}/NAME/photo.jpg ({', '.join(SUFFIXES)})",
            where=root,
        )
    return list_images(root, images, faults)


def _no_identities(root: Path) -> str:
    """Why a folder is not a set of identity folders: where the images lie instead."""
    if loose := images_in(root):
        return f"it has {several(len(loose), 'image')} in no identity's folder"
    deeper = [
        path.relative_to(root) for path in root.glob("[!.]*/[!.]*/**/[!.]*") if path.name.lower().endswith(SUFFIXES)
    ]
    if not deeper:
        return "no folder below it holds an image"
    lie = f"{several(len(deeper), 'image')} {'lies' if len(deeper) == 1 else 'lie'}"
    return (
        f"{lie} deeper, in folders within its folders, such as {min(deeper)}; give the folder right above those of the "
        "people"
    )


def list_images(root: Path, images: Iterable[tuple[str, str]], faults: Faults = None) -> Folder:
    """The given images as a `Folder`: each an identity and the image's path below `root`, in the order given.

    Identities are numbered as they first come. Only sizes and times of change are read; where that fails, it is a
    DataError, or goes into `faults`.
    """
    numbers: dict[str, int] = {}
    files: list[str] = []
    labels: list[int] = []
    stamp = hashlib.sha256(f"decoder {DECODER}\n".encode())
    for name, file in images:
        try:
            status = os.stat(root / file)
        except OSError as error:
            _note(root / file, error, faults)
            continue
        stamp.update(os.fsencode(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n"))
        files.append(file)
        labels.append(numbers.setdefault(name, len(numbers)))
    return Folder(root, tuple(numbers), tuple(files), np.array(labels, dtype=np.int64), stamp.hexdigest())


def folders_in(folder: Path, faults: Faults = None) -> list[str]:
    """The names of the folders in `folder` that do not start with a dot, sorted by their bytes."""
    return _listed(folder, lambda entry: entry.is_dir(), faults)


def images_in(folder: Path, faults: Faults = None) -> list[str]:
    """The names of the image files in `folder` that do not start with a dot, sorted by their bytes."""
    return _listed(folder, _is_image, faults)


def _listed(folder: Path, accepts: Callable[[os.DirEntry[str]], bool], faults: Faults) -> list[str]:
    names = []
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        _note(folder, error, faults)
        return []
    for entry in entries:
        try:
            if not entry.name.startswith(".") and accepts(entry):
                names.append(entry.name)
        except OSError as error:
            _note(Path(entry.path), error, faults)
    return sorted(names, key=os.fsencode)


def _note(path: Path, error: OSError, faults: Faults) -> None:
    """Note what cannot be read, or raise DataError of it."""
    linked = "it is a link that leads nowhere: mend it, or delete it"
    remedy = linked if path.is_symlink() else "give yourself access to it, or move it away"
    fault = DataError(f"it cannot be read ({error.strerror or error}); {remedy}", where=path)
    if faults is None:
        raise fault from error
    faults.append(str(fault))


def _is_image(entry: os.DirEntry[str]) -> bool:
    if not entry.name.lower().endswith(SUFFIXES):
        return False
    if entry.is_symlink():
        os.stat(entry.path)  # raises where it leads nowhere, of which is_file() says no more than False
    return entry.is_file()
