"""Face images that a program holds already: arrays, or a dataset of (image, label), as a source."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.source import central_square, decode


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their labels: a `Source`.

    `items[i]` is an image; where `people` is not given, an image and its label, as in a torch Dataset. An image is the
    path of a file; (height, width), (height, width, channels) or, of a torch tensor, (channels, height, width), of
    bytes, or of floats from 0 to 1; or an image of PIL.
    """

    items: Any
    people: Sequence[Any] | None = None
    """(n,) whom each image shows: a number or a name."""

    @functools.cached_property
    def _named(self) -> tuple[str, ...]:
        people = self.people if self.people is not None else [self._pair(i)[1] for i in range(len(self.items))]
        if len(people) != len(self.items):
            raise DataError(f"{len(people)} labels for {len(self.items)} images; give one for each", where="labels")
        return tuple(str(getattr(person, "item", lambda person=person: person)()) for person in people)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The people, sorted."""
        return tuple(sorted(set(self._named)))

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """(n,) a name for each image: `person/number`."""
        return tuple(f"{person}/{i}" for i, person in enumerate(self._named))

    @functools.cached_property
    def labels(self) -> NDArray[np.int64]:
        """(n,) the identity of each image."""
        number = {name: i for i, name in enumerate(self.names)}
        return np.array([number[name] for name in self._named], dtype=np.int64)

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, its central square at the size and colour that are asked for."""
        for i in range(len(self.items)):
            item = self._item(i)
            if isinstance(item, str | os.PathLike):
                yield decode(_bytes(item, i), Path(item), size=size, grey=grey)
            else:
                yield _resized(_pixels(item, i), size, grey)

    def fingerprint(self) -> str:
        """SHA-256 of all images and people."""
        digest = hashlib.sha256("\n".join(self.files).encode())
        for i in range(len(self.items)):
            item = self._item(i)
            if isinstance(item, str | os.PathLike):
                digest.update(hashlib.sha256(_bytes(item, i)).digest())
            else:
                pixels = _pixels(item, i)
                digest.update(repr(pixels.shape).encode() + pixels.tobytes())
        return digest.hexdigest()

    def _item(self, i: int) -> Any:
        return self.items[i] if self.people is not None else self._pair(i)[0]

    def _pair(self, i: int) -> tuple[Any, Any]:
        item = self.items[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError("not a pair of image and label; give each such a pair, or `labels`", where=f"image {i}")
        return item[0], item[1]


def _bytes(path: str | os.PathLike[str], i: int) -> bytes:
    """The bytes of the file that image `i` names. Raises DataError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", where=f"image {i}") from error


def _pixels(image: Any, i: int) -> NDArray[np.uint8]:
    """(height, width, channels) of image `i`. Raises DataError for what is no image of bytes or floats."""
    if isinstance(mode := getattr(image, "mode", None), str) and mode not in ("L", "RGB"):  # PIL's palette, for one
        image = image.convert("RGB")
    pixels = np.asarray(image)
    if isinstance(image, torch.Tensor) and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.size == 0:
        what = f"its shape is {np.shape(image)}" if pixels.ndim else f"it is {image!r:.60}"
        first = pixels.ndim == 3 and pixels.shape[0] in (1, 3)
        turn = ", by `.transpose(0, 2, 3, 1)` of all images" if first else ""
        raise DataError(
            f"{what}; give (height, width) or (height, width, 1 or 3){turn}, or a tensor (1 or 3, height, width)",
            where=f"image {i}",
        )
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if not np.issubdtype(pixels.dtype, np.floating) or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError(
            f"its values are {pixels.dtype} from {pixels.min():g} to {pixels.max():g}; give bytes, or floats from "
            "0 to 1 (leave out a transform that normalises)",
            where=f"image {i}",
        )
    return np.ascontiguousarray(np.rint(pixels * 255).astype(np.uint8))


def _resized(pixels: NDArray[np.uint8], size: int, grey: bool) -> NDArray[np.uint8]:
    image, channels = central_square(pixels), pixels.shape[2]
    if grey and channels == 3:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    elif not grey and channels == 1:
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    if (side := len(image)) != size:
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA if side > size else cv2.INTER_LINEAR)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, 1 if grey else 3)
