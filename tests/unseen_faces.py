"""Face sets of which nobody looks at a pixel, for tests of identities, files and pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.data.source import Source


def listed(source: Source) -> FaceSet:
    """The images of a source, none of them decoded."""
    return _faces(source.names, source.labels, source.files)


def faces_of(counts: dict[str, int]) -> FaceSet:
    """Identities with so many images each, named as LFW names them."""
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    files = [f"{name}/{name}_{k:04d}.jpg" for name, n in counts.items() for k in range(1, n + 1)]
    return _faces(tuple(counts), labels, files)


def as_files(pairs: PairList, faces: FaceSet) -> list[tuple[str, str]]:
    """The two files of each pair."""
    assert faces.files is not None
    files = [faces.files[row] for row in faces.rows]
    return [(files[a], files[b]) for a, b in zip(pairs.left, pairs.right, strict=True)]


def _faces(names: tuple[str, ...], labels: NDArray[np.int64], files: Sequence[str]) -> FaceSet:
    count = len(labels)
    return FaceSet(np.zeros((count, 1, 1, 1), np.uint8), np.arange(count), labels, names, tuple(files))
