from __future__ import annotations

import hashlib
import hmac
import math
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from coalface.core.errors import RunError
from coalface.privacy import noise
from coalface.privacy.noise import keep_secret, normals, seeded_secret

SECRET = bytes(range(32))


def naive(secret: bytes, name: str, count: int) -> list[float]:
    """The same stream, number by number."""
    code = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (b"normals", name.encode()):
        code.update(struct.pack("<Q", len(part)) + part)
    stream = Cipher(algorithms.ChaCha20(code.digest(), bytes(16)), mode=None).encryptor()
    drawn: list[float] = []
    while len(drawn) < count:
        first, second = struct.unpack("<QQ", stream.update(bytes(16)))
        u, v = ((first >> 11) + 0.5) / 2**53, ((second >> 11) + 0.5) / 2**53
        radius = math.sqrt(-2 * math.log(u))
        drawn += [radius * math.cos(2 * math.pi * v), radius * math.sin(2 * math.pi * v)]
    return drawn[:count]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_it_is_the_stream_that_is_written_down(count: int) -> None:
    np.testing.assert_allclose(normals(SECRET, "a", count), naive(SECRET, "a", count), rtol=1e-12)


def test_blocks_do_not_show() -> None:
    long = 2 * noise._BLOCK + 5
    assert normals(SECRET, "a", 2 * long)[:long].tolist() == normals(SECRET, "a", long).tolist()


def test_they_are_normal_and_independent() -> None:
    drawn = normals(SECRET, "a", 1_000_000)
    assert stats.kstest(drawn, "norm").pvalue > 0.001
    assert abs(drawn.mean()) < 4e-3 and abs(drawn.std() - 1) < 3e-3
    lags = [np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1] for lag in (1, 2, 3)]
    assert max(map(abs, [*lags, np.corrcoef(drawn, normals(SECRET, "b", 1_000_000))[0, 1]])) < 4e-3


def test_another_name_or_secret_is_another_stream() -> None:
    streams = {normals(secret, name, 1)[0] for secret in (SECRET, seeded_secret(0), seeded_secret(1)) for name in "ab"}
    assert len(streams) == 6


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    secret = keep_secret(tmp_path, begun=False)
    assert len(secret) == 32 and keep_secret(tmp_path, begun=True) == secret
    assert stat.S_IMODE((tmp_path / noise.FILE).stat().st_mode) == 0o600
    assert keep_secret(tmp_path.parent, begun=False) != secret


def test_a_secret_that_is_gone_or_cut_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is gone, and sums of this run were noised with it"):
        keep_secret(tmp_path, begun=True)
    with pytest.raises(RunError, match="is gone, and the parties of this run were drawn with it"):
        keep_secret(tmp_path, begun=True, shares=True)
    (tmp_path / noise.FILE).write_bytes(b"short")
    with pytest.raises(RunError, match="has 5 bytes, and had 32"):
        keep_secret(tmp_path, begun=True)
