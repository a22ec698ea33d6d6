"""The aggregators that a recipe can name, `engine.aggregator`: a rule, its settings, and what is done before it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from coalface.core.checks import TypedSettings
from coalface.core.errors import RecipeError
from coalface.core.registry import Registry, subclass_of
from coalface.engine.robust import rules


@dataclass(frozen=True, kw_only=True)
class Aggregator(TypedSettings, ABC):
    """A rule over the replies of a call, in place of their weighted mean; it counts every party the same."""

    counts_liars: ClassVar[bool] = False
    """Whether the rule itself has a use for `byzantine`."""

    byzantine: int | float | None = None
    """f, how many of the parties that answer may lie: a number, or a share below 0.5, rounded up."""
    mixing: bool = False
    """First replace each reply by the mean of the n − f nearest to it (nearest-neighbour mixing)."""
    bucket: int = 1
    """First of all average so many replies each, drawn anew each round, and go on with the means. 1: none."""

    def __post_init__(self) -> None:
        if self.byzantine is None:
            if self.counts_liars or self.mixing:
                of = "this rule" if self.counts_liars else "mixing"
                raise RecipeError(
                    f"{of} needs the number of parties that may lie, such as 2, or their share, such as 0.2",
                    where="byzantine",
                )
        elif not (self.counts_liars or self.mixing):
            raise RecipeError(
                "this rule does not count liars: leave the key out, or set `mixing: true`, which does",
                where="byzantine",
            )
        elif isinstance(self.byzantine, float) and not 0 <= self.byzantine < 0.5:
            raise RecipeError(f"give a whole number, or a share below 0.5; got {self.byzantine}", where="byzantine")
        elif self.byzantine < 0:
            raise RecipeError(f"give 0 or more; got {self.byzantine}", where="byzantine")
        if self.bucket < 1:
            raise RecipeError(f"give 1 or more; got {self.bucket}", where="bucket")

    def liars(self, replies: int) -> int:
        """The f that so many replies are taken to hold. Raises ValueError where a rule needs more replies for it."""
        if self.byzantine is None:
            return 0
        share = isinstance(self.byzantine, float)
        f = math.ceil(self.byzantine * replies - 1e-9) if share else int(self.byzantine)
        if (rows := math.ceil(replies / self.bucket)) <= 2 * f:
            buckets = f", in {rows} buckets," if self.bucket > 1 else ""
            raise ValueError(
                f"engine.aggregator: {replies} replies{buckets} are too few to survive {f} liars, it takes more than "
                f"{2 * f}; lower engine.aggregator.byzantine{' or bucket' if self.bucket > 1 else ''}"
            )
        return f

    def combine(self, vectors: Tensor, rng: np.random.Generator) -> Tensor:
        """(d,) float64 of the replies (n, d); `rng` draws who shares a bucket. Raises ValueError as `liars` does."""
        f = self.liars(len(vectors))
        if self.bucket > 1:
            vectors = rules.bucketing(vectors, self.bucket, rng.permutation(len(vectors)).tolist())
        if self.mixing:
            vectors = rules.nearest_neighbour_mixing(vectors, f)
        return self.rule(vectors, f)

    @abstractmethod
    def rule(self, vectors: Tensor, f: int) -> Tensor:
        """(d,) of the vectors (n, d), f of which may be lies."""


@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """The median of each number."""

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.median(vectors)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregator):
    """The mean of each number without the f largest and the f smallest."""

    counts_liars: ClassVar[bool] = True

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.trimmed_mean(vectors, f)


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Aggregator):
    """The point whose distances to all replies have the least sum."""

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.geometric_median(vectors)


@dataclass(frozen=True, kw_only=True)
class Krum(Aggregator):
    """The one reply that is nearest to the others."""

    counts_liars: ClassVar[bool] = True

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.krum(vectors, f)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Aggregator):
    """The mean of the n − f replies that are nearest to the others."""

    counts_liars: ClassVar[bool] = True

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.multi_krum(vectors, f)


@dataclass(frozen=True, kw_only=True)
class CentredClipping(Aggregator):
    """Means of what each reply says beyond the mean before, up to a bound."""

    radius: float | None = None
    """τ, the bound, in the units of the weights; None: the median of the distances, anew in each step."""
    iterations: int = 3
    """Steps, from what was sent on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_radius(self.radius)
        if self.iterations < 1:
            raise RecipeError(f"give 1 or more; got {self.iterations}", where="iterations")

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.centred_clipping(vectors, radius=self.radius, iterations=self.iterations)


@dataclass(frozen=True, kw_only=True)
class NormBound(Aggregator):
    """The mean of the updates, the longer ones cut to a length."""

    radius: float | None = None
    """The length, in the units of the weights; None: the median of the round's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_radius(self.radius)

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return rules.norm_bound(vectors, radius=self.radius)


def _check_radius(radius: float | None) -> None:
    if radius is not None and not 0 < radius < math.inf:
        raise RecipeError(f"give a number above 0, or leave it out for the median; got {radius}", where="radius")


_OWN: dict[str, type[Aggregator]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "centred-clipping": CentredClipping,
    "norm-bound": NormBound,
}

AGGREGATORS = Registry[type[Aggregator]](
    "coalface.aggregators",
    _OWN,
    subclass_of(Aggregator),
    "a subclass of coalface.engine.robust.aggregators.Aggregator",
)
"""Every aggregator by the name that a recipe gives it."""
