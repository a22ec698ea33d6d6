"""A source that counts how often its images are decoded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class Counting:
    """Five made-up images of two identities, which counts how often they are decoded."""

    names = ("ann", "bö\udcff")  # the second is not valid UTF-8 on disk
    files = ("ann/1", "ann/2", "ann/3", "bö\udcff/1", "bö\udcff/2")
    labels = np.array([0, 0, 0, 1, 1])

    def __init__(self, content: int = 0, give: int = 5) -> None:
        self.content, self.give = content, give
        self.decoded = 0

    def images(self, *, size: int, grey: bool) -> Iterator[NDArray[np.uint8]]:
        for image in range(self.give):
            self.decoded += 1
            yield np.full((size, size, 1 if grey else 3), 10 * self.content + image, np.uint8)

    def fingerprint(self) -> str:
        return f"{self.content:x}" * 64
