"""The interface behind which every reader of face images stands, and what the readers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray


class Source(Protocol):
    """Face images that can be read one after another, whatever they are stored in.

    `files`, `labels` and the images come in one and the same order. Nothing is decoded before `images` is iterated,
    and then one image at a time, so that a source may be far larger than memory.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The identities, in the order of their numbers."""

    @property
    def files(self) -> Sequence[str]:
        """(n,) where each image comes from, as `identity/file name`."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,) the identity of each image, 0 to len(names) − 1."""

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn: (size, size, 1) where `grey`, else (size, size, 3) in the order red, green, blue."""

    def fingerprint(self) -> str:
        """A hexadecimal name for the content, cheap to find and different when the content differs; it keys caches."""


def decode(encoded: bytes, where: str, *, size: int, grey: bool) -> NDArray[np.uint8]:
    """An encoded image (JPEG, PNG, PGM, BMP, WebP) as a square array: (size, size, 1) grey or (size, size, 3) RGB.

    An image that is not square is cut to its central square first, which keeps the proportions of a face. It is then
    brought to `size` by averaging areas when it shrinks, and linearly when it grows.

    Raises ValueError, naming `where`, if the bytes are no whole image.
    """
    image = None
    if encoded:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(
            f"{where} is damaged or not an image ({len(encoded):,} bytes): replace it from the original, or delete it"
        )
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    image = image[top : top + side, left : left + side]
    if side != size:
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA if side > size else cv2.INTER_LINEAR)
    return np.asarray(image[:, :, None] if grey else cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)
