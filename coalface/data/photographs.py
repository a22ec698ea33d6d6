"""From a photograph to aligned faces: which of its faces are taken, and why some are not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.align import SIDE, TEMPLATE, align, similarity
from coalface.data.detection import Detector, Face
from coalface.data.readers.headers import check_header
from coalface.data.source import decode_pixels

REASONS = {
    "not an image": "a file of a kind that is not read: make a JPEG, PNG, WebP, BMP or PNM of it if it is a photograph",
    "damaged": "an image that is empty, cut short, too large or cannot be read",
    "no landmarks": "the list of landmarks does not name the image, or places them beside it",
    "no face": "a photograph in which the detector finds no face, at any turn",
    "two faces": "a second face is nearly as large and central, so it is open whose photograph it is",
    "too small": "the square around the face has too few pixels in the photograph",
    "cut off": "a landmark lies at the photograph's edge or outside, or too much of the square around the face outside",
    "blurred": "the aligned face has too little detail for its contrast",
}
"""Why a file gives no face, with what that means."""
UNREADABLE = ("not an image", "damaged")
"""Those of files that show nothing."""


@dataclass(frozen=True)
class Limits:
    """What a face must be to be taken."""

    side: float = 40.0
    """Pixels of the photograph along the side of the square that becomes the aligned face."""
    outside: float = 0.5
    """The share of that square that may lie outside the photograph."""
    margin: float = 0.03
    """From each landmark to the photograph's edge, at least, as a share of that square's side."""
    sharpness: float = 0.005
    """What `sharpness` gives of the aligned face at 112×112, at least."""
    rival: float = 0.8
    """The prominence of the second face as a share of the first's, from which on the two cannot be told apart."""


LIMITS = Limits()
ANY = Limits(side=0, outside=1, margin=0, sharpness=0, rival=2)
"""Whatever has landmarks is taken."""


