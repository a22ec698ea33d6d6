"""Five landmarks of each face, from the lists that data sets and detectors bring beside their images.

- **text**, such as RFW's `…_lmk.txt`: a line is an image's path, perhaps a few fields more (a label, a box), and ten
  numbers, perhaps a score, or the 136 of dlib's 68 points; a head before the first is passed over;
- **JSON**: an object by path, or a list of objects with a path, with the faces as MTCNN, RetinaFace and insightface
  give them;
- **a file for each image**: 300-W's `.pts`, CFP's fiducials, lines `x y` or `x,y` of 5, 30 or 68 points.

Points are in pixels of the image as it is distributed, pixel centres at whole numbers: the left eye as it is seen, the
right eye, the tip of the nose, the left corner of the mouth, the right one. Ten numbers come point by point,
x1 y1 … x5 y5, or all x before all y, and some call left what is left to the person: which it is, the faces tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.folders import SUFFIXES
from coalface.data.readers.text_lines import text_lines

ENDING = "_lmk.txt"
"""How the lists of RFW end, after the race."""

_IMAGE = re.compile(rf"\s*(?:-?\d+\t)?(\S.*?(?:{'|'.join(map(re.escape, SUFFIXES))}))[\s,]", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
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
    """The file itself; of a folder all that are called `…_lmk.txt`, else the files of points of single images.

    Raises FileNotFoundError where there is none.
    """
    if path.is_dir():
        for pattern in (f"*{ENDING}", "*.pts", "*.txt"):
            if lists := sorted(file for file in path.rglob(pattern) if not file.name.startswith(".")):
                return lists
        raise FileNotFoundError(f"{shown(path)} holds no landmarks (…{ENDING}, .pts, .txt): give the list itself")
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
        single = _points_of_one(path)
        if single is not None:
            listed, faces = [(str(path), str(path.with_suffix("")))], single[None].astype(np.float32)
        else:
            listed, orders = _read_json(path) if path.suffix.lower() == ".json" else _read(path)
            faces = _best_order(orders, path)
        prefix = path.name.removesuffix(ENDING) if path.name.endswith(ENDING) else ""
        for (where, name), face in zip(listed, faces, strict=True):
            total += 1
            image = places.find(name, prefix, where) if single is None else places.find_beside(name)
            if image is None:
                unmatched += 1
                first = first or f"{where}: {shown(name[:200])}"
            elif image not in line_of:
                points[image], line_of[image] = face, where
            elif not np.array_equal(points[image], face, equal_nan=True):
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


def _read(path: Path) -> tuple[list[tuple[str, str]], list[NDArray[np.float32]]]:
    """Where each line of a text is, the path in it, and the points (lines, 5, 2) in each order that they may have."""
    listed: list[tuple[str, str]] = []
    last: list[NDArray[np.float64]] = []
    before_score: list[NDArray[np.float64]] = []
    for where, line in text_lines(path):
        match = _IMAGE.match(line)
        name = match[1] if match else re.split(r"[\s,]", line.strip())[0]
        fields = re.split(r"[\s,]+", line[line.index(name) + len(name) :].strip())
        count = 136 if len(fields) >= 136 else 10
        values = _numbers(fields[-count:])
        if not listed and match is None and len(values) != count:
            continue  # a head: the names of the columns, or how many lines follow
        if len(values) != count or len(fields) > count + _BETWEEN or not _fit(values):
            raise DataError(
                f"{line.strip()[:80]} is not an image, at most {_BETWEEN} fields, and five points x y, or 68; fetch "
                "the list again",
                where=where,
            )
        listed.append((where, name.strip('"')))
        last.append(_five(values.reshape(-1, 2)))
        earlier = _numbers(fields[-11:-1]) if count == 10 else np.empty(0)
        before_score.append(earlier.reshape(5, 2) if len(earlier) == 10 else np.full((5, 2), np.nan))
    if not listed:
        raise DataError("no line has an image and five points x y, or 68", where=path)
    orders = []
    for numbers in (np.array(last, np.float32), np.array(before_score, np.float32)):
        orders += [numbers, numbers.reshape(-1, 2, 5).swapaxes(1, 2)]
    return listed, orders


def _fit(points: NDArray[np.float64]) -> bool:
    """Whether all are finite in float32."""
    return bool((np.abs(points) <= _LARGEST).all())


def _numbers(fields: list[str]) -> NDArray[np.float64]:
    try:
        return np.array(fields, float)
    except ValueError:
        return np.empty(0)


_PATHS = ("file", "path", "image", "name", "file_name", "filename", "img")
_POINTS = ("keypoints", "kps", "landmarks", "landmark", "points")
_NAMES = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


def _read_json(path: Path) -> tuple[list[tuple[str, str]], list[NDArray[np.float32]]]:
    """The same of JSON; of several faces of an image, those of the largest."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(content, list):
            content = {next(str(entry[key]) for key in _PATHS if key in entry): entry for entry in content}
        by_name = {name: [_points_in(face) for face in _faces_in(entry)] for name, entry in content.items()}
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
        raise DataError(
            f"it is not JSON with a path and five points for each image ({type(error).__name__}: {str(error)[:80]})",
            where=path,
        ) from None
    listed = [(f"{path}, {name[:80]}", name) for name, faces in by_name.items() if faces]
    largest = [max(faces, key=lambda face: float(np.ptp(face, axis=0).max())) for faces in by_name.values() if faces]
    points = np.array(largest, np.float32).reshape(-1, 5, 2)
    return listed, [points, points[:, [1, 0, 2, 4, 3]]]


