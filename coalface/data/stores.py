"""Sets of face images in any of the field's forms, recognised at their path: folders, records, packs."""

from __future__ import annotations

import collections
import contextlib
import difflib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.errors import DataError
from coalface.core.names import broken_rule, quoted
from coalface.core.text import first_few, several, shown
from coalface.data.joined import Joined
from coalface.data.pairs import PairList, refuse_matlab
from coalface.data.readers.bin import Bin, read_bin
from coalface.data.readers.file_names import FileNames
from coalface.data.readers.folders import Folder, read_file, read_folder
from coalface.data.readers.layouts import LAYOUTS, read_layout, recognise
from coalface.data.readers.pack import Packed, check_pixels
from coalface.data.readers.records import EXACT, Rec, RecFiles, read_rec
from coalface.data.source import Source
from coalface.data.tools.ignored_files import passed_over
from coalface.data.tools.record_ranges import misfits
from coalface.data.tools.suspect_folders import doubts, empty_folders

Kind = Literal["folder", "rec", "bin", "pack"]

IDENTITIES = "identities.txt"
"""Beside a record file: the identities' names, one a line, since records hold only their numbers."""


@dataclass(frozen=True, eq=False)
class Store:
    """A set of images in one of the forms, found but not yet read: a `Source`."""

    kind: Kind
    path: Path
    source: Source
    names: tuple[str, ...]
    files: Sequence[str]
    """(n,) where each image comes from, as `identity/file name`."""
    labels: NDArray[np.int64]
    encoded: Callable[[int], bytes | memoryview]
    """The encoded bytes of an image; those of a pack, which holds pixels, are a PNG."""
    pairs: PairList | None = None
    """The pairs that a `.bin` holds."""
    notes: tuple[str, ...] = ()
    """What does not fit in what the store says of itself."""
    faults: tuple[str, ...] = ()
    """What is wrong with the images that were left out: records, and files that cannot be found."""
    broken: tuple[str, ...] = ()
    """What is wrong with the rest of the store: with what says which images belong to whom."""
    layout: str = ""
    """Of folders, the name in `LAYOUTS`; empty for plain identity folders."""
    part: str = ""
    """The part of the layout that was asked for."""
    places: Sequence[Path] = ()
    """Of folders, (n,) the file of each image."""

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, i: int) -> str:
        """What an error calls image i: its file, or the file that holds it and its record."""
        if isinstance(self.source, Rec):
            return shown(f"{self.source.records.path}, record {self.source.keys[i]}")
        if isinstance(self.source, Bin):
            return shown(f"{self.path}, image {i:,}")
        return shown(self.places[i] if self.places else self.path / self.files[i])

    @property
    def domains(self) -> NDArray[np.int64] | None:
        """(n,) the domain of each image, such as the race in RFW; None where there is one domain."""
        return self.source.domain_numbers if isinstance(self.source, Joined) else None

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, decoded, as a `Source` gives them. Raises DataError for a pack of another size."""
        return self.source.images(size=size, grey=grey)

    def fingerprint(self) -> str:
        """Names the content, the identities' names included."""
        content = self.source.fingerprint()
        if self.names == self.source.names:
            return content
        return hashlib.sha256("\n".join([content, *self.names]).encode("utf-8", "surrogateescape")).hexdigest()

    def passed_over(self) -> list[str]:
        """Of folders: what lies there and is not among the images, in sentences; looks through all of the folder."""
        if self.kind != "folder":
            return []
        parts = LAYOUTS[self.layout].parts if self.layout else ()
        return passed_over(self.path, self.places, parts=parts, asked_part=self.part, layout=self.layout)

    def doubts(self) -> list[str]:
        """What does not fit, in sentences: `notes`; of folders, empty ones, and those called as no person is."""
        sentences = list(self.notes)
        if isinstance(self.source, Folder) and not self.layout:
            sentences += doubts(self.source)
        if self.kind == "folder" and (empty := empty_folders(self.path)):
            are = several(len(empty), "folder is", "folders are")
            sentences.append(
                f"{are} empty ({first_few(empty)}): if images were lost, fetch them again, otherwise delete what is "
                "empty"
            )
        return sentences

    def damage(self) -> tuple[str, ...]:
        """What is damaged beside the images: `broken`, and a pack's pixels where they are not as written."""
        if self.kind == "pack":
            try:
                check_pixels(self.path)
            except ValueError as error:
                return (*self.broken, str(error))
        return self.broken


_opened: ContextVar[Callable[[Store], None] | None] = ContextVar("opened", default=None)


