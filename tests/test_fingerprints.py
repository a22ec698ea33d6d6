"""The script that tells whether a change moves a number."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import coalface
from coalface.methods import METHODS

SCRIPT = Path(coalface.__file__).parents[1] / "benchmarks" / "fingerprints.py"
TOOLS = runpy.run_path(str(SCRIPT))


def test_every_method_has_a_run() -> None:
    assert METHODS.keys() <= TOOLS["recipes"]().keys()


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_has_one_fingerprint_whatever_the_workers_and_another_is_told(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "--methods", "fedavg", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    first = run("--out", str(table := tmp_path / "table.md"))
    assert first.returncode == 0, first.stderr
    rows = TOOLS["read_rows"](table.read_text(encoding="utf-8"))
    assert rows.keys() == {("fedavg", "1"), ("fedavg", "2")}
    model, figures, sent, records, chains = rows["fedavg", "1"]
    assert rows["fedavg", "2"] == rows["fedavg", "1"]

    def check(*columns: str) -> subprocess.CompletedProcess[str]:
        table.write_text(TOOLS["as_line"](("fedavg", "1"), columns), encoding="utf-8")
        return run("--workers", "1", "--check", str(table), "--renamed")

    assert check(model, figures, sent, records, "other").returncode == 0
    moved = check("other", figures, sent, records, chains)
    assert moved.returncode == 1
    assert "fedavg, 1 workers: model was other" in moved.stderr
