"""Which rows are bit for bit the same, so that they need be looked at once: by hashes, then by comparing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coalface.evaluation.metrics.exact import few, slices


@dataclass(frozen=True)
class Groups:
    """Rows that are bit for bit the same, but for the sign of zeros."""

    lowest: Tensor
    """(G,) the lowest row of each group, ascending."""
    second: Tensor
    """(G,) the next one, −1 where there is none."""
    of: Tensor
    """(N,) the group of each row."""


def identical(rows: Tensor) -> Groups | None:
    """The groups of identical rows; None where no two are. Groups may be too many: T then finds rows equally near."""
    hashes = rows.new_empty(len(rows), dtype=torch.int64)
    for part in slices(len(rows), few(rows)):
        hashes[part] = _hash(rows[part])
    hashes, order = hashes.sort(stable=True)
    again = (hashes[1:] == hashes[:-1]).nonzero().view(-1) + 1
    for part in slices(len(again), few(rows)):
        places = again[part]
        is_equal = (rows[order[places]] == rows[order[places - 1]]).all(dim=1)
        again[part] = torch.where(is_equal, places, 0)
    again = again[again > 0]
    if not len(again):
        return None
    first = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    first[again] = False
    starts = first.nonzero().view(-1)
    lowest, rank = order[starts].sort()
    following = (starts + 1).clamp_(max=len(rows) - 1)
    second = torch.where(first[following], -1, order[following])[rank]
    place = torch.empty_like(rank)
    place[rank] = torch.arange(len(rank), device=rows.device)
    of = torch.empty_like(order)
    of[order] = place[first.cumsum(0) - 1]
    return Groups(lowest=lowest, second=second, of=of)


def _hash(rows: Tensor) -> Tensor:
    """(n,) int64 Σ_k b_k m_k modulo 2⁶⁴, b_k the mixed bits of the entries, m_k odd; rarely that of another row."""
    bits = (rows + 0.0).view(torch.int32 if rows.dtype == torch.float32 else torch.int64).long()  # −0 becomes 0
    # Weyl's sequence by the golden ratio, 2⁶⁴ (√5 − 1) / 2, made odd.
    factors = torch.arange(1, rows.shape[1] + 1, device=rows.device) * -7046029254386353131 | 1
    bits ^= bits >> 15
    return (bits * factors).sum(dim=1)
