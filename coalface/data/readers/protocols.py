"""The pair lists of the field's data sets, in the forms in which they are distributed or commonly unpacked.

What each looks like stands above its reader. The images of a list are looked up in a face set read from the same
folder, by their paths below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from coalface.core.errors import DataError
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, files_of, pair_list, places_of, refuse_matlab
from coalface.data.readers.bin import folds_by_position
from coalface.data.readers.folders import Faults, folders_in, images_in
from coalface.data.readers.pair_lines import ListedPair, lfw_pair
from coalface.data.readers.text_lines import line_error, text_lines, whole_number

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
    faces: FaceSet
    pairs: Callable[[], Sequence[ListedPair]]
    folds: bool = False
    """Whether it is cut into ten folds by position."""

    def read(self) -> PairList:
        """The pairs, looked up in the face set."""
        places, pairs = places_of(self.faces), self.pairs()
        looked_up = pair_list(self.name, pairs, lambda file: places.get(file, -1))
        return replace(looked_up, fold=folds_by_position(len(pairs))) if self.folds else looked_up


Protocols = Callable[[Path, FaceSet], Iterable[Protocol]]
"""The pair lists of the data set in a folder, their images looked up in a face set."""


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """File and line number, and the fields, of each line that is not blank."""
    return ((where, line.split()) for where, line in text_lines(path))


# CFP: Protocol/ with numbered images and folds of pairs of numbers.


def of_cfp(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """Frontal to frontal, and frontal to profile."""
    for kinds in ("FF", "FP"):
        split = root / "Protocol" / "Split" / kinds
        if split.is_dir() and folders_in(split):
            yield Protocol(f"cfp-{kinds.lower()}", None, faces, partial(_cfp_pairs, root, kinds))


def _cfp_pairs(root: Path, kinds: str) -> list[ListedPair]:
    protocol = root / "Protocol"
    numbered = {kind: _cfp_images(protocol / f"Pair_list_{kind}.txt") for kind in "FP"}
    pairs: list[ListedPair] = []
    for fold, name in enumerate(folders_in(protocol / "Split" / kinds)):
        for file, same in (("same.txt", True), ("diff.txt", False)):
            for where, fields in _lines(protocol / "Split" / kinds / name / file):
                numbers = "".join(fields).split(",")
                if len(numbers) != 2:
                    raise line_error(where, " ".join(fields), "two numbers with a comma between them")
                ends = []
                for kind, number in zip(kinds, numbers, strict=True):
                    image = numbered[kind].get(whole_number(number, where))
                    if image is None:
                        text = f"Pair_list_{kind}.txt has no image {number}; fetch the lists again"
                        raise DataError(text, where=where)
                    ends.append(image)
                pairs.append(ListedPair(where, ends[0], ends[1], same, fold))
    return pairs


def _cfp_images(path: Path) -> dict[int, str]:
    """Image by number; the list gives its path from the folder Protocol, as `../Data/Images/001/frontal/01.jpg`."""
    images = {}
    for where, fields in _lines(path):
        if len(fields) != 2:
            raise line_error(where, " ".join(fields), "a number and a path")
        parts = PurePosixPath(fields[1].replace("\\", "/")).parts[-3:]
        images[whole_number(fields[0], where)] = "/".join(("Data", "Images", *parts))
    return images


# CALFW and CPLFW: flat images NAME_0001.jpg or NAME_1.jpg, and a list in which two lines make a pair.


def flat_images(root: Path, faults: Faults = None) -> list[str]:
    """The flat images beside a list, as paths below `root`."""
    for folder in _FLAT_IMAGES:
        if (root / folder).is_dir() and (images := images_in(root / folder, faults)):
            return [f"{folder}/{file}" if folder else file for file in images]
    places = ", ".join(filter(None, _FLAT_IMAGES))
    raise DataError(f"it has no images; put them there, or into {places} below it", where=root)


def of_two_lines(root: Path, faces: FaceSet, name: str) -> Iterator[Protocol]:
    """For a data set whose list is `pairs_NAME.txt`."""
    file = root / f"pairs_{name}.txt"
    yield Protocol(name.lower(), file, faces, partial(_two_line_pairs, root, file))


def _two_line_pairs(root: Path, file: Path) -> list[ListedPair]:
    folder = flat_images(root)[0].rpartition("/")[0]
    lines = list(_lines(file))
    if lines[0][1][-1].lower() == "same_person":  # CPLFW's has a header, CALFW's has none
        del lines[0]
    if not lines:
        raise DataError("it has no pair below its header; fetch the list again", where=file)
    if len(lines) % 2:
        raise DataError("the last image has no second one; fetch the list again", where=lines[-1][0])
    pairs = []
    for (where, left), (_, right) in zip(lines[::2], lines[1::2], strict=True):
        if len(left) != 2 or len(right) != 2 or left[1] != right[1]:
            raise line_error(where, " ".join([*left, "/", *right]), "two lines of an image and the same number")
        token = whole_number(left[1], where)  # 0 for an impostor pair; above it, often the fold of a genuine one
        files = [str(PurePosixPath(folder, fields[0])) for fields in (left, right)]
        pairs.append(ListedPair(where, files[0], files[1], token > 0))
    return pairs


# AgeDB-30 and CFP-FP as unpacked from .bin: flat images, and a list of three fields a line.


def of_three_fields(root: Path, faces: FaceSet, name: str) -> Iterator[Protocol]:
    """For a data set in `LISTED`."""
    yield Protocol(name, _list_file(root, name), faces, partial(three_fields, root, name), folds=True)


def _list_file(root: Path, name: str) -> Path:
    return next(root / file for file in LISTED[name] if os.path.isfile(root / file))


def three_fields(root: Path, name: str) -> list[ListedPair]:
    """The pairs of a list in `LISTED`, their images as paths below `root`; not all of them need be there."""
    pairs = []
    for where, fields in _lines(_list_file(root, name)):
        flags = [fields[i] for i in (0, -1) if fields[i] in ("0", "1")]
        if len(fields) != 3 or len(flags) != 1:
            raise line_error(where, " ".join(fields), "two images and, before or after them, 0 or 1")
        left, right = fields[1:] if fields[0] == flags[0] else fields[:2]
        if any(PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts for file in (left, right)):
            raise line_error(where, " ".join(fields), "two images below the folder of the list")
        pairs.append(ListedPair(where, _below(root, left), _below(root, right), flags[0] == "1"))
    return pairs


def _below(root: Path, file: str) -> str:
    """An image's path below `root`: lists give it from there, or from the folder of the images."""
    for folder in _FLAT_IMAGES:
        if os.path.isfile(root / folder / file):  # False, where Path.is_file() raises, for a name of 300 letters
            return str(PurePosixPath(folder, file))
    return str(PurePosixPath(file))


