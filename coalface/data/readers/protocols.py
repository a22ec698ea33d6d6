"""The pair lists of the field's data sets, in the forms in which they are distributed or commonly unpacked.

What each looks like stands above its reader. The images of a list are looked up in a face set read from the same
folder, by their paths below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from coalface.core.text import shown
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, pair_list, places_of, refuse_matlab
from coalface.data.readers.bin import folds_by_position
from coalface.data.readers.folders import Faults, folders_in, images_in
from coalface.data.readers.pair_lines import ListedPair, lfw_pair
from coalface.data.readers.text_lines import not_a_line, text_lines, whole_number

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


def _pair_list(name: str, pairs: Sequence[ListedPair], faces: FaceSet, *, folds: bool = False) -> PairList:
    """The pairs, looked up; with `folds` in ten folds by position."""
    places = places_of(faces)
    found = pair_list(name, pairs, lambda file: places.get(file, -1))
    return replace(found, fold=folds_by_position(len(pairs))) if folds else found


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """File and line number, and the fields, of each line that is not blank."""
    return ((where, line.split()) for where, line in text_lines(path))


def _bad(where: str, fields: Sequence[str], meaning: str) -> ValueError:
    return not_a_line(where, " ".join(fields), meaning)


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
                    image = numbered[kind].get(whole_number(number, where))
                    if image is None:
                        raise ValueError(f"{where}: Pair_list_{kind}.txt has no image {number}; fetch the lists again")
                    ends.append(image)
                pairs.append(ListedPair(where, ends[0], ends[1], same, fold))
    return _pair_list(f"cfp-{kinds.lower()}", pairs, faces)


def _cfp_images(path: Path) -> dict[int, str]:
    """Image by number; the list gives its path from the folder Protocol, as `../Data/Images/001/frontal/01.jpg`."""
    found = {}
    for where, fields in _lines(path):
        if len(fields) != 2:
            raise _bad(where, fields, "a number and a path")
        parts = PurePosixPath(fields[1].replace("\\", "/")).parts[-3:]
        found[whole_number(fields[0], where)] = "/".join(("Data", "Images", *parts))
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
        token = whole_number(left[1], where)  # 0 for an impostor pair; above it, often the fold of a genuine one
        files = [str(PurePosixPath(folder, fields[0])) for fields in (left, right)]
        pairs.append(ListedPair(where, files[0], files[1], token > 0))
    return _pair_list(name, pairs, faces)


# AgeDB-30 and CFP-FP as unpacked from .bin: flat images, and a list of three fields a line.


def of_three_fields(name: str) -> Protocols:
    """For a data set in `LISTED`."""

    def lists(root: Path, faces: FaceSet) -> Iterator[Protocol]:
        def read() -> PairList:
            return _pair_list(name, three_fields(root, name), faces, folds=True)

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
        pairs.append(ListedPair(where, _below(root, left), _below(root, right), flags[0] == "1"))
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
        pair = lfw_pair(where, fields, same=len(fields) == 3)
        left, right = (by_stem.get(f"{race}/{stem}", f"{race}/{stem}") for stem in (pair.left, pair.right))
        pairs.append(replace(pair, left=left, right=right))
    return _pair_list(f"rfw-{race.lower()}", pairs, faces, folds=True)
