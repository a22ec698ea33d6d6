"""What equivalent class embeddings tell of those that they were fused of: w̃ = w̄ / |w̄|, w̄ = (u_1 + … + u_k) / k.

Many of them are a dictionary problem: rows that are each the sum of k out of R unknown directions. The directions come
back once each of them is in enough rows, with no photograph and no help of the server. Whoever knows which were fused,
as everybody does who has the seed that they were drawn by, has linear equations, and needs few rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import generator
from coalface.training.fedfv import draw_subsets

STEPS, STEPS_KNOWN = 30, 100
"""Turns of `restore` and of `restore_known`; more change nothing of what was tried."""
NEAR = 8
"""Rows whose mean is a first guess at a direction that they share."""
SAME = 0.9
"""The cosine from which on two directions are one."""


@dataclass
class Fused:
    """The equivalent class embeddings W̃ of a run's rounds, and to whom they were sent: those who were asked."""

    rows: dict[int, Tensor] = field(default_factory=dict)
    """Round -> (n, d) W̃."""
    asked: dict[int, set[str]] = field(default_factory=dict)

    def note(self, round_: int, equivalents: Tensor, party: str) -> None:
        """A party was sent those of a round."""
        self.rows.setdefault(round_, equivalents)
        self.asked.setdefault(round_, set()).add(party)

    @property
    def ever_asked(self) -> set[str]:
        """Who some round asked: the class embedding of another is as the server drew it, and tells of nobody."""
        return set().union(*self.asked.values())

    def rounds_of(self, clients: Collection[str]) -> list[int]:
        """The rounds whose rows some clients have together."""
        return [number for number in sorted(self.rows) if not self.asked[number].isdisjoint(clients)]

    def of_rounds(self, rounds: Sequence[int]) -> Tensor:
        """(rows, d) those of some rounds."""
        none = next(iter(self.rows.values()))[:0]
        return torch.cat([none, *(self.rows[number] for number in rounds)]).double()

    def drawn(
        self, round_: int, parties: Sequence[str], fused: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(R,) the places of parties that a round did not ask, and (n, fused) which of these its rows are of."""
        others = np.array([place for place, name in enumerate(parties) if name not in self.asked[round_]])
        rng = generator(seed, "server", "train", round_, "fuse")
        return others, draw_subsets(len(others), len(self.rows[round_]), fused, rng)


def parts_of(equivalents: Tensor, directions: Tensor, fused: int) -> Tensor:
    """(n, k) the directions that each row is most likely fused of, by orthogonal matching pursuit with equal weights.

    `equivalents` (n, d) and `directions` (R, d), of length one. They are found one by one: the next is the one with
    which the sum so far points most nearly along the row.
    """
    parts = torch.empty(len(equivalents), fused, dtype=torch.int64)
    cosines, total = equivalents @ directions.T, torch.zeros_like(equivalents)
    for place in range(fused):
        # of the sum so far, s, with a direction f added: ⟨w̃, s + f⟩ / |s + f|
        length = (total.square().sum(1, keepdim=True) + 2 * total @ directions.T + 1).clamp_min(1e-9).sqrt()
        fit = ((equivalents * total).sum(1, keepdim=True) + cosines) / length
        fit.scatter_(1, parts[:, :place], -torch.inf)
        parts[:, place] = fit.argmax(1)
        total = total + directions[parts[:, place]]
    return parts


def share_assigned(equivalents: Tensor, features: Tensor, fused: NDArray[np.int64]) -> float:
    """The share of the true parts `fused` (n, k) that `parts_of` finds among features (R, d) of everybody."""
    parts = parts_of(F.normalize(equivalents, dim=1), F.normalize(features, dim=1), fused.shape[1])
    return float((parts[:, :, None] == torch.from_numpy(fused)[:, None, :]).any(1).double().mean())


def restore(equivalents: Tensor, people: int, fused: int, rng: np.random.Generator) -> Tensor:
    """(m, d) directions that rows (n, d), each fused of `fused` out of so many people's, come of; m is about `people`.

    First guesses are means of rows near to each other, which share a part. Then, in turns: each row is assigned its
    parts, and the directions are those that fit all rows best (least squares); of two alike one goes, and where too few
    are left, the rows that fit worst come in.
    """
    rows = F.normalize(equivalents, dim=1)
    if len(rows) < 2:
        return rows
    directions = _first_guesses(rows, min(4 * people, 4 * len(rows)), rng)
    for _ in range(STEPS):
        parts = parts_of(rows, directions, min(fused, len(directions)))
        length = directions[parts].sum(1).norm(dim=1, keepdim=True)
        weights = torch.zeros(len(rows), len(directions), dtype=rows.dtype).scatter_(1, parts, 1.0)
        weights /= length.clamp_min(1e-9)
        errors = 1 - (F.normalize(weights @ directions, dim=1) * rows).sum(1)
        weights = weights[:, (weights > 0).sum(0) >= 2]
        ridge = 1e-3 * torch.eye(weights.shape[1], dtype=rows.dtype)
        directions = F.normalize(torch.linalg.solve(weights.T @ weights + ridge, weights.T @ rows), dim=1)
        directions = directions[~((directions @ directions.T).triu(1) > SAME).any(0)]
        if (missing := people - len(directions)) > 0:
            directions = torch.cat([directions, rows[errors.topk(min(missing, len(rows))).indices]])
    return directions


def _first_guesses(rows: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """(count, d) means of the rows that are nearest to a row and to one of its own neighbours."""
    cosines, near = rows @ rows.T, min(NEAR, len(rows) - 1)
    starts = torch.from_numpy(rng.integers(len(rows), size=count))
    neighbours = cosines.clone().fill_diagonal_(-torch.inf).topk(near).indices
    chosen = neighbours[starts, torch.from_numpy(rng.integers(near, size=count))]
    together = (cosines[starts] + cosines[chosen]).topk(near).indices
    return F.normalize(rows[together].mean(1), dim=1)


def restore_known(equivalents: Tensor, parts: Tensor, people: int) -> Tensor:
    """(people, d) the directions that rows (n, d) come of, whose parts (n, k) are known; zeros of who is in none.

    Row by row λ w̃ = u_1 + … + u_k, with a length λ that nobody has told: u by least squares and λ = ⟨w̃, u_1 + … + u_k⟩
    in turns.
    """
    rows = F.normalize(equivalents, dim=1)
    sums = torch.zeros(len(rows), people, dtype=rows.dtype).scatter_(1, parts, 1.0)
    factor = torch.linalg.cholesky(sums.T @ sums + 1e-6 * torch.eye(people, dtype=rows.dtype))
    lengths = torch.full((len(rows), 1), parts.shape[1] ** 0.5, dtype=rows.dtype)
    directions = torch.zeros(people, rows.shape[1], dtype=rows.dtype)
    for _ in range(STEPS_KNOWN):
        directions = F.normalize(torch.cholesky_solve(sums.T @ (lengths * rows), factor), dim=1)
        lengths = ((sums @ directions) * rows).sum(1, keepdim=True).clamp_min(1e-3)
    return directions


def share_by_name(directions: Tensor, true: Tensor) -> float:
    """The share of the true directions (R, d) that have their own one (R, d) at a cosine of `SAME` or more."""
    return float((F.cosine_similarity(directions, true, dim=1) >= SAME).double().mean())


def restored(directions: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """(R, d) the nearest of `directions` to each true one (R, d), and (R,) if its cosine is `SAME` or more."""
    if not len(directions):
        return torch.zeros_like(true), torch.zeros(len(true), dtype=torch.bool)
    directions = F.normalize(directions, dim=1)
    cosines, nearest = (F.normalize(true, dim=1) @ directions.T).max(1)
    return directions[nearest], cosines >= SAME


def share_restored(directions: Tensor, true: Tensor) -> float:
    """The share of the true directions (R, d) that have one at a cosine of `SAME` or more."""
    return float(restored(directions, true)[1].double().mean())


def share_named(directions: Tensor, true: Tensor, features: Tensor, own: Sequence[int]) -> float:
    """The share of the true directions (R, d) that are restored, and nearest to their own ones of features (P, d)."""
    nearest, is_restored = restored(directions, true)
    is_named = (nearest @ features.T).argmax(1) == torch.tensor(own)
    return float((is_restored & is_named).double().mean())
