"""Clustering by first neighbours, without the number of clusters: FINCH, and C-FINCH, which has a condition.

Of N unit features every level makes clusters of the clusters before, at first of the points:

    κ_i = argmax_{j≠i} cos(m_i, m_j)          the first neighbour of cluster i, of equally near ones the lowest
    i links to κ_i  where  1 − cos(m_i, m_κi) < τ
    the next clusters are the connected components of the links
    m_c = Σ_{p∈c} x_p / |Σ_{p∈c} x_p|           over the points p of the cluster, each of length one

So i and j are joined if one is the other's first neighbour, or both have the same one, and the distance is below τ,
strictly: τ = 0 joins nothing, and τ = ∞ is FINCH. Both clusters of a mutual pair are held to τ itself. Levels go on
until nothing joins. A cluster whose points cancel, |Σ x_p| ≤ 1e-6 of their number, has no direction: it is
nobody's neighbour, has none, and stays.

First neighbours are exact (`coalface.training.clustering.neighbours`); sums are taken in fixed point, 2⁻⁴¹ for an
entry, so that they depend neither on the order of the points nor on threads or device. A permutation of the points
permutes the answer, as long as no two neighbours of a cluster are equally near. Labels are numbered by first
appearance.

Features are (N, d) float32 or float64 rows of any length but 0, a tensor or an array, and are brought to length one;
those that have it to 4 eps are taken as they are, and not copied. Memory beside them is about that of the search for
first neighbours. Raises ValueError where a feature is zero or not finite, and names it.

Source: Sarfraz et al., "Efficient Parameter-free Clustering Using First Neighbor Relations" (FINCH, CVPR 2019), Eq. 1
and Algorithms 1 and 2; Zhuang et al., "Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy
Constraints via Federated Learning" (2021) for the threshold.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.text import first_few
from coalface.evaluation.metrics.exact import few, inner, slices
from coalface.training.clustering.neighbours import FirstNeighbours, first_neighbours

Labels = NDArray[np.int64]
Found = dict[bytes, tuple[Labels, NDArray[np.float64]]]
"""A partition's hash -> the first neighbours of its clusters: most thresholds come by the partitions of others."""

GRID = (*(1e-6 * 2.0**power for power in range(15)), *(round(0.025 * step, 3) for step in range(1, 41)))
"""The thresholds that `auto_threshold` tries first: doubled from 1e-6 on, for models that hardly tell people apart yet,
then 0.025 to 1 in equal steps."""
CANCELLED = 1e-6
"""A mean of unit features no longer than this is rounding, and has no direction."""


