"""Exact order statistics of the scores of very many pairs, which are never held together.

The score T of two rows is that of `verification.score_pairs`: the products of their entries rounded to float32, summed
in float64. It does not depend on what else is computed at the time, and T(x, y) = T(y, x).

**How.** A float32 matrix product L of each block of pairs tells which pairs need T. With d entries, and X and Y the
largest lengths of the rows on both sides, whatever the order of the additions,

    |L − ⟨x, y⟩| ≤ (d + 1) 2⁻²³ X Y,   |T − ⟨x, y⟩| ≤ (2⁻²⁴ + d 2⁻⁵³) X Y (1 + 2⁻²⁰)
    |T − L| ≤ ε = (d + 2) 2⁻²³ X Y + 10⁻³⁰

where the first allows each of d + 1 roundings twice what it may err (Higham, "Accuracy and Stability of Numerical
Algorithms", 2002, Section 3.1), and 10⁻³⁰ is for products too small for float32. So of the r-th largest, for which
|T₍ᵣ₎ − L₍ᵣ₎| ≤ ε as for each pair:

- *few above* (no rank beyond `TOP` is asked for): every pair with T ≥ T₍ᵣ₎ has L ≥ L₍ᵣ₎ − 2ε. One pass keeps the pairs
  above a bound that rises; T of those that are left decides.
- *many above, or many alike*: a pass counts L in `BINS` intervals, which encloses T₍ᵣ₎. The next counts the pairs above
  that enclosure and collects T of those whose L lies within ε of it; where these are too many to hold, it counts them
  in intervals in turn, and the enclosure becomes one of them.

For unit rows of 512 entries ε is 6e-5. Time is that of the product, and T of what lies about a threshold; where a large
share of the scores lies within ε of it (a model that has collapsed), the T of all these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

BLOCK = 2048
"""Rows and columns of a block."""
TOP = 2**20
"""The largest rank that is found by keeping the pairs above it."""
ROOM = 2**18
"""How many pairs may wait in that, beside four times the rank."""
BINS = 2**16
"""Intervals of a count."""
KEEP = 2**21
"""Scores that are held at a time; beyond so many they are counted in intervals."""

NOT = -4.0
"""Stands for the product of a pair that is none; below all others, since no row is longer than 1.001."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of one of n rows and one of some columns, of different identities."""

    rows: NDArray[np.float32]
    """(n, d), of length 1 at most."""
    row_identities: NDArray[np.int64]
    """(n,)"""
    others: NDArray[np.float32]
    """(m, d), of length 1 at most: where the columns are."""
    other_identities: NDArray[np.int64]
    """(m,)"""
    columns: NDArray[np.int64]
    """Places in `others`."""
    within: NDArray[np.int64] | None = None
    """(n,) where the rows themselves are in `others`: their pairs among each other are added, each once."""

    def __len__(self) -> int:
        counts = dict(zip(*np.unique(self.row_identities, return_counts=True), strict=True))
        found, n = len(self.rows) * len(self.columns), len(self.rows)
        for identity, times in zip(*np.unique(self.other_identities[self.columns], return_counts=True), strict=True):
            found -= int(times) * int(counts.get(identity, 0))
        if self.within is not None:
            found += n * (n - 1) // 2 - sum(int(c) * (int(c) - 1) // 2 for c in counts.values())
        return found

    @cached_property
    def error(self) -> float:
        """ε: how far T and L of any pair may be apart."""
        return (self.rows.shape[1] + 2) * 2.0**-23 * self.reach + 1e-30

    @cached_property
    def reach(self) -> float:
        """X Y: no inner product is larger."""
        return _longest(self.rows) * _longest(self.others) * (1 + 1e-9)

    def blocks(self, block: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        """The first row, the columns, and L (rows × columns) of each block, `NOT` where no pair is; reused."""
        memory = np.empty(block * block, np.float32)
        known = np.isin(self.other_identities, self.row_identities)
        for columns, own in ((self.columns, False), (self.within, True)):
            for start in range(0, 0 if columns is None else len(columns), block):
                chosen = columns[start : start + block]  # type: ignore[index]
                right = self.others[chosen].T
                for first in range(0, len(self.rows), block):
                    left = self.rows[first : first + block]
                    found = memory[: len(left) * len(chosen)].reshape(len(left), len(chosen))
                    np.matmul(left, right, out=found)
                    if known[chosen].any():
                        names = self.row_identities[first : first + block, None]
                        found[names == self.other_identities[chosen]] = NOT
                    if own:
                        places = np.arange(start, start + len(chosen))
                        found[places <= np.arange(first, first + len(left))[:, None]] = NOT
                    yield first, chosen, found

    def scores(self, row: NDArray[np.integer], column: NDArray[np.integer]) -> NDArray[np.float64]:
        """(p,) T of the pairs of a row and a place in `others`."""
        return scores_of(self.rows, row, self.others, column)


@dataclass(frozen=True)
class OrderStatistic:
    """The r-th largest score."""

    value: float
    above: int
    """Pairs whose score is larger: r − 1, or fewer where others are tied with it."""


def scores_of(
    left: NDArray[np.float32],
    left_places: NDArray[np.integer],
    right: NDArray[np.float32],
    right_places: NDArray[np.integer],
    block: int = 256,
) -> NDArray[np.float64]:
    """(p,) T of p pairs of rows, bit for bit that of `verification.score_pairs`."""
    scores = np.empty(len(left_places))
    for start in range(0, len(scores), block):
        stop = start + block
        product = left[left_places[start:stop]]  # a copy, because the index is an array
        product *= right[right_places[start:stop]]
        product.sum(axis=1, dtype=np.float64, out=scores[start:stop])
    return scores


def order_statistics(pairs: Pairs, ranks: Sequence[int], *, block: int = BLOCK) -> list[OrderStatistic]:
    """The r-th largest T of all pairs, for each rank r of a list, 1 the largest. See above; `block` alters no bit.

    Beside the rows it takes O(block² + block d), and 300 MiB at most for what is near a threshold. Raises ValueError
    for a rank that there is not.
    """
    total = len(pairs)
    if bad := [rank for rank in ranks if not 1 <= rank <= total]:
        raise ValueError(f"there is no {bad[0]:,}-th largest of {total:,} scores: ranks count from 1")
    if not ranks:
        return []
    top = _top(pairs, max(ranks), block) if max(ranks) <= TOP else None
    if top is None:
        found = _narrowed(pairs, sorted(set(ranks)), block)
        return [found[rank] for rank in ranks]
    values = [float(top[len(top) - rank]) for rank in ranks]
    return [OrderStatistic(value, len(top) - int(np.searchsorted(top, value, "right"))) for value in values]


# Few above


@dataclass
class _Waiting:
    """Pairs that may be among the largest."""

    row: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    column: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    product: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, row: NDArray[np.int64], column: NDArray[np.int64], product: NDArray[np.float32]) -> None:
        self.row = np.concatenate([self.row, row.astype(np.int32)])
        self.column = np.concatenate([self.column, column.astype(np.int32)])
        self.product = np.concatenate([self.product, product])

    def drop_below(self, bound: np.float32) -> None:
        kept = self.product >= bound
        self.row, self.column, self.product = self.row[kept], self.column[kept], self.product[kept]


