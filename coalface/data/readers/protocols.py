"""The pair lists of the field's data sets, in the forms in which they are distributed or commonly unpacked.

What each looks like stands above its reader. The images of a list are looked up in a face set read from the same
folder, by their paths below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import shown
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, refuse_matlab
from coalface.data.readers.bin import folds_by_position
from coalface.data.readers.folders import Faults, folders_in, images_in

LISTED = {"agedb-30": ("agedb_30_pair.txt", "agedb_30_ann.txt"), "cfp-fp": ("cfp_fp_pair.txt", "cfp_fp_ann.txt")}
"""Lists of lines `left right 1` or `1 left right`, as `.bin` packs are commonly unpacked."""

_FLAT_IMAGES = ("", "images", "imgs", "aligned images")
"""Where flat images may lie beside their list."""


@dataclass(frozen=True)
class Protocol:
    """A pair list of a data set, not yet read."""

    name: str
    file: Path | None
    """The file that holds it; None where it is spread over several."""
    read: Callable[[], PairList]


Protocols = Callable[[Path, FaceSet], Iterator[Protocol]]
"""The pair lists of the data set in a folder, their images looked up in a face set."""


@dataclass(frozen=True)
class ListedPair:
    """What a line of a list says, and where."""

    left: str
    """The image's path in the face set."""
    right: str
    same: bool
    where: str
    """File and line, for errors."""
    fold: int = -1


def _pair_list(name: str, pairs: Sequence[ListedPair], faces: FaceSet, fold: NDArray[np.int64] | None) -> PairList:
    files = faces.files or ()
    place: dict[str, int] = {}
    for image, row in enumerate(faces.rows):
        place.setdefault(files[row], image)
    missing = [(pair.where, file) for pair in pairs for file in (pair.left, pair.right) if file not in place]
    if missing:
        raise ValueError(
            f"{missing[0][0]}: {shown(missing[0][1][:200])} is not in the face set (so for {len(missing):,} of "
            f"{2 * len(pairs):,} images of the list): check that the list belongs to these images and that none is "
            "missing"
        )
    left = np.array([place[pair.left] for pair in pairs], np.int64)
    right = np.array([place[pair.right] for pair in pairs], np.int64)
    return PairList(name, left, right, np.array([pair.same for pair in pairs], bool), fold)


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """File and line number, and the text, of each line of a list that is not blank.

    Raises FileNotFoundError where the list is missing, and ValueError where it is no text, or empty.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} is missing: fetch the data set's protocol again")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{shown(path)} is no text ({error}): fetch it again") from None
    lines = [(f"{shown(path)}, line {n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{shown(path)} is empty: fetch it again")
    yield from lines


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """File and line number, and the fields, of each line that is not blank."""
    return ((where, line.split()) for where, line in text_lines(path))


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{where}: {text[:80]!r} is where a number belongs; fetch the list again")
    return int(text)


def _bad(where: str, fields: Sequence[str], wanted: str) -> ValueError:
    return ValueError(f"{where}: {' '.join(fields)[:80]!r} is not {wanted}; fetch the list again")


def none_here(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """For sets that have no pair lists."""
    return iter(())


# CFP: Protocol/ with numbered images and folds of pairs of numbers.


def of_cfp(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """Frontal to frontal, and frontal to profile."""
    split = root / "Protocol" / "Split"
    for kinds in ("FF", "FP"):
        if (split / kinds).is_dir() and folders_in(split / kinds):
            yield Protocol(f"cfp-{kinds.lower()}", None, lambda kinds=kinds: _cfp_list(root, kinds, faces))  # type: ignore[misc]


def _cfp_list(root: Path, kinds: str, faces: FaceSet) -> PairList:
    protocol = root / "Protocol"
    numbered = {kind: _cfp_images(protocol / f"Pair_list_{kind}.txt") for kind in "FP"}
    pairs: list[ListedPair] = []
    for fold, name in enumerate(folders_in(protocol / "Split" / kinds)):
        for file, same in (("same.txt", True), ("diff.txt", False)):
            for where, fields in _lines(protocol / "Split" / kinds / name / file):
                numbers = "".join(fields).split(",")
                if len(numbers) != 2:
                    raise _bad(where, fields, "two numbers with a comma between them")
                ends = []
                for kind, number in zip(kinds, numbers, strict=True):
                    image = numbered[kind].get(_number(number, where))
                    if image is None:
                        raise ValueError(f"{where}: Pair_list_{kind}.txt has no image {number}; fetch the lists again")
                    ends.append(image)
                pairs.append(ListedPair(ends[0], ends[1], same, where, fold))
    return _pair_list(f"cfp-{kinds.lower()}", pairs, faces, np.array([pair.fold for pair in pairs], np.int64))


def _cfp_images(path: Path) -> dict[int, str]:
    """Image by number; the list gives its path from the folder Protocol, as `../Data/Images/001/frontal/01.jpg`."""
    found = {}
    for where, fields in _lines(path):
        if len(fields) != 2:
            raise _bad(where, fields, "a number and a path")
        parts = PurePosixPath(fields[1].replace("\\", "/")).parts[-3:]
        found[_number(fields[0], where)] = "/".join(("Data", "Images", *parts))
    return found


# CALFW and CPLFW: flat images NAME_0001.jpg or NAME_1.jpg, and a list in which two lines make a pair.


def flat_images(root: Path, faults: Faults = None) -> list[str]:
    """The flat images beside a list, as paths below `root`."""
    for folder in _FLAT_IMAGES:
        if (root / folder).is_dir() and (found := images_in(root / folder, faults)):
            return [f"{folder}/{file}" if folder else file for file in found]
    raise ValueError(
        f"{shown(root)} holds no images: put them there, or into {', '.join(filter(None, _FLAT_IMAGES))} below it"
    )


def of_two_lines(name: str) -> Protocols:
    """For a data set whose list is `pairs_NAME.txt`."""

    def lists(root: Path, faces: FaceSet) -> Iterator[Protocol]:
        file = root / f"pairs_{name}.txt"
        yield Protocol(name.lower(), file, lambda: _two_line_list(root, file, name.lower(), faces))

    return lists


def _two_line_list(root: Path, file: Path, name: str, faces: FaceSet) -> PairList:
    folder = flat_images(root)[0].rpartition("/")[0]
    lines = list(_lines(file))
    if lines[0][1][-1].lower() == "same_person":  # CPLFW's has a header, CALFW's has none
        del lines[0]
    if len(lines) % 2:
        raise ValueError(f"{lines[-1][0]}: the last image has no second one; fetch the list again")
    pairs = []
    for (where, left), (_, right) in zip(lines[::2], lines[1::2], strict=True):
        if len(left) != 2 or len(right) != 2 or left[1] != right[1]:
            raise _bad(where, [*left, "/", *right], "two lines of an image and the same number")
        token = _number(left[1], where)  # 0 for an impostor pair; above it, often the fold of a genuine one
        files = [str(PurePosixPath(folder, fields[0])) for fields in (left, right)]
        pairs.append(ListedPair(files[0], files[1], token > 0, where))
    return _pair_list(name, pairs, faces, None)


# AgeDB-30 and CFP-FP as unpacked from .bin: flat images, and a list of three fields a line.


def of_three_fields(name: str) -> Protocols:
    """For a data set in `LISTED`."""

    def lists(root: Path, faces: FaceSet) -> Iterator[Protocol]:
        def read() -> PairList:
            pairs = three_fields(root, name)
            return _pair_list(name, pairs, faces, folds_by_position(len(pairs)))

        yield Protocol(name, _list_file(root, name), read)

    return lists


def _list_file(root: Path, name: str) -> Path:
    return next(root / file for file in LISTED[name] if os.path.isfile(root / file))


def three_fields(root: Path, name: str) -> list[ListedPair]:
    """The pairs of a list in `LISTED`, their images as paths below `root`; not all of them need be there."""
    pairs = []
    for where, fields in _lines(_list_file(root, name)):
        flags = [fields[i] for i in (0, -1) if fields[i] in ("0", "1")]
        if len(fields) != 3 or len(flags) != 1:
            raise _bad(where, fields, "two images and, before or after them, 0 or 1")
        left, right = fields[1:] if fields[0] == flags[0] else fields[:2]
        if any(PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts for file in (left, right)):
            raise _bad(where, fields, "two images below the folder of the list")
        pairs.append(ListedPair(_below(root, left), _below(root, right), flags[0] == "1", where))
    return pairs


def _below(root: Path, file: str) -> str:
    """An image's path below `root`: lists give it from there, or from the folder of the images."""
    for folder in _FLAT_IMAGES:
        if os.path.isfile(root / folder / file):  # False, where Path.is_file() raises, for a name of 300 letters
            return str(PurePosixPath(folder, file))
    return str(PurePosixPath(file))