@dataclass(frozen=True)
class Partitions:
    """What a clustering came to at each level, finest first; where nothing joins, one level of single points."""

    labels: tuple[Labels, ...]
    """(N,) each, from 0, numbered by first appearance."""

    @property
    def final(self) -> Labels:
        """The last level: all that the threshold let join."""
        return self.labels[-1]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of clusters of each level, strictly falling."""
        return tuple(_count(level) for level in self.labels)


@torch.no_grad()
def cfinch(features: Tensor | NDArray[np.floating], threshold: float = math.inf) -> Partitions:
    """All levels of C-FINCH over (N, d) features; `threshold` is τ, a cosine distance. See above."""
    _check_threshold(threshold)
    rows = unit_features(features)
    return _levels(rows, first_neighbours(rows), threshold, {})


@torch.no_grad()
def refine(partitions: Partitions, features: Tensor | NDArray[np.floating], clusters: int) -> Labels:
    """(N,) labels of exactly so many clusters, from the level with the fewest that are not fewer.

    The two clusters with the nearest means are merged until `clusters` are left: the required number of clusters of
    FINCH's Algorithm 2. A merge of K clusters takes O(K d) for itself and for each cluster that loses its neighbour.

    Raises ValueError where the first level has fewer clusters already, or what is left has no direction to merge by.
    """
    counts = partitions.counts
    if not 1 <= clusters <= counts[0]:
        raise ValueError(f"the first level has {counts[0]} clusters: ask for 1 to {counts[0]} of them, not {clusters}")
    labels = partitions.labels[max(level for level, count in enumerate(counts) if count >= clusters)]
    rows = unit_features(features)
    if len(rows) != len(labels):
        raise ValueError(f"the partitions are of {len(labels)} points and the features of {len(rows)}: give the same")
    merging = _Merging(rows, labels)
    for _ in range(_count(labels) - clusters):
        merging.merge()
    return _numbered(merging.into[labels])


def drop_small(labels: Labels, size: int) -> Labels:
    """(N,) labels with −1 for the points of clusters of fewer than `size`.

    The others are numbered anew by first appearance. Points that have −1 already keep it.
    """
    if len(labels) and labels.min() < -1:
        raise ValueError(f"labels are 0 or more, or -1 for none; got {labels.min()}")
    is_large = labels >= 0
    if is_large.any():
        is_large &= np.bincount(labels[is_large])[labels] >= size  # −1 looks up some number, to no effect
    remaining = np.full(len(labels), -1, dtype=np.int64)
    remaining[is_large] = _numbered(labels[is_large])
    return remaining


@torch.no_grad()
def auto_threshold(
    features: Tensor | NDArray[np.floating],
    labels: Labels,
    score: Callable[[Labels, Labels], float],
    *,
    cluster: Callable[[Tensor, float], Labels] | None = None,
    grid: Sequence[float] = GRID,
) -> float:
    """The τ with the best `score(labels, predicted)` on labelled features, the smallest of equals.

    Predicted is the last partition of C-FINCH, whose search among the points is done once, or `cluster(features, τ)`
    of (N, d) unit features. First every value of `grid` is tried, then the 19 that divide what lies between the best
    and the value below it (0 below the lowest), and as many up to the value above. A score that is no number counts
    as the worst.

    Raises ValueError where labels and features differ in number, the grid is empty or out of range, or no score is a
    number.
    """
    rows = unit_features(features)
    if len(labels) != len(rows):
        raise ValueError(f"{len(rows)} features and {len(labels)} labels: give one for each")
    values = sorted(set(grid))
    if not values or not values[-1] < math.inf:
        raise ValueError(f"the grid of thresholds has one at least, and all are finite; got {list(grid)}")
    for value in values:
        _check_threshold(value)
    if cluster is None:
        first, found = first_neighbours(rows), Found()

        def cluster(rows: Tensor, threshold: float) -> Labels:
            return _levels(rows, first, threshold, found).final

    tried: dict[float, float] = {}

    def best_of(thresholds: Sequence[float]) -> float:
        for threshold in thresholds:
            tried[threshold] = float(score(labels, cluster(rows, threshold)))
        numbers = {threshold: value for threshold, value in tried.items() if not math.isnan(value)}
        if not numbers:
            raise ValueError(f"no score is a number from {values[0]} to {values[-1]}: are there pairs to score?")
        return min(numbers, key=lambda threshold: (-numbers[threshold], threshold))

    best = best_of(values)
    place = values.index(best)
    around = [values[place - 1] if place else 0.0, best, *values[place + 1 : place + 2]]
    between = {
        low + (high - low) * step / 20 for low, high in zip(around, around[1:], strict=False) for step in range(1, 20)
    }
    return best_of(sorted(between - set(tried)))


@torch.no_grad()
def unit_features(features: Tensor | NDArray[np.floating]) -> Tensor:
    """(N, d) features at length one; those that have it to 4 eps as they are. Errors as above."""
    rows = torch.as_tensor(features)
    if rows.ndim != 2:
        raise ValueError(f"features have the shape (N, d); got {tuple(rows.shape)}")
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float()
    lengths = rows.new_empty(len(rows), dtype=torch.float64)
    for part in slices(len(rows), few(rows)):
        lengths[part] = torch.linalg.vector_norm(rows[part], dim=1, dtype=torch.float64)
    bad = (~((lengths > 0) & (lengths < math.inf))).nonzero().view(-1).tolist()
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(rows)} features are zero or not finite, rows {first_few(bad, 5)}: "
            "they have no direction. Leave them out, or look at what the backbone makes of these images"
        )
    if bool(((lengths - 1).abs() <= 4 * torch.finfo(rows.dtype).eps).all()):
        return rows
    units = torch.empty_like(rows)
    for part in slices(len(rows), few(rows)):
        units[part] = rows[part].double() / lengths[part, None]
    return units


# Levels


def _levels(rows: Tensor, first: FirstNeighbours, threshold: float, found: Found) -> Partitions:
    """All levels, given the first neighbours of the points, and those of clusters that were `found` before."""
    labels = np.arange(len(rows), dtype=np.int64)
    summands, belongs = rows, labels
    index, cosine = first.index.cpu().numpy(), first.cosine.cpu().numpy()
    levels = []
    while True:
        linked = (index >= 0) & (np.maximum(1 - cosine, 0) < threshold)
        if not linked.any():
            break
        joined = _numbered(_components(np.where(linked, index, np.arange(len(index)))))
        labels, belongs = joined[labels], joined[belongs]
        levels.append(labels)
        count = _count(joined)
        if summands is rows and 8 * count <= len(rows):  # few enough for their sums to be kept: next, sum these
            summands = _sums(rows, labels, np.arange(len(rows)), 0, count, len(rows))
            belongs = np.arange(count)
        if (partition := hashlib.sha256(labels.tobytes()).digest()) not in found:
            found[partition] = _first_of_directed(*_directions(rows, labels, summands, belongs))
        index, cosine = found[partition]
    return Partitions(labels=tuple(levels) or (labels,))


def _first_of_directed(vectors: Tensor, directed: NDArray[np.bool_]) -> tuple[Labels, NDArray[np.float64]]:
    """(K,) the first neighbour of each cluster, −1 where it has none, and the cosine to it.

    `vectors` are the (K', d) unit vectors of those that have a direction.
    """
    index, cosine = np.full(len(directed), -1, dtype=np.int64), np.full(len(directed), -math.inf)
    if len(vectors) > 1:
        first = first_neighbours(vectors)
        index[directed] = np.flatnonzero(directed)[first.index.cpu().numpy()]
        cosine[directed] = first.cosine.cpu().numpy()
    return index, cosine


def _directions(rows: Tensor, labels: Labels, summands: Tensor, belongs: Labels) -> tuple[Tensor, NDArray[np.bool_]]:
    """(K', d) the renormalised means of the clusters that have a direction, and (K,) which those are.

    The summands are the points themselves, or sums over some of them; `belongs` says to which cluster.
    """
    sizes = np.bincount(labels)
    members = np.argsort(belongs, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(belongs))])
    vectors = rows.new_empty(len(sizes), rows.shape[1])
    directed = np.empty(len(sizes), dtype=bool)
    filled = 0
    for part in slices(len(sizes), few(rows)):
        of_part = members[ends[part.start] : ends[part.stop]]
        sums = _sums(summands, belongs, of_part, part.start, part.stop, len(rows))
        unit, directed[part] = _normalised(sums, sizes[part], len(rows))
        vectors[filled : filled + len(unit)] = unit
        filled += len(unit)
    return vectors[:filled], directed


def _sums(summands: Tensor, belongs: Labels, members: Labels, start: int, stop: int, points: int) -> Tensor:
    """(stop − start, d) int64, in units of 2^−b: the sums over clusters `start` to `stop`, the same in any order.

    `members` are the summands that belong to one of them: rows, or such sums themselves, of that many points in all.
    """
    sums = torch.zeros(stop - start, summands.shape[1], dtype=torch.int64, device=summands.device)
    unit = 2.0 ** _bits(points)
    for part in slices(len(members), few(summands)):
        chosen = members[part]
        some = summands[torch.from_numpy(chosen).to(summands.device)]
        if some.dtype != torch.int64:
            some = (some.double() * unit).round_().to(torch.int64)
        sums.index_add_(0, torch.from_numpy(belongs[chosen] - start).to(sums.device), some)
    return sums


def _bits(points: int) -> int:
    """b: 40, fewer for more than two million points, whose sum of entries up to 1 must stay below 2⁶³."""
    return min(40, 62 - points.bit_length())


def _normalised(sums: Tensor, sizes: Labels, points: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """(n', d) float64 unit vectors along those of the sums that did not cancel, and (n,) which did not."""
    means = sums.double() * 2.0 ** -_bits(points) / torch.from_numpy(sizes).to(sums.device)[:, None]
    lengths = torch.linalg.vector_norm(means, dim=1)
    directed = lengths > CANCELLED
    return means[directed] / lengths[directed, None], directed.cpu().numpy()


def _components(links: Labels) -> Labels:
    """(K,) one number for each connected component of the links i → links[i]; a cluster without a link has its own.

    From everywhere the links lead into a circle, and each component has one. After 2^s steps with 2^s ≥ K all are on
    it, and 2^s steps go all around it: the lowest number that they meet names the component.
    """
    ahead, lowest = links, np.minimum(links, np.arange(len(links)))
    for _ in range(max(1, len(links)).bit_length()):
        lowest = np.minimum(lowest, lowest[ahead])
        ahead = ahead[ahead]
    components: Labels = lowest[ahead]
    return components


def _numbered(labels: Labels) -> Labels:
    """The same partition numbered from 0 by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Labels = rank[inverse]
    return numbered


class _Merging:
    """Clusters that are merged two at a time; of two the lower number stays.

    Each keeps the nearest of those that were there when it was made, or when the one that it kept was merged. The
    nearest pair of all is always kept by the later made of the two.
    """

    def __init__(self, rows: Tensor, labels: Labels) -> None:
        self.points = len(rows)
        self.sizes = np.bincount(labels)
        self.sums = _sums(rows, labels, np.arange(len(rows)), 0, len(self.sizes), len(rows))
        unit, directed = _normalised(self.sums, self.sizes, self.points)
        self.vectors = torch.zeros(len(self.sizes), rows.shape[1], dtype=torch.float64, device=rows.device)
        self.vectors[torch.from_numpy(directed).to(rows.device)] = unit
        self.open = directed
        """Which are there and have a direction."""
        self.into = np.arange(len(self.sizes))
        self.index, self.cosine = _first_of_directed(unit, directed)

    def merge(self) -> None:
        """Merge the two nearest."""
        nearest = int(self.cosine.argmax())
        neighbour = int(self.index[nearest])
        if neighbour < 0:
            count = len(np.unique(self.into))
            raise ValueError(f"{count} clusters cannot be made fewer: at most one of them has a direction to merge by")
        survivor, absorbed = min(nearest, neighbour), max(nearest, neighbour)
        self.into[self.into == absorbed] = survivor
        self.sums[survivor] += self.sums[absorbed]
        self.sizes[survivor] += self.sizes[absorbed]
        sums, sizes = self.sums[survivor : survivor + 1], self.sizes[survivor : survivor + 1]
        unit, directed = _normalised(sums, sizes, self.points)
        self.open[absorbed], self.open[survivor] = False, directed[0]
        self.vectors[survivor] = unit[0] if directed[0] else 0.0
        bereft = np.flatnonzero(self.open & np.isin(self.index, (survivor, absorbed)))
        self.index[[survivor, absorbed]], self.cosine[[survivor, absorbed]] = -1, -math.inf
        if self.open[survivor]:
            self._seek(survivor)
        for cluster in map(int, bereft):
            if cluster != survivor:
                self._seek(cluster)

    def _seek(self, cluster: int) -> None:
        """The first neighbour of a cluster among those that are open."""
        cosines: NDArray[np.float64] = inner(self.vectors, self.vectors[cluster : cluster + 1]).cpu().numpy()
        cosines[~self.open] = -math.inf
        cosines[cluster] = -math.inf
        place = int(cosines.argmax())
        self.cosine[cluster] = cosines[place]
        self.index[cluster] = place if cosines[place] > -math.inf else -1


def _count(labels: Labels) -> int:
    return int(labels.max()) + 1 if len(labels) else 0


def _check_threshold(threshold: float) -> None:
    if not threshold >= 0:
        raise ValueError(f"the threshold is a cosine distance, 0 to 2, or inf for none; got {threshold}")
