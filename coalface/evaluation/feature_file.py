"""Features of very many image files, a batch at a time, into a file that a stopped run goes on with."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import index
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from coalface.core.disk import write_json, writing
from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.folders import SUFFIXES, read_file
from coalface.data.source import DECODER, decode, in_order
from coalface.data.tools.progress_bar import counting
from coalface.models.embedding import raw_features, unit_features
from coalface.models.pretrained.input import WithInput
from coalface.models.pretrained.onnx import OnnxNetwork

BATCH = 256
"""Images that the model takes at a time."""
KEPT = 16
"""Batches after which the file says how far it is: what a stopped run loses at most."""
NAMED = 10
"""Images that an error names."""

Show = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""What counts images before a person's eyes: `data.tools.progress_bar.counting`."""
QUIET: Show = functools.partial(counting, quiet=True)


@dataclass(frozen=True, eq=False)
class Listed:
    """Images that a list names, found but not yet read."""

    names: Sequence[str]
    """(n,) as the list has them."""
    read: Callable[[int], NDArray[np.uint8]]
    """Image i as the model takes it, (height, width, channels); ValueError or OSError if it cannot be read."""
    stamp: str
    """SHA-256 over what the pixels depend on: names, sizes and times of change of the files, and landmarks."""

    def __len__(self) -> int:
        return len(self.names)


def find_files(folder: Path, names: Sequence[str], where: str, *, spellings: bool = False) -> tuple[list[str], str]:
    """The files below a folder that a list names, and a SHA-256 over their names, sizes and times of change.

    With `spellings`, a file may have an underscore where the list has a space, and another ending of an image. Raises
    FileNotFoundError for those that are missing, and DataError for a name that leads out of the folder; `where` is the
    list.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{shown(folder)} is not a folder; give that of the images in {where}")
    stamp = hashlib.sha256(f"decoder {DECODER}\n".encode())
    paths, missing = [], []
    for name in names:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise DataError(
                f"{shown(name[:80])} lies outside of the folder of images: fetch the list again", where=where
            )
        for path in (os.path.join(folder, text) for text in (_spelled(name) if spellings else [name])):
            try:
                status = os.stat(path)
            except (OSError, ValueError):  # ValueError: a name that holds a NUL
                continue
            stamp.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
            paths.append(path)
            break
        else:
            missing.append(name)
    if missing:
        raise FileNotFoundError(
            f"{len(missing):,} of {several(len(names), 'image')} of {where} {'is' if len(missing) == 1 else 'are'} not "
            f"below {shown(folder)}: {_some(missing)}; put them there"
        )
    return paths, stamp.hexdigest()


def listed_faces(
    folder: Path, names: Sequence[str], about: dict[str, Any], where: str, *, spellings: bool = False
) -> Listed:
    """Images that are faces already, at the size and with the channels that a model's `about` says."""
    size, grey = about["size"], about["channels"] == 1
    files, stamp = find_files(folder, names, where, spellings=spellings)

    def read(i: int) -> NDArray[np.uint8]:
        return decode(read_file(Path(files[i])), files[i], size=size, grey=grey)

    return Listed(names, read, f"{stamp} {size} {grey}")


