"""The interface of every reader of face images, and what the readers share."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.data.readers.headers import Header, check_header, damaged

LARGEST_SIDE = 4096
"""Pixels along the side of the largest images that are made of a source, and that a backbone takes."""
Read = TypeVar("Read")

if "OPENCV_LOG_LEVEL" not in os.environ:  # errors name the image: OpenCV's own lines do not
    if hasattr(cv2.utils, "logging"):
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    else:  # OpenCV 4
        cv2.setLogLevel(0)  # type: ignore[attr-defined]


class Source(Protocol):
    """Face images that can be read one after another, whatever they are stored in.

    `files`, `labels` and the images come in one and the same order. Nothing is decoded before `images` is iterated,
    and then a few images at a time, so that a source may be far larger than memory.
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


DECODER = 2
"""Raised whenever `decode` begins to give other pixels for the same bytes. Fingerprints hold it: caches follow."""


def decode(encoded: bytes | memoryview, where: str | Path, *, size: int, grey: bool) -> NDArray[np.uint8]:
    """An encoded image (JPEG, PNG, PGM, BMP, WebP) as a square array: (size, size, 1) grey or (size, size, 3) RGB.

    An image that is not square is cut to its central square, which keeps the proportions of a face. It is brought to
    `size` by averaging areas when it shrinks, and linearly when it grows. A JPEG of at least twice `size` whose sides
    are even is decoded at half its size, and goes the rest of the way linearly if that is less than another half. On
    photographs of faces this differs from averaging the whole image by 0.2 to 0.7 of 255 grey levels in the mean.

    Raises DataError if the bytes are no whole image, or if their header claims more than `PIXEL_LIMIT` pixels.
    """
    header = check_header(encoded, where)
    even = header.width % 2 == 0 and header.height % 2 == 0  # of an odd side, the last column would be averaged alone
    halved = header.kind == "jpeg" and min(header.width, header.height) >= 2 * size and even
    image = central_square(decode_pixels(encoded, where, _FLAGS[grey, halved]))
    if (side := len(image)) != size:
        linearly = side < size or (halved and side < 2 * size)
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_LINEAR if linearly else cv2.INTER_AREA)
    return np.asarray(image[:, :, None] if grey else cv2.cvtColor(image, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def central_square(image: Any) -> Any:
    """The middle of an image (height, width, …), as wide as it is high."""
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


_FLAGS = {
    (False, False): cv2.IMREAD_COLOR,
    (False, True): cv2.IMREAD_REDUCED_COLOR_2,
    (True, False): cv2.IMREAD_GRAYSCALE,
    (True, True): cv2.IMREAD_REDUCED_GRAYSCALE_2,
}


def check_image(encoded: bytes | memoryview, where: str | Path) -> tuple[Header, NDArray[np.uint8]]:
    """The header and the pixels of an encoded image. Raises DataError as `decode` does."""
    return check_header(encoded, where), decode_pixels(encoded, where, cv2.IMREAD_UNCHANGED)


def decode_pixels(encoded: bytes | memoryview, where: str | Path, flags: int) -> NDArray[np.uint8]:
    """What OpenCV makes of an encoded image whose header was checked. Raises DataError if it is damaged."""
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error:  # a side longer than the decoder's own limit of 2²⁰, for one
        image = None
    if image is None:
        raise damaged(encoded, where)
    return image.astype(np.uint8, copy=False)


_CHUNK = 8
"""Images that a thread decodes at one go: handing over costs as much as decoding a small image."""


def in_order(read: Callable[[int], Read], count: int) -> Iterator[Read]:
    """`read(0)`, `read(1)`, … to `read(count - 1)`, by several threads a little ahead: OpenCV decodes without the GIL.

    The threads are as many as the cores that this process may use, four at most. What is yielded does not depend on
    them. An error of `read(i)` is raised in the place of image i.
    """
    threads = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if threads == 1 or count <= _CHUNK:
        yield from map(read, range(count))
        return

    def read_chunk(start: int) -> list[Read | Exception]:
        results: list[Read | Exception] = []
        for i in range(start, min(start + _CHUNK, count)):
            try:
                results.append(read(i))
            except Exception as error:  # raised below, when it is this image's turn
                return [*results, error]
        return results

    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
    starts = iter(range(0, count, _CHUNK))
    ahead = deque(pool.submit(read_chunk, start) for start in islice(starts, 2 * threads))
    try:
        while ahead:
            results = ahead.popleft().result()
            ahead.extend(pool.submit(read_chunk, start) for start in islice(starts, 1))
            for result in results:
                if isinstance(result, Exception):
                    raise result
                yield result
    finally:
        pool.shutdown(cancel_futures=True)
