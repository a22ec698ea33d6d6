"""The first neighbour of every row: the other row with the largest inner product, exact, in all pairs of blocks.

For (N, d) rows x_i of length one the answer is κ_i = argmax_{j≠i} T(x_i, x_j), of equal ones the lowest j, with T the
inner product in float64, defined to the last bit: the d products, with zeros up to a power of two, then the second half
added to the first until one number is left. Each step of it rounds alone, so that it is the same on every device, at
any number of threads and for any block; T(x, y) = T(y, x); and identical rows are equally near. Of float32 rows the
products are exact.

**How.** A low-precision product L of each pair of blocks, computed once for its rows and its columns, tells which
pairs need T. Let q_i be the rounded rows and δ_i = x_i − q_i, both measured; X, Q and Δ the largest |x_i|, |q_i| and
|δ_i|; and the d products be added up in float32, in whatever order. Then

    ⟨x_i, x_j⟩ − ⟨q_i, q_j⟩ = ⟨δ_i, x_j⟩ + ⟨q_i, δ_j⟩
    |T − L| ≤ Δ (X + Q) + (d + 1) 2⁻²³ Q² + u |L| + (⌈log₂ d⌉ + 2) 2⁻⁵³ X²

by Cauchy and Schwarz. The second term allows each of d + 1 roundings twice what it may err, and the last is what T
itself rounds (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Section 3.1); u is 2⁻⁸ if L is rounded
to bfloat16, and 0 if not. So L ± that bound encloses T, and a pair is a candidate of i unless its upper end is below
the highest lower end of i. T of the candidates decides. For unit rows and d = 256 the bound is about
0.0038 + 2⁻⁸ |L| in bfloat16, and 3e-5 in float32.

**Crowds.** Identical rows are searched once. Where rows have many candidates in a block, their product with it is
repeated in float64, to a bound of about 1e-13. What is left differs by less; many of these (as among the rows of an
identity matrix, all at 0) cost one T each: time up to N² d, never memory.

**Memory** beside the rows: the rounded ones (half of float32 rows in bfloat16; none in float32 unless rows are
identical), about 150 bytes a row for candidates and groups, and a few blocks, together less than 100 MiB on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coalface.core.text import first_few
from coalface.evaluation.metrics.exact import CHUNK, few, inner_of, slices
from coalface.training.clustering.duplicate_rows import Groups, identical

Precision = Literal["auto", "bfloat16", "float32"]

BLOCK = {"cpu": (2048, 4096), "cuda": (8192, 8192)}
"""Rows of a block, of few rows and of `MANY`; multiples of `SEGMENT`."""
MANY = 65536
"""From so many rows on a larger block is small beside them, and has less to do between products."""
SEGMENT = 64
"""Of so many cosines only the largest is looked at, as long as it is not that of a candidate."""
CROWDED = 8
"""Candidates of a row in one block above which the block is computed again in float64."""
WAITING = (4, 2**17)
"""How many candidates may wait: so many for each row, and so many in any case."""
FEW = 4096
"""Up to so many rows float32 is as fast as bfloat16."""
PROBES = 128
"""Rows whose neighbourhood is looked at before a precision is chosen."""

NOT = -4.0
"""Stands for the product of a row with itself, and of rows that are not there; below all others."""
LEAST = -2.0
"""Below the T of any two rows of length one, by more than any bound."""

_CODES = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


@dataclass(frozen=True)
class FirstNeighbours:
    """The first neighbour of each of N rows."""

    index: Tensor
    """(N,) int64; −1 where there is no other row."""
    cosine: Tensor
    """(N,) float64, T of the row and its neighbour; −inf where there is none."""


@torch.no_grad()
def first_neighbours(rows: Tensor, *, precision: Precision = "auto", block: int | None = None) -> FirstNeighbours:
    """The first neighbour of every one of (N, d) rows of length one by their inner product. See above.

    `precision` and `block` alter the time alone: `auto` takes bfloat16 on a CPU that multiplies it in hardware, unless
    rows lie so close together that most would have many candidates, and float32 elsewhere.

    Raises ValueError unless all rows are finite and of length one to 1e-3, and names those that are not.
    """
    block = block or BLOCK.get(rows.device.type, BLOCK["cpu"])[len(rows) >= MANY]
    if precision not in ("auto", "bfloat16", "float32") or block < 1:
        raise ValueError(f"precision is auto, bfloat16 or float32, a block a row at least; got {precision}, {block}")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float()
    _check(rows)
    block = -(-min(block, max(1, len(rows))) // SEGMENT) * SEGMENT
    with _as_it_is(rows.device):
        groups = identical(rows)
        search = _Search(rows, None if groups is None else groups.lowest, block, precision)
        search.run()
        if groups is None:
            return FirstNeighbours(index=search.place, cosine=search.best)
        return _with_identical(rows, groups, search)


class _Search:
    """The search among the rows named by `at` (all where None), of which no two need be different.

    Rows count from 0 in the order of `at`, which ascends, so that the lower of two is the lower one everywhere.
    """

    def __init__(self, rows: Tensor, at: Tensor | None, block: int, precision: Precision) -> None:
        self.rows, self.at, self.block = rows, at, block
        self.count, self.d = len(rows) if at is None else len(at), rows.shape[1]
        self.best = rows.new_full((self.count,), -math.inf, dtype=torch.float64)
        self.place = torch.full((self.count,), -1, device=rows.device, dtype=torch.int64)
        self.floor = rows.new_full((self.count,), LEAST, dtype=torch.float64)
        """Below the largest T of each row, or equal to it."""
        self.limit = max(WAITING[0] * self.count, WAITING[1])
        self.waiting = 0
        # Made once: small tensors kept between large ones that go leave holes in the heap that nothing fits in.
        kinds = (torch.int32, torch.int32, torch.float32)
        self.pending = tuple(rows.new_empty(self.limit, dtype=kind) for kind in kinds)
        """Row, column and what T is not above, of the candidates that wait."""
        self.low = self._rounded(precision)

    def run(self) -> None:
        blocks = list(slices(self.count, self.block))
        memory = self.rows.new_empty(self.block * self.block, dtype=self.low.dtype)
        for block in blocks:  # neighbours often lie close in the order as well: then these settle most
            self._meet(block, block, memory)
        for index, block in enumerate(blocks):
            for later_block in blocks[index + 1 :]:
                self._meet(block, later_block, memory)
        self._settle()

    def _take(self, at: Tensor | slice) -> Tensor:
        return self.rows[at] if self.at is None else self.rows[self.at[at]]

    # The low-precision rows

    def _rounded(self, precision: Precision) -> Tensor:
        """The low-precision rows; sets the terms of the bound."""
        if precision != "auto":
            return self._copy(getattr(torch, precision))
        if self.rows.device.type == "cpu" and torch.cpu._is_avx512_bf16_supported() and self.count > FEW:
            low = self._copy(torch.bfloat16)
            if not self._crowds():
                return low
            del low
        return self._copy(torch.float32)

    def _copy(self, dtype: torch.dtype) -> Tensor:
        whole = self.at is None and self.rows.dtype == dtype
        low = self.rows if whole else self.rows.new_empty(self.count, self.d, dtype=dtype)
        longest = widest = error = 0.0
        for part in slices(self.count, max(1, CHUNK // max(1, self.d))):
            exact = self._take(part).double()
            longest = max(longest, _longest(exact))
            if not whole:
                low[part] = exact
                rounded = low[part].double()
                widest = max(widest, _longest(rounded))
                error = max(error, _longest(rounded.sub_(exact)))
        widest = longest if whole else widest
        own_rounding = (math.ceil(math.log2(max(2, self.d))) + 2) * 2.0**-53 * longest**2
        sums = (self.d + 1) * 2.0**-23 * widest**2
        self.bound = (error * (longest + widest) + sums + own_rounding) * (1 + 1e-9) + 1e-30
        self.relative = 2.0**-8 if dtype == torch.bfloat16 else 0.0
        self.bound64 = ((self.d + 1) * 2.0**-52 * longest**2 + own_rounding) * (1 + 1e-9)
        return low

    def _crowds(self) -> bool:
        """Whether most rows would have many candidates, estimated from some of them."""
        step = max(1, self.count // PROBES)
        some = self._take(torch.arange(0, self.count, step, device=self.rows.device)).float()
        nearest = some.new_full((len(some), CROWDED + 2), -math.inf)  # with the row itself
        for part in slices(self.count, 8 * self.block):
            cosines = some @ self._take(part).float().T
            nearest = torch.cat([nearest, cosines], dim=1).topk(CROWDED + 2, dim=1).values
        width = 2 * (self.bound + self.relative * nearest[:, 1].abs())
        return bool((nearest[:, -1] >= nearest[:, 1] - width).float().mean() > 0.5)

    def _lower(self, value: Tensor) -> Tensor:
        return value - self.bound - self.relative * value.abs()

    def _upper(self, value: Tensor) -> Tensor:
        return value + self.bound + self.relative * value.abs()

    def _reaches(self, floor: Tensor) -> Tensor:
        """From here on the upper end of a number, itself from 0 on, reaches the floor; float32, a little low."""
        return ((floor - self.bound) / (1 + self.relative) - 1e-6).float()

    # Candidates

    def _meet(self, rows_at: slice, columns_at: slice, memory: Tensor) -> None:
        """All pairs of two blocks."""
        left, right = self.low[rows_at], self.low[columns_at]
        shape = [-(-len(side) // SEGMENT) * SEGMENT for side in (left, right)]
        table = memory[: shape[0] * shape[1]].view(*shape)
        if [len(left), len(right)] == shape:
            torch.mm(left, right.T, out=table)
        else:  # at the end of the rows
            table.fill_(NOT)
            table[: len(left), : len(right)] = left @ right.T
        if rows_at == columns_at:
            table.fill_diagonal_(NOT)
        self._look(table, rows_at, columns_at, rows=True)
        if rows_at != columns_at:
            self._look(table, columns_at, rows_at, rows=False)

    def _look(self, table: Tensor, searching: slice, searched: slice, rows: bool) -> None:
        """The candidates of block `searching` in block `searched`; `table` has the first as its rows or columns."""
        segments = table.view(table.shape[0], -1, SEGMENT) if rows else table.view(-1, SEGMENT, table.shape[1])
        # Numbers from 0 on are in the order of their bits, read as an integer, and above those below 0, which are in
        # the opposite order: of these alone the largest integer is that of the lowest, and the largest unknown.
        codes = segments.view(_CODES[table.dtype])
        most = codes.amax(2) if rows else codes.amax(1).T
        most = most[: searching.stop - searching.start].contiguous().view(table.dtype).float()
        floor = torch.maximum(self.floor[searching], self._lower(most.amax(1).double()))
        self.floor[searching] = floor
        hot = (most.clamp_(min=0) >= self._reaches(floor)[:, None]).nonzero()
        if not len(hot):
            return
        crowd = CROWDED * len(hot[:, 0].unique_consecutive())
        if len(hot) <= crowd:
            candidates = []
            for part in hot.split(CHUNK // SEGMENT):
                row, segment = part.T
                values = (segments[row, segment] if rows else segments[segment, :, row]).double()
                upper = self._upper(values)
                near, place = (upper >= floor[row, None]).nonzero().T
                columns = segment[near] * SEGMENT + place
                candidates.append((row[near] + searching.start, columns + searched.start, upper[near, place]))
            if sum(len(row) for row, _, _ in candidates) <= crowd:
                for candidate in candidates:
                    self._keep(*candidate)
                return
        self._look_closer(hot[:, 0].unique_consecutive() + searching.start, searched)

    def _look_closer(self, row: Tensor, searched: slice) -> None:
        """The candidates of some rows in a block, by its product in float64."""
        right = self._take(searched).double()
        for some in row.split(max(1, CHUNK // max(len(right), self.d))):
            table = self._take(some).double() @ right.T
            in_block = (some >= searched.start) & (some < searched.stop)
            table[in_block, some[in_block] - searched.start] = NOT
            floor = torch.maximum(self.floor[some], table.amax(1) - self.bound64)
            self.floor[some] = floor
            upper = table.add_(self.bound64)
            near, place = (upper >= floor[:, None]).nonzero().T
            self._keep(some[near], place + searched.start, upper[near, place])

    def _keep(self, row: Tensor, column: Tensor, upper: Tensor) -> None:
        # One float32 above: what is kept must not be below.
        upper = torch.nextafter(upper.float(), upper.new_tensor(math.inf, dtype=torch.float32))
        start = 0
        while start < len(row):
            if self.waiting == self.limit:
                self._settle(keep=True)
            stop = min(len(row), start + self.limit - self.waiting)
            until = self.waiting + stop - start
            for memory, values in zip(self.pending, (row, column, upper), strict=True):
                memory[self.waiting : until] = values[start:stop]
            start, self.waiting = stop, until

    def _settle(self, keep: bool = False) -> None:
        """Drop what is not a candidate any more; compute T of the others, unless they are few and may be kept."""
        row, column, upper = (memory[: self.waiting] for memory in self.pending)
        remaining = (upper.double() >= self.floor[row.long()]).nonzero().view(-1)
        if keep and len(remaining) <= self.limit // 2:
            for memory in self.pending:
                memory[: len(remaining)] = memory[remaining]
            self.waiting = len(remaining)
            return
        for some in remaining.split(max(1, 64 * CHUNK // max(1, self.d))):
            self._decide(row[some].long(), column[some].long())
        self.waiting = 0

    def _decide(self, row: Tensor, column: Tensor) -> None:
        """Of what is known of the rows and T of the new pairs the largest, of equal ones the lowest column."""
        exact = inner_of(self.rows, *(side if self.at is None else self.at[side] for side in (row, column)))
        before = self.best.clone()
        self.best.scatter_reduce_(0, row, exact, "amax")
        self.place[(self.best > before) | (self.place < 0)] = self.count
        won = exact == self.best[row]
        self.place.scatter_reduce_(0, row[won], column[won], "amin")
        self.place[self.place == self.count] = -1
        torch.maximum(self.floor, self.best, out=self.floor)


def _with_identical(rows: Tensor, groups: Groups, search: _Search) -> FirstNeighbours:
    """The neighbours of all rows from those of the lowest of each group."""
    best, place = search.best, torch.where(search.place < 0, -1, groups.lowest[search.place])
    twin = inner_of(rows, groups.lowest, groups.lowest).masked_fill_(groups.second < 0, -math.inf)
    best, place, twin = best[groups.of], place[groups.of], twin[groups.of]
    places = torch.arange(len(rows), device=rows.device)
    lowest = groups.lowest[groups.of]
    twin_place = torch.where(lowest == places, groups.second[groups.of], lowest)
    nearer = (twin > best) | ((twin == best) & (twin_place < place))
    return FirstNeighbours(index=torch.where(nearer, twin_place, place), cosine=torch.where(nearer, twin, best))


def _check(rows: Tensor) -> None:
    if rows.ndim != 2:
        raise ValueError(f"rows have the shape (N, d); got {tuple(rows.shape)}")
    off = rows.new_empty(len(rows), dtype=torch.float64)
    for part in slices(len(rows), few(rows)):
        off[part] = _lengths(rows[part])
    bad = (~((off - 1).abs() <= 1e-3)).nonzero().view(-1).tolist()  # a length that is no number is not near 1
    if bad:
        some = f"rows {first_few(bad, 5)}"
        raise ValueError(f"{len(bad)} of {len(rows)} rows are not of length one or not finite, {some}")


@contextmanager
def _as_it_is(device: torch.device) -> Iterator[None]:
    """Products in the dtype of their factors, whatever autocast or the process says: the bounds hold for no other."""
    places: list[Any] = [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


def _lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def _longest(rows: Tensor) -> float:
    return float(_lengths(rows).max()) if rows.numel() else 0.0