def _top(pairs: Pairs, rank: int, block: int) -> NDArray[np.float64] | None:
    """T of all pairs from the rank-th largest on, ascending, and of some below; None where too many are alike."""
    room, error, waiting = 4 * rank + ROOM, pairs.error, _Waiting()
    bound = _below(NOT / 2)
    for first, columns, found in pairs.blocks(block):
        flat = found.ravel()
        near = np.flatnonzero(flat >= bound)
        if not len(near):
            continue
        products = flat[near]
        if len(waiting.product) + len(near) > room:
            bound = _bound(np.concatenate([waiting.product, products]), rank, error)
            waiting.drop_below(bound)
            kept = products >= bound
            near, products = near[kept], products[kept]
            if len(waiting.product) + len(near) > room:
                return None
        row, column = np.divmod(near, len(columns))
        waiting.add(row + first, columns[column], products)
    waiting.drop_below(_bound(waiting.product, rank, error))
    return np.sort(pairs.scores(waiting.row, waiting.column))


def _bound(products: NDArray[np.float32], rank: int, error: float) -> np.float32:
    """Below L of every pair whose T may be among the `rank` largest, as these L (rank of them at least) tell."""
    place = len(products) - rank
    return _below(float(np.partition(products, place)[place]) - 2 * error)


# Many above


