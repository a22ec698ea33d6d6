"""Gaussian noise from a secret: the same secret and name give the same numbers, and nobody else can tell them."""

from __future__ import annotations

import hashlib
import hmac
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.errors import RecipeError, RunError
from coalface.privacy.accountant import EXTRA

FILE = "noise.key"
"""In a run's folder, the secret of its noise."""
_BLOCK = 1 << 16


def keep_secret(folder: Path, *, begun: bool, shares: bool = False) -> bytes:
    """The secret of a run's noise and draws, made at the first call and read back later.

    Raises RunError where it was drawn with already (`begun`) and is gone: with another one the same sum would be noised
    a second time, and the mean of both tells more than either. With `shares` the noise is the parties' own.
    """
    path = folder / FILE
    if begun and not path.exists():
        used, why = (
            ("the parties of this run were drawn with it", "with another one a round that is repeated asks others.")
            if shares
            else (
                "sums of this run were noised with it",
                "noise that is drawn a second time for the same sum protects less.",
            )
        )
        raise RunError(f"{path} is gone, and {used}. Restore it, or start a new run: {why}")
    return disk.keep_secret(path)


def seeded_secret(seed: int) -> bytes:
    """The secret of a simulation: whoever has the seed has the noise."""
    return hashlib.sha256(f"noise/{seed}".encode()).digest()


def digest(secret: bytes, *parts: bytes | str | memoryview) -> str:
    """A keyed hash (HMAC-SHA256), which tells nothing of the parts to who has not the secret."""
    code = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        data = memoryview(part.encode() if isinstance(part, str) else part).cast("B")
        code.update(len(data).to_bytes(8, "little"))
        code.update(data)
    return code.hexdigest()


def load_ciphers() -> Any:
    """The ciphers of `cryptography`. Raises RecipeError where it is not installed."""
    try:
        return importlib.import_module("cryptography.hazmat.primitives.ciphers")
    except ImportError as error:
        raise RecipeError(f"its noise needs the package cryptography; run {EXTRA}", where="privacy.dp") from error


class KeyStream:
    """The bytes of ChaCha20 under a secret and a name, one after the other; raises as `load_ciphers` does."""

    def __init__(self, secret: bytes, kind: str, name: str) -> None:
        key, ciphers = bytes.fromhex(digest(secret, kind, name)), load_ciphers()
        self._stream = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def bytes(self, length: int) -> bytes:
        """The next bytes."""
        drawn: bytes = self._stream.update(bytes(length))
        return drawn


def normals(secret: bytes, name: str, count: int) -> NDArray[np.float64]:
    """(count,) standard normal numbers, of the stream that a secret and a name make: ChaCha20 and Box & Muller.

    From 53 bits each u, v in (0, 1]: √(−2 ln u) cos 2πv and √(−2 ln u) sin 2πv.

    Raises RecipeError as `load_ciphers` does.
    """
    stream = KeyStream(secret, "normals", name)
    pairs = -(-count // 2)
    drawn = np.empty((pairs, 2))
    for first in range(0, pairs, _BLOCK):  # what is computed at a time stays in a cache
        size = min(_BLOCK, pairs - first)
        uniform = _uniforms(stream, 2 * size).reshape(size, 2)
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        drawn[first : first + size, 0] = radius * np.cos(angle)
        drawn[first : first + size, 1] = radius * np.sin(angle)
    return drawn.reshape(-1)[:count]


@dataclass(frozen=True)
class SecretNoise:
    """Draws from a secret, for a purpose that `name` tells from others; see `normals`."""

    secret: bytes
    name: str

    def normals(self, name: str, count: int) -> NDArray[np.float64]:
        """(count,) standard normal numbers."""
        return normals(self.secret, f"{self.name}/{name}", count)

    def gumbels(self, name: str, count: int) -> NDArray[np.float64]:
        """(count,) standard Gumbel numbers, −ln(−ln u)."""
        stream = KeyStream(self.secret, "gumbels", f"{self.name}/{name}")
        below_1 = np.minimum(_uniforms(stream, count), 1 - 2.0**-53)  # the highest bits are rounded to 1
        return np.asarray(-np.log(-np.log(below_1)))


def _uniforms(stream: KeyStream, count: int) -> NDArray[np.float64]:
    """(count,) numbers from 53 bits each, above 0 and up to 1."""
    bits = np.frombuffer(stream.bytes(8 * count), dtype="<u8")
    return np.asarray(((bits >> np.uint64(11)) + 0.5) * 2.0**-53)
