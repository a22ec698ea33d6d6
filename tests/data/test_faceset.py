"""Two sets of images as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coalface.data.faceset import FaceSet

STORE = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
OTHER = np.arange(10, 14, dtype=np.uint8).reshape(4, 1, 1, 1)
A = FaceSet(STORE, np.array([4, 0, 2]), np.array([1, 0, 1]), ("ann", "bob"), files=["f"] * 6, domains=np.zeros(3, int))
B = FaceSet(STORE, np.array([5, 1]), np.array([0, -1]), ("cid",))
C = FaceSet(OTHER, np.array([3, 1]), np.array([1, 0]), ("dan", "eve"))


def pixels(faces: FaceSet) -> list[int]:
    return faces.take(np.arange(len(faces))).ravel().tolist()


def test_sets_of_one_store_share_it() -> None:
    joined = A.beside(B)
    assert joined.pixels is STORE and joined.rows.tolist() == [4, 0, 2, 5, 1]
    assert joined.labels.tolist() == [1, 0, 1, 2, -1] and joined.names == ("ann", "bob", "cid")
    assert joined.files is None and joined.domains is None
    assert A.rows.tolist() == [4, 0, 2] and B.labels.tolist() == [0, -1]  # neither is changed


def test_sets_of_two_stores_are_copied_into_one() -> None:
    joined = A.beside(C)
    assert pixels(joined) == [4, 0, 2, 13, 11] == joined.pixels.ravel().tolist()
    assert joined.labels.tolist() == [1, 0, 1, 3, 2] and joined.names == ("ann", "bob", "dan", "eve")
    assert pixels(C.beside(A)) == [13, 11, 4, 0, 2] and C.beside(A).labels.tolist() == [1, 0, 3, 2, 3]
    assert pixels(A.beside(C).beside(B)) == [4, 0, 2, 13, 11, 5, 1]


def test_two_maps_of_one_file_are_one_store(tmp_path: Path) -> None:
    """As each opening of a pack makes a map of its own: a million images are not copied to put two sets together."""
    for name in ("pack", "other"):
        STORE.tofile(tmp_path / name)

    def mapped(name: str, offset: int = 0) -> np.memmap[Any, np.dtype[np.uint8]]:
        return np.memmap(tmp_path / name, dtype=np.uint8, mode="r", offset=offset, shape=(6 - offset, 1, 1, 1))

    first = replace(A, pixels=mapped("pack"))
    joined = first.beside(replace(B, pixels=mapped("pack")))
    assert joined.pixels is first.pixels and joined.rows.tolist() == [4, 0, 2, 5, 1]
    for store in (mapped("other"), STORE):
        assert first.beside(replace(B, pixels=store)).rows.tolist() == [0, 1, 2, 3, 4]
    later = first.beside(replace(B, pixels=mapped("pack", offset=1), rows=np.array([4, 0])))
    assert pixels(later) == pixels(joined) and later.rows.tolist() == [0, 1, 2, 3, 4]
    whole = mapped("pack")
    parts = replace(A, pixels=whole[:5]).beside(replace(B, pixels=whole[1:], rows=np.array([4, 0])))
    assert pixels(parts) == pixels(joined)
