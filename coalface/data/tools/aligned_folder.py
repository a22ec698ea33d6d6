"""Folders of photographs in, the same folders of aligned faces out; what was done is noted, so that it can go on."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.disk import writing
from coalface.core.errors import DataError
from coalface.core.names import broken_rule
from coalface.core.text import shown
from coalface.data.align import SIDE
from coalface.data.detection import Detector, Face
from coalface.data.photographs import (
    ANY,
    LIMITS,
    UNREADABLE,
    LeftOut,
    Limits,
    cut_faces,
    decode_photograph,
    find_faces,
)
from coalface.data.readers.folders import SUFFIXES, read_file
from coalface.data.source import LARGEST_SIDE, in_order
from coalface.data.tools.decode_check import StderrCapture, check_whole
from coalface.data.tools.ignored_files import TEXTS

JOURNAL = ".align.jsonl"
"""In the folder that is written: the settings, then a line for each file that was looked at."""
LEFT_OUT = "left-out.csv"
_LISTS = (".txt", ".csv", ".lst")
"""Endings of the lists that go with the images."""
_BATCH = 64
"""Photographs after which faces and notes are written, and after which Ctrl-C loses nothing."""


@dataclass(frozen=True)
class Photograph:
    """What was made of a file."""

    file: str
    """From the folder of photographs, with `/`."""
    length: int
    """Bytes."""
    changed: int
    """When it was last changed, in nanoseconds since 1970."""
    faces: tuple[str, ...]
    """The files that were written, as `file`."""
    left_out: tuple[LeftOut, ...] = ()
    """Why there is none, or which of its faces were not taken."""


@dataclass(frozen=True)
class AlignedFolder:
    """A folder of aligned faces."""

    source: Path
    out: Path
    photographs: tuple[Photograph, ...]
    """Every file that was looked at, in the order of their names."""
    limits: Limits
    fresh: int
    """How many of them were looked at this time."""
    removed: tuple[str, ...]
    """Faces in `out` whose photographs are no longer in `source`."""

    @property
    def faces(self) -> int:
        return sum(len(photograph.faces) for photograph in self.photographs)

    @property
    def left_out(self) -> list[Photograph]:
        """The files without a face."""
        return [photograph for photograph in self.photographs if not photograph.faces]

    @property
    def reasons(self) -> dict[str, int]:
        """How many files are left out for which reason, the most common first."""
        return dict(Counter(photograph.left_out[0].reason for photograph in self.left_out).most_common())


def write_faces(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    finder: Detector | Mapping[str, NDArray[np.floating]],
    *,
    lists: Sequence[Path] = (),
    size: int = SIDE,
    limits: Limits = LIMITS,
    all_faces: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> AlignedFolder:
    """Write the aligned faces of a folder of photographs, each in its place under its name, to `out`.

    `finder` is a detector, or the landmarks (5, 2) of files by their names, which are taken without limits. A face of
    several (`all_faces`) has its number after the name, `photo_2.jpg`. Files that give none are noted, with the reason,
    in `out/left-out.csv`. Pair lists (.txt, .csv, .lst) in folders without images go with the faces, but not `lists`,
    which hold the landmarks. What was a JPEG is one again, at quality 100 without chroma subsampling; other kinds lose
    nothing.

    Called again, it looks only at files that are new or changed. Every face is written beside its place and renamed, so
    that a kill or a full disk leaves none half-written.

    Raises FileExistsError for an `out` that holds anything else, and DataError for one whose faces were aligned with
    other settings, or lies in `source`.
    """
    source, out = Path(source), Path(out)
    if not 1 <= size <= LARGEST_SIDE:
        raise ValueError(f"size is {size}; give a size from 1 to {LARGEST_SIDE}")
    if not source.is_dir():
        raise FileNotFoundError(f"{shown(source)} is not a folder; give a folder of photographs")
    if out.resolve().is_relative_to(source.resolve()):
        raise DataError(f"it lies in the photographs; choose a place outside {shown(source)}", where=out)
    files, texts = list_photographs(source)
    if not any(file.lower().endswith(SUFFIXES) for file in files):
        raise DataError("it holds no images; give a folder of photographs", where=source)
    limits = ANY if isinstance(finder, Mapping) else limits
    head = {"finder": _fingerprint(finder), "size": size, "all_faces": all_faces, "limits": asdict(limits)}
    earlier = _read_journal(out, head)
    sizes = {file: _stamp(source / file) for file in files}
    todo = [
        file for file in files if file not in earlier or (earlier[file].length, earlier[file].changed) != sizes[file]
    ]
    kept = {file: earlier[file] for file in files if file in earlier}
    out.mkdir(parents=True, exist_ok=True)
    _write_journal(out, head, earlier.values())

    def attempt(file: str) -> tuple[Photograph, list[bytes]]:
        looked = _look(source / file, file, finder)
        if isinstance(looked, LeftOut):
            return Photograph(file, *sizes[file], (), (looked,)), []
        aligned = cut_faces(*looked, size=size, limits=limits, all_faces=all_faces)
        names = [_numbered(file, k) for k in range(1, len(aligned.faces) + 1)] if all_faces else [file]
        crops = [_encode(face, file) for face in aligned.faces]
        return Photograph(file, *sizes[file], tuple(names[: len(crops)]), aligned.left_out), crops

    def attempt_all(batch: list[str]) -> list[tuple[Photograph, list[bytes]]]:
        return list(in_order(lambda k: attempt(batch[k]), len(batch)))

    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # whole photographs are looked at side by side, which is faster than their parts
    try:
        with StderrCapture() as capture, open(out / JOURNAL, "ab", buffering=0) as journal:
            for start in range(0, len(todo), _BATCH):
                batch = todo[start : start + _BATCH]
                results, complaints = capture.run(partial(attempt_all, batch))
                for photograph, crops in results:
                    if complaints and not any(left_out.reason in UNREADABLE for left_out in photograph.left_out):
                        photograph, crops = _checked(source, photograph, crops, capture)
                    for name in set(earlier[photograph.file].faces if photograph.file in earlier else ()):
                        (out / name).unlink(missing_ok=True)
                    for name, data in zip(photograph.faces, crops, strict=True):
                        _write(out, name, data)
                    kept[photograph.file] = photograph
                    with writing(out / JOURNAL):
                        journal.write(_line(photograph).encode())
                progress(len(files) - len(todo) + start + len(batch))
    finally:
        cv2.setNumThreads(threads)
    landmark_lists = {path.resolve() for path in lists}
    for text in texts:
        if (source / text).resolve() not in landmark_lists:
            _write(out, text, (source / text).read_bytes())
    gone = {file: photograph for file, photograph in earlier.items() if file not in kept}
    photographs = tuple(kept[file] for file in files)
    _write_journal(out, head, (*photographs, *gone.values()))
    removed = tuple(name for photograph in gone.values() for name in photograph.faces if (out / name).exists())
    folder = AlignedFolder(source, out, photographs, limits, len(todo), removed)
    _write(out, LEFT_OUT, _table(folder).encode())
    return folder


def _fingerprint(finder: Detector | Mapping[str, NDArray[np.floating]]) -> str:
    if not isinstance(finder, Mapping):
        return finder.fingerprint()
    digest = hashlib.sha256()
    for file, points in sorted(finder.items()):
        digest.update(f"{file}\0".encode(errors="surrogateescape") + np.asarray(points, np.float32).tobytes())
    return digest.hexdigest()


def list_photographs(source: Path) -> tuple[list[str], list[str]]:
    """The files below a folder to look for faces in, and the lists that go with them, by the bytes of their names.

    Names that begin with a dot are passed over, and so are texts in folders without images. Links to files are followed
    wherever they lead, as by all readers; links to folders are not, and are among the files.
    """
    photographs, texts = [], []
    for folder, folders, names in os.walk(source, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(os.path.relpath(folder, source))
        photographs += [(below / name).as_posix() for name in folders if os.path.islink(os.path.join(folder, name))]
        names = [name for name in names if not name.startswith(".")]
        among_images = any(name.lower().endswith(SUFFIXES) for name in names)
        for name in names:
            if among_images or not name.lower().endswith(TEXTS):
                photographs.append((below / name).as_posix())
            elif name.lower().endswith(_LISTS):
                texts.append((below / name).as_posix())
    return sorted(photographs, key=os.fsencode), sorted(texts, key=os.fsencode)


def _raise(error: OSError) -> None:
    raise error


def _stamp(path: Path) -> tuple[int, int]:
    """Bytes and time of change of a file; zeros of one that cannot be asked."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _look(
    path: Path, file: str, finder: Detector | Mapping[str, NDArray[np.floating]]
) -> tuple[NDArray[np.uint8], list[Face]] | LeftOut:
    """A photograph and its faces; whatever is wrong with the file is the reason that it has none."""
    broken = next(filter(None, (broken_rule(part, 255, given=False) for part in file.split("/"))), "")
    if broken:
        return LeftOut("damaged", f"its name {broken}; rename it")
    if path.is_dir():
        return LeftOut("not an image", "a link to a folder, which is not followed")
    if not path.name.lower().endswith(SUFFIXES):
        ending = Path(file).suffix
        what = f"it ends in {ending}: make a JPEG or PNG of it if it is a photograph" if ending else "it has no ending"
        return LeftOut("not an image", what)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return LeftOut("not an image", "a pipe or a device")
        image = decode_photograph(read_file(path), path)
        if not isinstance(finder, Mapping):
            return image, find_faces(image, finder)
    except FileNotFoundError:
        return LeftOut("damaged", "it is a link that leads nowhere, or was deleted in this moment")
    except (OSError, DataError) as error:
        return _damaged(path, error)
    if file not in finder:
        return LeftOut("no landmarks")
    face = Face(np.asarray(finder[file], np.float64))
    x, y = np.nanmean(face.points, axis=0)
    if not (0 <= x < image.shape[1] and 0 <= y < image.shape[0]):
        beside = f"they lie about ({x:.0f}, {y:.0f}), beside its {image.shape[1]} × {image.shape[0]} pixels"
        return LeftOut("no landmarks", beside)
    return image, [face]


