"""The exact score of two unit rows, and how far a product that is computed quickly may be from it.

The score T is the inner product in float64 as `evaluation.metrics.inner_products` defines it to the last bit. Products
in float32 differ from T by at most `rounding`, whatever their blocks and threads: they tell for all but a few pairs on
which side of a threshold they lie, and T decides those few. Templates, open-set search and MegaFace count so.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from coalface.evaluation.metrics.inner_products import inner

_Floats = NDArray[np.float32]
_Scores = NDArray[np.float64]
_Places = NDArray[np.int64]


def exactly(left: _Floats, rows: _Places, right: _Floats, columns: _Places, block: int = 4096) -> _Scores:
    """(n,) T of the pairs of rows that `rows` and `columns` (n,) name."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), block):
        some = slice(start, start + block)
        sides = (np.asarray(side, np.float32) for side in (left[rows[some]], right[columns[some]]))
        found[some] = inner(*(torch.from_numpy(side) for side in sides)).numpy()
    return found


def rounding(d: int, double: bool = False) -> float:
    """By how much a product of unit rows of d dimensions in float32, or in float64, may differ from T.

    Adding up d products in any order errs by less than (d + 1) u X², of which twice as much is allowed; X is their
    length, of at most 1.001, and u 2⁻²⁴ or 2⁻⁵³ (Higham, "Accuracy and Stability of Numerical Algorithms", 2002,
    Section 3.1). T itself errs by (⌈log₂ d⌉ + 2) 2⁻⁵³ X².
    """
    unit = 2.0**-52 if double else 2.0**-23
    return ((d + 1) * unit + (math.ceil(math.log2(max(2, d))) + 2) * 2.0**-53) * 1.01 + 1e-30


def no_less(value: float) -> np.float32:
    """A float32 that is not below the value."""
    return np.nextafter(np.float32(value), np.float32(np.inf))


def no_more(value: float) -> np.float32:
    """A float32 that is not above the value."""
    return np.nextafter(np.float32(value), np.float32(-np.inf))


def check_unit(features: _Floats, what: str) -> None:
    """Raise ValueError unless features are (n, d) float32, at least one, each of length 1 or 0 to 1e-3."""
    if features.ndim != 2 or not len(features) or features.dtype != np.float32:
        raise ValueError(f"features {features.dtype} {features.shape}: give (n, d) float32, at least one {what}")
    squares = np.einsum("id,id->i", features, features)
    if len(odd := np.flatnonzero(~((np.abs(squares - 1) < 1e-3) | (squares == 0)))):
        raise ValueError(
            f"{len(odd):,} of {len(features):,} features are not of length 1 (or 0), the first is that of {what} "
            f"{odd[0]:,}, of length {np.sqrt(squares[odd[0]]):g}: normalise them"
        )
