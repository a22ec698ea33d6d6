"""What a sweep would do: said, checked, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tinyruns
from commands import said
from tinyruns import Silent

from coalface.core.errors import RecipeError
from coalface.experiments.sweep import run as sweeping
from coalface.experiments.sweep.grid import grid

CHANGES = ["method=solo,fedavg", "seed=0,1"]


def test_it_tells_what_is_done_failed_and_left_and_writes_nothing(tmp_path: Path) -> None:
    path, out = tinyruns.write(tmp_path / "tiny.yaml", rounds=1), tmp_path / "out"
    sweeping.sweep(path, ["method=solo", "seed=0"], out, Silent())
    failed = grid(path, CHANGES)[3].recipe.digest()
    (out / "failed.json").write_text(json.dumps({failed: "no memory"}))
    (out / "cells.jsonl").write_text((out / "cells.jsonl").read_text() + '{"hash": "cut o')
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    lines = said("sweep", path, *CHANGES, "--out", out, "--dry-run").splitlines()
    assert lines[0].startswith("cell 1 of 4: method=solo seed=0: done, ")
    assert lines[1] == "cell 2 of 4: method=solo seed=1: to run; 1 round over 2 parties"
    assert lines[3] == "cell 4 of 4: method=fedavg seed=1: failed before (no memory); 1 round over 2 parties"
    assert lines[4].startswith("3 of 4 cells are left to run; a cell that is done took ")
    assert {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()} == before


def test_a_cell_that_could_not_run_is_named(tmp_path: Path) -> None:
    path = tinyruns.write(tmp_path / "tiny.yaml")
    with pytest.raises(
        RecipeError, match=r"cell 2 of 2: parties=99: data.partition: 99 parties cannot each have one of 8"
    ):
        sweeping.plan(path, ["data.partition.parties=2,99"], tmp_path / "out")
    with pytest.raises(RecipeError) as error:
        sweeping.plan(path, CHANGES, tmp_path / "out", baselines=["method=pfm"])
    assert error.value.where == "--baseline"
    assert not (tmp_path / "out").exists()