@contextlib.contextmanager
def telling_passed_over(tell: Callable[[str], None]) -> Iterator[list[str]]:
    """While it lasts, tell once of each set that is opened here what lies in it and is not read; yields all of it."""
    lines: list[str] = []
    opened_sets: set[tuple[Path, str]] = set()

    def opened(store: Store) -> None:
        if (key := (store.path.absolute(), store.part)) in opened_sets:
            return
        opened_sets.add(key)
        for sentence in store.passed_over():
            if (line := f"{shown(store.path)}: ignored: {sentence}") not in lines:  # two parts may leave the same
                lines.append(line)
                tell(line)

    token = _opened.set(opened)
    try:
        yield lines
    finally:
        _opened.reset(token)


def open_store(
    path: str | os.PathLike[str], *, part: str = "", damaged: Literal["error", "leave out"] = "error"
) -> Store:
    """Open folders of images, insightface's records (`train.rec`), a `.bin` pack of pairs, or a pack of ours.

    Folders are identity folders, or one of the field's layouts (`LAYOUTS`), of which `part` can pick a part. Records
    that are damaged, and folders and files that cannot be read, can be left out, for an inspection, which then hears of
    them in `faults` and `broken`. What is not read of folders can be heard of: see `telling_passed_over`.

    Raises FileNotFoundError if nothing is at the path, and DataError if it is none of these, or damaged.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(_absent(path))
    kind = _kind_at(path)
    if part and kind is not None:
        raise DataError("it has no parts; only layouts such as RFW have them", where=path)
    if kind == "bin":
        return _of_bin(path)
    if kind == "rec":
        return _of_rec(path, damaged)
    if kind == "pack":
        return _of_pack(path, damaged)
    if path.is_file():
        refuse_matlab(path)
        raise DataError(
            "not a set of images; give a .rec or .bin file, a folder with train.rec, a pack, or a "
            "folder with one folder of images per identity",
            where=path,
        )
    if path.is_dir() and os.path.isfile(path / "train.idx"):
        raise FileNotFoundError(f"{shown(path / 'train.rec')} does not exist, but its index train.idx does; fetch it")
    return _of_folder(path, part, damaged)


def _kind_at(path: Path) -> Kind | None:
    """The form of what lies at a path; None for folders of images, and for what is none of them."""
    if path.is_file() and path.suffix == ".bin":
        return "bin"
    if (path.is_file() and path.suffix == ".rec") or (path / "train.rec").is_file():
        return "rec"
    return "pack" if (path / "meta.json").is_file() else None


def _absent(path: Path) -> str:
    """What to say of a path where nothing lies: what lies near it by name."""
    if path.is_symlink():
        return f"{shown(path)} is a link that leads nowhere: mend it, or give another path"
    beside = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=3)
    near += [name for name in beside if path.suffix and name.endswith(path.suffix)]
    such = " or ".join(shown(path.with_name(name)) for name in list(dict.fromkeys(near))[:3])
    return f"{shown(path)} does not exist; {f'did you mean {such}?' if such else 'check the path'}"


def check_names(names: Sequence[str], where: str | Path) -> None:
    """Raise DataError for a name that is no plain name of a folder, or of folders within each other."""
    if isinstance(names, FileNames) and names.surely_plain(LONGEST):
        return
    for number, name in enumerate(names, start=1):
        for broken in filter(None, map(_broken_rule, name.split("/"))):
            raise DataError(
                f"{quoted(name)} is not a plain name for the files of an identity: it {broken}; rename it",
                where=f"{where}, identity {number}",
            )


LONGEST = 240
"""Bytes of the name of a folder, or of a file made of such names, which leave room for an ending."""


@functools.lru_cache(maxsize=1024)
def _broken_rule(name: str) -> str:
    """What is wrong with the name of a folder, which leaves room for an ending; empty where it is plain."""
    return broken_rule(name, LONGEST, given=False)


def _oddly_named(files: Sequence[str], places: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Of each image on whose way a folder or the file has no plain name, the first such, and what is wrong with it."""
    for file, place in zip(files, places, strict=True):
        *folders, last = file.split("/")
        broken = [*map(_broken_rule, folders), broken_rule(last, 255, given=False)]
        if any(broken):
            first = next(number for number, wrong in enumerate(broken) if wrong)
            yield [place, *place.parents][len(folders) - first], broken[first]


def check_written(partial: Path, out: Path, identity_of: dict[str, str]) -> None:
    """Raise DataError unless folders that were written to `partial`, to be `out`, are read as these images.

    `identity_of` has the name of the identity of each file.
    """
    unmade = "it is not made, since it would not be read again as it was meant"
    try:
        store = open_store(partial)
    except (OSError, ValueError) as error:
        raise DataError(f"{unmade}: {disk.explained(error).replace(str(partial), str(out))}", where=out) from None
    identities_read = {file: store.names[label] for file, label in zip(store.files, store.labels.tolist(), strict=True)}
    if identities_read != identity_of:
        read_as, meant_as = (
            f"{several(len(images), 'image')} of {_identities(len(set(images.values())))}"
            for images in (identities_read, identity_of)
        )
        raise DataError(f"{unmade}: it would read as {read_as}, not {meant_as}", where=out)


