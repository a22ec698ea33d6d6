"""MegaFace's lists: probes, distractors, and the noises that insightface found among both.

| list | what it holds |
|---|---|
| `facescrub_features_list.json` | JSON: `path`, images below FaceScrub's folder, and `id`, who each of them shows |
| `megaface_features_list.json_SIZE_SET` | JSON: `path`, images below MegaFace's; SIZE from 10 to 1,000,000 |
| `facescrub_noises.txt` | lines `Aaron_Eckhart_136.png`: probes that show somebody else |
| `megaface_noises.txt` | lines `375/37531198@N00/4174611825_0.jpg`, perhaps after a field and a tab |

The first two are those of the development kit's folder `templatelists`, the others insightface's (`src/megaface`). The
last names distractors that show people of FaceScrub; in both, a line that begins with # is a remark. Tests read
lists of both; the images were not seen. Sources: Kemelmacher-Shlizerman et al., CVPR 2016 (MegaFace); Ng and
Winkler, ICIP 2014 (FaceScrub); Deng et al., CVPR 2019 (the noises).
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.folders import SUFFIXES
from coalface.data.readers.text_lines import line_error, text_lines

_LIST = re.compile(r"megaface_features_list\.json_([0-9]{1,9})_([0-9]{1,9})")


@dataclass(frozen=True)
class Noises:
    """Images that a data set has wrongly, by name."""

    names: frozenset[str]
    """As `_name` makes them."""
    parts: int
    """How many parts of a path name an image: 1 of FaceScrub, 3 of MegaFace."""

    def among(self, files: Sequence[str]) -> NDArray[np.bool_]:
        """(n,) which of some images are noises: those of which the last parts of the path are the same.

        The ending, and whether a space or an underscore stands between two words, do not matter, since the kit's lists
        and insightface's differ in them.
        """
        return np.array([_name(file, self.parts) in self.names for file in files], bool)


@dataclass(frozen=True, eq=False)
class Probes:
    """The probe set, which is FaceScrub's part of 80 identities in the kit."""

    files: tuple[str, ...]
    identity: NDArray[np.int64]
    """(n,) the place of each image's identity in `names`."""
    names: tuple[str, ...]

    def without(self, noises: Noises) -> tuple[Probes, NDArray[np.int64]]:
        """Those that are no noises, and their places (m,) among all; the names stay."""
        places = np.flatnonzero(~noises.among(self.files))
        return Probes(tuple(self.files[place] for place in places), self.identity[places], self.names), places


def read_probes(path: str | os.PathLike[str]) -> Probes:
    """The list of probes. `names` are sorted.

    Raises FileNotFoundError where it is missing; DataError where it is no such list, or names an image twice.
    """
    path = Path(path)
    content = _json(path)
    files, names = _texts(path, content, "path"), _texts(path, content, "id")
    if len(files) != len(names):
        raise DataError(
            f"it has {several(len(files), 'path')} and {several(len(names), 'id')}: fetch the list again", where=path
        )
    _once(path, files)
    distinct = tuple(sorted(set(names)))
    place = {name: n for n, name in enumerate(distinct)}
    return Probes(tuple(files), np.array([place[name] for name in names], np.int64), distinct)


def read_distractors(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The images of a list of distractors.

    Errors as for `read_probes`, and DataError for a list that holds fewer or more than the SIZE in its name, where it
    is called as the kit's are: figures would be of other distractors than they say. Another name says nothing.
    """
    path = Path(path)
    files = _texts(path, _json(path), "path")
    _once(path, files)
    if (match := _LIST.fullmatch(path.name)) and int(match[1]) != len(files):
        raise DataError(
            f"it holds {several(len(files), 'distractor')}, but should hold {int(match[1]):,}, as its name "
            "says: fetch the kit's list again, or name a list of your own after the number that it holds",
            where=path,
        )
    return tuple(files)


def distractor_lists(folder: str | os.PathLike[str], number: int = 1) -> dict[int, Path]:
    """The lists of a set of distractors in a folder, by their size, ascending.

    Raises FileNotFoundError where there is none.
    """
    lists = {}
    for file in Path(folder).iterdir() if Path(folder).is_dir() else ():
        match = _LIST.fullmatch(file.name)
        if match and int(match[2]) == number:
            lists[int(match[1])] = file
    if not lists:
        raise FileNotFoundError(
            f"{shown(folder)} holds no megaface_features_list.json_SIZE_{number}: give the kit's folder `templatelists`"
        )
    return dict(sorted(lists.items()))


_NOISE = {
    "facescrub": (1, "an image, such as Aaron_Eckhart_136.png"),
    "megaface": (3, "an image and the two folders that it lies in, such as 375/37531198@N00/4174611825_0.jpg"),
}
"""How many parts of a path name an image of a set, and what a line is."""


def read_noises(path: str | os.PathLike[str], among: Literal["facescrub", "megaface"]) -> Noises:
    """The noises among the probes, which are FaceScrub's, or among the distractors.

    Raises FileNotFoundError where the list is missing; DataError with file and line for a line that is no image.
    """
    parts, meaning = _NOISE[among]
    names = set()
    for where, line in text_lines(Path(path)):
        if line.startswith("#"):
            continue
        file = line.strip().split("\t")[-1]
        if file.count("/") != parts - 1 or not file.lower().endswith(SUFFIXES):
            raise line_error(where, line, meaning)
        names.add(_name(file, parts))
    return Noises(frozenset(names), parts)


def _name(file: str, parts: int) -> str:
    short = "/".join(file.replace("\\", "/").split("/")[-parts:])
    stem, dot, ending = short.rpartition(".")
    return (stem if f"{dot}{ending}".lower() in SUFFIXES else short).replace(" ", "_")


def _json(path: Path) -> object:
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} does not exist; fetch the kit's lists again")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error}); fetch the kit's list again", where=path) from None


def _texts(path: Path, content: object, key: str) -> list[str]:
    values = content.get(key) if isinstance(content, dict) else None
    if not isinstance(values, list) or not values:
        raise DataError(f"it has no list {key!r}; give a file of the kit's folder `templatelists`", where=path)
    texts = [str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values]
    place = next((n for n, text in enumerate(texts) if not isinstance(text, str) or not text), None)
    if place is not None:
        raise DataError(
            f"entry {place + 1:,} of {key!r} is {shown(values[place])[:80]!r}, which is not a name; fetch the list "
            "again",
            where=path,
        )
    return texts


def _once(path: Path, files: Sequence[str]) -> None:
    if len(set(files)) < len(files):
        twice, _ = collections.Counter(files).most_common(1)[0]
        raise DataError(f"{twice[:80]} appears more than once; fetch the list again", where=path)
