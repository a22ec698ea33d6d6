"""Masks: ChaCha20's keystream as numbers modulo 2^32 or 2^64."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

RINGS: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
"""The type of an entry of Z modulo 2^bits."""
_CHUNK = 1 << 18
"""Bytes that are drawn at a time, so that they stay in a cache."""
_ZEROS = bytes(_CHUNK)


def signed(ring: np.dtype[Any]) -> np.dtype[Any]:
    """The signed type of a ring, whose bytes are the same: all formats of tensors know it."""
    return np.dtype(ring.str.replace("u", "i"))


def keystream(key: bytes, size: int) -> bytes:
    """The first bytes of ChaCha20 under a key that is used for nothing else, so that its nonce may be 0."""
    return _generator(key).update(bytes(size))


def add_masks(total: NDArray[Any], keys: Iterable[tuple[bytes, bool]]) -> None:
    """Add Σ ± PRG(key) to a vector in place, modulo 2^bits; True adds, False subtracts.

    PRG(key) is ChaCha20's keystream (RFC 8439, nonce and counter 0) as little-endian numbers. `total` is of a type of
    `RINGS`.
    """
    generators = [(_generator(key), np.add if plus else np.subtract) for key, plus in keys]
    drawn = np.empty(_CHUNK, np.uint8)
    step = _CHUNK // total.itemsize
    for start in range(0, len(total), step):
        part = total[start : start + step]
        numbers = drawn[: part.nbytes]
        for generator, combine in generators:
            generator.update_into(memoryview(_ZEROS)[: part.nbytes], numbers)
            combine(part, numbers.view(total.dtype), out=part)


def _generator(key: bytes) -> Any:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
