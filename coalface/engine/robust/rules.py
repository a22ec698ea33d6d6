"""Rules that make one vector of several, some of which may be lies: functions of a matrix (n, d), a row for each party.

They compute in float64, whatever the type of the rows, and in the order of the rows alone: the number of threads
changes no bit. f is the number of rows that may be lies. Vectors that come back are float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_COLUMNS = 1 << 15
"""Columns that are computed at a time, so that float64 copies of all rows are never whole in memory."""
_SMOOTHING, _CLOSE = 1e-6, 1e-10
"""Of the median distance to the start: ν of a geometric median, and a step at which it has come to rest."""


def bucketing(rows: Tensor, size: int, order: Sequence[int]) -> Tensor:
    """Means of `size` rows each, taken in `order`; the last may be of fewer (Karimireddy et al. 2022).

    >>> bucketing(torch.tensor([[1.0], [2.0], [30.0]]), 2, [2, 0, 1])
    tensor([[15.5000],
            [ 2.0000]])
    """
    return torch.stack([_mean(rows, order[i : i + size]).to(rows.dtype) for i in range(0, len(order), size)])


def nearest_neighbour_mixing(rows: Tensor, f: int) -> Tensor:
    """Each row becomes the mean of its n − f nearest ones, itself among them (Allouah et al. 2023).

    >>> nearest_neighbour_mixing(torch.tensor([[1.0], [2.0], [30.0]]), 1)
    tensor([[ 1.5000],
            [ 1.5000],
            [16.0000]])
    """
    nearest = squared_distances(rows).argsort(dim=1, stable=True)[:, : len(rows) - f].sort(dim=1).values
    return torch.stack([_mean(rows, near).to(rows.dtype) for near in nearest.tolist()])


def trimmed_mean(rows: Tensor, f: int) -> Tensor:
    """The mean of each column without its f largest and its f smallest numbers (Yin et al. 2018).

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [4.0], [900.0]]), 1)
    tensor([3.], dtype=torch.float64)
    """
    blocks = [block.T.double().sort(dim=1).values for block in rows.split(_COLUMNS, dim=1)]
    return torch.cat([block[:, f : len(rows) - f].mean(dim=1) for block in blocks])


def median(rows: Tensor) -> Tensor:
    """The median of each column; of an even number of rows the mean of the two in the middle (Yin et al. 2018)."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def geometric_median(
    rows: Tensor, *, start: Tensor | None = None, smoothing: float | None = None, iterations: int = 100
) -> Tensor:
    """argmin_z Σ ‖x_i − z‖ by Weiszfeld's steps z ← Σ β_i x_i / Σ β_i, β_i = 1 / max(ν, ‖x_i − z‖) (Pillutla et al.
    2022).

    It begins at `start`, or the median of each column. ν is `smoothing`, or a millionth of the median distance to
    there. It ends when it has come to rest, or after so many steps.
    """
    z = median(rows) if start is None else start.double()
    scale = _lower_median(distances_to(rows, z))
    for _ in range(iterations):
        distances = distances_to(rows, z).clamp(min=_SMOOTHING * scale if smoothing is None else smoothing)
        if not distances.min() > 0:  # half of the rows are the same
            break
        weights = 1 / distances
        before, z = z, _weighted(rows, (weights / weights.sum()).tolist())
        if distances_to(before[None], z).item() <= _CLOSE * scale:
            break
    return z


def krum(rows: Tensor, f: int) -> Tensor:
    """The row whose n − f − 1 nearest others are nearest, by the sum of squared distances (Blanchard et al. 2017).

    As in Allouah et al. 2023, who count one neighbour more than the first paper (n − f − 2).
    """
    return rows[int(_scores(rows, f).argmin())].double()


def multi_krum(rows: Tensor, f: int) -> Tensor:
    """The mean of the n − f rows that `krum` likes best."""
    return _mean(rows, sorted(_scores(rows, f).argsort(stable=True)[: len(rows) - f].tolist()))


def centred_clipping(rows: Tensor, *, radius: float | None = None, iterations: int = 3) -> Tensor:
    """The point v ← v + mean of (x_i − v) min(1, τ / ‖x_i − v‖), from 0 on (Karimireddy et al. 2021).

    τ is `radius`, or in each step the median of ‖x_i − v‖, the lower one.
    """
    v = torch.zeros(rows.shape[1], dtype=torch.float64)
    for _ in range(iterations):
        distances = distances_to(rows, v)
        bound = _lower_median(distances) if radius is None else radius
        shares = torch.where(distances > bound, bound / distances, 1.0) / len(rows)
        v = v * (1 - shares.sum().item()) + _weighted(rows, shares.tolist())
    return v


def norm_bound(rows: Tensor, *, radius: float | None = None) -> Tensor:
    """The mean of the rows, each scaled down to the norm `radius`, or to the median of the norms (Sun et al. 2019)."""
    return centred_clipping(rows, radius=radius, iterations=1)


def squared_distances(rows: Tensor) -> Tensor:
    """(n, n) ‖x_i − x_j‖², by differences: a huge row takes no digits from the distances of the others."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for block in rows.split(_COLUMNS, dim=1):
        numbers = block.double()
        for i, row in enumerate(numbers):
            total[i, i + 1 :] += (numbers[i + 1 :] - row).square().sum(dim=1)
    return total + total.T


def distances_to(rows: Tensor, point: Tensor) -> Tensor:
    """(n,) ‖x_i − z‖."""
    blocks = zip(rows.split(_COLUMNS, dim=1), point.split(_COLUMNS), strict=True)
    squares = [(block.double() - numbers).square().sum(dim=1) for block, numbers in blocks]
    return torch.stack(squares).sum(dim=0).sqrt()


def _scores(rows: Tensor, f: int) -> Tensor:
    """(n,) of each row, Σ of the squared distances to its n − f − 1 nearest others."""
    return squared_distances(rows).sort(dim=1).values[:, 1 : len(rows) - f].sum(dim=1)


def _mean(rows: Tensor, chosen: Sequence[int]) -> Tensor:
    return _weighted(rows[list(chosen)], [1 / len(chosen)] * len(chosen))


def _weighted(rows: Tensor, weights: Sequence[float]) -> Tensor:
    """Σ w_i x_i, added row by row."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row, weight in zip(rows, weights, strict=True):
        for sums, numbers in zip(total.split(_COLUMNS), row.split(_COLUMNS), strict=True):
            sums.add_(numbers, alpha=weight)
    return total


def _lower_median(numbers: Tensor) -> float:
    """The median; of an even number of them the lower one, which fewer than half cannot move out of the others."""
    return numbers.median().item()
