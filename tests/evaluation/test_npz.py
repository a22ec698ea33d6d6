"""Archives of arrays: what was written is read, and what would fill the memory is refused before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coalface.evaluation import npz


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez_compressed(path := tmp_path / "a.npz", left=np.arange(3), right=np.ones(2))
    assert {name: array.tolist() for name, array in npz.read_npz(path).items()} == {"left": [0, 1, 2], "right": [1, 1]}
    assert list(npz.read_npz(path, "right", "other")) == ["right"]


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(path := tmp_path / "a.npz", zeros=np.zeros(10_000))
    size = 10_000 * 8 + 128
    monkeypatch.setattr(npz, "MOST", size)
    assert npz.read_npz(path)["zeros"].shape == (10_000,)
    monkeypatch.setattr(npz, "MOST", size - 1)
    with pytest.raises(ValueError, match=f"it holds {size:,} bytes"):
        npz.read_npz(path)
