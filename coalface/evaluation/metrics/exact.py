"""The exact score T of two unit rows, and what very many scores say: the highest of each row, and the highest of all.

T(x, y): the d products in float64, with zeros up to a power of two, then the second half added to the first until one
number is left. Each step rounds alone, and of float32 rows the products are exact: T is the same to the last bit on
every device, at any threads and in any blocks, and T(x, y) = T(y, x).

A float32 matrix product of a block of pairs differs from T by at most `rounding`, whatever its order of additions. So
it tells for all but a few pairs on which side of a threshold they lie, and T decides those few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.evaluation.metrics.verification import Ranked

CHUNK = 2**18
"""Numbers that are widened to float64 at a time."""
PAIRS = 256
"""Pairs whose T is computed at a time."""
BLOCK = (2048, 8192)
"""Rows and columns whose products are held together, in 64 MiB."""
MANY = 2**20
"""The largest rank that is found by keeping all T above it."""
BINS = 2**16
"""Intervals of a count."""
LEAST = -2.0
"""Below the T of any two rows of length one."""

Floats = NDArray[np.float32]
Scores = NDArray[np.float64]
Places = NDArray[np.int64]


def inner(left: Tensor, right: Tensor) -> Tensor:
    """(n,) T of the n pairs of rows of (n, d) `left` and `right`, or of every row and the only one of `right`."""
    count, d = left.shape
    scores = left.new_empty(count, dtype=torch.float64)
    for part in slices(count, max(1, CHUNK >> max(0, d - 1).bit_length())):
        scores[part] = _added(left[part].double() * (right[part] if len(right) > 1 else right).double())
    return scores


def inner_of(rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(n,) T of the pairs of rows that `left` and `right`, (n,) each, name."""
    scores = rows.new_empty(len(left), dtype=torch.float64)
    for part in slices(len(left), few(rows)):
        scores[part] = inner(rows[left[part]], rows[right[part]])
    return scores


def exactly(left: Floats, rows: Places, right: Floats, columns: Places) -> Scores:
    """(n,) T of the pairs of rows that `rows` and `columns` (n,) name."""
    scores = np.empty(len(rows))
    for part in slices(len(rows), PAIRS):
        products = left[rows[part]].astype(np.float64)
        products *= right[columns[part]]
        scores[part] = _added(products)
    return scores


def _added(products: Any) -> Any:
    """(n,) the sums of the rows of an array or a tensor (n, d), which is overwritten."""
    if not products.shape[1]:
        return products.sum(1)
    while products.shape[1] > 1:
        half = 1 << (products.shape[1] - 1).bit_length() - 1
        # The missing entries up to a power of two are zeros, which alter nothing: they are not added.
        products, upper = products[:, :half], products[:, half:]
        products[:, : upper.shape[1]] += upper
    return products[:, 0]


