"""Finished cells of a sweep that are large are packed, and read on as before."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import tinyruns
from tinyruns import Silent

from coalface.core.errors import DataError
from coalface.experiments.sweep import cells
from coalface.experiments.sweep.run import plan, plan_text, sweep


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep of one cell, which is packed."""
    monkeypatch.setattr(cells, "LARGE", 1)
    sweep(tinyruns.write(tmp_path / "tiny.yaml", rounds=1), ["seed=0"], tmp_path / "out", Silent())
    return tmp_path / "out"


def run(out: Path, changes: str) -> list[str]:
    """The cells that a sweep runs."""
    callback = Silent()
    sweep(out.parent / "tiny.yaml", [changes], out, callback)
    return [name for name, _, _ in callback.started]


def test_packed_cells_are_done_and_others_join_them(out: Path) -> None:
    plain, packed = out / "cells.jsonl", out / "cells.jsonl.gz"
    assert packed.exists() and not plain.exists()
    first, table = packed.read_bytes(), (out / "table.md").read_bytes()
    assert "0 of 1 cells are left" in plan_text(plan(out.parent / "tiny.yaml", ["seed=0"], out), out)
    assert run(out, "seed=0") == []
    assert (packed.read_bytes(), (out / "table.md").read_bytes()) == (first, table)
    assert run(out, "seed=0,1") == ["tiny seed=1"]
    assert len(gzip.decompress(packed.read_bytes()).splitlines()) == 2 and not plain.exists()


def test_a_kill_between_packing_and_removing_loses_and_doubles_nothing(out: Path) -> None:
    plain, packed = out / "cells.jsonl", out / "cells.jsonl.gz"
    before = packed.read_bytes()
    plain.write_bytes(gzip.decompress(before))
    assert run(out, "seed=0") == []
    assert packed.read_bytes() == before and not plain.exists()


def test_small_cells_stay_text(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (out / "cells.jsonl").write_bytes(gzip.decompress((out / "cells.jsonl.gz").read_bytes()))
    (out / "cells.jsonl.gz").unlink()
    assert run(out, "seed=0") == []
    assert (out / "cells.jsonl").exists() and not (out / "cells.jsonl.gz").exists()


def test_packed_cells_that_are_damaged_are_named(out: Path) -> None:
    packed = out / "cells.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(DataError) as error:
        cells.read_cells(out / "cells.jsonl")
    assert error.value.where == str(packed)


def test_packed_cells_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"hash": "a"}\n'
    cells.packed(tmp_path / "cells.jsonl").write_bytes(gzip.compress(line))
    monkeypatch.setattr(cells, "_MOST", len(line))
    assert list(cells.read_cells(tmp_path / "cells.jsonl")) == ["a"]
    monkeypatch.setattr(cells, "_MOST", len(line) - 1)
    with pytest.raises(DataError, match="it holds more than"):
        cells.read_cells(tmp_path / "cells.jsonl")
