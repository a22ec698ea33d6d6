"""MegaFace: probes against very many distractors, rank-1 and TAR at FAR, exact, and streamed in bounded memory.

For an ordered pair of two images of one identity, a probe and its mate, the gallery is the mate and all distractors:
the probe is right if its mate is more like it than every distractor. So an identity of m images counts m (m − 1) times.
Genuine pairs of the verification are those of two images of one identity, impostors each probe with each distractor.
(Kemelmacher-Shlizerman et al., CVPR 2016; `coalface.data.readers.megaface` reads the lists.)

Scores are T of `exact`. Float32 products of blocks tell which pairs need it: those that may be their probe's best
distractor, or among the highest of all, and those genuine pairs that lie next to either. `docs/figures.md` has the
definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import check_unit, exactly, no_more, rounding
from coalface.evaluation.metrics.identification import TIE
from coalface.evaluation.metrics.verification import TarAtFar, allowed

BLOCK = (2048, 8192)
"""Probes and distractors whose products are held together, in 64 MiB."""
CROWDED = 8
"""Candidates of a row in one block above which the row's products are computed again in float64."""

_Floats = NDArray[np.float32]
_Scores = NDArray[np.float64]
_Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MegaFace:
    """What a list of distractors says of a model."""

    pairs: int
    """Ordered pairs of a probe and a mate."""
    right: int
    """Of these, those of rank 1."""
    tars: tuple[TarAtFar, ...]
    nearest: _Scores
    """(p,) the score of each probe with the distractor most like it."""
    distractors: int

    def figures(self) -> dict[str, float]:
        """`rank-1` and `tar@far=1e-06`, … in percent, unrounded; without a TAR that the pairs cannot carry."""
        tars = {f"tar@far={tar.far:g}": 100 * tar.tar for tar in self.tars if tar.carried}
        return {"rank-1": 100 * self.right / self.pairs} | tars


def judge(
    probes: _Floats,
    identities: _Places,
    distractors: _Floats,
    *,
    rows: _Places | None = None,
    fars: Sequence[float] = (1e-6,),
    block: tuple[int, int] = BLOCK,
) -> MegaFace:
    """Judge unit features of probes (p, d), with their identities (p,), against those of distractors (n, d).

    `distractors` may be mapped from a file (`np.memmap`): it is read once, a block at a time. `rows` are the places in
    it of those that a list names (None: all), so that lists of several sizes need one file.

    A pair of probe i and mate j is right if T_ij > max_k T_ik + `TIE` over the distractors k: ties go against it, as
    in `identify`. TAR is that of `verification.tar_at_far` over all T, with p × n impostors.

    Time O(p n d); memory, beside the arguments, a block of products and of distractors, and at most about 24 bytes
    for each of the floor(far × p × n) impostors that the largest FAR allows. Where very many pairs have the same score
    as the last of those, as when a model collapses, each needs its T, which takes some hundred times longer.

    Raises ValueError where the shapes do not fit, for features of another length than 1 or 0, for a FAR that is not
    between 0 and 1, and if no identity has two probes.
    """
    count = _check(probes, identities, distractors, rows)
    impostors = len(probes) * count
    limits = [allowed(far, impostors) for far in fars]
    if any(limit >= impostors for limit in limits):
        raise ValueError(f"among FARs {list(fars)} one allows all impostors: give FARs below 1")
    error = rounding(probes.shape[1])
    best = _Nearest(probes, error)
    top = TopScores(1 + max(limits), error) if limits else None
    for at, products, crowd in _blocks(probes, distractors, rows, count, block):
        peaks = products.max(axis=1)
        best.meet(at, products, peaks, crowd)
        if top:
            top.meet(products, peaks, _exact_in(probes[at], crowd))
    found = top.values if top else np.empty(0)
    thresholds = np.array([found[limit] for limit in limits])
    pairs, right, taken = _genuine(probes, identities, best.score, thresholds, error)
    tars = [
        TarAtFar(
            far=float(far),
            tar=accepted / pairs,
            threshold=float(np.nextafter(threshold, np.inf)),
            false_accepts=int(np.count_nonzero(found > threshold)),
            impostors=impostors,
            carried=limit >= 1,
        )
        for far, limit, threshold, accepted in zip(fars, limits, thresholds, taken, strict=True)
    ]
    return MegaFace(pairs, right, tuple(tars), best.score, count)


def _blocks(
    probes: _Floats, distractors: _Floats, rows: _Places | None, count: int, block: tuple[int, int]
) -> Iterator[tuple[slice, _Floats, _Floats]]:
    """Blocks of probes by distractors: which probes, the products, and the distractors."""
    high, wide = min(block[0], len(probes)), min(block[1], count)
    memory = np.empty(high * wide, np.float32)
    for start in range(0, count, wide):
        there = slice(start, min(start + wide, count))
        crowd = np.ascontiguousarray(distractors[there] if rows is None else distractors[rows[there]], np.float32)
        try:
            check_unit(crowd, "distractor")
        except ValueError as error:
            raise ValueError(f"distractors {there.start:,} to {there.stop:,}: {error}") from None
        for first in range(0, len(probes), high):
            at = slice(first, min(first + high, len(probes)))
            size = at.stop - at.start, there.stop - there.start
            products = memory[: size[0] * size[1]].reshape(size)
            np.matmul(probes[at], crowd.T, out=products)
            yield at, products, crowd


def _exact_in(some: _Floats, crowd: _Floats) -> Callable[[_Places, _Places], _Scores]:
    return lambda row, column: exactly(some, row, crowd, column)


