"""What tests do to a sound file: bytes changed, put in, taken out, doubled, and the end cut off."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

ODD = (b"\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"-1", b"1e999", b"9" * 30, b'""', b"null", b"[" * 40, b"\n")
"""What numbers and texts seldom are."""


def _change(bad: bytearray, at: int, rng: random.Random) -> None:
    if at < len(bad):
        bad[at] ^= rng.randint(1, 255)


def _insert(bad: bytearray, at: int, rng: random.Random) -> None:
    bad[at:at] = rng.choice((*ODD, rng.randbytes(rng.randint(1, 8))))


def _delete(bad: bytearray, at: int, rng: random.Random) -> None:
    del bad[at : at + rng.randint(1, 8)]


def _double(bad: bytearray, at: int, rng: random.Random) -> None:
    bad[at:at] = bad[at : at + rng.randint(1, 64)]


def _cut(bad: bytearray, at: int, rng: random.Random) -> None:
    del bad[at:]


EDITS: tuple[Callable[[bytearray, int, random.Random], None], ...] = (_change, _insert, _delete, _double, _cut)


def mutated(content: bytes, rng: random.Random, *, most: int = 3) -> bytes:
    """`content` after one to `most` edits; no place is likelier than another."""
    bad = bytearray(content)
    for _ in range(rng.randint(1, most)):
        rng.choice(EDITS)(bad, rng.randint(0, len(bad)), rng)
    return bytes(bad)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """What `mutated` makes of `content`."""
    return st.integers(0, 1 << 32).map(lambda seed: mutated(content, random.Random(seed)))


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder of its own for one example; `tmp_path` would be shared by all the examples of a test."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
