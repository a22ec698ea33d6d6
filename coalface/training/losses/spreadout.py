"""The spreadout regulariser, which keeps class embeddings apart at a server that holds them all.

With u_c = w_c / |w_c|, d(w, w') = 1 − cos(w, w') and the margin v,

    reg_sp(W) = Σ_c Σ_{c'≠c} max(0, v − d(w_c, w_c'))²  =  Σ_c Σ_{c'≠c} max(0, ⟨u_c, u_c'⟩ − (1 − v))²

over ordered pairs: each unordered one counts twice. With `top_k` the inner sum goes over the k nearest c' of each c,
ties to the lower index, all others where k ≥ C − 1; so a pair counts once, twice or not at all. `reduce="mean"` divides
by the number of terms, C (C − 1) or C k.

Two gradients. The paper writes the cosine distance by the inner product of vectors that it keeps at length one (Eq. 7),
steps along ∇, and keeps them there again: ∇ at the unit vectors as if they were free,

    ∂/∂u_c = 4 Σ_{c'≠c} max(0, ⟨u_c, u_c'⟩ − (1 − v)) u_c'

and with `top_k` 2 Σ over the selected pairs that c is in, on either side. This is the default. `tangent=True` takes the
gradient through the normalisation, (I − u_c u_cᵀ)(∂/∂u_c) / |w_c|: a step along it turns no vector by 90 degrees. A
step along the first can, and takes tight class embeddings through the origin and together on its other side: C of them
with cosine ρ to each other come nearer in a step λ (of the sum) when 2 λ C (ρ − 1 + v) > 1.

All is exact and done in pairs of blocks of `block` rows; no C × C matrix is held. Beside W there are two or three
matrices of its size, with `top_k` C k cosines and places, and less than 64 bytes a pair of rows of a block, 256 MiB at
2,048. The arithmetic is in the dtype of W, float32 at least. On the CPU the same threads and block give the same bytes.

Rows may have any length but 0. Raises ValueError where a row is zero or not finite, or a setting makes no sense.

Source: Yu et al., "Federated Learning with Only Positive Labels" (FedAwS, ICML 2020); Aggarwal et al., "FedFace"
(2021), Eq. 9 and Algorithm 1, line 10, whose authors' code has the margin 0.7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.checks import TypedSettings
from coalface.core.text import first_few
from coalface.training.losses.base import lengths, unit, wide

Reduce = Literal["sum", "mean"]

BLOCK = 2048
"""Rows of a block: a block of cosines is 16 MiB in float32."""
SPARSE = 32
"""A block of which at most one pair in so many is nearer than the margin is multiplied pair by pair."""


@torch.no_grad()
def gradient(
    weights: Tensor,
    *,
    margin: float = 0.7,
    reduce: Reduce = "sum",
    top_k: int | None = None,
    tangent: bool = False,
    block: int = BLOCK,
) -> Tensor:
    """(C, d) the gradient of reg_sp: by the unit rows as if they were free, or with `tangent` by W. See above."""
    _check(margin, reduce, top_k, block)
    slopes = _gradient(unit_rows(weights), 1 - margin, reduce, top_k, tangent, block)
    if tangent:
        for part in slices(len(weights), block):
            slopes[part] /= lengths(*wide(weights[part]))
    return slopes


@torch.no_grad()
def spread_out(
    weights: Tensor,
    *,
    step: float,
    margin: float = 0.7,
    steps: int = 1,
    momentum: float = 0.0,
    reduce: Reduce = "sum",
    top_k: int | None = None,
    tangent: bool = False,
    block: int = BLOCK,
) -> Tensor:
    """(C, d) unit rows after `steps` steps of gradient descent on reg_sp, in the dtype of W, which stays as it is.

        W ← normalise(W);  then `steps` times:  M ← μ M + ∇reg_sp(W);  W ← normalise(W − step · M)

    μ is `momentum`, 0 or more and below 1; M is 0 at the start of each call. Every step ends at length one, where the
    constraint |w| = 1 holds and the next gradient is taken. The step is that of the sum or of the mean, whichever
    `reduce` names, and its size is independent of any learning rate of the clients.
    """
    _check(margin, reduce, top_k, block)
    if steps < 1 or not 0 <= step < math.inf or not 0 <= momentum < 1:
        raise ValueError(
            f"spreading out needs steps >= 1, a finite step >= 0 and a momentum from 0 to below 1; "
            f"got steps {steps}, step {step}, momentum {momentum}"
        )
    rows = unit_rows(weights)
    moved: Tensor | None = None
    for _ in range(steps):
        slopes = _gradient(rows, 1 - margin, reduce, top_k, tangent, block)
        moved = slopes if moved is None or not momentum else moved.mul_(momentum).add_(slopes)
        del slopes
        rows.add_(moved, alpha=-step)
        for part in slices(len(rows), block):  # in place: a whole one beside it would be a matrix more
            rows[part] = unit_rows(rows[part], part.start)
    return rows.to(weights.dtype)


@dataclass(frozen=True)
class Spreading(TypedSettings):
    """The arguments of `spread_out` as settings; called with (C, d) class embeddings it gives them after the step."""

    margin: float = 0.7
    """v, in cosine distance."""
    step: float = 0.01
    """λη, whatever the clients' learning rate."""
    steps: int = 1
    """Steps of gradient descent a round."""
    momentum: float = 0.0
    """μ, from 0 to below 1, within a round."""
    reduce: Reduce = "sum"
    """Whether the step is that of the sum over pairs or of their mean."""
    tangent: bool = False
    """The gradient goes through the normalisation."""
    top_k: int | None = None
    """Push from so many nearest ones alone; None: from all."""

    def __post_init__(self) -> None:
        _check(self.margin, self.reduce, self.top_k, BLOCK)

    def __call__(self, weights: Tensor) -> Tensor:
        return spread_out(weights, **vars(self))