class _Nearest:
    """The highest score of each probe, to 1e-12 or better: it is compared with a tolerance of `TIE`."""

    def __init__(self, probes: _Floats, error: float) -> None:
        self._probes, self._error = probes, error
        self.score = np.full(len(probes), -np.inf)

    def meet(self, at: slice, products: _Floats, peaks: _Floats, crowd: _Floats) -> None:
        known = self.score[at]
        most = peaks.astype(np.float64)  # in float32 the sums below would be rounded
        rows = np.flatnonzero(most + self._error > known)
        for start in range(0, len(rows), 256):
            some = rows[start : start + 256]
            limits = np.maximum(most[some] - 2 * self._error, known[some] - self._error)
            near, column = np.nonzero(products[some] >= limits[:, None])
            if len(near) <= CROWDED * len(some):
                values = exactly(self._probes[at], some[near], crowd, column)
                np.maximum.at(known, some[near], values)
            else:
                wide = self._probes[at][some].astype(np.float64)
                for first in range(0, len(crowd), 1024):
                    values = (wide @ crowd[first : first + 1024].astype(np.float64).T).max(axis=1)
                    known[some] = np.maximum(known[some], values)


class TopScores:
    """The highest T of very many pairs, of which at most some three times so many are kept."""

    def __init__(self, count: int, error: float) -> None:
        self.count, self._error = count, error
        self.floor = -np.inf
        """What is below it is not among the highest."""
        self._kept: list[_Scores] = []
        self._waiting = 0

    def meet(self, products: _Floats, peaks: _Floats, exact: Callable[[_Places, _Places], _Scores]) -> None:
        """Take in the pairs of a block (m, n); `products` are within the error of T, `peaks` (m,) their maxima."""
        floor = self.floor
        if floor == -np.inf and products.size > self.count:
            # So many of this block have a product of at least this, and a T of at least this less the error.
            place = products.size - self.count
            floor = float(np.partition(products, place, axis=None)[place]) - self._error
        limit = no_more(floor - self._error)
        rows = np.flatnonzero(peaks >= limit)  # most have nothing, and are not looked at
        step = max(1, 2**22 // products.shape[1])
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            row, column = np.nonzero(products[some] >= limit)
            for first in range(0, len(row), 2**16):
                part = slice(first, first + 2**16)
                self._take(exact(some[row[part]], column[part]))

    def _take(self, values: _Scores) -> None:
        self._kept.append(values[values > self.floor])  # so many as are sought are at the floor or above it already
        self._waiting += len(self._kept[-1])
        if self._waiting >= (self.count if self.floor == -np.inf else 2 * self.count + 1024):
            self._settle()

    def _settle(self) -> None:
        together = np.concatenate([np.empty(0), *self._kept])
        if len(together) >= self.count:
            together = np.partition(together, len(together) - self.count)[len(together) - self.count :]
            self.floor = float(together.min())
        self._kept, self._waiting = [together], len(together)

    @property
    def values(self) -> _Scores:
        """Those found so far, descending."""
        self._settle()
        return np.sort(self._kept[0])[::-1]


def _genuine(
    probes: _Floats, identities: _Places, nearest: _Scores, thresholds: _Scores, error: float, block: int = 1024
) -> tuple[int, int, list[int]]:
    """Ordered genuine pairs; how many are right; and how many T are above each of the thresholds."""
    order = np.argsort(identities, kind="stable")
    cuts = np.flatnonzero(np.diff(identities[order], prepend=identities[order[0]] - 1))
    pairs = right = 0
    taken = [0] * len(thresholds)
    for begin, end in zip(cuts.tolist(), [*cuts[1:].tolist(), len(order)], strict=True):
        pairs += (end - begin) * (end - begin - 1)
        for start in range(begin, end if end - begin > 1 else begin, block):
            for first in range(begin, end, block):
                mine, theirs = order[start : min(start + block, end)], order[first : min(first + block, end)]
                products = (probes[mine] @ probes[theirs].T).astype(np.float64)
                products[mine[:, None] == theirs] = -np.inf  # an image is not its own mate

                def above(limits: _Scores, products=products, mine=mine, theirs=theirs) -> int:  # type: ignore[no-untyped-def]
                    row, column = np.nonzero(np.abs(products - limits[:, None]) <= error)
                    values = exactly(probes, mine[row], probes, theirs[column])
                    sure = int(np.count_nonzero(products > limits[:, None] + error))
                    return sure + int(np.count_nonzero(values > limits[row]))

                right += above(nearest[mine] + TIE)
                for n, threshold in enumerate(thresholds):
                    taken[n] += above(np.full(len(mine), threshold))
    return pairs, right, taken


def _check(probes: _Floats, identities: _Places, distractors: _Floats, rows: _Places | None) -> int:
    """How many distractors there are."""
    check_unit(probes, "probe")
    if identities.shape != (len(probes),):
        raise ValueError(f"probes {probes.shape} with identities {identities.shape}: give one for each")
    if distractors.ndim != 2 or distractors.shape[1] != probes.shape[1]:
        raise ValueError(f"distractors {distractors.shape} for probes {probes.shape}: give (n, d) by the same model")
    count = len(distractors) if rows is None else len(rows)
    if not count:
        raise ValueError("there are no distractors: pass at least one")
    if rows is not None and (rows.min() < 0 or rows.max() >= len(distractors)):
        raise ValueError(
            f"`rows` go from {rows.min():,} to {rows.max():,}, and there are {len(distractors):,} distractors: they "
            "belong to other features"
        )
    if len(np.unique(identities)) == len(identities):
        raise ValueError("no identity has two probes, so that none has a mate: pass identities with two or more")
    return count
