"""Weighted means as one vector of whole numbers modulo 2^32 or 2^64."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.masks import RINGS

_CHUNK = 1 << 15
"""Numbers that are encoded at a time, so that they stay in a cache."""
_UNIT = Fraction(1, 2**53)
"""u, by which float64 rounds a number at most, relative to it."""

Values = Mapping[str, NDArray[Any]]
"""A party's tensors of one mean, by name."""


@dataclass(frozen=True)
class Summand:
    """A tensor of a mean: what lies beyond ± `clip` is cut off there, and steps are 2^-fraction_bits."""

    size: int
    clip: float
    fraction_bits: int = 16


@dataclass(frozen=True)
class HiddenMean:
    """A weighted mean; weights are whole numbers, and hidden as well."""

    tensors: Mapping[str, Summand]
    heaviest: int = 1
    """The most that one party may weigh."""
    total: int | None = None
    """W, the most that all may weigh together; None: `heaviest` times the number of parties."""


@dataclass(frozen=True)
class Layout:
    """Where the means of a round lie in one vector: the tensors of each, one after the other, then its weight.

    A party encodes x, cut off at ± c, of weight w and with f fraction bits as q = round(w·x·2^f), to the nearest and to
    the even one of two. That draws nothing, so the same request has the same bytes; the error is at most half a step,
    of either sign, and has no part that grows with x.

    Of n parties Σ|q| ≤ W·c·2^f·(1+u) + n/2, with u = 2^-53 for the product in float64, and `noise` more where parties
    add some. The ring is the narrowest of 32 and 64 bits with 2^(bits-1) above that for every tensor, and above the
    n·`heaviest` that weights could add up to; a ValueError says where neither is. So the sum is that of the integers,
    not only modulo 2^bits.

    With m parties of total weight w the mean that `decode` gives is off from the exact one of what was cut off by at
    most m / (2^(f+1)·w) + 2^-51·c: half a step a party, then the product, the conversion to float64 and the quotient.

    Examples:
        >>> layout = Layout({"backbone": HiddenMean({"weight": Summand(2, clip=1.0)}, heaviest=100)}, parties=10)
        >>> layout.bits, layout.length
        (32, 3)
        >>> one, _ = layout.encode({"backbone": ({"weight": np.array([0.5, -0.25])}, 30)})
        >>> two, _ = layout.encode({"backbone": ({"weight": np.array([1.0, 0.75])}, 10)})
        >>> layout.decode(one + two)
        {'backbone': ({'weight': array([0.625, 0.   ])}, 40)}
    """

    means: Mapping[str, HiddenMean]
    parties: int
    noise: int = 0
    """What the parties' noise adds to an entry of a tensor, at most."""

    def __post_init__(self) -> None:
        for name, mean in self.means.items():
            if not 0 < mean.heaviest <= self.total(name) < 2**53:
                raise ValueError(f"{name}: 1 ≤ heaviest ≤ total < 2^53 must hold; got {mean}")
            for tensor, summand in mean.tensors.items():
                if not (0 < summand.clip < np.inf and summand.size >= 0):
                    raise ValueError(f"{name}.{tensor}: clip must be finite and above 0; got {summand.clip}")
        _ = self.bits

    def total(self, mean: str) -> int:
        """W of a mean."""
        bound = self.means[mean].total
        return self.parties * self.means[mean].heaviest if bound is None else bound

    @functools.cached_property
    def bits(self) -> int:
        """32 or 64. Raises ValueError where the weighted sum is too large for both."""
        largest, name = max(
            (bound, name)
            for mean in self.means
            for name, bound in (
                (f"the weights of {mean}", Fraction(self.parties * self.means[mean].heaviest)),
                *((f"{mean}.{tensor}", self._largest(mean, s)) for tensor, s in self.means[mean].tensors.items()),
            )
        )
        for bits in RINGS:
            if largest < 2 ** (bits - 1):
                return bits
        raise ValueError(
            f"{name}: the sum may reach {float(largest):.3g}, and 64 bits hold {2.0**63:.3g}. Lower its clip, its "
            "fraction bits or the weights"
        )

    def _largest(self, mean: str, summand: Summand) -> Fraction:
        return (
            self.total(mean) * Fraction(summand.clip) * 2**summand.fraction_bits * (1 + _UNIT)
            + Fraction(self.parties, 2)
            + self.noise
        )

    @property
    def length(self) -> int:
        """Entries of the vector."""
        return sum(1 + sum(s.size for s in mean.tensors.values()) for mean in self.means.values())

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for all of it, for `SumContext.layout`."""
        about = [list(self.means), [dataclasses.asdict(mean) for mean in self.means.values()], self.parties]
        text = json.dumps([*about, self.noise] if self.noise else about)
        return hashlib.sha256(text.encode()).digest()

    def error(self, mean: str, tensor: str, parties: int, weight: int) -> float:
        """How far an entry of a mean over so many parties of that weight together can be off."""
        summand = self.means[mean].tensors[tensor]
        return parties / (2.0 ** (summand.fraction_bits + 1) * weight) + 2.0**-51 * summand.clip

    def encode(self, values: Mapping[str, tuple[Values, int]]) -> tuple[NDArray[Any], int]:
        """A party's vector of its tensors and weights by mean, and how many numbers were cut off.

        Raises SecureSumError (`vector`) where a tensor is of another size or not finite, or a weight is out of bounds.
        """
        vector, clipped = np.empty(self.length, RINGS[self.bits]), 0
        for mean, tensor, summand, start in self._places():
            tensors, weight = values[mean]
            if not (isinstance(weight, int) and 0 <= weight <= self.means[mean].heaviest):
                bound = self.means[mean].heaviest
                raise SecureSumError("vector", f"{mean}: a weight is a whole number from 0 to {bound}; got {weight}")
            if summand is None:
                vector[start] = weight
                continue
            numbers = tensors[tensor].reshape(-1)
            if len(numbers) != summand.size:
                raise SecureSumError("vector", f"{mean}.{tensor} has {len(numbers)} numbers instead of {summand.size}")
            scale = float(weight) * 2.0**summand.fraction_bits
            for first in range(0, summand.size, _CHUNK):
                exact = numbers[first : first + _CHUNK].astype(np.float64)
                if not np.isfinite(exact).all():
                    raise SecureSumError("vector", f"{mean}.{tensor} is not finite")
                cut = np.clip(exact, -summand.clip, summand.clip)
                clipped += int(np.count_nonzero(cut != exact))
                whole = np.rint(cut * scale).astype(np.int64)
                vector[start + first : start + first + len(whole)] = whole.astype(vector.dtype)
        return vector, clipped

    def decode(self, total: NDArray[Any], dtype: Any = np.float64) -> dict[str, tuple[dict[str, NDArray[Any]], int]]:
        """By mean its tensors, in one dimension, and its total weight, from the sum of the parties' vectors.

        Raises SecureSumError where the weights add up to nothing (`weight`), or to more than the ring was chosen for
        (`overflow`).
        """
        whole = total.view(np.dtype(f"<i{self.bits // 8}"))
        means: dict[str, tuple[dict[str, NDArray[Any]], int]] = {}
        tensors: dict[str, NDArray[Any]] = {}
        for mean, tensor, summand, start in self._places():
            if summand is not None:
                tensors[tensor] = whole[start : start + summand.size]
                continue
            weight = int(whole[start])
            if not 0 <= weight <= self.total(mean):
                raise SecureSumError("overflow", f"{mean}: the weights add up to {weight}, above {self.total(mean)}")
            if weight == 0:
                raise SecureSumError("weight", f"{mean}: the weights add up to nothing")
            scales = {name: weight * 2.0**s.fraction_bits for name, s in self.means[mean].tensors.items()}
            means[mean] = {name: (sums / scales[name]).astype(dtype) for name, sums in tensors.items()}, weight
            tensors = {}
        return means

    def _places(self) -> Iterator[tuple[str, str, Summand | None, int]]:
        """Mean, tensor, what it is and where it begins; a mean's weight has no tensor."""
        start = 0
        for name, mean in self.means.items():
            for tensor, summand in mean.tensors.items():
                yield name, tensor, summand, start
                start += summand.size
            yield name, "", None, start
            start += 1
