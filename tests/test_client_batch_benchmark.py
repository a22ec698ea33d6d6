"""The script that measures client batches, where there is nothing to measure on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import coalface

SCRIPT = Path(coalface.__file__).parents[1] / "benchmarks" / "client_batch.py"


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("options", [["--device", "cuda:99"], ["--device", "cuda", "--parts"]])
def test_a_device_that_cannot_be_measured_is_one_sentence(options: list[str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    assert "--device" in done.stderr
