"""The face set: the form in which images reach a party, an evaluator or a model."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class FaceSet:
    """Face images with their identities: a view of a pixel store, never a copy of it.

    A store of M images is shared by all the views cut from it (often it is a memory map of a pack), so that ten
    thousand parties cost ten thousand small index arrays. `rows[i]` is the place in the store of image i of the view.
    """

    pixels: NDArray[np.uint8]
    """The store: (M, height, width, channels), channels 1 (grey) or 3 (RGB)."""
    rows: NDArray[np.int64]
    """(n,) the place of each image of this view in the store."""
    labels: NDArray[np.int64]
    """(n,) the identity of each image of this view, 0 to len(names) − 1; −1 where the party does not know it."""
    names: tuple[str, ...]
    """The identities of this view."""
    files: Sequence[str] | None = None
    """(M,) where each image of the store came from, as `identity/file name`; None where it was never a file."""
    domains: NDArray[np.int64] | None = None
    """(n,) a domain number for each image, where a data set has several; None means one domain."""
    domain_names: tuple[str, ...] = ()
    """The domains' names by number, where they have any."""

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != np.uint8:
            raise ValueError(
                "a pixel store is a uint8 array (M, height, width, channels); "
                f"got {self.pixels.dtype} {self.pixels.shape}"
            )
        if len(self.rows) != len(self.labels):
            raise ValueError(
                f"{len(self.rows)} rows but {len(self.labels)} labels: a face set needs one label per image"
            )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def take(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pixels of some images of this view: (len(index), height, width, channels), uint8."""
        return self.pixels[self.rows[index]]

    def select(self, index: NDArray[np.int64]) -> FaceSet:
        """Some images of this view; the identities keep their numbers."""
        domains = None if self.domains is None else self.domains[index]
        return replace(self, rows=self.rows[index], labels=self.labels[index], domains=domains)

    def only(self, identities: Sequence[int] | NDArray[np.int64]) -> FaceSet:
        """The images of some identities, renumbered 0, 1, … in the order given."""
        chosen = np.asarray(identities, dtype=np.int64)
        renumbered = np.full(len(self.names), -1, dtype=np.int64)
        renumbered[chosen] = np.arange(len(chosen))
        view = self.select(np.flatnonzero((self.labels >= 0) & (renumbered[self.labels] >= 0)))
        return replace(view, labels=renumbered[view.labels], names=tuple(self.names[i] for i in chosen))

    def beside(self, other: FaceSet) -> FaceSet:
        """The images of both, this set's first; the identities of `other` are numbered after this set's.

        Where they lie in two stores, both are copied into one. Files and domains are left out. Raises ValueError where
        the images have not got one shape.
        """
        if other.shape != self.shape:
            raise ValueError(
                f"images of {self.shape} and of {other.shape} cannot be in one set; pack both at one size and colour"
            )
        if _one_store(self.pixels, other.pixels):
            pixels, rows = self.pixels, np.concatenate([self.rows, other.rows])
        else:
            pixels = np.concatenate([self.pixels[self.rows], other.pixels[other.rows]])
            rows = np.arange(len(pixels))
        labels = np.where(other.labels < 0, -1, other.labels + len(self.names))
        return FaceSet(pixels, rows, np.concatenate([self.labels, labels]), self.names + other.names)

    @functools.cached_property
    def who(self) -> str:
        """SHA-256 of whose images these are, by their numbers, and how many of each; not of which image is which."""
        digest = hashlib.sha256("\n".join(self.names).encode())
        digest.update(self.counts().tobytes())
        return digest.hexdigest()

    def counts(self) -> NDArray[np.int64]:
        """(len(names),) images of each identity; those without one are not counted."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.names))

    def clustered(self, clusters: NDArray[np.int64]) -> FaceSet:
        """The images that have a cluster (0 and up, −1 for none), with it for their identity.

        The clusters that are left are renumbered 0, 1, … in their order. `clusters` is (n,).
        """
        if len(clusters) != len(self):
            raise ValueError(f"{len(clusters)} clusters for {len(self)} images; give one for each image, −1 for none")
        inside = np.flatnonzero(clusters >= 0)
        numbers, labels = np.unique(clusters[inside], return_inverse=True)
        names = tuple(f"cluster-{number}" for number in numbers)
        return replace(self.select(inside), labels=labels.astype(np.int64), names=names)


def _one_store(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> bool:
    """Whether two stores are one: the same array, or two maps of the same part of one file."""
    if first is second:
        return True
    # A slice of a map says that it begins where the map does: only whole maps are told by their place in the file.
    stores: list[Any] = [first, second]
    maps = [store for store in stores if isinstance(store, np.memmap) and isinstance(store.base, mmap)]
    return len(maps) == 2 and len({(store.filename, store.offset, store.shape) for store in maps}) == 1