def of_agedb(root: Path, faces: FaceSet) -> Iterable[Protocol]:
    """None: AgeDB's protocols are MATLAB files. Raises DataError where they lie."""
    for file in sorted(root.glob("*.[mM][aA][tT]")):
        refuse_matlab(file)
    return ()


# RFW: a list for each race, of lines `name a b` and `name a name b`.


def of_rfw(root: Path, faces: FaceSet) -> Iterator[Protocol]:
    """Those of the races that are in the face set."""
    files = files_of(faces)
    by_stem = {file.rpartition(".")[0]: file for file in reversed(files)}
    for race in {file.partition("/")[0]: None for file in files}:
        file = root / "txts" / race / f"{race}_pairs.txt"
        yield Protocol(f"rfw-{race.lower()}", file, faces, partial(_rfw_pairs, race, file, by_stem), folds=True)


def _rfw_pairs(race: str, file: Path, by_stem: dict[str, str]) -> list[ListedPair]:
    pairs = []
    for where, fields in _lines(file):
        pair = lfw_pair(where, fields, same=len(fields) == 3)
        left, right = (by_stem.get(f"{race}/{stem}", f"{race}/{stem}") for stem in (pair.left, pair.right))
        pairs.append(replace(pair, left=left, right=right))
    return pairs
