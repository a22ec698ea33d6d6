"""Photographs of drawn faces, which lie at known places of a larger picture, and a detector that knows them."""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

from coalface.data.align import TEMPLATE
from coalface.data.detection import Face
from coalface.data.synthetic.generator import SyntheticFaces


def placed(seed: int, side: int = 240) -> np.ndarray:
    """A matrix (2, 3) that brings a face of 112×112 somewhere into a picture of the side."""
    rng = np.random.default_rng(seed)
    scale, angle = rng.uniform(1.1, 1.5), rng.uniform(-0.5, 0.5)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([turn, side / 2 - turn @ [55.5, 55.5] + rng.uniform(-8, 8, 2)])


def moved(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


def drawn(count: int, *, grey: bool = False) -> np.ndarray:
    return SyntheticFaces(count, 1, seed=3, size=112, grey=grey).generate().pixels


def photographed(face: np.ndarray, matrix: np.ndarray, side: int = 240) -> np.ndarray:
    return cv2.warpAffine(face, matrix, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)


def encoded(pixels: np.ndarray, ending: str = ".png") -> bytes:
    """An image file of red, green, blue, or of grey."""
    lossless = [cv2.IMWRITE_WEBP_QUALITY, 101] if ending == ".webp" else []
    return bytes(cv2.imencode(ending, pixels[:, :, ::-1] if pixels.ndim == 3 else pixels, lossless)[1])


@dataclass
class KnownFaces:
    """Finds the faces that a photograph of this (height, width) is said to have; counts what it was asked for."""

    faces: dict[tuple[int, int], list[Face]]
    asked: list[tuple[int, int]] = field(default_factory=list)
    name: str = "known"

    def detect(self, image: np.ndarray) -> list[Face]:
        self.asked.append(image.shape[:2])
        assert image.shape[2] == 3
        return self.faces.get(image.shape[:2], [])

    def fingerprint(self) -> str:
        return self.name


def photograph(seed: int, width: int = 240) -> tuple[np.ndarray, Face]:
    """A picture of height 240 with a face that lies to the left, and that face."""
    matrix = placed(seed)
    picture = photographed(drawn(seed + 1)[seed], matrix)
    wide = cv2.copyMakeBorder(picture, 0, 0, 0, width - 240, cv2.BORDER_REPLICATE)
    return wide, Face(moved(matrix, TEMPLATE))