@dataclass(frozen=True)
class LeftOut:
    """A file, or a face in it, that is not taken."""

    reason: str
    """One of `REASONS`."""
    detail: str = ""
    """The figures, or what a reader said."""
    corners: tuple[tuple[float, float], ...] = ()
    """Of the square around the face, in the photograph."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """The faces of one photograph."""

    faces: NDArray[np.uint8]
    """(k, size, size, 3) red, green, blue, or (k, size, size, 1) of a grey photograph; the most prominent first."""
    points: NDArray[np.float64]
    """(k, 5, 2) their landmarks in the photograph."""
    left_out: tuple[LeftOut, ...] = ()
    """Why there is none, or which were not taken."""
    where: str = "photograph"
    """The file, or which of several photographs it is."""

    @property
    def face(self) -> NDArray[np.uint8]:
        """The only face, or the most prominent. Raises DataError with the reason where there is none."""
        if not len(self.faces):
            first = self.left_out[0]
            raise DataError(f"{first.reason} ({first.detail})" if first.detail else first.reason, where=self.where)
        return np.asarray(self.faces[0])


def decode_photograph(encoded: bytes | memoryview, where: str | Path) -> NDArray[np.uint8]:
    """(height, width, 3) red, green, blue, or (height, width, 1) of a grey image, turned upright by its EXIF tag.

    16-bit channels become 8 bits, CMYK becomes RGB, and alpha is dropped. Raises DataError as `check_header` does.
    """
    grey = check_header(encoded, where).channels <= 2
    image = decode_pixels(encoded, where, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR)
    return image[:, :, None] if grey else np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def prominence(face: Face, shape: tuple[int, ...]) -> float:
    """How large and central a face is: s (1 − d).

    s is the side of its square in pixels, d the distance of the middle of its landmarks from that of the photograph of
    shape (height, width, …) as a share of half the diagonal.
    """
    half = np.array(shape[1::-1]) / 2
    away = np.nanmean(face.points, axis=0) + 0.5 - half
    return square_side(face) * max(0.0, 1 - float(np.hypot(*away) / np.hypot(*half)))


def square_side(face: Face) -> float:
    """Pixels of the photograph along the side of the square that becomes the aligned face."""
    return SIDE / float(np.hypot(*similarity(face.points)[:, 0]))


def find_faces(image: NDArray[np.uint8], detector: Detector) -> list[Face]:
    """The faces of an image (height, width, 1 or 3); those whose landmarks are no several places are none."""
    coloured = image if image.shape[2] == 3 else np.repeat(image, 3, axis=2)
    return [face for face in detector.detect(coloured) if np.isfinite(face.points).all() and np.ptp(face.points) > 1]


def cut_faces(
    image: NDArray[np.uint8], faces: list[Face], *, size: int = SIDE, limits: Limits = LIMITS, all_faces: bool = False
) -> Aligned:
    """The most prominent face of an image (height, width, 1 or 3), aligned, or all that keep the limits."""
    ranked = sorted(faces, key=lambda face: -prominence(face, image.shape))
    left_out: list[LeftOut] = [] if ranked else [LeftOut("no face")]
    if not all_faces and len(ranked) > 1:
        first, second = (prominence(face, image.shape) for face in ranked[:2])
        if 0 < limits.rival * first <= second:
            left_out.append(LeftOut("two faces", f"{second / first:.2f} as prominent", _corners(ranked[0])))
        ranked = [] if left_out else ranked[:1]
    taken = []
    for face in ranked:
        if (problem := _problem(image, face, limits)) is not None:
            left_out.append(problem)
        else:
            taken.append((cut_face(image, face, size), face.points))
    shape = (len(taken), size, size, image.shape[2])
    crops = np.array([crop for crop, _ in taken], np.uint8).reshape(shape)
    return Aligned(crops, np.array([points for _, points in taken]).reshape(-1, 5, 2), tuple(left_out))


def cut_face(image: NDArray[np.uint8], face: Face, size: int) -> NDArray[np.uint8]:
    """The face (size, size) or (size, size, 3), as `align` cuts it; where it shrinks to less than half, averaged."""
    times = int(square_side(face) / size)
    if times < 2:
        return align(image, face.points, size=size)
    matrix = similarity(face.points, TEMPLATE * (size / SIDE * times) + (times - 1) / 2)
    large = cv2.warpAffine(image, matrix, (size * times, size * times), flags=cv2.INTER_LINEAR)
    return np.asarray(cv2.resize(large, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def _problem(image: NDArray[np.uint8], face: Face, limits: Limits) -> LeftOut | None:
    """Which limit a face does not keep."""
    corners = _corners(face)
    if (side := square_side(face)) < limits.side:
        return LeftOut("too small", f"{math.floor(10 * side) / 10:g} pixels", corners)
    height, width = image.shape[:2]
    frame = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    inside = cv2.intersectConvexConvex(np.array(corners, np.float32) + np.float32(0.5), frame)[0] / side**2
    margin = min((face.points + 0.5).min(), (np.array([width, height]) - 0.5 - face.points).min()) / side
    if limits.outside < 1 and (1 - inside > limits.outside or margin < limits.margin):
        what = "a landmark at the edge or outside" if margin < limits.margin else f"{1 - inside:.0%} outside"
        return LeftOut("cut off", what, corners)
    if limits.sharpness and (sharp := sharpness(cut_face(image, face, SIDE))) < limits.sharpness:
        return LeftOut("blurred", f"sharpness {sharp:.4f}", corners)
    return None


_WINDOW = np.outer(np.hanning(80), np.hanning(80))
_CYCLES = np.hypot(*np.meshgrid(np.fft.fftfreq(80, 1 / 80), np.fft.fftfreq(80, 1 / 80)))
_IS_DETAIL = (_CYCLES >= 10) & (_CYCLES < 20)
"""Wavelengths of 4 to 8 pixels: an enlarged face has hardly any, and shorter ones may be noise and edges of blocks."""
_FLAT = 4 * _WINDOW.size * float((_WINDOW**2).sum())
"""The power of noise with a variance of 4 grey levels², so that the rounding to 256 levels is no detail."""


def sharpness(face: NDArray[np.uint8]) -> float:
    """The share of detail in the power of the grey levels, from the brows to the mouth of a face of 112×112; 0 to 1.

    With P the power spectrum of the middle 80×80 pixels, without their mean and under a Hann window: the sum of P from
    10 up to 20 cycles over the sum of all P and of a small constant.
    """
    grey = face if face.ndim == 2 else cv2.cvtColor(face, cv2.COLOR_RGB2GRAY)
    centre = np.asarray(grey[24:104, 16:96], np.float64)
    power = np.abs(np.fft.fft2((centre - centre.mean()) * _WINDOW)) ** 2
    return float(power[_IS_DETAIL].sum() / (power.sum() + _FLAT))


def _corners(face: Face) -> tuple[tuple[float, float], ...]:
    """The corners of the square around a face, in the photograph."""
    matrix = similarity(face.points, TEMPLATE)
    square = np.array([[0, 0], [SIDE, 0], [SIDE, SIDE], [0, SIDE]]) - 0.5
    places: Any = (square - matrix[:, 2]) @ np.linalg.inv(matrix[:, :2]).T
    return tuple((round(float(x), 1), round(float(y), 1)) for x, y in places)
