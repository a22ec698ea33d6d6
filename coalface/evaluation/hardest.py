"""The pairs that a model is most wrong about, with their pictures, for the page of a run."""

from __future__ import annotations

import base64
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.data.faceset import FaceSet

FILE = "hardest.json"
"""In a run's folder: list -> `genuine` and `impostor` -> pairs, the hardest first."""
MOST, LISTS = 6, 3
"""Pairs of each kind, and lists: at most 36 pictures of about 4 kB."""
SIDE, GAP, QUALITY = 96, 4, 80
"""Pixels of a face's longer side at most, pixels between two faces, and the quality of a JPEG."""


def hardest_pairs(
    scores: NDArray[np.float64],
    same: NDArray[np.bool_],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    faces: FaceSet,
) -> dict[str, list[dict[str, Any]]]:
    """The genuine pairs of the lowest and the impostor pairs of the highest score: `cosine`, and `jpeg` in base64.

    All arrays are (n,); `left` and `right` are images of `faces`. No image is shown twice.
    """
    pairs: dict[str, list[dict[str, Any]]] = {}
    for kind, is_same, hardness in (("genuine", True, scores), ("impostor", False, -scores)):
        places, pictured = np.flatnonzero(same == is_same), set[int]()
        of_kind = pairs.setdefault(kind, [])
        for place in places[np.argsort(hardness[places], kind="stable")]:
            images = [int(left[place]), int(right[place])]
            if not pictured.intersection(images):
                pictured.update(images)
                of_kind.append({"cosine": float(scores[place]), "jpeg": _picture(faces.take(np.array(images)))})
            if len(of_kind) == MOST:
                break
    return pairs


def _picture(pixels: NDArray[np.uint8]) -> str:
    """Two faces (2, height, width, channels) beside each other."""
    height, width = pixels.shape[1:3]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = [cv2.resize(face, size, interpolation=cv2.INTER_AREA) for face in pixels]
    gap = np.full((size[1], GAP, *small[0].shape[2:]), 255, dtype=np.uint8)
    both = np.concatenate([small[0], gap, small[1]], axis=1)
    jpeg = cv2.imencode(".jpg", both[:, :, ::-1] if both.ndim == 3 else both, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
    return base64.b64encode(jpeg.tobytes()).decode("ascii")
