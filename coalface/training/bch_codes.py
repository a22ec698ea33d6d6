"""Codewords of BCH codes: targets for parties of one identity each, far apart though nobody compares them (FedUV)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coalface.training.losses.base import wide

PRIMITIVE = {
    3: 0b1011,
    4: 0b10011,
    5: 0b100101,
    6: 0b1000011,
    7: 0b10001001,
    8: 0b100011101,
    9: 0b1000010001,
    10: 0b10000001001,
}
"""m → a primitive polynomial of degree m over GF(2), bit i being the coefficient of x^i: 0b1011 is x³ + x + 1.

Source: Lin and Costello, "Error Control Coding" (2nd edition, 2004), the primitive polynomials of fewest terms.
"""


@dataclass(frozen=True)
class BCH:
    """The primitive narrow-sense binary BCH code of length n = 2^m − 1 that encodes k bits.

    Its generator polynomial g is the least common multiple of the minimal polynomials over GF(2) of α, α², …, α^(d−1),
    α being a root of `PRIMITIVE[m]`, and k = n − deg g. The codewords are the multiples of g of degree below n.

    >>> BCH(127, 64).d, BCH(255, 63).d, BCH(511, 67).d
    (21, 61, 175)

    Source: Lin and Costello, "Error Control Coding" (2nd edition, 2004), chapter 6.

    Raises ValueError, with the nearest codes, where no code has these n and k.
    """

    n: int
    """The length of a codeword, 2^m − 1 for an m from 3 to 10."""
    k: int
    """The length of a message."""

    def __post_init__(self) -> None:
        lengths = {2**m - 1: m for m in PRIMITIVE}
        n = min(lengths, key=lambda length: (abs(length - self.n), length))
        exist = _distances(lengths[n])
        if n == self.n and self.k in exist:
            return
        below, above = sorted(k for k in exist if k <= self.k), sorted(k for k in exist if k >= self.k)
        near = " and ".join(f"({n}, {k})" for k in sorted({*below[-1:], *above[:1]}))
        raise ValueError(
            f"unknown BCH code ({self.n}, {self.k}); n is 2^m − 1, {min(lengths)} to {max(lengths)}. Nearest: {near}"
        )

    @property
    def m(self) -> int:
        """The degree of the field GF(2^m) over GF(2)."""
        return self.n.bit_length()

    @property
    def d(self) -> int:
        """The Bose distance: two codewords differ in d places at least.

        It is the largest d for which α, …, α^(d−1) are roots of g; the least distance itself may be larger.
        """
        return _distances(self.m)[self.k]

    @property
    def generator(self) -> NDArray[np.uint8]:
        """(n − k + 1,) the coefficients of g, 0 or 1, that of the highest power first."""
        return _bits(_generator(self.m, self.d), self.n - self.k + 1)

    def encode(self, messages: ArrayLike) -> NDArray[np.uint8]:
        """(…, n) systematic codewords of (…, k) messages, all of bits: the message, then n − k parity bits.

        The first bit is the coefficient of x^(n−1), and the parity is the remainder of message(x) · x^(n−k) by g.

        Raises ValueError where a message has not k entries, or one that is neither 0 nor 1.
        """
        bits = np.asarray(messages)
        if bits.ndim == 0 or bits.shape[-1] != self.k:
            raise ValueError(f"messages {bits.shape} do not fit the BCH code ({self.n}, {self.k}): give (…, {self.k})")
        if not np.all((bits == 0) | (bits == 1)):
            raise ValueError(f"messages for the BCH code ({self.n}, {self.k}) hold more than 0 and 1: give bits")
        # A product of floats is quicker than one of integers, and sums of at most k < 2^24 ones are exact in it.
        parity = bits.astype(np.float32) @ _parity(self.n, self.k)
        return np.concatenate([bits.astype(np.uint8), parity.astype(np.int64).astype(np.uint8) & 1], axis=-1)


@dataclass(frozen=True)
class Codebook:
    """Secret codewords for a number of users, which differ although nobody sees two of them.

    The server gives each user a number. A user appends bits that it draws by itself, and encodes the two parts. The
    numbers keep the messages of different users apart, whatever they draw, so their codewords differ in `code.d` places
    at least: cosines between them are at most 1 − 2d/n, which is 0.67, 0.52 and 0.32 at lengths 127, 255 and 511.

    **What is secret from whom.** The number is not: whoever assigns it knows it, and a codeword begins with it in the
    clear. The `secret_bits` are, as long as the user alone knows the generator that draws them (in a simulation the
    run's seed tells everybody), and nobody sees an update of the shared matrix W′ by one user or by few: by the bare
    hinge it is v aᵀ, whose signs are v, and 2^m guesses find the codewords in a sum over m users.

    Source: Hosseini et al., "Federated learning of user verification models without sharing embeddings" (FedUV, ICML
    2021), its selection of codewords; what the updates of W′ show is ours.

    Raises ValueError where the code has too few messages for the users.
    """

    code: BCH
    users: int
    """How many numbers there are to give; 1 or more."""

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ValueError(f"codewords for {self.users} users: give 1 user or more")
        if self.user_bits > self.code.k:
            raise ValueError(
                f"{self.users} users need {self.user_bits} bits to be told apart, and the BCH code "
                f"({self.code.n}, {self.code.k}) encodes {self.code.k}: take a code with a larger k, or fewer users"
            )

    @property
    def user_bits(self) -> int:
        """⌈log₂ users⌉: how many bits of a message are the user's number."""
        return (self.users - 1).bit_length()

    @property
    def secret_bits(self) -> int:
        """How many bits of a message the user draws: its number leaves 2^secret_bits codewords to choose from."""
        return self.code.k - self.user_bits

    def codeword(self, user: int, rng: np.random.Generator) -> Tensor:
        """(n,) float32, the codeword v of a user, of ±1: 1 for the bit 1, −1 for the bit 0.

        `user`, its number, 0 to `users` − 1, comes highest bit first before the bits drawn from `rng`. A user keeps its
        codeword for the whole training: another draw is another codeword.

        Raises ValueError where `user` is out of range.
        """
        if not 0 <= user < self.users:
            raise ValueError(f"user {user} has no codeword: give a number from 0 to {self.users - 1}")
        drawn = rng.integers(2, size=self.secret_bits, dtype=np.uint8)
        bits = self.code.encode(np.concatenate([_bits(user, self.user_bits), drawn]))
        return torch.from_numpy(2 * bits.astype(np.float32) - 1)


def code_scores(projections: Tensor, codeword: Tensor) -> Tensor:
    """(n,) the scores ⟨v, z⟩ / c of images against one user's codeword; `OnCodes` is max(0, 1 − score).

    `projections` z (n, c), the embeddings times the shared matrix, taken as they are: no sign or length is taken off;
    `codeword` v (c,) of ±1, of any dtype. In the widest dtype of the two, and in float32 at least.

    Source: Hosseini et al. (FedUV, ICML 2021): the user accepts an image by this score and a threshold of its own.

    Raises ValueError where the shapes do not fit, or the codeword holds anything but ±1.
    """
    if projections.ndim != 2 or codeword.shape != projections.shape[1:]:
        raise ValueError(
            f"projections {tuple(projections.shape)} and the codeword {tuple(codeword.shape)} do not fit: "
            "give (n, c) and (c,)"
        )
    if codeword.device.type == "cpu" and not torch.all(codeword.abs() == 1):  # elsewhere the look would wait
        raise ValueError("the codeword holds more than 1 and -1: give ±1, for bits 0 and 1 take 2·bits − 1")
    projections, codeword = wide(projections, codeword)
    return (projections * codeword).mean(1)


def warm_up_threshold(scores: Tensor, quantile: float) -> float:
    """The highest threshold that a share `quantile` of a user's own scores reach: they are at or above it.

    It is the ⌈quantile · n⌉-th highest of the `scores` (n,), never a value between two; where others tie with it, they
    reach it too, and the share is larger. `quantile`, above 0 and at most 1, is the wanted rate of true accepts,
    read as the decimal number that is written: 0.55 of 100 scores is 55. With 1 it is the lowest score.

    Source: Hosseini et al. (FedUV, ICML 2021), its warm-up phase; which order statistic it is, is ours.

    Raises ValueError without scores, with one that is not finite, or where `quantile` is not such a share.
    """
    share = Fraction(str(float(quantile))) if math.isfinite(quantile) else Fraction(0)
    if not 0 < share <= 1:
        raise ValueError(
            f"quantile {quantile} is not a share of the scores: give a number above 0 and at most 1, like 0.9"
        )
    if scores.ndim != 1 or not len(scores) or not scores.isfinite().all():
        raise ValueError(f"warm-up scores {tuple(scores.shape)} are not (n,) finite numbers, one for each image")
    return float(scores.sort(descending=True).values[math.ceil(share * len(scores)) - 1])


# --- polynomials over GF(2), as integers: bit i is the coefficient of x^i ---------------------------------------------


def _bits(value: int, length: int) -> NDArray[np.uint8]:
    """The lowest `length` bits of an integer, the highest first."""
    return np.array([value >> place & 1 for place in reversed(range(length))], dtype=np.uint8)


def _times(left: int, right: int) -> int:
    product = 0
    while right:
        if right & 1:
            product ^= left
        left, right = left << 1, right >> 1
    return product


def _conjugates(i: int, n: int) -> list[int]:
    """The exponents i, 2i, 4i, … modulo n: the powers of α with the same minimal polynomial as α^i."""
    exponents = [i % n]
    while (i := 2 * i % n) != exponents[0]:
        exponents.append(i)
    return exponents


def _minimal(i: int, m: int) -> int:
    """The minimal polynomial of α^i over GF(2): the product of x − α^j over the conjugates j of i."""
    n = 2**m - 1
    powers = [1]
    for _ in range(n - 1):
        power = powers[-1] << 1
        powers.append(power ^ PRIMITIVE[m] if power >> m else power)
    logs = {power: e for e, power in enumerate(powers)}
    polynomial = [1]  # coefficients in GF(2^m), the lowest first
    for j in _conjugates(i, n):
        scaled = [powers[(logs[c] + j) % n] if c else 0 for c in polynomial]
        polynomial = [a ^ b for a, b in zip([0, *polynomial], [*scaled, 0], strict=True)]
    return sum(c << e for e, c in enumerate(polynomial))  # every coefficient is 0 or 1


@lru_cache
def _distances(m: int) -> dict[int, int]:
    """The Bose distance by k, for every code of length 2^m − 1 with parity bits."""
    n, roots, distances = 2**m - 1, set[int](), {}
    for i in range(1, n + 1):  # α^n is 1, which is no root: the last code has k = 1
        if i not in roots:
            if roots:
                distances[n - len(roots)] = i
            roots |= set(_conjugates(i, n))
    return distances


@lru_cache
def _generator(m: int, d: int) -> int:
    product, roots = 1, set[int]()
    for i in range(1, d):
        if i not in roots:
            product = _times(product, _minimal(i, m))
            roots |= set(_conjugates(i, 2**m - 1))
    return product


@lru_cache
def _parity(n: int, k: int) -> NDArray[np.float32]:
    """(k, n − k) the parity of each message that has a single 1."""
    g, degree = _generator(n.bit_length(), _distances(n.bit_length())[k]), n - k
    rows, remainder = [], g ^ 1 << degree  # x^(n−k) by g, which is the parity of the last bit
    for _ in range(k):
        rows.append(_bits(remainder, degree))
        remainder <<= 1
        if remainder >> degree:
            remainder ^= g
    return np.array(rows[::-1], dtype=np.float32)