def _spelled(name: str) -> Iterator[str]:
    yield from dict.fromkeys((name, name.replace(" ", "_")))
    stem, dot, ending = name.rpartition(".")
    if f"{dot}{ending}".lower() in SUFFIXES:
        for text in dict.fromkeys((stem, stem.replace(" ", "_"))):
            yield from (f"{text}{suffix}" for suffix in SUFFIXES if suffix != f".{ending}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(shown(name[:200]) for name in names[:NAMED]) + (", …" if len(names) > NAMED else "")


@contextlib.contextmanager
def folder_for(features: Path | None) -> Iterator[Path]:
    """The folder for features: the one that was asked for, or a temporary one that is deleted in the end."""
    if features is not None:
        features.mkdir(parents=True, exist_ok=True)
        yield features
        return
    with tempfile.TemporaryDirectory(prefix="coalface-features-") as temporary:
        yield Path(temporary)


def model_stamp(module: nn.Module) -> str:
    """SHA-256 over a model's tensors and their names, its input convention and, where it is one, the ONNX file."""
    digest = hashlib.sha256(repr(type(module)).encode())
    for part in module.modules():
        if isinstance(part, WithInput | OnnxNetwork):
            digest.update(part.extra_repr().encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Stream:
    """The features of some images in `NAME.f32`, float32 row by row, and in `NAME.json` whose they are.

    `kind` says what a row is: "unit" a feature of length one, "flipped" the same with the mirrored image's added
    before, "raw" a feature as the backbone gives it, "mirrored" that with the mirrored image's beside it.

    A file that is there already is gone on with, or used as it is if it is whole. Raises DataError where it belongs to
    another model, other images or another kind, and where it is cut short.
    """

    def __init__(self, folder: Path, name: str, module: nn.Module, images: Listed, kind: str) -> None:
        self._module, self._images, self._kind = module, images, kind
        self._rows, self._about = folder / f"{name}.f32", folder / f"{name}.json"
        self._settings = {"model": model_stamp(module), "images": images.stamp, "count": len(images), "kind": kind}
        self.embedded, self.width = self._begun()
        """How many rows are there, and how many numbers a row has: 0 where it is not known yet."""

    def _begun(self) -> tuple[int, int]:
        if not self._about.exists():
            return 0, 0
        try:
            about: dict[str, Any] = json.loads(self._about.read_bytes())
            count, width = index(about["done"]), index(about["width"])
            differ = [key for key, value in self._settings.items() if about[key] != value]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError("the file is damaged: delete it, and begin anew", where=self._about) from None
        if differ:
            raise DataError(
                f"it holds features of other settings (not the same: {', '.join(differ)}): choose another folder, or "
                f"delete it and {self._about.name}",
                where=self._rows,
            )
        length = self._rows.stat().st_size if self._rows.exists() else 0
        if not 0 <= count <= len(self._images) or width < 1 or length < 4 * count * width:
            raise DataError(
                f"the file is damaged: it holds {length:,} bytes of {count:,} rows; delete it and {self._about.name}, "
                "and begin anew",
                where=self._rows,
            )
        return count, width

    @property
    def remaining(self) -> int:
        """How many images are not embedded yet."""
        return len(self._images) - self.embedded

    def look(self, progress: Callable[[int], None] = lambda count: None) -> None:
        """Read every image that remains, and embed none. Raises DataError with those that cannot be read."""
        faults: dict[str, str] = {}

        def fault(k: int) -> str:
            try:
                self._images.read(self.embedded + k)
            except (OSError, ValueError) as error:
                return str(error) or type(error).__name__
            return ""

        for k, text in enumerate(in_order(fault, self.remaining)):
            if text:
                faults[self._images.names[self.embedded + k]] = text
            progress(k + 1)
        if faults:
            name, text = next(iter(faults.items()))
            raise DataError(
                f"{len(faults):,} of {several(self.remaining, 'image')} cannot be read: {_some(list(faults))} (of the "
                f"first: {shown(text)}); nothing of these was embedded",
                where=shown(name[:200]),
            )

    def embed(self, progress: Callable[[int], None] = lambda count: None) -> None:
        """Embed the others. Raises DataError for a feature that is not finite."""
        start, waiting = self.embedded, []
        with writing(self._rows), open(self._rows, "r+b" if self.embedded else "wb") as file:
            file.seek(4 * self.embedded * self.width)
            file.truncate()
            faces = in_order(lambda k: self._images.read(start + k), self.remaining)
            for place, face in enumerate(faces, start=start + 1):
                waiting.append(face)
                if len(waiting) == BATCH or place == len(self._images):
                    rows = self._features(np.stack(waiting), place - len(waiting))
                    self.width = rows.shape[1]
                    file.write(rows.tobytes())
                    waiting = []
                    progress(place - start)
                    if place % (KEPT * BATCH) == 0 or place == len(self._images):
                        file.flush()
                        os.fsync(file.fileno())
                        self.embedded = place
                        write_json(self._about, {**self._settings, "width": self.width, "done": place})

    def _features(self, faces: NDArray[np.uint8], first: int) -> NDArray[np.float32]:
        if self._kind in ("unit", "flipped"):
            rows = unit_features(self._module, faces, flip=self._kind == "flipped")
        else:
            rows = raw_features(self._module, faces, mirror=self._kind == "mirrored")
        if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
            raise DataError(
                "its feature is not finite: the model has diverged, or its weights were not loaded whole",
                where=shown(self._images.names[first + int(bad[0])][:200]),
            )
        return rows

    def rows(self) -> NDArray[np.float32]:
        """(n, width) the features, mapped from the file."""
        try:
            return np.memmap(self._rows, np.float32, "r", shape=(len(self._images), self.width))
        except ValueError as error:  # it is shorter than it says
            raise DataError(
                f"some of the features are missing ({error}); delete the folder, and they are computed anew",
                where=self._rows,
            ) from None


def embed_all(streams: Sequence[Stream], show: Show, check: Callable[[], None] = lambda: None) -> None:
    """Look through all images of all streams first, then call `check`, which may raise, and only then embed them."""
    begun = [stream for stream in streams if stream.remaining]
    for stream in begun:
        with show("looking", stream.remaining) as count:
            stream.look(count)
    check()
    for stream in begun:
        with show("embedding", stream.remaining) as count:
            stream.embed(count)
