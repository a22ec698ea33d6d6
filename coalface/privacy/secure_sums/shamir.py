"""Shamir's secret sharing over a prime field, of secrets of 32 bytes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""p, the least prime above 2^256: every 32 bytes are an element of the field."""
SECRET, SHARE, COEFFICIENT = 32, 33, 48
"""Bytes of a secret, of a share, and of what a coefficient is drawn from: 48 bytes modulo p are uniform to 2^-127."""


def split(secret: bytes, threshold: int, points: Sequence[int], randomness: bytes) -> list[bytes]:
    """One share for each point x: f(x) = secret + Σ_{1≤j<t} a_j x^j modulo p, big-endian.

    t shares give the secret back, fewer tell nothing of it (Shamir 1979). The a_j are `randomness`, t - 1 times 48
    bytes, which must be secret, uniform, and used for this polynomial alone. Points are distinct, from 1 to p - 1.

    Examples:
        >>> shares = split(b"s" * 32, 2, [1, 2, 3], bytes(range(48)))
        >>> combine({1: shares[0], 3: shares[2]})
        b'ssssssssssssssssssssssssssssssss'
    """
    if len(secret) != SECRET or len(randomness) != (threshold - 1) * COEFFICIENT or threshold < 1:
        raise ValueError(f"a secret of {SECRET} bytes and {COEFFICIENT} random bytes a coefficient are needed")
    if len(set(points)) < len(points) or not all(0 < x < PRIME for x in points):
        raise ValueError("points must be distinct, and from 1 to p - 1")  # at 0 lies the secret itself
    drawn = (randomness[i : i + COEFFICIENT] for i in range(0, len(randomness), COEFFICIENT))
    coefficients = [int.from_bytes(secret, "big"), *(int.from_bytes(piece, "big") % PRIME for piece in drawn)]
    shares = []
    for x in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of t shares by their points: Σ_i y_i Π_{j≠i} x_j / (x_j - x_i) modulo p.

    None where that is no secret of 32 bytes, so that one share at least is wrong.
    """
    value = sum(
        weight * int.from_bytes(share, "big")
        for weight, share in zip(_weights(tuple(shares)), shares.values(), strict=True)
    )
    secret = value % PRIME
    return secret.to_bytes(SECRET, "big") if secret >> 8 * SECRET == 0 else None


@functools.lru_cache(maxsize=16)
def _weights(points: tuple[int, ...]) -> list[int]:
    """Lagrange's coefficients at 0; in a complete graph the same points give all secrets."""
    weights = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def is_share(data: bytes) -> bool:
    """Whether these bytes are an element of the field."""
    return len(data) == SHARE and int.from_bytes(data, "big") < PRIME