@dataclass
class _Enclosure:
    """Where T of a rank lies, and what a pass finds there."""

    rank: int
    low: float
    high: float
    """low ≤ T ≤ high."""
    above: int = 0
    """Pairs with T > high."""
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Different scores from low to high, unless they are counted in intervals, and how often each came."""
    times: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    bins: _Bins | None = None

    def add(self, scores: NDArray[np.float64]) -> None:
        self.above += int((scores > self.high).sum())
        inside = scores[(scores >= self.low) & (scores <= self.high)]
        if self.bins is None:
            self.values = np.concatenate([self.values, inside])
            self.times = np.concatenate([self.times, np.ones(len(inside), np.int64)])
            if len(self.values) > KEEP:
                self._merge()
                if len(self.values) > KEEP // 2:
                    self.bins = _Bins(self.low, self.high)
                    self.bins.add(self.values, self.times)
                    self.values, self.times = np.empty(0), np.empty(0, np.int64)
        else:
            self.bins.add(inside, np.ones(len(inside), np.int64))

    def _merge(self) -> None:
        self.values, place = np.unique(self.values, return_inverse=True)
        self.times = _counted(place, self.times, len(self.values))

    def settle(self) -> OrderStatistic | _Enclosure:
        """What was asked for, or a narrower enclosure to look through again."""
        if self.bins is not None:
            chosen, _ = _at_rank(self.bins.counts, self.rank - self.above)
            return _Enclosure(self.rank, float(self.bins.least[chosen]), float(self.bins.most[chosen]))
        self._merge()
        chosen, higher = _at_rank(self.times, self.rank - self.above)
        return OrderStatistic(float(self.values[chosen]), self.above + higher)


class _Bins:
    """Scores from `low` to `high` counted in equal intervals, with the least and the most in each."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.width = low, high - low
        self.counts = np.zeros(BINS, np.int64)
        self.least, self.most = np.full(BINS, np.inf), np.full(BINS, -np.inf)

    def add(self, values: NDArray[np.float64], times: NDArray[np.int64]) -> None:
        # Each operation rounds upward or downward alike for larger numbers: a larger score is in no lower interval.
        place = np.minimum((values - self.low) / self.width * BINS, BINS - 1).astype(np.int64)
        self.counts += _counted(place, times, BINS)
        np.minimum.at(self.least, place, values)
        np.maximum.at(self.most, place, values)


def _narrowed(pairs: Pairs, ranks: Sequence[int], block: int) -> dict[int, OrderStatistic]:
    error = pairs.error
    found: dict[int, OrderStatistic] = {}
    open_ = _coarse(pairs, ranks, error, block)
    while open_:
        for first, columns, products in pairs.blocks(block):
            flat = products.ravel()
            for one in open_:
                above = flat > _above(one.high + error)
                one.above += int(np.count_nonzero(above))
                near = np.flatnonzero((flat >= _below(one.low - error)) & ~above)
                for start in range(0, len(near), KEEP):
                    row, column = np.divmod(near[start : start + KEEP], len(columns))
                    one.add(pairs.scores(row + first, columns[column]))
        settled = [(one.rank, one.settle()) for one in open_]
        found |= {rank: what for rank, what in settled if isinstance(what, OrderStatistic)}
        open_ = [what for _, what in settled if isinstance(what, _Enclosure)]
    return found


def _coarse(pairs: Pairs, ranks: Sequence[int], error: float, block: int) -> list[_Enclosure]:
    """An enclosure of T for each rank by the counts of L."""
    reach = pairs.reach + error
    scale = np.float32(BINS / (2 * reach))
    counts = np.zeros(BINS + 2, np.int64)
    for _, _, products in pairs.blocks(block):
        flat = products.ravel()
        flat = flat[flat > NOT / 2]
        flat += np.float32(reach)
        flat *= scale
        np.clip(flat, 0, BINS + 1, out=flat)
        counts += np.bincount(flat.astype(np.int32), minlength=len(counts))
    # Sum, factor, product and `reach` itself, each rounded to float32, move L by at most 2⁻²⁴ of the whole width each.
    slack = error + 2 * reach * 2.0**-21
    found = []
    for rank in ranks:
        chosen, _ = _at_rank(counts, rank)
        low, high = (edge * 2 * reach / BINS - reach for edge in (chosen, chosen + 1))
        found.append(_Enclosure(rank, low - slack, high + slack))
    return found


# Helpers


def _at_rank(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """In which of some ascending groups the rank-th largest is, and how many are in higher groups."""
    upward = np.cumsum(counts[::-1])
    place = int(np.searchsorted(upward, rank))
    return len(counts) - 1 - place, int(upward[place - 1]) if place else 0


def _counted(place: NDArray[np.int64], times: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    # The weights of `bincount` are float64, exact to 2⁵³.
    return np.bincount(place.ravel(), weights=times, minlength=length).astype(np.int64)


def _below(value: float) -> np.float32:
    """A float32 below the value: what is compared as float32 must not be lost."""
    return np.nextafter(np.float32(value), np.float32(-math.inf))


def _above(value: float) -> np.float32:
    return np.nextafter(np.float32(value), np.float32(math.inf))


def _longest(rows: NDArray[np.float32]) -> float:
    parts = (rows[start : start + BLOCK] for start in range(0, max(1, len(rows)), BLOCK))
    squares = (np.einsum("id,id->i", part, part, dtype=np.float64) for part in parts)
    return math.sqrt(max(float(square.max(initial=0.0)) for square in squares))
