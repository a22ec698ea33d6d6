"""Packs: decoded face images in one flat file, which opens at once and is read through a memory map.

A pack is a folder of four files:

    pixels.u8      the images, raw bytes, (M, height, width, channels) in row-major order
    labels.npy     (M,) int64, the identity of each image
    index.json     {"names": [...], "files": [...]}
    meta.json      format, version, shape, size, grey, the source's fingerprint, and the SHA-256 of the files above

The pixels of a pack are read whole, and checked, when it is first opened and whenever the file's size, times or place
on the disk have changed since; that they were sound is noted in the cache, for the next run and for worker processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import beside, writing
from coalface.core.errors import DataError
from coalface.core.text import shown
from coalface.data.cache import SOUND, default_cache, hold, open_cache, use
from coalface.data.faceset import FaceSet
from coalface.data.readers.file_names import read_names
from coalface.data.source import LARGEST_SIDE, Source

FORMAT = "coalface-pack"
VERSION = 1

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with (images done, images in all) after every image."""

_FILES = {"pixels.u8", "labels.npy", "index.json", "meta.json"}
_MAKE_ANEW = "delete the folder and pack its source again"
_LONG = 4 << 30
"""From so many bytes on, checking takes long enough to be told."""
_LOG = logging.getLogger(__name__)


def cached_pack(source: Source, *, size: int, grey: bool, progress: Progress | None = None) -> FaceSet:
    """The images of `source` from the cache, packed there first if they are not in it yet.

    The pack's name is made of the source's fingerprint, the size and the colour, so a changed source makes a new pack.
    It is its owner's alone, whatever the umask. One that is damaged is made anew, with a warning in the log.
    """
    path = open_cache(default_cache()) / f"{source.fingerprint()[:24]}-{size}-{'grey' if grey else 'rgb'}"
    write_pack(source, path, size=size, grey=grey, progress=progress, mode=0o700)
    use(path)
    return read_pack(path)


