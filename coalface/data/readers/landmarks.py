"""Five landmarks of each face, from the lists that data sets bring beside their images, such as RFW's `…_lmk.txt`.

A line is an image's path, perhaps a few fields more (a label, a box), and ten numbers, in pixels of the image as it is
distributed, pixel centres at whole numbers: the left eye as it is seen, the right eye, the tip of the nose, the left
corner of the mouth, the right one. Numbers come point by point, x1 y1 … x5 y5, or all x before all y, x1 … x5 y1 … y5;
which it is, the faces tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.folders import SUFFIXES
from coalface.data.readers.text_lines import text_lines

ENDING = "_lmk.txt"
"""How the lists of RFW end, after the race."""

_IMAGE = re.compile(rf"\s*(\S.*?(?:{'|'.join(map(re.escape, SUFFIXES))}))[\s,]", re.IGNORECASE)
_BETWEEN = 5
"""The most fields between path and points: a label and a box. More are the points of another scheme."""


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Where the five points lie in each of n images."""

    points: NDArray[np.float32]
    """(n, 5, 2): x to the right and y down; NaN for an image that no line names."""
    unmatched: int
    """Lines that name no image of the set."""
    lists: tuple[Path, ...] = ()
    """Where they come from."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """(n,) whether an image has landmarks."""
        return np.asarray(~np.isnan(self.points).all(axis=(1, 2)))


def landmark_lists(path: Path) -> list[Path]:
    """The file itself, or all that are called `…_lmk.txt` in a folder and those below it, by name.

    Raises FileNotFoundError where there is none.
    """
    if path.is_dir():
        lists = sorted(file for file in path.rglob(f"*{ENDING}") if not file.name.startswith("."))
        if not lists:
            raise FileNotFoundError(f"{shown(path)} holds no list of landmarks (…{ENDING}): give the list itself")
        return lists
    if not path.is_file():
        raise FileNotFoundError(f"{shown(path)} does not exist: give a list of landmarks, or a folder that holds some")
    return [path]


def read_landmarks(lists: Sequence[Path], files: Sequence[str]) -> Landmarks:
    """The landmarks of the images `files`, which are paths as a store or a face set has them.

    A line names the image whose path ends its own, as `/data/African/m.1/m.1_0001.jpg` ends in `African/m.1/…`, or the
    only one whose path it ends, as `m.1/m.1_0001.jpg` does; where its list is `African_lmk.txt`, the one below
    `African` comes first. The ending `.jpg` may be another. Images that no line names have NaN.

    Raises FileNotFoundError for a list that is missing. Raises DataError, with file and line, for a line that is no
    path and five points, for one that may mean several images, and for two that give an image different points; and,
    with the file, for points that make no upright faces in either order, and if no line names an image at all.
    """
    places = _Places(files)
    points = np.full((len(files), 5, 2), np.nan, np.float32)
    line_of: dict[int, str] = {}
    unmatched = total = 0
    first = ""
    for path in lists:
        listed, numbers = _read(path)
        prefix = path.name.removesuffix(ENDING) if path.name.endswith(ENDING) else ""
        for (where, name), face in zip(listed, _in_order(numbers, path), strict=True):
            total += 1
            image = places.find(name, prefix, where)
            if image is None:
                unmatched += 1
                first = first or f"{where}: {shown(name[:200])}"
            elif image not in line_of:
                points[image], line_of[image] = face, where
            elif not np.array_equal(points[image], face):
                raise DataError(
                    f"the points of {name[:200]} differ from those that it has in {line_of[image]}; "
                    "keep one of the two lines",
                    where=where,
                )
    if not line_of:
        raise DataError(
            f"none of the {several(total, 'line')} of landmarks names one of the {several(len(files), 'image')}, the "
            f"first is {first}: check that the list belongs to these images"
        )
    return Landmarks(points, unmatched, tuple(lists))


def _read(path: Path) -> tuple[list[tuple[str, str]], NDArray[np.float32]]:
    """Where each line is and the path in it, and its ten numbers: (lines, 10)."""
    listed, rows = [], []
    for where, line in text_lines(path):
        match = _IMAGE.match(line)
        name = match[1] if match else line.split()[0]
        fields = re.split(r"[\s,]+", line[line.index(name) + len(name) :].strip())
        try:
            values = [float(field) for field in fields[-10:]]
        except ValueError:
            values = []
        if len(values) != 10 or len(fields) > 10 + _BETWEEN or not np.isfinite(values).all():
            raise DataError(
                f"{line.strip()[:80]} is not an image, at most {_BETWEEN} fields, and five points x y; "
                "fetch the list again",
                where=where,
            )
        listed.append((where, name))
        rows.append(values)
    return listed, np.array(rows, np.float32)


def _in_order(numbers: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    """(lines, 5, 2) of a list's numbers (lines, 10), in that of the two orders in which more lines show a face."""
    orders = numbers.reshape(-1, 5, 2), numbers.reshape(-1, 2, 5).swapaxes(1, 2)
    fit = [int(_upright(points).sum()) for points in orders]
    if 2 * max(fit) < len(numbers):
        raise DataError(
            f"the points of {several(len(numbers) - max(fit), 'line')} of {len(numbers):,} make no "
            "upright face as left eye, right eye, nose, left and right corner of the mouth, left as it is seen: check "
            "the order",
            where=path,
        )
    return orders[fit[1] > fit[0]]


def _upright(points: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(lines,) whether the left points lie to the left and the eyes above the mouth; a few profiles may not."""
    left_eye, right_eye, _, left_mouth, right_mouth = points.swapaxes(0, 1)
    sides = (left_eye[:, 0] < right_eye[:, 0]) & (left_mouth[:, 0] < right_mouth[:, 0])
    eyes, mouth = np.maximum(left_eye[:, 1], right_eye[:, 1]), np.minimum(left_mouth[:, 1], right_mouth[:, 1])
    return np.asarray(sides & (eyes < mouth))


class _Places:
    """Which image a path means, by the folders that both name."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files
        self.whole: dict[str, int] = {}
        self.ends: dict[str, list[int]] = {}
        """The images by each ending of their path that is shorter than the whole."""
        for image, file in enumerate(files):
            stem = _stem(file)
            self.whole.setdefault(stem, image)
            for start in (at + 1 for at, letter in enumerate(stem) if letter == "/"):
                self.ends.setdefault(stem[start:], []).append(image)
        self.whole |= {file: image for image, file in enumerate(files)}

    def find(self, name: str, prefix: str, where: str) -> int | None:
        parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
        tries = [parts[start:] for start in range(len(parts))]
        if prefix and prefix not in parts:
            tries = [[prefix, *ending] for ending in tries] + tries
        for key in map("/".join, tries):
            image = self.whole.get(key, self.whole.get(_stem(key)))
            if image is not None:
                return image
        images = self.ends.get(_stem("/".join(parts)), [])
        if len(images) > 1:
            some = " and ".join(self.files[image] for image in images[:2])
            raise DataError(
                f"{name[:200]} may mean {some}: read the part of the data set that the list is of", where=where
            )
        return images[0] if images else None


def _stem(file: str) -> str:
    """A path without the ending that makes it an image; `m.01` is a name, not an ending."""
    suffix = PurePosixPath(file).suffix
    return file.removesuffix(suffix) if suffix.lower() in SUFFIXES else file
