"""The bootstrap over identities: who is in each pair of a list, and how often each identity is drawn.

A pair list holds each identity many times, so its pairs are not independent: what is drawn again is the identity. In a
draw, each of the P identities of the list is counted c_i times (P draws with replacement). A genuine pair of identity i
weighs c_i, an impostor pair of i and j weighs c_i · c_j.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coalface.core.method import generator
from coalface.evaluation.metrics.exact import slices
from coalface.evaluation.metrics.verification import tenths

DRAWS = 2000
"""Draws of every comparison."""
BLOCK = 128
"""Draws worked on at once, so that the weights of a few thousand pairs stay in the cache."""


@dataclass(frozen=True, eq=False)
class PairIdentities:
    """Who is in each pair of a list of n pairs."""

    left: NDArray[np.int64]
    """(n,) identity number of the first image."""
    right: NDArray[np.int64]
    sha256: str
    """That of the pair list: evidence made on another list is refused."""
    headline: NDArray[np.bool_] | None = None
    """(n,) the genuine pairs that count (impostor pairs all count); None: all."""
    fold: NDArray[np.int64] | None = None
    """(n,) the fold of each pair, for the accuracy; None: `tenths`."""
    queries: NDArray[np.int64] | None = None
    """(q,) the identity number of each image that is looked up in a gallery; None: none is."""

    def __post_init__(self) -> None:
        for word, column in (("right", self.right), ("headline", self.headline), ("fold", self.fold)):
            if column is not None and len(column) != len(self.left):
                raise ValueError(f"`{word}` has {len(column)} entries for {len(self.left)} pairs: give one per pair")

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        return self.left == self.right

    @cached_property
    def genuine(self) -> NDArray[np.int64]:
        """The places in the list of the genuine pairs that count."""
        return np.flatnonzero(self.same if self.headline is None else self.same & self.headline)

    @cached_property
    def impostor(self) -> NDArray[np.int64]:
        """The places in the list of the impostor pairs."""
        return np.flatnonzero(~self.same)

    @cached_property
    def people(self) -> NDArray[np.int64]:
        """(P,) the identities that some pair names, ascending."""
        return np.unique(np.concatenate([self.left, self.right]))

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """(n,) the fold of each pair. Raises ValueError for a list that brings none and is too short for `tenths`."""
        return tenths(self.same) if self.fold is None else self.fold

    def counted(self, folds: Sequence[int] | None) -> NDArray[np.int64]:
        """The places in the list of the pairs that count, of some folds; None: of all."""
        counted = np.ones(len(self.same), dtype=bool) if self.headline is None else self.headline | ~self.same
        return np.flatnonzero(counted if folds is None else counted & np.isin(self.folds, folds))

    def sides(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Both identities of some pairs, as places in `people`."""
        return np.searchsorted(self.people, self.left[places]), np.searchsorted(self.people, self.right[places])


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Draws of the identities of a pair list, the same for all that is compared."""

    pairs: PairIdentities
    counts: NDArray[np.int32]
    """(P, draws) how often each identity was drawn; each column sums to P."""

    @cached_property
    def sha256(self) -> str:
        """Tells these draws from others."""
        return hashlib.sha256(self.counts.tobytes()).hexdigest()

    @cached_property
    def weights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(draws,) the weight of all genuine pairs that count, and of all impostor pairs."""
        return self._weights(self.pairs.genuine, self.pairs.impostor)

    def weights_of(self, folds: Sequence[int] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same of the pairs of some folds; None: of all."""
        if folds is None:
            return self.weights
        evaluated = np.isin(self.pairs.folds, folds)
        return self._weights(*(places[evaluated[places]] for places in (self.pairs.genuine, self.pairs.impostor)))

    def _weights(
        self, genuine_places: NDArray[np.int64], impostor_places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        people, draws = self.counts.shape
        owner, _ = self.pairs.sides(genuine_places)
        genuine = np.bincount(owner, minlength=people) @ self.counts.astype(np.int64)
        left, right = self.pairs.sides(impostor_places)
        impostor = np.zeros(draws, dtype=np.int64)
        for block in slices(len(left), BLOCK):
            impostor += (self.counts[left[block]] * self.counts[right[block]]).sum(axis=0)
        return genuine, impostor

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """The draws, `BLOCK` at a time."""
        for draws in slices(self.counts.shape[1], BLOCK):
            yield draws, np.ascontiguousarray(self.counts[:, draws])


def draw_identities(pairs: PairIdentities, rng: np.random.Generator, draws: int = 2000) -> Bootstrap:
    """Draw the P identities of a list P times with replacement, `draws` times over."""
    people = len(pairs.people)
    if people < 2 or draws < 1:
        raise ValueError(f"cannot draw {people} identities {draws} times: give 2 identities and 1 draw at the least")
    counts = rng.multinomial(people, np.full(people, 1 / people), size=draws)
    return Bootstrap(pairs=pairs, counts=np.ascontiguousarray(counts.T, dtype=np.int32))


def bootstrap_of(pairs: PairIdentities) -> Bootstrap:
    """The draws of a list, the same for whoever compares on it."""
    return draw_identities(pairs, generator(2048, "bootstrap", pairs.sha256), DRAWS)