@dataclass(frozen=True, eq=False)
class Packed:
    """A pack as a `Source`, which gives its images at the size and colour that they have."""

    path: Path
    verify: bool = True
    """See `read_pack`."""

    @cached_property
    def faces(self) -> FaceSet:
        """The images, mapped."""
        return read_pack(self.path, verify=self.verify)

    @property
    def names(self) -> tuple[str, ...]:
        return self.faces.names

    @property
    def files(self) -> Sequence[str]:
        return self.faces.files or ()

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.faces.labels

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn. Raises DataError where another size or colour is asked for."""
        if self.faces.shape != (size, size, 1 if grey else 3):
            height, width, channels = self.faces.shape
            raise DataError(
                f"the pack has images of {height}×{width}×{channels}, not {size}×{size}×{1 if grey else 3}; "
                "ask for the pack's size and colour, or pack its source again",
                where=self.path,
            )
        yield from self.faces.pixels

    def fingerprint(self) -> str:
        """SHA-256 of what the pack says of itself."""
        return hashlib.sha256((self.path / "meta.json").read_bytes()).hexdigest()


def write_pack(
    source: Source,
    path: str | os.PathLike[str],
    *,
    size: int,
    grey: bool,
    progress: Progress | None = None,
    mode: int = 0o777,
) -> None:
    """Decode every image of `source` once, at `size` × `size`, into a pack at `path`.

    One image is in memory at a time. The pack is written beside `path` and renamed into place when it is whole. A sound
    pack of the same fingerprint, size and colour is left as it is; any other pack at `path` is replaced, a damaged one
    with a warning in the log. `mode` is that of the folder, less the umask.

    Raises FileExistsError if `path` holds something that is not a pack, and what the source raises.
    """
    if not 1 <= size <= LARGEST_SIDE:
        raise ValueError(f"images of {size} × {size} pixels cannot be packed; give a size from 1 to {LARGEST_SIDE}")
    path = Path(path)
    key = {"fingerprint": source.fingerprint(), "size": size, "grey": grey}
    if _holds(path, key):
        return
    with beside(path) as partial:
        partial.mkdir(mode)
        _write(source, partial, key, progress)
        try:
            os.rename(partial, path)  # also onto an empty folder
        except OSError:
            if not _holds(path, key, logging.DEBUG):  # else another process has put it there meanwhile
                shutil.rmtree(path)
                os.rename(partial, path)


def read_pack(path: str | os.PathLike[str], *, verify: bool = True) -> FaceSet:
    """Open a pack as a face set whose pixel store is a read-only memory map.

    The small files are always checked against their SHA-256, the pixels against their length. To `verify`, all
    pixels are read and their SHA-256 checked too, where the file is not as it was when they were last found sound;
    that notices any change but one of the disk itself, behind the back of the file system.

    Raises FileNotFoundError if there is no pack, DataError if it is damaged, cut short or of another version.
    """
    path = Path(path)
    meta = _read_meta(path)
    shape = tuple(meta["shape"])
    pixels, expected = path / "pixels.u8", math.prod(shape)
    size = pixels.stat().st_size if pixels.is_file() else 0
    if size != expected:
        raise _damaged(pixels, f"it holds {size:,} bytes where {expected:,} were written")
    for name in ("labels.npy", "index.json"):
        _check_sha256(path / name, meta["sha256"][name])
    note, stamp = _sound_note(pixels, meta["sha256"]["pixels.u8"])
    if verify and not (note.is_file() and note.read_bytes() == stamp):
        if expected >= _LONG:
            _LOG.warning("reading %s bytes of %s, to check them once", f"{expected:,}", shown(pixels))
        check_pixels(path)
    names, files = _read_index(path / "index.json", shape[0])
    with open(str(pixels.resolve()), "rb") as file:  # what is mapped keeps the lock
        hold(file)
        mapped = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)
    labels = _read_labels(path / "labels.npy", shape[0], len(names))
    return FaceSet(mapped, np.arange(shape[0], dtype=np.int64), labels, names, files)


def check_pixels(path: Path) -> None:
    """Read all pixels of a pack. Raises DataError unless their SHA-256 is that which was written."""
    pixels, expected = path / "pixels.u8", _read_meta(path)["sha256"]["pixels.u8"]
    note, stamp = _sound_note(pixels, expected)
    _check_sha256(pixels, expected)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a check each time
        open_cache(note.parent.parent)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        note.touch(mode=0o600)
        note.write_bytes(stamp)


def _sound_note(pixels: Path, sha256: str) -> tuple[Path, bytes]:
    """Where it is noted that pixels are sound, and what they are known by until they are written to or replaced."""
    place, status = hashlib.sha256(os.fsencode(pixels.resolve())).hexdigest(), os.stat(pixels)
    stamp = f"{sha256} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}\n"
    return default_cache() / SOUND / place[:24], stamp.encode()


def _write(source: Source, folder: Path, key: dict[str, Any], progress: Progress | None) -> None:
    total = len(source.files)
    if total == 0:
        raise ValueError("the source has no images to pack; check its path")
    size, grey = key["size"], key["grey"]
    shape = (total, size, size, 1 if grey else 3)
    digest = hashlib.sha256()
    count = 0
    with writing(folder / "pixels.u8"), open(folder / "pixels.u8", "wb") as out:
        hold(out)
        for count, image in enumerate(source.images(size=size, grey=grey), start=1):
            if count > total:
                break
            if image.shape != shape[1:] or image.dtype != np.uint8:
                raise ValueError(
                    f"{shown(source.files[count - 1])}: the source gave {image.dtype} {image.shape} where a pack of "
                    f"size {size} needs uint8 {shape[1:]}; its images() must return what it is asked for"
                )
            raw = image.tobytes()
            out.write(raw)
            digest.update(raw)
            if progress is not None:
                progress(count, total)
    if count != total:
        raise ValueError(
            f"the source lists {total:,} images but gave {'more' if count > total else f'{count:,}'}: "
            "it changed while it was read; list it again and repeat"
        )
    labels = io.BytesIO()  # NumPy's own way into a file tells no reason where it fails
    np.save(labels, np.asarray(source.labels, dtype="<i8"))
    index = json.dumps({"names": list(source.names), "files": list(source.files)}).encode()
    sha256 = {"pixels.u8": digest.hexdigest()}
    with writing(folder):
        for name, content in (("labels.npy", labels.getvalue()), ("index.json", index)):
            (folder / name).write_bytes(content)
            sha256[name] = hashlib.sha256(content).hexdigest()
        meta = {"format": FORMAT, "version": VERSION, "shape": shape, **key, "sha256": sha256}
        (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="ascii")


def _holds(path: Path, key: dict[str, Any], level: int = logging.WARNING) -> bool:
    """Whether a sound pack of these images is there; FileExistsError if what is there must not be replaced."""
    if not path.exists():
        return False
    if not path.is_dir() or not {entry.name for entry in path.iterdir()} <= _FILES:
        raise FileExistsError(f"{shown(path)} exists and is not a pack; choose another path, or move it away")
    try:
        meta = _read_meta(path)
        if {name: meta.get(name) for name in key} != key:
            return False
        read_pack(path)
    except FileNotFoundError:
        return False
    except DataError as error:
        _LOG.log(level, "%s; it is packed again", str(error).removesuffix(f"; {_MAKE_ANEW}"))
        return False
    return True


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / "meta.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{shown(path)} is not a pack (it has no meta.json); check the path, or make a pack there with "
            "`coalface data pack` (in Python: write_pack)"
        )
    meta = _read_json(file)
    kind, version = (meta.get("format"), meta.get("version")) if isinstance(meta, dict) else (None, None)
    if kind != FORMAT:
        text = f"it is damaged, or not a pack: its format is {repr(kind)[:80]}, not {FORMAT!r}; check the path"
        raise DataError(text, where=file)
    if version != VERSION:
        text = f"it is damaged, or of another release: its version is {repr(version)[:80]}, not {VERSION}; {_MAKE_ANEW}"
        raise DataError(text, where=path)
    shape, sums = meta.get("shape"), meta.get("sha256")
    if not (_is_list_of(shape, int) and len(shape) == 4 and min(shape) > 0 and shape[3] in (1, 3)):
        raise _damaged(file, "its shape is not that of images")
    if not (isinstance(sums, dict) and sums.keys() >= _FILES - {"meta.json"}):
        raise _damaged(file, "it lacks the SHA-256 of a file")
    return dict(meta)


def _read_index(file: Path, count: int) -> tuple[tuple[str, ...], Sequence[str]]:
    """The names of the identities, and the file of each of `count` images."""
    if (read := read_names(file, count)) is not None:
        return read
    index = _read_json(file)
    names, files = (index.get("names"), index.get("files")) if isinstance(index, dict) else (None, None)
    if not (_is_list_of(names, str) and _is_list_of(files, str)) or len(files) != count:
        raise _damaged(file, f"it does not name the identities and {count:,} files")
    return tuple(names), tuple(files)


_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '<i8', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n", re.S
)


def _read_labels(file: Path, count: int, identities: int) -> NDArray[np.int64]:
    """(count,) the labels. `numpy.load` would set aside whatever the header claims, and fail in many ways."""
    with open(file, "rb") as opened:
        match = _NPY.match(opened.read(1024))
    if match and int(match[2]) == count and file.stat().st_size == match.end() + 8 * count:
        labels = np.fromfile(file, "<i8", count, offset=match.end()).astype(np.int64, copy=False)
        if labels.min() >= 0 and labels.max() < identities:
            return labels
    raise _damaged(file, f"it does not hold {count:,} labels from 0 to {identities - 1:,}")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from error


def _is_list_of(value: Any, kind: type[T]) -> TypeGuard[list[T]]:
    return isinstance(value, list) and all(type(entry) is kind for entry in value)


def _check_sha256(file: Path, expected: object) -> None:
    if not file.is_file():
        raise _damaged(file, "it is missing")
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != expected:
        raise _damaged(file, f"its SHA-256 is {digest}, not {str(expected)[:80]} as written")


def _damaged(file: Path, text: str) -> DataError:
    return DataError(f"it is damaged: {text}; {_MAKE_ANEW}", where=file)
