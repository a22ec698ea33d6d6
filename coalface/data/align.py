"""Alignment of faces by five landmarks to the place, size and angle that the field's models expect."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.readers.headers import check_header
from coalface.data.source import decode_pixels

SIDE = 112
"""Side of the square that `TEMPLATE` is given for, in pixels."""
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""(5, 2) where left eye, right eye, nose and the corners of the mouth belong, x to the right and y down, pixel centres
at whole numbers: insightface's, for 112×112."""


def similarity(points: NDArray[np.floating], target: NDArray[np.floating] = TEMPLATE) -> NDArray[np.float64]:
    """The rotation, scale and shift (2, 3) that bring points (k, 2) nearest to a target (k, 2), without reflection.

    The least squares Σ |s R p + t − q|² of Umeyama, IEEE TPAMI 13 (1991), in the plane: with points and target as
    complex numbers about their means, s R is multiplication by Σ p̄ q / Σ |p|². Points that are NaN are left out, with
    their targets.

    Raises ValueError where the points are not two places at least, or infinite.
    """
    known = ~np.isnan(points).any(axis=1)
    source, goal = (np.asarray(xy, np.float64)[known] @ [1, 1j] for xy in (points, target))
    centred = source - source.mean() if len(source) else source
    spread = float((np.abs(centred) ** 2).sum())
    if not np.isfinite(spread) or spread < 1e-12:
        raise ValueError(f"the landmarks {np.asarray(points).tolist()} are not several places: no face lies like that")
    turn = (centred.conj() * (goal - goal.mean())).sum() / spread
    shift = goal.mean() - turn * source.mean()
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def align(image: NDArray[np.uint8], points: NDArray[np.floating], *, size: int = SIDE) -> NDArray[np.uint8]:
    """The face (size, size) or (size, size, 3) whose landmarks in the image are `points` (5, 2).

    `TEMPLATE` is scaled by size / 112. Pixels are interpolated linearly, without averaging where the face shrinks, and
    black where the image ends: so the field's own scripts do it.
    """
    matrix = similarity(points, TEMPLATE * (size / SIDE))
    return np.asarray(cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR, borderValue=0), np.uint8)


def aligned_face(
    encoded: bytes | memoryview, where: str, points: NDArray[np.floating], *, size: int, grey: bool
) -> tuple[NDArray[np.uint8], bool]:
    """The face of an encoded image as a model takes it, (size, size, 1) grey or (size, size, 3) RGB, by `align`.

    With it, whether the middle of its landmarks lies in the image. Raises ValueError, naming `where`, for an image that
    is damaged and for landmarks that are not several places.
    """
    check_header(encoded, where)
    image = decode_pixels(encoded, where, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    x, y = np.nanmean(points, axis=0)
    try:
        face = align(image, points, size=size)
    except ValueError as error:
        raise DataError(f"{error}", where=where) from None
    return face[:, :, None] if grey else face[:, :, ::-1], bool(0 <= x < width and 0 <= y < height)
