"""Identity folders: `root/IDENTITY/image.jpg`, one folder per person. LFW, as it is distributed, is one of these."""

from __future__ import annotations

import collections
import hashlib
import os
import re
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


def list_images(root: Path, found: Iterable[tuple[str, str]], faults: Faults = None) -> Folder:
    """The given images as a `Folder`: each an identity and the image's path below `root`, in the order given.

    Identities are numbered as they first come. Only sizes and times of change are read; where that fails, it is a
    DataError, or goes into `faults`.
    """
    numbers: dict[str, int] = {}
    files: list[str] = []
    labels: list[int] = []
    stamp = hashlib.sha256(f"decoder {DECODER}\n".encode())
    for name, file in found:
        try:
            status = os.stat(root / file)
        except OSError as error:
            _note(root / file, error, faults)
            continue
        stamp.update(os.fsencode(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n"))
        files.append(file)
        labels.append(numbers.setdefault(name, len(numbers)))
    return Folder(root, tuple(numbers), tuple(files), np.array(labels, dtype=np.int64), stamp.hexdigest())


_PART_NAMES = frozenset(
    "train training val valid validation dev eval test testing gallery probe probes query images image imgs img photos "
    "photo picture pictures data dataset face faces crops cropped aligned raw original originals frame frames dsc "
    "frontal front profile left right up down cam camera view pose session light neutral smiling happy sad".split()
)
"""What parts and views of a set are called, and people are not."""
_NUMBERED = frozenset("cam camera view pose session light".split())
"""Those of them that no person is called with a number behind, as `face_001` may be."""
_LEAD = re.compile(r"([^\W\d_]*\d*)[ _.-]*([^\W\d_]+|\d*)")
_PERSON = re.compile(r"(?:identity|id|people|person|subj|subject|user)[ _-]?(\d+)", re.IGNORECASE)
"""What the name of a file begins with that says whom it shows."""
_WORDS = 10
"""Words that begin files in folder after folder, and are more than the views that a person is taken from."""
_FEW = 3
"""Folders and names that a sentence gives, and the fewest people whose images in one folder are no accident."""


def doubts(folder: Folder) -> list[str]:
    """What makes the folders look like something other than one person each: a sentence, with what to do, or none."""
    files: dict[str, list[str]] = {}
    for file in folder.files:
        name, _, own = file.partition("/")
        files.setdefault(name, []).append(own)
    mixed = {name: people for name, own in files.items() if (people := _people(name, own))}
    if mixed and 10 * len(mixed) >= len(files):
        name, people = next(iter(mixed.items()))
        return [
            f"{several(len(mixed), 'folder')} of {len(files):,} {'holds' if len(mixed) == 1 else 'hold'} files called "
            f"after several people, as {name} those of {_first(people)}: put the images of each person into a folder"
        ]
    parts = [name for name in folder.names if _is_part(name)]
    if len(parts) > 1 or 5 * len(parts) > len(folder.names):
        are = "identity is called as a part" if len(parts) == 1 else "identities are called as parts"
        return [
            f"{len(parts):,} {are} of a set, and not as a person is ({_first(parts)}): if several people are in there, "
            "give each a folder beside the others"
        ]
    if people := _recurring(files):
        return [
            f"the files of several folders begin with the same {len(people):,} names ({_first(people)}), as if a "
            "folder were a camera, a session or an expression: if these are people, give each a folder"
        ]
    return []


def _recurring(files: dict[str, list[str]]) -> list[str]:
    """Who the files of all folders together are called after, where a folder seems to be a condition and no person.

    So it is where most files begin with names that come back in half of the folders or more, these names outnumber the
    folders, and either what follows a name tells the folder, as in `happy/subject01.happy.png` (of bare numbers,
    `neutral/001_03.jpg`, it is a code, and each folder has most of them), or the names are words, ten and twice as many
    as the folders, as in `indoor/ann_1.jpg`. People's own images, counted anew in each folder, are neither.
    """
    found = {name: collections.Counter(map(_lead, own)) for name, own in files.items()}
    often = collections.Counter(lead for counts in found.values() for lead in {lead for lead, _ in counts})
    back = {lead for lead, n in often.items() if n > 1 and 2 * n >= len(files)}
    back = {lead for lead in back if lead and lead.rstrip("0123456789").lower() not in _PART_NAMES}
    held = sum(n for counts in found.values() for (lead, _), n in counts.items() if lead in back)
    if len(back) <= max(len(files), _FEW - 1) or 4 * held < 3 * sum(map(len, files.values())):
        return []
    if sum(map(str.isalpha, back)) >= max(_WORDS, 2 * len(files)):
        return sorted(back)
    codes = {}
    for name, counts in found.items():
        by_code = collections.Counter(code for _, code in counts.elements())
        codes[name], most = by_code.most_common(1)[0]
        whole = 4 * len(back & {lead for lead, _ in counts}) >= 3 * len(back) and codes[name].lstrip("0") not in name
        if not codes[name] or 10 * most < 9 * len(files[name]) or not (whole or not all(map(str.isdecimal, back))):
            return []
    return sorted(back) if len(set(codes.values())) == len(files) else []


def _lead(file: str) -> tuple[str, str]:
    """The letters and number that a file's name begins with, and the letters, or else the number, that follow."""
    lead, code = _LEAD.findall(os.path.splitext(file)[0])[0]
    return lead, code


def _is_part(name: str) -> bool:
    """Whether a folder's name is made of what parts and views of a set are called."""
    words = re.findall(r"[^\W\d_]+", name.lower())
    return bool(words) and (_NUMBERED if re.search(r"\d", name) else _PART_NAMES).issuperset(words)


def _people(name: str, files: Iterable[str]) -> list[str]:
    """Who the files in the folder of this name are called after, where these are several and not the folder's own.

    `Ann_Lee_0003.jpg` is called after Ann_Lee; `017_frontal_02.jpg` after 017, if others are as well; `person01_1.jpg`
    after person01.
    """
    own, total = _words(name), 0
    named, numbered, persons = (collections.Counter[str]() for _ in range(3))
    for file in files:
        if person := _PERSON.match(file):
            persons[person[0]] += int(person[1]) not in [int(word) for word in re.findall(r"[0-9]+", name)]
        words = _words(os.path.splitext(file)[0])
        while len(words) > 1 and words[-1].isdecimal():
            words.pop()
        total += 1
        if words[0].isdecimal() and any(word.isalpha() for word in words[1:]):
            numbered[words[0]] += int(words[0]) not in [int(word) for word in re.findall(r"[0-9]+", name)]
        elif all(word.isalpha() for word in words) and sum(word[0].isupper() for word in words) > 1:
            named["_".join(words)] += not {word.lower() for word in words} & {word.lower() for word in own}
    for found, each in ((+persons, 2), (+named, 1), (+numbered, 2)):
        if len(found) >= _FEW and 2 * found.total() >= total and found.total() >= each * len(found):
            return list(found)
    return []


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[ _.-]+", name) if word] or [name]


def _first(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (", …" if len(names) > _FEW else "")


def empty_folders(root: Path) -> list[str]:
    """The folders below `root` that hold nothing but names that begin with a dot; not those within them."""
    empty: set[str] = set()
    for place, folders, files in os.walk(root, topdown=False):
        inside = [name for name in files if not name.startswith(".")]
        inside += [name for name in folders if not name.startswith(".") and os.path.join(place, name) not in empty]
        if not inside:
            empty = {other for other in empty if os.path.dirname(other) != place} | {place}
    below = (os.path.relpath(place, root) for place in empty)
    return sorted(place for place in below if not any(part.startswith(".") for part in place.split(os.sep)))


def folders_in(folder: Path, faults: Faults = None) -> list[str]:
    """The names of the folders in `folder` that do not start with a dot, sorted by their bytes."""
    return _listed(folder, _is_folder, faults)


def images_in(folder: Path, faults: Faults = None) -> list[str]:
    """The names of the image files in `folder` that do not start with a dot, sorted by their bytes."""
    return _listed(folder, _is_image, faults)


def _listed(folder: Path, wanted: Callable[[os.DirEntry[str]], bool], faults: Faults) -> list[str]:
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        _note(folder, error, faults)
        return []
    for entry in entries:
        try:
            if wanted(entry):
                found.append(entry.name)
        except OSError as error:
            _note(Path(entry.path), error, faults)
    return sorted(found, key=os.fsencode)


def _note(path: Path, error: OSError, faults: Faults) -> None:
    """Note what cannot be read, or raise DataError of it."""
    linked = "it is a link that leads nowhere: mend it, or delete it"
    remedy = linked if path.is_symlink() else "give yourself access to it, or move it away"
    fault = DataError(f"it cannot be read ({error.strerror or error}); {remedy}", where=path)
    if faults is None:
        raise fault from error
    faults.append(str(fault))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir()


def _is_image(entry: os.DirEntry[str]) -> bool:
    if not (entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")):
        return False
    if entry.is_symlink():
        os.stat(entry.path)  # raises where it leads nowhere, of which is_file() says no more than False
    return entry.is_file()