def _damaged(path: Path, error: Exception) -> LeftOut:
    return LeftOut("damaged", shown(disk.explained(error).removeprefix(f"{shown(path)}: ")))


def _checked(
    source: Path, photograph: Photograph, crops: list[bytes], capture: StderrCapture
) -> tuple[Photograph, list[bytes]]:
    """The same, or without a face where the decoder complains of this file: it fills what is missing with grey."""
    path = source / photograph.file
    try:
        check_whole(read_file(path), str(path), capture)
    except (OSError, DataError) as error:
        return replace(photograph, faces=(), left_out=(_damaged(path, error),)), []
    return photograph, crops


def _numbered(file: str, number: int) -> str:
    stem, ending = os.path.splitext(file)
    return f"{stem}_{number}{ending}"


_JPEG = [*(cv2.IMWRITE_JPEG_QUALITY, 100), *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)]
_WRITTEN: dict[str, Sequence[int]] = {
    **{".jpg": _JPEG, ".jpeg": _JPEG, ".png": [], ".bmp": []},
    ".webp": [cv2.IMWRITE_WEBP_QUALITY, 101],  # above 100: without loss
}
"""How an ending is encoded; all others are PNM, which readers recognise by its first bytes."""


def _encode(face: NDArray[np.uint8], file: str) -> bytes:
    ending, grey = Path(file).suffix.lower(), face.shape[2] == 1
    if ending not in _WRITTEN:
        ending = ".pgm" if grey else ".ppm"
    return bytes(cv2.imencode(ending, face if grey else face[:, :, ::-1], _WRITTEN.get(ending, []))[1])


