"""Photographs to aligned faces in Python, and the command `coalface data align`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.data.align import SIDE
from coalface.data.detection import Detector, YuNet
from coalface.data.photographs import LIMITS, Aligned, Limits, cut_faces, decode_photograph, find_faces
from coalface.data.readers.folders import SUFFIXES, read_file
from coalface.data.readers.landmarks import landmark_lists, read_landmarks
from coalface.data.tools.aligned_folder import AlignedFolder, list_photographs, write_faces
from coalface.data.tools.decode_check import StderrCapture, decoded_whole
from coalface.experiments.api.alignment_page import write_page


@overload
def align(
    photographs: list[Any] | tuple[Any, ...],
    *,
    detector: Detector | str | os.PathLike[str] | None = None,
    all_faces: bool = False,
    size: int = SIDE,
    limits: Limits = LIMITS,
) -> list[Aligned]: ...
@overload
def align(
    photographs: str | os.PathLike[str] | bytes | NDArray[Any],
    *,
    detector: Detector | str | os.PathLike[str] | None = None,
    all_faces: bool = False,
    size: int = SIDE,
    limits: Limits = LIMITS,
) -> Aligned: ...
def align(
    photographs: Any,
    *,
    detector: Detector | str | os.PathLike[str] | None = None,
    all_faces: bool = False,
    size: int = SIDE,
    limits: Limits = LIMITS,
) -> Aligned | list[Aligned]:
    """Find the faces of photographs, and bring them to the place, size and angle that the field's models expect.

    A photograph is the path of a file, its bytes, or an array (height, width), (height, width, 1, 3 or 4) of bytes or
    of 16 bits, red, green, blue. One gives its `Aligned` faces, a list a list of them. `detector` is an object, the
    file of a YuNet, or nothing: the one of the extra `photos`. Of several faces the largest central one is taken, or
    with `all_faces` all. `align_folder` does so for folders.

    Raises DataError for a photograph that is damaged, and RecipeError where no detector is installed.

    Examples:
        >>> align("ann.jpg").face.shape  # doctest: +SKIP
        (112, 112, 3)
    """
    finder = _detector(detector)
    many = photographs if isinstance(photographs, list | tuple) else [photographs]
    aligned = []
    with StderrCapture() as capture:
        for i, photograph in enumerate(many):
            where = os.fspath(photograph) if isinstance(photograph, str | os.PathLike) else f"photograph {i}"
            image = decoded_whole(partial(_image, photograph, where), where, capture)
            cut = cut_faces(image, find_faces(image, finder), size=size, limits=limits, all_faces=all_faces)
            aligned.append(replace(cut, where=where))
    return aligned if many is photographs else aligned[0]


def align_folder(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    landmarks: str | os.PathLike[str] | None = None,
    detector: Detector | str | os.PathLike[str] | None = None,
    all_faces: bool = False,
    size: int = SIDE,
    limits: Limits = LIMITS,
    progress: Callable[[int], None] = lambda done: None,
) -> AlignedFolder:
    """Write the aligned faces of a folder of photographs to `out`, in the same tree under the same names.

    `landmarks` is a list of them, or a folder of lists, in place of a detector. What gives no face stands with the
    reason in `out/left-out.csv` and on the page `out/report.html`. Called again, it goes on where it was stopped, and
    looks only at photographs that are new or changed.

    Raises DataError and FileExistsError for an `out` that is not to be written, and RecipeError where no detector is
    installed.
    """
    lists = [] if landmarks is None else landmark_lists(Path(landmarks))
    finder = _detector(detector) if landmarks is None else _by_file(Path(source), lists)
    folder = write_faces(
        source, out, finder, lists=lists, size=size, limits=limits, all_faces=all_faces, progress=progress
    )
    write_page(folder)
    return folder


def _detector(detector: Detector | str | os.PathLike[str] | None) -> Detector:
    if detector is None:
        return YuNet.find()
    return YuNet(Path(detector)) if isinstance(detector, str | os.PathLike) else detector


def _by_file(source: Path, lists: list[Path]) -> Mapping[str, NDArray[np.float32]]:
    files = [file for file in list_photographs(source)[0] if file.lower().endswith(SUFFIXES)]
    landmarks = read_landmarks(lists, files)
    return {files[i]: landmarks.points[i] for i in np.flatnonzero(landmarks.known)}


def _image(photograph: Any, where: str) -> NDArray[np.uint8]:
    if isinstance(photograph, str | os.PathLike):
        return decode_photograph(read_file(Path(photograph)), Path(photograph))
    if isinstance(photograph, bytes | bytearray | memoryview):
        return decode_photograph(bytes(photograph), where)
    return _pixels(photograph, where)


def _pixels(photograph: Any, where: str) -> NDArray[np.uint8]:
    """(height, width, 1 or 3) of an array. Raises DataError for what is no image of bytes or of 16 bits."""
    pixels = np.asarray(photograph)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if (
        pixels.ndim != 3
        or pixels.shape[2] not in (1, 3, 4)
        or not pixels.size
        or pixels.dtype not in (np.uint8, np.uint16)
    ):
        raise DataError(
            f"its shape is {pixels.shape}, of {pixels.dtype}; give (height, width) or (height, width, 1, 3 or 4), of "
            "uint8 or uint16",
            where=where,
        )
    pixels = pixels[:, :, :3] if pixels.shape[2] == 4 else pixels
    return np.ascontiguousarray(pixels >> 8 if pixels.dtype == np.uint16 else pixels, np.uint8)