def _of_folder(path: Path, part: str, damaged: Literal["error", "leave out"]) -> Store:
    """Identity folders, or one of the layouts of the field's data sets."""
    try:
        layout = recognise(path)
    except DataError:
        if part:
            raise
        layout = ""
    faults: list[str] | None = [] if damaged == "leave out" else None
    source = read_layout(path, part=part, faults=faults) if layout else read_folder(path, faults)
    places = _places(source)
    for odd, broken in _oddly_named(source.files, places):
        fault = DataError(f"its name is not plain: it {broken}; rename it", where=odd)
        if faults is None:
            raise fault
        faults.append(str(fault))
    store = Store(
        "folder",
        path,
        source,
        source.names,
        source.files,
        source.labels,
        lambda i: read_file(places[i]),
        broken=tuple(dict.fromkeys(faults or ())),
        layout=layout,
        part=part,
        places=places,
    )
    if (opened := _opened.get()) is not None:
        opened(store)
    return store


def _places(source: Source) -> list[Path]:
    """The file of each image of folders, also of several joined."""
    if isinstance(source, Joined):
        return [place for part in source.parts.values() for place in _places(part)]
    assert isinstance(source, Folder)
    return [source.root / file for file in source.files]


def _of_rec(path: Path, damaged: Literal["error", "leave out"]) -> Store:
    rec = read_rec(path, damaged=damaged)
    names, notes, broken = rec.names, [], list(rec.broken)
    try:
        names = _listed_names(rec)
    except DataError as error:
        if damaged == "error":
            raise
        broken.append(str(error))
    if damaged == "leave out":
        broken += misfits(rec)
    if (largest := int(rec.names[-1])) >= EXACT:
        notes.append(
            f"labels go up to {largest:,}, and float32, in which they are kept, tells whole numbers apart only up to "
            f"{EXACT:,}: two identities may have become one; number them from 0 on"
        )
    if rec.announced is not None and rec.announced[0] != len(names):
        notes.append(f"`property` announces {_identities(rec.announced[0])}, and {len(names):,} occur")
    if len(rec.identities) and len(rec.identities) != len(names):
        notes.append(f"there are ranges of {_identities(len(rec.identities))}, and images of {len(names):,}")
    files, faults = RecFiles(names, rec.labels, rec.keys), tuple(map(str, rec.faults.values()))
    return Store(
        "rec", path, rec, names, files, rec.labels, rec.encoded, notes=tuple(notes), faults=faults, broken=tuple(broken)
    )


def _identities(count: int) -> str:
    return several(count, "identity", "identities")


def _listed_names(rec: Rec) -> tuple[str, ...]:
    """The identities' names beside a record file; their numbers where there are none. ValueError if they do not fit."""
    listed = rec.records.path.with_name(IDENTITIES)
    if not listed.is_file():
        return rec.names
    names = tuple(listed.read_text(encoding="utf-8-sig", errors="surrogateescape").removesuffix("\n").split("\n"))
    check_names(names, shown(listed))
    numbers = [int(number) for number in rec.names]
    if rec.faults and len(numbers) < len(names) > numbers[-1]:  # all records of an identity may have been left out
        return tuple(names[number] for number in numbers)
    if len(names) != len(rec.names) or rec.names[-1] != str(len(names) - 1):
        raise DataError(
            f"it names {_identities(len(names))}, and the records have "
            f"{len(rec.names):,}: it belongs to other records; delete it",
            where=listed,
        )
    often, times = collections.Counter(names).most_common(1)[0]
    if times > 1:
        raise DataError(f"it names {often[:80]!r} twice; give each identity its own name", where=listed)
    return names


def _of_bin(path: Path) -> Store:
    pack = read_bin(path)
    pairs, notes = pack.pairs(), []
    genuine = int(pairs.same.sum())
    if 2 * genuine != len(pairs):
        are = f"{genuine:,} of {several(len(pairs), 'pair')} {'is' if genuine == 1 else 'are'}"
        notes.append(f"{are} genuine: lists of the field have as many of each kind")
    return Store("bin", path, pack, pack.names, pack.files, pack.labels, pack.encoded, pairs=pairs, notes=tuple(notes))


def _of_pack(path: Path, damaged: Literal["error", "leave out"]) -> Store:
    pack = Packed(path, verify=damaged == "error")  # an inspection reads all pixels itself
    faces = pack.faces
    files = faces.files or [f"{faces.names[label]}/{i:08d}" for i, label in enumerate(faces.labels.tolist())]
    return Store("pack", path, pack, faces.names, files, faces.labels, lambda i: _png(faces.pixels[i]))


def _png(pixels: NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".png", pixels[:, :, ::-1] if pixels.shape[2] == 3 else pixels)[1])
