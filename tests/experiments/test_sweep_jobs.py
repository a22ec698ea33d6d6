"""Cells of a sweep in processes of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from tinyruns import Silent

from coalface.engine.transport import RunFailed
from coalface.experiments.sweep.cells import read_cells
from coalface.experiments.sweep.jobs import run_jobs
from coalface.experiments.sweep.run import sweep

pytestmark = pytest.mark.usefixtures("quick_workers")


def cells(out: Path) -> dict[str, Any]:
    """What finished cells hold by their hash, but for the time they took."""
    return {digest: {**cell, "seconds": None} for digest, cell in read_cells(out / "cells.jsonl").items()}


def test_jobs_change_no_result_and_a_failed_cell_stops_no_other(tmp_path: Path) -> None:
    recipe = tinyruns.write(tmp_path / "tiny.yaml")
    settings = ["local.lr=0.02,1000000000", "seed=0,1"]
    for name, jobs in (("one", 1), ("two", 2)):
        with pytest.raises(RunFailed, match="2 of 4 cells failed"):
            sweep(recipe, settings, tmp_path / name, Silent(), jobs=jobs)
    one, two = cells(tmp_path / "one"), cells(tmp_path / "two")
    assert one.keys() == two.keys() and len(one) == 2
    for digest, cell in one.items():
        assert {key: value for key, value in two[digest].items() if value != cell.get(key)} == {}
    failed = [json.loads((tmp_path / name / "failed.json").read_text()) for name in ("one", "two")]
    assert failed[0] == failed[1]


def test_jobs_under_way_are_ended_with_the_sweep() -> None:
    jobs = {1: signal.pause, 2: partial(dict, a=1), 3: partial(os._exit, 7)}
    results = run_jobs(jobs, 2, lambda number: None)
    assert next(results) == (2, {"a": 1})
    number, error = next(results)
    assert number == 3 and isinstance(error, RunFailed) and "status 7" in str(error)
    assert len(multiprocessing.active_children()) == 1
    results.close()
    assert not multiprocessing.active_children()
