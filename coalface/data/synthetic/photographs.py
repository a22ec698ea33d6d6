"""Photographs of made-up people: drawn faces at known places of larger pictures, to try alignment on."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import writing
from coalface.data.synthetic.generator import SyntheticFaces

WIDTH, HEIGHT = 480, 360
_FACE = 160
"""Pixels at which a face is drawn, before it is scaled by 0.8 to 1.2."""
_FADE = 10
"""Pixels over which the border of a drawn face goes over into the background."""


def write_photographs(
    out: str | os.PathLike[str], *, identities: int, images: int, seed: int = 0, first: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Write photographs of `identities` people, `images` of each, as JPEGs `NAME/0000.jpg` of 480×360.

    A face is turned by up to 20° and lies anywhere within the picture; the background is coloured noise. Returns by
    file the matrix (2, 3) that brings the face's own square, 0 to 160, to its place. `first` is the number of the first
    identity, so that silos with one seed show other people.

    Examples:
        >>> places = write_photographs("photographs", identities=3, images=2)  # doctest: +SKIP
    """
    faces = SyntheticFaces(identities, images, seed, size=_FACE, grey=False, first=first)
    fade = np.clip(np.minimum.outer(*2 * [np.minimum(np.arange(_FACE), np.arange(_FACE)[::-1])]) / _FADE, 0, 1)
    places = {}
    for number, face in enumerate(faces.images()):
        rng = np.random.default_rng([seed, first * images + number])
        scale, angle = rng.uniform(0.8, 1.2), np.radians(rng.uniform(-20, 20))
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        reach = scale * _FACE * 0.66  # half of the turned square
        middle = rng.uniform([reach, reach], [WIDTH - reach, HEIGHT - reach])
        place = np.column_stack([turn, middle - turn @ np.full(2, _FACE / 2)])
        noise = rng.integers(50, 210, (6, 8, 3)).astype(np.float32)
        background = np.asarray(cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC))
        cut, weight = (
            np.asarray(cv2.warpAffine(plane.astype(np.float32), place, (WIDTH, HEIGHT))) for plane in (face, fade)
        )
        picture = background + weight[:, :, None] * (cut - background)
        pixels = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
        file = str(Path(faces.files[number]).with_suffix(".jpg"))
        path = Path(out, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path):
            path.write_bytes(bytes(cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1]))
        places[file] = place
    return places
