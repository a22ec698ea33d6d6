"""Shares of discrete Gaussian noise, which each party adds to its fixed-point vector before a secure sum masks it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coalface.privacy.noise import KeyStream

MOST = 1 << 30
"""σ from which on 2σ² would leave 62 bits."""
_BLOCK = 1 << 14
_TAILS = 10
"""Standard deviations of the noise that a ring has room for: an entry has more once in 10²³."""
_FINEST = {32: 24, 64: 30}
"""Bits of a ring -> the most binary places of the clip; at 2^30 the squares of a vector still add up within 64 bits."""
_ROUNDED = 0.01
"""How much of Δ₂ may come of rounding, in a ring of 32 bits."""


RandomBytes: TypeAlias = np.random.Generator | KeyStream
"""Of a `KeyStream` nobody else can tell them."""


@dataclass(frozen=True)
class NoiseShares:
    """Noise of a secure sum over `size` whole numbers, of which `honest` parties have added N_Z(0, σ²) each.

    What is counted on are those that can be: of n asked with d dropouts and c corrupt parties, n − d − max(c, 1). More
    noise than that only protects more. A sum modulo 2^bits is made of the sum, so a wrap-around tells nothing more.

    Examples:
        >>> NoiseShares.planned(noise_multiplier=1.0, sensitivity=10.0, honest=25, size=4).sigma  # 10 / √25
        2
    """

    sigma: int
    """σ of one share, in steps of the fixed-point numbers."""
    honest: int
    size: int
    sensitivity: float
    """Δ₂, the most that a party's vector of whole numbers has as its norm: see `rounded_norm`."""

    @classmethod
    def planned(cls, noise_multiplier: float, sensitivity: float, honest: int, size: int) -> NoiseShares:
        """The least σ with honest · σ² ≥ (z Δ₂)². Raises ValueError where nobody honest is left."""
        if honest < 1:
            raise ValueError(f"{honest} honest parties are left to add noise; allow fewer dropouts or corrupt parties")
        return cls(max(1, math.ceil(noise_multiplier * sensitivity / math.sqrt(honest))), honest, size, sensitivity)

    def room(self, parties: int) -> int:
        """What the noise of so many parties adds to an entry, but for one case in 10²³; then the entry is spoilt."""
        return math.ceil(_TAILS * math.sqrt(parties) * self.sigma)

    @property
    def rho(self) -> float:
        """ρ of the concentrated differential privacy of one sum: ½ (Δ₂ / (√h σ) + τ √d)².

        τ = 10 Σ_{k<h} exp(−2π² σ² k / (k + 1)) is for a sum of h discrete Gaussians, which is not quite one itself
        (Kairouz, Liu & Steinke, ICML 2021, Theorem 1; Proposition 14); from σ = 3 on it is below 10⁻³⁰ · h.
        """
        tau = 10 * sum(math.exp(-2 * (math.pi * self.sigma) ** 2 * k / (k + 1)) for k in range(1, self.honest))
        return 0.5 * (self.sensitivity / (math.sqrt(self.honest) * self.sigma) + tau * math.sqrt(self.size)) ** 2


def rounded_norm(clip: float, scale: float, size: int) -> float:
    """Δ₂ of x · scale rounded to whole numbers, ‖x‖₂ ≤ clip: clip · scale + √size / 2, since each moves by up to ½."""
    return clip * scale + math.sqrt(size) / 2


def plan_shares(noise_multiplier: float, clip: float, parties: int, honest: int, size: int) -> tuple[int, NoiseShares]:
    """(fraction bits f, shares) of a sum of so many parties' vectors of norm `clip`: as fine as a ring has room for.

    It is one of 32 bits where rounding then adds less than a hundredth to Δ₂, else of 64. Raises ValueError where
    neither has the room.
    """
    for bits, finest in _FINEST.items():
        for places in range(finest, 0, -1):
            fraction_bits = places - math.ceil(math.log2(clip))
            scale = 2.0**fraction_bits
            shares = NoiseShares.planned(noise_multiplier, rounded_norm(clip, scale, size), honest, size)
            largest = parties * (clip * scale * (1 + 2**-52) + 1) + shares.room(parties)
            if largest < 1 << bits - 1 and shares.sigma < MOST:
                if bits == 64 or math.sqrt(size) / 2 <= _ROUNDED * clip * scale:
                    return fraction_bits, shares
                break
    raise ValueError(f"no ring has room for noise of {noise_multiplier:g} times the clip from {parties} parties")