def few(rows: Tensor) -> int:
    """How many rows are widened at a time."""
    return max(1, CHUNK // max(1, rows.shape[1]))


def unit_rows(rows: Scores) -> Scores:
    """(n, d) at length one; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def slices(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def rounding(d: int) -> float:
    """By how much a product of unit rows of d dimensions in float32 may differ from T.

    Adding up d products in any order errs by less than (d + 1) 2⁻²⁴ X², of which twice as much is allowed; X is their
    length, of at most 1.001 (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Section 3.1). T itself
    errs by (⌈log₂ d⌉ + 2) 2⁻⁵³ X².
    """
    return ((d + 1) * 2.0**-23 + (math.ceil(math.log2(max(2, d))) + 2) * 2.0**-53) * 1.01 + 1e-30


@dataclass(frozen=True, eq=False)
class Scan:
    """What `scan` found among all pairs of m rows and some columns."""

    nearest: Scores
    """(m,) the highest T of each row; −inf where no pair of it counts, and empty unless it was asked for."""
    ranked: list[Ranked]
    """T at the ranks that were asked for, 1 the highest."""


def scan(
    rows: Floats,
    columns: Floats,
    *,
    nearest: bool = False,
    ranks: Sequence[int] = (),
    places: Places | None = None,
    excluded: Callable[[slice, slice], NDArray[np.bool_]] | None = None,
    check: Callable[[slice, Floats], None] | None = None,
    block: tuple[int, int] = BLOCK,
) -> Scan:
    """Look at all pairs of unit rows (m, d) and columns (n, d), a block at a time; `block` alters no bit.

    `columns` may be mapped from a file; those at `places` alone are read (None: all), and `check` sees each block of
    them. `excluded` says which pairs of some rows and some of the columns do not count.

    Up to the rank `MANY`, a pass keeps the highest T. Beyond it, a first pass counts the products in intervals, which
    encloses T at each rank, and the second computes T of the pairs near it alone. Time O(m n d); memory beside the
    arguments is a block, and 24 bytes for each T that is kept. Where very many pairs have nearly the same score, as
    when a model collapses, each needs its T, which takes some hundred times longer.
    """
    error = rounding(rows.shape[1])
    best = np.full(len(rows), -np.inf) if nearest else np.empty(0)

    count = len(columns) if places is None else len(places)
    high, wide = min(block[0], len(rows)), min(block[1], count)
    memory = np.empty(high * wide, np.float32)

    def blocks() -> Iterator[_Block]:
        """The products lie in memory that the next block takes again."""
        for at_columns in slices(count, wide):
            some = columns[at_columns] if places is None else columns[places[at_columns]]
            block_columns = np.ascontiguousarray(some, np.float32)
            if check is not None:
                check(at_columns, block_columns)
            for at in slices(len(rows), high):
                size = at.stop - at.start, at_columns.stop - at_columns.start
                products = memory[: size[0] * size[1]].reshape(size)
                np.matmul(rows[at], block_columns.T, out=products)
                if excluded is not None:
                    products[excluded(at, at_columns)] = -np.inf
                yield _Block(at, rows[at], block_columns, products, products.max(axis=1).astype(np.float64))

    tops = [_Highest(max(ranks))] * len(ranks) if ranks else []
    if ranks and max(ranks) > MANY:
        tops = _enclose(blocks(), ranks, error)
    for pairs in blocks():
        if nearest:
            pairs.raise_nearest(best[pairs.at], error)
        for top in dict.fromkeys(tops):
            top.take_block(pairs, error)
    return Scan(best, [top.at_rank(rank) for top, rank in zip(tops, ranks, strict=True)])


@dataclass(frozen=True, eq=False)
class _Block:
    """Some rows and columns, and their products in float32; −inf where a pair does not count."""

    at: slice
    rows: Floats
    columns: Floats
    products: Floats
    peaks: Scores
    """Of each row."""

    def raise_nearest(self, highest: Scores, error: float) -> None:
        """Raise each row's `highest` T so far."""
        higher = np.flatnonzero(self.peaks + error > highest)
        for part in slices(len(higher), PAIRS):
            some = higher[part]
            limits = np.maximum(self.peaks[some] - 2 * error, highest[some] - error)
            row, column = np.nonzero(self.products[some] >= limits[:, None])
            np.maximum.at(highest, some[row], exactly(self.rows, some[row], self.columns, column))


class _Highest:
    """The highest T of very many pairs whose products lie from `low` to `high`; how many products are higher."""

    def __init__(self, count: int, low: float = LEAST, high: float = np.inf) -> None:
        self.count = count
        self.low, self.high = low, np.nextafter(np.float32(high), np.float32(np.inf))
        self.higher = 0
        self.floor = LEAST
        """What is below it is not among the highest."""
        self._kept: list[Scores] = []
        self._waiting = 0

    def take_block(self, block: _Block, error: float) -> None:
        products, floor = block.products, self.floor
        if self.high < np.inf:
            self.higher += int(np.count_nonzero(products > self.high))
        elif floor == LEAST and products.size > self.count:
            # So many of this block have a product of at least this, and a T of at least this less the error.
            place = products.size - self.count
            floor = max(LEAST, float(np.partition(products, place, axis=None)[place]) - error)
        limit = np.nextafter(np.float32(max(self.low, floor - error)), np.float32(-np.inf))  # not above it, in float32
        rows = np.flatnonzero(block.peaks >= limit)  # most have nothing, and are not looked at
        for part in slices(len(rows), max(1, 2**22 // products.shape[1])):
            some = products[rows[part]]
            row, column = np.nonzero((some >= limit) & (some <= self.high))
            for pairs in slices(len(row), 2**16):
                self._take(exactly(block.rows, rows[part][row[pairs]], block.columns, column[pairs]))

    def _take(self, values: Scores) -> None:
        self._kept.append(values[values > self.floor])  # so many as are sought are at the floor or above it already
        self._waiting += len(self._kept[-1])
        if self._waiting >= (self.count if self.floor == LEAST else 2 * self.count + 1024):
            self._settle()

    def _settle(self) -> None:
        together = np.concatenate([np.empty(0), *self._kept])
        if len(together) >= self.count:
            together = np.partition(together, len(together) - self.count)[len(together) - self.count :]
            self.floor = float(together.min())
        self._kept, self._waiting = [together], len(together)

    def at_rank(self, rank: int) -> Ranked:
        self._settle()
        ranked = Ranked.of_sorted(np.sort(self._kept[0])[::-1], rank - self.higher)
        return Ranked(ranked.value, ranked.above + self.higher)


def _enclose(blocks: Iterator[_Block], ranks: Sequence[int], error: float) -> list[_Highest]:
    """What is to be kept for each rank, by counts of the products in intervals."""
    counts, reach = np.zeros(BINS + 1, np.int64), np.float32(1.01)
    scale = np.float32(BINS / 2.02)
    for block in blocks:
        # A larger product is in no lower interval, since each operation rounds larger numbers to no smaller ones.
        place = ((block.products[block.products > LEAST] + reach) * scale).astype(np.int32)
        counts += np.bincount(place, minlength=BINS + 1)
    # Sum, factor and product are rounded, by 2⁻²⁴ of the whole width each at most.
    slack = 2.02 * 2.0**-21 + 2 * error
    margin = 2 + math.ceil(2 * slack * float(scale))
    upward = np.cumsum(counts[::-1])[::-1]  # how many are in each interval or higher
    tops = []
    for rank in ranks:
        interval = int(np.flatnonzero(upward >= rank)[-1])
        low, high = (edge / float(scale) - 1.01 for edge in (interval, interval + 1))
        surely = int(upward[interval + margin]) if interval + margin <= BINS else 0
        tops.append(_Highest(rank - surely, low - slack, high + slack))
    return tops


def check_unit(features: Floats, kind: str, identities: Places | None = None, *, shorter: bool = False) -> None:
    """Raise ValueError unless features are (n, d) float32, at least one, with one identity each, of length 1 or 0.

    With `shorter` any length up to 1 will do: T is as exact.
    """
    if features.ndim != 2 or not len(features) or features.dtype != np.float32:
        raise ValueError(f"features {features.dtype} {features.shape}: give (n, d) float32, at least one {kind}")
    if identities is not None and identities.shape != features.shape[:1]:
        raise ValueError(f"features {features.shape} with identities {identities.shape}: give one for each {kind}")
    squares = np.einsum("id,id->i", features, features)
    if len(odd := np.flatnonzero(~((np.abs(squares - 1) < 1e-3) | (squares == 0) | (shorter & (squares < 1))))):
        raise ValueError(
            f"{len(odd):,} of {len(features):,} features are not of length 1 (or 0), the first is that of {kind} "
            f"{odd[0]:,}, of length {np.sqrt(squares[odd[0]]):g}: normalise them"
        )
