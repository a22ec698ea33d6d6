"""Alignment of faces by five landmarks to the place, size and angle that the field's models expect."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import beside, check_free, put_in_place, writing
from coalface.core.errors import DataError
from coalface.core.text import first_few, several, shown
from coalface.data.readers.headers import check_header
from coalface.data.readers.landmarks import ENDING, Landmarks
from coalface.data.source import decode_pixels, in_order
from coalface.data.stores import Store, check_written

SIDE = 112
"""Side of the square that `TEMPLATE` is given for, in pixels."""
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""(5, 2) where left eye, right eye, nose and the corners of the mouth belong, x to the right and y down, pixel centres
at whole numbers: insightface's, for 112×112."""

_LISTS = (".txt", ".csv", ".lst")
"""Endings of the lists that go with the images."""


def similarity(points: NDArray[np.floating], target: NDArray[np.floating] = TEMPLATE) -> NDArray[np.float64]:
    """The rotation, scale and shift (2, 3) that bring points (k, 2) nearest to a target (k, 2), without reflection.

    The least squares Σ |s R p + t − q|² of Umeyama, IEEE TPAMI 13 (1991), in the plane: with points and target as
    complex numbers about their means, s R is multiplication by Σ p̄ q / Σ |p|².

    Raises ValueError where the points are not finite, or all one.
    """
    source, goal = (np.asarray(xy, np.float64) @ [1, 1j] for xy in (points, target))
    centred = source - source.mean()
    spread = float((np.abs(centred) ** 2).sum())
    if not np.isfinite(spread) or spread < 1e-12:
        raise ValueError(f"the landmarks {np.asarray(points).tolist()} are not several places: no face lies like that")
    turn = (centred.conj() * (goal - goal.mean())).sum() / spread
    shift = goal.mean() - turn * source.mean()
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def align(image: NDArray[np.uint8], points: NDArray[np.floating], *, size: int = SIDE) -> NDArray[np.uint8]:
    """The face (size, size) or (size, size, 3) whose landmarks in the image are `points` (5, 2).

    `TEMPLATE` is scaled by size / 112. Pixels are interpolated linearly, without averaging where the face shrinks, and
    black where the image ends: so the field's own scripts do it.
    """
    matrix = similarity(points, TEMPLATE * (size / SIDE))
    return np.asarray(cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR, borderValue=0), np.uint8)


def aligned_face(
    encoded: bytes | memoryview, where: str, points: NDArray[np.floating], *, size: int, grey: bool
) -> tuple[NDArray[np.uint8], bool]:
    """The face of an encoded image as a model takes it, (size, size, 1) grey or (size, size, 3) RGB, by `align`.

    With it, whether the middle of its landmarks lies in the image. Raises ValueError, naming `where`, for an image that
    is damaged and for landmarks that are not several places.
    """
    check_header(encoded, where)
    image = decode_pixels(encoded, where, cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    x, y = points.mean(axis=0)
    try:
        face = align(image, points, size=size)
    except ValueError as error:
        raise DataError(f"{error}", where=where) from None
    return face[:, :, None] if grey else face[:, :, ::-1], bool(0 <= x < width and 0 <= y < height)


def align_folder(
    store: Store,
    landmarks: Landmarks,
    out: str | os.PathLike[str],
    *,
    size: int = SIDE,
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Write a folder with the store's images aligned, each in its place under its name; returns remarks.

    Images without landmarks are left out, and the remarks say how many and which. Pair lists (.txt, .csv, .lst) go
    with them; lists of landmarks, which would no longer fit, do not. What was a JPEG is one again, at quality 100
    without chroma subsampling; other kinds lose nothing. All is written beside `out` and renamed when it is whole.

    Raises FileExistsError if something is at `out`, and ValueError for a store that is no folder, for an image that is
    damaged, for landmarks that lie beside their image, and where the folder would be read as other images.
    """
    out = Path(out)
    if store.kind != "folder":
        raise DataError(f"it is a {store.kind}, whose images are aligned already: give a folder", where=store.path)
    if size < 1:
        raise ValueError(f"size is {size}; give 1 or more pixels")
    check_free(out)
    if out.resolve().is_relative_to(store.path.resolve()):
        raise DataError(f"this folder lies in the images to align; choose a place outside {store.path}", where=out)
    images = np.flatnonzero(landmarks.known)
    names = [os.path.relpath(place, store.path) for place in store.places]
    with beside(out) as partial:
        partial.mkdir()
        faces = in_order(lambda k: _aligned(store, int(images[k]), landmarks.points[images[k]], size), len(images))
        for count, (image, data) in enumerate(zip(images.tolist(), faces, strict=True), start=1):
            (partial / names[image]).parent.mkdir(parents=True, exist_ok=True)
            with writing(partial / names[image]):
                (partial / names[image]).write_bytes(data)
            progress(count)
        _copy_lists(store.path, partial, {path.resolve() for path in landmarks.lists})
        identity_of = {store.files[i]: store.names[store.labels[i]] for i in images.tolist()}
        check_written(partial, out, identity_of, part=store.part)
        put_in_place(partial, out)
    return _remarks(store, landmarks)


def _aligned(store: Store, i: int, points: NDArray[np.float32], size: int) -> bytes:
    """An image of the store, aligned and encoded as what its name says."""
    where, encoded = store.where(i), store.encoded(i)
    header = check_header(encoded, where)
    grey = header.channels <= 2
    face, inside = aligned_face(encoded, where, points, size=size, grey=grey)
    if not inside:
        x, y = points.mean(axis=0)
        raise DataError(
            f"it has {header.width} × {header.height} pixels, and its landmarks lie about ({x:.0f}, {y:.0f}): "
            "they belong to other images, or to these at another size",
            where=where,
        )
    ending = Path(store.places[i]).suffix.lower()
    if ending not in _WRITTEN:
        ending = ".pgm" if grey else ".ppm"
    return bytes(cv2.imencode(ending, face if grey else face[:, :, ::-1], _WRITTEN.get(ending, []))[1])


_JPEG = [*(cv2.IMWRITE_JPEG_QUALITY, 100), *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)]
_WRITTEN: dict[str, Sequence[int]] = {
    **{".jpg": _JPEG, ".jpeg": _JPEG, ".png": [], ".bmp": []},
    ".webp": [cv2.IMWRITE_WEBP_QUALITY, 101],  # above 100: without loss
}
"""How an ending is encoded; others are a PNM, which is told by its first bytes."""


def _copy_lists(source: Path, target: Path, landmarks: set[Path]) -> None:
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            if not name.lower().endswith(_LISTS) or name.startswith(".") or name.endswith(ENDING):
                continue
            if file.resolve() not in landmarks:
                place = target / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                with writing(place):
                    place.write_bytes(file.read_bytes())


def _remarks(store: Store, landmarks: Landmarks) -> list[str]:
    remarks = []
    if len(unknown := np.flatnonzero(~landmarks.known)):
        names = first_few([shown(store.files[i]) for i in unknown.tolist()])
        has, are = ("has", "is") if len(unknown) == 1 else ("have", "are")
        remarks.append(f"{several(len(unknown), 'image')} {has} no landmarks and {are} left out: {names}")
    if landmarks.unmatched:
        verb = "names" if landmarks.unmatched == 1 else "name"
        remarks.append(f"{several(landmarks.unmatched, 'line')} of the landmarks {verb} no image of the set")
    return remarks
