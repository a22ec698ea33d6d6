"""What property tests do to a sound file: bytes changed, put in, taken out, doubled, and the end cut off."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

EDITS = ("change", "insert", "delete", "double", "cut")


@st.composite
def damaged(draw: st.DrawFn, content: bytes, *, most: int = 3) -> bytes:
    """`content` after one to `most` edits; no place is likelier than another."""
    bad = bytearray(content)
    for edit in draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=most)):
        at = draw(st.integers(0, len(bad)))
        if edit == "change" and at < len(bad):
            bad[at] ^= draw(st.integers(1, 255))
        elif edit == "insert":
            bad[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif edit == "delete":
            del bad[at : at + draw(st.integers(1, 8))]
        elif edit == "double":
            bad[at:at] = bad[at : at + draw(st.integers(1, 64))]
        elif edit == "cut":
            del bad[at:]
    return bytes(bad)


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder of its own for one example; `tmp_path` would be shared by all the examples of a test."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