def _write(out: Path, name: str, data: bytes) -> None:
    """Write a file beside its place and rename it there."""
    place, fresh = out / name, out / ".partial"
    try:
        with writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(data)
        fresh.replace(place)
    finally:
        with suppress(OSError):
            fresh.unlink()


def _line(photograph: Photograph) -> str:
    return json.dumps(asdict(photograph)) + "\n"


def _write_journal(out: Path, head: dict[str, Any], photographs: Any) -> None:
    text = json.dumps(head) + "\n" + "".join(map(_line, photographs))
    _write(out, JOURNAL, text.encode())


def _read_journal(out: Path, head: dict[str, Any]) -> dict[str, Photograph]:
    """What was made of files before; the line at which a process was killed is none."""
    if not (out / JOURNAL).is_file():
        disk.check_free(out)
        return {}
    try:
        first, *lines = (out / JOURNAL).read_text(encoding="utf-8").splitlines()
        before = dict(json.loads(first))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError("it is damaged; choose another folder, or delete this one", where=out / JOURNAL) from error
    if before != head:
        other = sorted(key for key in {*before, *head} if before.get(key) != head.get(key))
        other = ["--detector, or --upright" if key == "finder" else key for key in other]
        raise DataError(
            f"its faces were aligned with other settings ({', '.join(other)}); choose another folder, or delete it",
            where=out,
        )
    return {photograph.file: photograph for photograph in _photographs(lines)}


def _photographs(lines: Sequence[str]) -> Iterator[Photograph]:
    for line in lines:
        try:
            fields = json.loads(line)
            left_out = tuple(
                LeftOut(**{**face, "corners": tuple(map(tuple, face["corners"]))}) for face in fields["left_out"]
            )
            names = {"file": _inside(fields["file"]), "faces": tuple(map(_inside, fields["faces"]))}
            photograph = Photograph(**{**fields, **names, "left_out": left_out})
        except (ValueError, KeyError, TypeError, RecursionError):  # the files after it are aligned again
            return
        yield photograph


def _inside(name: str) -> str:
    """The name of a file below the folder. Raises ValueError for one that leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} lies outside of the folder")
    return name


def _table(folder: AlignedFolder) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["file", "faces", "reason", "detail"])
    for photograph in folder.photographs:
        name = shown(photograph.file)
        name = f"./{name}" if name.startswith(("=", "+", "-", "@")) else name  # to a spreadsheet it would be a formula
        for left_out in photograph.left_out:
            table.writerow([name, len(photograph.faces), left_out.reason, left_out.detail])
    return text.getvalue()