@torch.no_grad()
def mean_cosine(weights: Tensor) -> float:
    """The mean cosine of the C (C − 1) / 2 pairs of (C, d) class embeddings: (|Σ u_c|² − Σ |u_c|²) / (C (C − 1)).

    In float64, in O(C d). Raises ValueError for fewer than two, where there is no pair.
    """
    if weights.ndim != 2 or len(weights) < 2:
        raise ValueError(f"the mean cosine is one of pairs: give (C, d) with C >= 2, not {tuple(weights.shape)}")
    count = len(weights)
    total = torch.zeros(weights.shape[1], dtype=torch.float64, device=weights.device)
    squares = 0.0
    for part in slices(count, BLOCK):
        rows = unit_rows(weights[part].double(), part.start)
        total += rows.sum(0)
        squares += rows.square().sum().item()
    return (total.square().sum().item() - squares) / (count * (count - 1))


@dataclass(frozen=True)
class CosineHistogram:
    """How many pairs of class embeddings fall into each interval of cosine."""

    edges: NDArray[np.float64]
    """(bins + 1,) from −1 to 1; an interval has its lower edge, the last has both."""
    pairs: NDArray[np.int64]
    """(bins,); together C (C − 1) / 2."""


@torch.no_grad()
def cosine_histogram(weights: Tensor, bins: int = 200, block: int = BLOCK) -> CosineHistogram:
    """Counts of the cosines of all unordered pairs of (C, d) class embeddings, in equal intervals from −1 to 1.

    Every pair is counted once. A cosine within rounding of an edge may fall to either side of it.
    """
    if bins < 1 or block < 1:
        raise ValueError(f"a histogram needs a bin and a block of one at least; got bins {bins}, block {block}")
    rows = unit_rows(weights)
    pairs = torch.zeros(bins, dtype=torch.int64, device=rows.device)
    for block_i, block_j, cosines in cosine_blocks(rows, block):
        if block_i == block_j:
            above = torch.ones_like(cosines, dtype=torch.bool).triu_(1)
            cosines = cosines[above]
        places = cosines.add_(1).mul_(bins / 2).to(torch.int32).clamp_(0, bins - 1)
        pairs += torch.bincount(places.view(-1), minlength=bins)
    return CosineHistogram(edges=np.linspace(-1, 1, bins + 1), pairs=pairs.cpu().numpy())


@torch.no_grad()
def unit_rows(weights: Tensor, first: int = 0) -> Tensor:
    """(C, d) class embeddings at length one, in their dtype, float32 at least; a tensor of its own.

    Raises ValueError where there are none, or where a row is zero or not finite: it has no direction. The error counts
    the rows from `first`.
    """
    if weights.ndim != 2 or not weights.numel():
        raise ValueError(f"class embeddings have the shape (C, d), one of each at least; got {tuple(weights.shape)}")
    rows = unit(*wide(weights))
    off = torch.linalg.vector_norm(rows, dim=1).sub_(1).abs_()
    bad = (~(off < 0.5)).nonzero().view(-1).tolist()  # a row of NaN is no nearer to 1 than to 0
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(weights)} class embeddings are zero or not finite, rows "
            f"{first_few([first + row for row in bad], 5)}: no direction. Leave them out, or look for a party whose "
            "training diverged"
        )
    return rows


def _check(margin: float, reduce: str, top_k: int | None, block: int) -> None:
    if not 0 < margin <= 2:
        raise ValueError(f"the margin is a cosine distance above 0, at most 2; got {margin}")
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce is 'sum' or 'mean'; got {reduce!r}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is at least 1, or None for all pairs; got {top_k}")
    if block < 1:
        raise ValueError(f"a block has one row at least; got {block}")


def _terms(count: int, reduce: str, top_k: int | None) -> int:
    """What the sum is divided by."""
    if reduce == "sum" or count == 1:
        return 1
    return count * (count - 1 if top_k is None else min(top_k, count - 1))


def slices(count: int, block: int) -> Iterator[slice]:
    for start in range(0, count, block):
        yield slice(start, min(start + block, count))


