"""Equivalent class embeddings: what stands in for the class embeddings of others where none may be sent on.

From the class embeddings of the R clients that a round did not select, k at a time are fused,

    w̄ = (u_1 + … + u_k) / k,    w̃ = w̄ / |w̄|        (u: the class embeddings at length one)

n of them for a round. A client keeps its own class embedding away from w̃, and so from all k, and cannot tell the k from
one of them. Several together can tell more: at k = 2 those over (1, 2), (1, 3) and (2, 3) determine all three. k = 2
tells it the most: the half of the sphere that both lie in.

Source: L. Liu et al., "FedFV" (2022), Eq. 5 (k = 2), Section 4.4 (any k) and Algorithm 2, lines 6 to 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.training.losses.base import OwnClassLoss, check, require, unit, wide
from coalface.training.losses.spreadout import unit_rows


@dataclass(frozen=True, eq=False)
class AgainstOthers(OwnClassLoss):
    r"""Softmax of the own class against fixed class embeddings of others: FedFV's loss, its (2) over [w_i ; W̃].

        −log( e^{s cos θ_y} / (e^{s cos θ_y} + Σ_j e^{s cos(x, w̃_j)}) )

    It cannot fall below log(1 + n e^{−2s}), n being the rows of W̃.
    """

    others: Tensor
    """(n, d) W̃, of any length but 0; they get no gradient."""
    scale: float = 1.0
    """s, above 0."""

    def __post_init__(self) -> None:
        require(self, "scale > 0", 0 < self.scale < math.inf, self.scale)

    def each(self, embeddings: Tensor, weights: Tensor, labels: Tensor, **extra: Tensor) -> Tensor:
        check(embeddings, weights, labels)
        embeddings, weights, fixed = wide(embeddings, weights, self.others.to(embeddings.device))
        rows = unit(embeddings)
        own_cosine = (rows * unit(weights)[labels]).sum(1, keepdim=True)
        logits = self.scale * torch.cat([own_cosine, rows @ unit(fixed).T], dim=1)
        return torch.logsumexp(logits, dim=1) - logits[:, 0]


DRAWS = 100
"""How often k class embeddings whose mean vanishes are drawn anew."""


@torch.no_grad()
def equivalent_embeddings(weights: Tensor, count: int, fused: int = 2, *, generator: np.random.Generator) -> Tensor:
    """(n, d) unit rows, each the normalised mean of k class embeddings out of (R, d); n is `count`, k is `fused`.

    The k of one are distinct and every choice of k is equally likely; the n are drawn independently, so that a class
    embedding may be in several, and two may even be the same. `weights` holds the clients that were not selected, and
    no other: rows of any length but 0, which count by their direction. The arithmetic is in their dtype, float32 at
    least, and so is what is returned; beside the R unit rows it holds n (d + k) numbers, never n × R.

    A mean that vanishes, |w̄| below √ε of the dtype (3e-4 in float32), as that of two opposite vectors, has no
    direction: those k are drawn anew from the same generator.

    Raises ValueError where R < k, where k < 2 or n < 1, where a row is zero or not finite, and where a mean vanishes a
    hundred times in a row.
    """
    if fused < 2:
        raise ValueError(f"a mean of {fused} class embedding would reach other clients as it is; fuse 2 or more")
    if count < 1:
        raise ValueError(f"a round needs 1 equivalent class embedding or more, not {count}")
    if weights.ndim == 2 and len(weights) < fused:
        raise ValueError(
            f"clients not selected: {len(weights)}, and an equivalent class embedding fuses {fused} of them. Select "
            f"fewer clients a round, so that {fused} are left, or set `fused` to a smaller number"
        )
    rows = unit_rows(weights)
    least = torch.finfo(rows.dtype).eps ** 0.5
    result = rows.new_empty(count, rows.shape[1])
    missing = torch.arange(count, device=rows.device)
    for _ in range(DRAWS):
        mean = _means(rows, draw_subsets(len(rows), len(missing), fused, generator))
        length = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
        long_enough = (length >= least).view(-1)
        result[missing[long_enough]] = mean[long_enough] / length[long_enough]
        missing = missing[~long_enough]
        if not len(missing):
            return result
    raise ValueError(
        f"the mean of {fused} class embeddings vanished {DRAWS} times in a row: those of the {len(rows)} clients that "
        "are not selected lie opposite to each other. Select fewer clients a round, or fuse another number of them"
    )


def draw_subsets(size: int, count: int, chosen: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """(n, k) `count` independent subsets of `chosen` distinct numbers below `size`, each ascending.

    Every subset is equally likely. In O(n k²), without a list of all `size` numbers for each.

    Source: R. Floyd, in Bentley, "Programming Pearls: a sample of brilliance" (1987): for j = size − k, …, size − 1
    draw t from 0 to j, and take t, or j where t was taken.
    """
    subsets = np.empty((count, chosen), dtype=np.int64)
    for place, last in enumerate(range(size - chosen, size)):
        drawn = generator.integers(0, last, size=count, endpoint=True)
        already_drawn = (subsets[:, :place] == drawn[:, None]).any(axis=1)
        subsets[:, place] = np.where(already_drawn, last, drawn)
    subsets.sort(axis=1)
    return subsets


def _means(rows: Tensor, subsets: NDArray[np.int64]) -> Tensor:
    """(n, d) the mean of each subset's rows, added in ascending order, so that a subset always has the same bytes."""
    places = torch.from_numpy(subsets).to(rows.device)
    total = rows[places[:, 0]]
    for place in places.T[1:]:
        total += rows[place]
    return total / places.shape[1]
