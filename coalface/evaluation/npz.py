"""Archives of NumPy arrays that another may have written with bad intent."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 30
"""Bytes of all arrays of an archive once they are unpacked: zeros take a thousandth of them in the file."""


def read_npz(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """The arrays of an archive by name, or those named that it has; no objects.

    Raises ValueError for what is damaged or too large, and OSError.
    """
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > MOST:
                raise ValueError(f"it holds {size:,} bytes, and at most {MOST:,} are read")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                read = {name: arrays[name] for name in arrays.files if not names or name in names}
            for text in (value for value in read.values() if value.dtype.kind == "U"):
                text.tolist()  # NumPy takes four bytes that are no character, and fails where they are used
        except Exception as error:  # of bytes from elsewhere, any
            raise ValueError(f"{type(error).__name__}: {error}") from error
    if not all(isinstance(value, np.ndarray) for value in read.values()):
        raise ValueError("it holds something other than arrays")
    return read


def whole_numbers(array: NDArray[Any], kind: type[np.int64] | type[np.uint64]) -> NDArray[Any]:
    """(n,) an array's whole numbers as a `kind`. Raises ValueError where it holds others, or ones that do not fit."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"numbers of {array.dtype} in {array.ndim} dimensions, where whole ones in a row are due")
    as_kind = array.astype(kind)
    if not (as_kind == array).all():
        raise ValueError(f"a number that {kind.__name__} does not hold")
    return as_kind