def noise_share(size: int, sigma: int, generator: RandomBytes) -> NDArray[np.int64]:
    """(size,) draws of the discrete Gaussian, P(y) ∝ exp(−y² / 2σ²) over all whole y, exactly, by whole numbers alone.

    Canonne, Kamath & Steinke (NeurIPS 2020), Algorithms 1 to 3 with t = σ: a discrete Laplace y of scale σ is taken
    with probability exp(−(|y| − σ)² / 2σ²). With |y| − σ = ± (m σ + r) that is exp(−½)^(m²) · exp(−r/σ)^m ·
    exp(−r²/2σ²), so that no product leaves 64 bits. The time that it takes tells something of the numbers drawn.

    Raises ValueError unless 1 ≤ σ < 2^30.
    """
    if not (isinstance(sigma, int) and 1 <= sigma < MOST):
        raise ValueError(f"sigma is {sigma}; use a whole number from 1 to {MOST - 1}, or other fraction bits")
    share, filled = np.empty(size, np.int64), 0
    while filled < size:
        drawn = _laplace(sigma, min(_BLOCK, 2 * (size - filled) + 8), generator)
        times, rest = np.divmod(np.abs(np.abs(drawn) - sigma), sigma)
        taken = _all_exp(np.ones_like(rest), 2, times * times, generator)
        taken &= _all_exp(rest, sigma, times, generator)
        taken &= _all_exp(rest * rest, 2 * sigma * sigma, np.ones_like(times), generator)
        part = drawn[taken][: size - filled]
        share[filled : filled + len(part)] = part
        filled += len(part)
    return share


def _laplace(scale: int, tries: int, generator: RandomBytes) -> NDArray[np.int64]:
    """Draws of P(y) ∝ exp(−|y| / scale), fewer than there were tries."""
    rest = _below(scale, tries, generator)
    rest = rest[_all_exp(rest, scale, np.ones_like(rest), generator)]
    times, going = np.zeros_like(rest), np.arange(len(rest))
    while len(going):
        ones = np.ones(len(going), np.int64)
        going = going[_all_exp(ones, 1, ones, generator)]
        times[going] += 1
    size = rest + scale * times
    negative = _below(2, len(size), generator) == 1
    return np.where(negative, -size, size)[~negative | (size > 0)]


def _all_exp(
    numerators: NDArray[np.int64], denominator: int, times: NDArray[np.int64], generator: RandomBytes
) -> NDArray[np.bool_]:
    """For each γ = numerator / denominator ≤ 1, whether so many tries of probability exp(−γ) all came true."""
    true, left, going = np.ones(len(numerators), np.bool_), times.copy(), np.flatnonzero(times)
    while len(going):
        hits = _exp(numerators[going], denominator, generator)
        true[going] = hits
        left[going] -= 1
        going = going[hits & (left[going] > 0)]
    return true


def _exp(numerators: NDArray[np.int64], denominator: int, generator: RandomBytes) -> NDArray[np.bool_]:
    """Tries of probability exp(−γ): true where the first of the tries γ/1, γ/2, … to fail is one of odd number."""
    odd, going, number = np.empty(len(numerators), np.bool_), np.arange(len(numerators)), 1
    while len(going):
        hits = _below(denominator, len(going), generator) < numerators[going]
        hits &= _below(number, len(going), generator) == 0
        odd[going[~hits]] = number % 2 == 1
        going, number = going[hits], number + 1
    return odd


def _below(bound: int, size: int, generator: RandomBytes) -> NDArray[np.int64]:
    """(size,) whole numbers below a bound, all alike: words of 64 bits, but those that would favour the first few."""
    largest = np.uint64(2**64 - 2**64 % bound - 1)
    words = np.empty(0, np.uint64)
    while len(words) < size:
        drawn = np.frombuffer(generator.bytes(8 * (size - len(words))), "<u8")
        words = np.concatenate([words, drawn[drawn <= largest]])
    return (words % np.uint64(bound)).astype(np.int64)
