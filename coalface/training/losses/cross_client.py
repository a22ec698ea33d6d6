r"""The cross-client softmax, by which a server that holds all class embeddings makes up for what no client sees.

A client's softmax knows its own classes alone. With u_i = w_i / |w_i|, the client k(i) of class i, and û the same
without gradient, the regulariser has the terms that are missing:

    Reg(W) = −Σ_i log( e^{s ⟨û_i, u_i⟩} / Z_i ),   Z_i = e^{s ⟨û_i, u_i⟩} + Σ_{j: k(j) ≠ k(i)} e^{s ⟨û_i, u_j⟩}

Classes of the own client are left out: they have met in its softmax. The gradient is taken at unit vectors as if they
were free, and the step ends at length one, as in `spreadout`. Since ⟨û_i, u_i⟩ = 1 is the largest cosine there is,
all is in terms of E_ij = e^{s (⟨u_i, u_j⟩ − 1)} ≤ 1, zero within a client, which is symmetric:

    Z'_i = 1 + Σ_j E_ij,   Reg(W) = Σ_i log Z'_i,   ∂Reg/∂u_j = s ( Σ_i E_ij u_i / Z'_i − (1 − 1 / Z'_j) u_j )

The last part lies along u_j: it lengthens what is brought back to length one, and so shortens the turn. Each class i
gives out less than s in all: of C classes that lie together each is pushed by less than s, where by spreadout's sum it
is pushed by more the larger C is. Two alone push each other by s E_ij / (1 + E_ij): at cosine c it is about
e^{−s (1 − c)} of s, so s says how near two classes must be.

All is exact and done in pairs of blocks of `BLOCK` rows: no C × C matrix is held. Beside W there are two matrices of
its size and a few blocks of 16 MiB (float32). On the CPU the same threads give the same bytes.

Source: after Niu & Deng, "Federated Learning for Face Recognition with Gradient Correction" (AAAI 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coalface.core.checks import TypedSettings
from coalface.training.losses.base import unit
from coalface.training.losses.spreadout import BLOCK, cosine_blocks, slices, unit_rows


@torch.no_grad()
def gradient(weights: Tensor, clients: Tensor, *, scale: float, block: int = BLOCK) -> tuple[float, Tensor]:
    """(Reg, (C, d) its gradient by the unit rows) of class embeddings (C, d), whose clients are (C,) int64.

    Rows may have any length but 0. Raises ValueError where a row is zero or not finite, or the clients do not fit.
    """
    if clients.shape != weights.shape[:1] or block < 1:
        raise ValueError(
            f"{len(weights)} class embeddings, clients {tuple(clients.shape)}, blocks of {block}: give each row the "
            "number of its client, and a block one row at least"
        )
    return _gradient(unit_rows(weights), clients, scale, block)


def _gradient(rows: Tensor, clients: Tensor, scale: float, block: int) -> tuple[float, Tensor]:
    sums = torch.ones(len(rows), dtype=torch.float64, device=rows.device)  # Z'
    for block_i, block_j, near in _nearness(rows, clients, scale, block):
        sums[block_i] += near.sum(1, dtype=torch.float64)
        if block_i != block_j:
            sums[block_j] += near.sum(0, dtype=torch.float64)
    shares = (1 / sums).to(rows.dtype)[:, None]
    slopes = torch.zeros_like(rows)
    for block_i, block_j, near in _nearness(rows, clients, scale, block):
        slopes[block_i].addmm_(near, rows[block_j] * shares[block_j])
        if block_i != block_j:
            slopes[block_j].addmm_(near.t(), rows[block_i] * shares[block_i])
    for part in slices(len(rows), block):
        slopes[part].sub_(rows[part] * (1 - shares[part])).mul_(scale)
    return float(sums.log().sum()), slopes


def _nearness(rows: Tensor, clients: Tensor, scale: float, block: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Pairs of blocks I ≤ J and E of them, in memory that the next pair overwrites."""
    for block_i, block_j, cosines in cosine_blocks(rows, block):
        near = cosines.sub_(1).mul_(scale).exp_()
        yield block_i, block_j, near.masked_fill_(clients[block_i, None] == clients[block_j], 0)


@dataclass(frozen=True)
class Correction(TypedSettings):
    """A step of a server on the cross-client softmax: W ← normalise(W − λ ∇Reg(W)); see above."""

    scale: float = 16.0
    """s: how near two classes of different clients must be to push each other."""
    step: float = 0.1
    """λ, of the gradient of the sum, whatever the clients' learning rate."""

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf or not 0 <= self.step < math.inf:
            raise ValueError(
                f"the correction needs a finite scale above 0 and a finite step of 0 or more; got scale {self.scale}, "
                f"step {self.step}"
            )

    @torch.no_grad()
    def __call__(self, weights: Tensor, clients: Tensor) -> tuple[float, Tensor]:
        """(Reg before the step, (C, d) unit rows after it, in the dtype of W, which stays as it is)."""
        value, slopes = gradient(weights, clients, scale=self.scale)
        for part in slices(len(slopes), BLOCK):  # in place: a whole one beside it would be a matrix more
            before = unit_rows(weights[part], part.start)
            after = unit(before - self.step * slopes[part])
            slopes[part] = torch.where(after.any(1, keepdim=True), after, before)  # a step to zero has no direction
        return value, slopes.to(weights.dtype)