# AgeDB: none are read, since its protocols are MATLAB files. Who asks for a list while they lie there is told so.


def of_agedb(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """None; ValueError where MATLAB files lie."""
    for file in sorted(root.glob("*.[mM][aA][tT]")):
        refuse_matlab(file)
    return iter(())


# RFW: a list for each race, of lines `name a b` and `name a name b`.


def of_rfw(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """Those of the races that are in the face set."""
    files = [] if faces.files is None else [faces.files[row] for row in faces.rows]
    by_stem = {file.rpartition(".")[0]: file for file in reversed(files)}
    for race in {file.partition("/")[0]: None for file in files}:
        file = root / "txts" / race / f"{race}_pairs.txt"
        yield Protocol(
            f"rfw-{race.lower()}",
            file,
            lambda race=race, file=file: _rfw_list(race, file, by_stem, faces),  # type: ignore[misc]
        )


def _rfw_list(race: str, file: Path, by_stem: dict[str, str], faces: FaceSet) -> PairList:
    pairs = []
    for where, fields in _lines(file):
        if len(fields) not in (3, 4) or (len(fields) == 4 and fields[0] == fields[2]):
            raise _bad(where, fields, "`name a b` of one person or `name a name b` of two")
        ends = (fields[0], fields[1]), (fields[-2] if len(fields) == 4 else fields[0], fields[-1])
        stems = [f"{race}/{name}/{name}_{_number(number, where):04}" for name, number in ends]
        same = len(fields) == 3
        pairs.append(ListedPair(by_stem.get(stems[0], stems[0]), by_stem.get(stems[1], stems[1]), same, where))
    return _pair_list(f"rfw-{race.lower()}", pairs, faces, folds_by_position(len(pairs)))