def cosine_blocks(rows: Tensor, block: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Pairs of blocks I ≤ J and their (|I|, |J|) inner products, in memory that the next pair overwrites.

    A block of rows meets all others in ascending order: as J those before it, then as I itself and those after it.
    """
    widest = min(block, len(rows))
    memory = rows.new_empty(widest * widest)
    for block_i in slices(len(rows), block):
        for block_j in slices(len(rows), block):
            if block_j.start >= block_i.start:
                left, right = rows[block_i], rows[block_j]
                out = memory[: len(left) * len(right)].view(len(left), len(right))
                yield block_i, block_j, torch.mm(left, right.T, out=out)


def _gradient(rows: Tensor, floor: float, reduce: Reduce, top_k: int | None, tangent: bool, block: int) -> Tensor:
    """The gradient at unit rows, as if they were free, or with `tangent` what of it lies along the sphere."""
    slopes = torch.zeros_like(rows)
    if top_k is not None and top_k < len(rows) - 1:
        _add_nearest(rows, floor, top_k, block, slopes)
    else:
        _add_all(rows, floor, block, slopes)
    slopes.div_(_terms(len(rows), reduce, top_k))
    if tangent:
        for part in slices(len(rows), block):
            along = (slopes[part] * rows[part]).sum(1, keepdim=True)
            slopes[part].addcmul_(along, rows[part], value=-1)
    return slopes


def _add_all(rows: Tensor, floor: float, block: int, slopes: Tensor) -> None:
    """Add the gradient of the sum over all pairs, of each two blocks 4 H U_J to I, and 4 Hᵀ U_I to J."""
    for block_i, block_j, cosines in cosine_blocks(rows, block):
        hinge = cosines.sub_(floor).clamp_min_(0)
        if block_i == block_j:
            hinge.fill_diagonal_(0)
        if not (active := int(hinge.count_nonzero())):
            continue
        if active * SPARSE <= hinge.numel():
            places = hinge.nonzero().T
            hinge = _sparse(places, hinge[places[0], places[1]], hinge.shape)
        slopes[block_i].addmm_(hinge, rows[block_j], alpha=4)
        if block_i != block_j:
            slopes[block_j].addmm_(hinge.t(), rows[block_i], alpha=4)


def _add_nearest(rows: Tensor, floor: float, top_k: int, block: int, slopes: Tensor) -> None:
    """Add the gradient of the sum over the k nearest of each row."""
    cosine, place = _nearest(rows, floor, top_k, block)
    for part in slices(len(rows), block):
        hinge = cosine[part].sub_(floor)  # 0 where fewer than k are nearer than the margin
        at = hinge.nonzero().T
        if at.shape[1]:
            places = torch.stack([at[0], place[part][at[0], at[1]]])
            chosen = _sparse(places, hinge[at[0], at[1]], (len(hinge), len(rows)))
            slopes[part].addmm_(chosen, rows, alpha=2)
            slopes.addmm_(chosen.t(), rows[part], alpha=2)


def _nearest(rows: Tensor, floor: float, top_k: int, block: int) -> tuple[Tensor, Tensor]:
    """(C, k) the cosines above `floor` of the k nearest other rows, descending, and their places; else floor and −1.

    Of equal cosines the lower place is nearer: a row meets the blocks in ascending order, and a later one must be above
    the k-th of what it has.
    """
    cosine = rows.new_full((len(rows), top_k), floor)
    place = torch.full((len(rows), top_k), -1, dtype=torch.int64, device=rows.device)
    for block_i, block_j, cosines in cosine_blocks(rows, block):
        if block_i == block_j:
            cosines.fill_diagonal_(-math.inf)
        _keep_nearest(cosine[block_i], place[block_i], cosines, block_j.start)
        if block_i != block_j:
            _keep_nearest(cosine[block_j], place[block_j], cosines.T, block_i.start)
    return cosine, place


def _keep_nearest(cosine: Tensor, place: Tensor, fresh: Tensor, start: int) -> None:
    """Merge into (b, k) the kept the (b, c) cosines to rows from `start` on, all of which are later than the kept."""
    better = (fresh.amax(1) > cosine[:, -1]).nonzero().view(-1)
    if not len(better):
        return
    fresh, nearest, top_k = fresh[better], cosine[better], cosine.shape[1]
    columns = fresh.shape[1]
    values, at = fresh.topk(min(top_k + 1, columns), dim=1)
    if columns > top_k:
        # Which of several equal ones `topk` takes is not said: where the last to enter equals the first to stay out, a
        # stable sort of the row decides.
        tied = ((values[:, -1] == values[:, -2]) & (values[:, -1] > nearest[:, -1])).nonzero().view(-1)
        if len(tied):
            at[tied] = fresh[tied].sort(dim=1, descending=True, stable=True).indices[:, : top_k + 1]
        at = at[:, :top_k]
    at = at.sort(dim=1).values
    merged = torch.cat([nearest, fresh.gather(1, at)], dim=1)
    places = torch.cat([place[better], at + start], dim=1)
    merged, order = merged.sort(dim=1, descending=True, stable=True)
    cosine[better] = merged[:, :top_k]
    place[better] = places.gather(1, order[:, :top_k])


def _sparse(places: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=False)