def _faces_in(entry: Any) -> list[Any]:
    """The faces of an image: a list of them, RetinaFace's object of them, or a single one."""
    if isinstance(entry, dict) and isinstance(entry.get("faces"), list):
        return list(entry["faces"])
    if isinstance(entry, dict) and not any(key in entry for key in (*_POINTS, *_NAMES)):
        return [face for face in entry.values() if isinstance(face, dict)]
    return entry if isinstance(entry, list) and np.shape(entry) not in ((5, 2), (68, 2), (10,)) else [entry]


def _points_in(face: Any) -> NDArray[np.float64]:
    """(5, 2) the points of a face. Raises KeyError, TypeError or ValueError for what has none."""
    if isinstance(face, dict):
        face = next((face[key] for key in _POINTS if face.get(key) is not None), face)
    if isinstance(face, dict):
        face = [face[name] for name in _NAMES]
    points = np.array(face, float)
    points = _five(points) if points.shape == (68, 2) else points.reshape(5, 2)
    if not _fit(points):
        raise ValueError("a point is too large, or not finite")
    return points


_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
_POINT_LINE = re.compile(rf"\s*{_NUMBER}[\s,]+{_NUMBER}\s*", re.IGNORECASE)


def _points_of_one(path: Path) -> NDArray[np.float64] | None:
    """(5, 2) the points of a file that has those of one image; None for a list."""
    if path.suffix.lower() not in (".pts", ".txt"):
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("{")[-1].replace("}", "").strip().splitlines()
    matches = [_POINT_LINE.fullmatch(line) for line in lines[:69]]
    if not lines or matches[0] is None:
        return None
    if len(lines) not in (5, 30, 68) or not all(matches):
        raise DataError(f"it has {len(lines)} lines; give the 5, 30 (CFP) or 68 points of an image", where=path)
    points = np.array([match.groups() for match in matches if match], float)
    if not _fit(points):
        raise DataError("a point is too large, or not finite", where=path)
    return _five(points - 1 if path.suffix.lower() == ".pts" else points)  # these count pixels from 1


def _five(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The five points of five or of dlib's 68; of CFP's 30, which lie on one side of the face, its three, else NaN."""
    if len(points) == 68:
        eyes = points[36:42].mean(axis=0), points[42:48].mean(axis=0)
        return np.array([*eyes, points[30], points[48], points[54]])
    if len(points) == 30:
        eye, nose, mouth = points[12:18].mean(axis=0), points[21], points[25]
        five = np.full((5, 2), np.nan)
        five[[0, 2, 3] if mouth[0] < nose[0] else [1, 2, 4]] = eye, nose, mouth
        return five
    return points


def _best_order(orders: list[NDArray[np.float32]], path: Path) -> NDArray[np.float32]:
    """(lines, 5, 2) of a list, in the order in which most lines show a face."""
    fit = [int(_upright(points).sum()) for points in orders]
    if 2 * max(fit) < (count := len(orders[0])):
        raise DataError(
            f"the points of {several(count - max(fit), 'line')} of {count:,} make no upright face as left eye, right "
            "eye, nose, left and right corner of the mouth, left as it is seen: check the order",
            where=path,
        )
    return orders[fit.index(max(fit))]


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

    def find_beside(self, name: str) -> int | None:
        """The image that lies in folders called as those of a file of points, the fewer of them the worse."""
        parts = name.replace("\\", "/").strip("/").split("/")
        for start in range(len(parts)):
            key = "/".join(parts[start:])
            images = {*self.ends.get(key, []), *([self.whole[key]] if key in self.whole else [])}
            if images:
                return images.pop() if len(images) == 1 else None
        return None


def _stem(file: str) -> str:
    """A path without the ending that makes it an image; `m.01` is a name, not an ending."""
    suffix = PurePosixPath(file).suffix
    return file.removesuffix(suffix) if suffix.lower() in SUFFIXES else file
