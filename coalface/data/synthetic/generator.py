"""Faces made from a seed: no download, no person, any number of identities.

Identity i is a list of numbers drawn from (seed, i) alone, image j of it a list drawn from (seed, i, j) alone, so that
identity 7 of ten is identity 7 of ten thousand. A domain shifts skin, light and camera. `appearance.py` holds
the numbers, `rendering.py` draws them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import writing
from coalface.data.faceset import FaceSet
from coalface.data.synthetic import appearance, rendering
from coalface.data.synthetic.appearance import DOMAINS, Domain, draw_looks
from coalface.data.synthetic.rendering import render

DRAWN_BY = (Path(__file__), Path(appearance.__file__), Path(rendering.__file__))
"""The files that pixels follow from: the numbers, the tables and the drawing."""

BLOCK = 32
"""Images drawn at once: few enough that a plane of them stays in a core's cache."""

THREADS = 2
"""Blocks drawn side by side."""

KEPT = 30 << 20
"""Bytes. To free so many at once, unwritten, teaches glibc's allocator to keep what is freed for the next plane.
Without that it gives each plane back to the system, and the page faults cost 40 % of the time."""


@dataclass(frozen=True)
class SyntheticFaces:
    """A source of made-up faces: identities × images_per_identity of them.

    `first` is the number of the first identity, so `first=400` gives people who are not among the 400 of another source
    with the same seed. With several domains, identity i is photographed in domain i mod len(domains); the same identity
    in another domain keeps its features and its place among the skins and hair colours of that domain.
    """

    identities: int
    images_per_identity: int
    seed: int
    size: int = 64
    grey: bool = True
    domains: tuple[str, ...] = ("neutral",)
    strength: float = 1.0
    """How far to go from the neutral domain (0) to the named one (1)."""
    first: int = 0

    def __post_init__(self) -> None:
        for name, least in (("identities", 1), ("images_per_identity", 1), ("size", 16), ("first", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"synthetic faces: {name} is {getattr(self, name)}; give {least} or more")
        if self.seed >= 2**64:
            raise ValueError(f"synthetic faces: seed is {self.seed}; give less than 2**64")
        if not self.domains:
            raise ValueError(f"synthetic faces: no domain named; choose from {', '.join(DOMAINS)}")
        for domain in self.domains:
            if domain not in DOMAINS:
                raise ValueError(f"synthetic faces: no domain {domain!r}; choose from {', '.join(DOMAINS)}")

    def __len__(self) -> int:
        return self.identities * self.images_per_identity

    @property
    def name(self) -> str:
        return f"synthetic-{self.seed}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The identities: seed and number, so that the same person has the same name in every source."""
        return tuple(f"s{self.seed}-{i:07d}" for i in range(self.first, self.first + self.identities))

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """(n,) the identity of each image, 0 to identities − 1."""
        return np.repeat(np.arange(self.identities, dtype=np.int64), self.images_per_identity)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """What each image would be called as a file, `identity/0000.png`; no file exists."""
        return tuple(f"{name}/{j:04d}.png" for name in self.names for j in range(self.images_per_identity))

    @property
    def domain_numbers(self) -> NDArray[np.int64]:
        """(n,) the place of each image's domain in `domains`."""
        return (self.labels + self.first) % len(self.domains)

    def fingerprint(self) -> str:
        """SHA-256 over everything that the pixels depend on: the arguments, and the source text of what draws them.

        So any edit of these files, even of a comment, makes new packs: drawing again is cheap, a stale pack is not.
        """
        return hashlib.sha256(f"{_sha256_of(DRAWN_BY)} {self!r}".encode()).hexdigest()

    def images(self, *, size: int | None = None, grey: bool | None = None) -> Iterator[NDArray[np.uint8]]:
        """Each image in turn, (size, size, channels), at another size or in other colours than the source's if asked.

        They are drawn at that size, not resized.
        """
        asked = replace(self, size=size or self.size, grey=self.grey if grey is None else grey)
        for start in range(0, len(self), BLOCK):
            yield from asked.take(np.arange(start, min(start + BLOCK, len(self))))

    def take(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Some images: (len(index), size, size, channels). Which others are made along with one does not change it."""
        wrong = index[(index < 0) | (index >= len(self))]
        if len(wrong):
            raise IndexError(f"synthetic faces: no image {wrong[0]}; there are {len(self)}, numbered from 0")
        np.empty(KEPT, dtype=np.uint8)  # freed at once
        pixels = np.empty((len(index), self.size, self.size, 1 if self.grey else 3), dtype=np.uint8)

        def fill(start: int) -> None:
            pixels[start : start + BLOCK] = self._block(index[start : start + BLOCK])

        starts = range(0, len(index), BLOCK)
        if len(starts) == 1:
            fill(0)
            return pixels
        with ThreadPoolExecutor(THREADS) as pool:  # NumPy lets go of the interpreter's lock while it computes
            for _ in pool.map(fill, starts):
                pass
        return pixels

    def generate(self) -> FaceSet:
        """All images, in memory: size² bytes each when grey (4 kB at 64), three times that in colour."""
        return FaceSet(
            pixels=self.take(np.arange(len(self))),
            rows=np.arange(len(self), dtype=np.int64),
            labels=self.labels,
            names=self.names,
            files=self.files,
            domains=self.domain_numbers if len(self.domains) > 1 else None,
        )

    def _block(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        people, images = index // self.images_per_identity + self.first, index % self.images_per_identity
        channels = 1 if self.grey else 3
        look, noise = draw_looks(self.seed, people, images, self._domain_of(people), size=self.size, channels=channels)
        return render(look, noise, self.size)

    def _domain_of(self, people: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        chosen = [Domain().towards(DOMAINS[name], self.strength) for name in self.domains]
        place = people % len(chosen)
        return {f.name: np.array([getattr(d, f.name) for d in chosen])[place] for f in fields(Domain)}


@functools.cache
def _sha256_of(files: tuple[Path, ...]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def preview(
    path: Path,
    *,
    seed: int = 0,
    identities: int = 4,
    images: int = 2,
    size: int = 64,
    grey: bool = False,
    domains: Sequence[str] = tuple(DOMAINS),
) -> None:
    """Write a PNG that shows the same identities, one a row, in each domain, side by side.

    Raises ValueError where `path` does not end in .png.
    """
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the preview is a PNG: give the name of a file that ends in .png")
    gap, caption = 6, 18
    columns = []
    for domain in domains:
        faces = SyntheticFaces(identities, images, seed, size=size, grey=grey, domains=(domain,))
        pixels = faces.take(np.arange(len(faces))).reshape(identities, images, size, size, -1)
        block = pixels.transpose(0, 2, 1, 3, 4).reshape(identities * size, images * size, -1)
        title = np.full((caption, images * size, block.shape[-1]), 255, dtype=np.uint8)
        cv2.putText(title, domain, (2, caption - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
        columns += [
            np.concatenate([title, block]),
            np.full((caption + len(block), gap, block.shape[-1]), 255, np.uint8),
        ]
    picture = np.concatenate(columns[:-1], axis=1)
    _, encoded = cv2.imencode(".png", picture if grey else picture[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])
    with writing(path):
        path.write_bytes(encoded.tobytes())
