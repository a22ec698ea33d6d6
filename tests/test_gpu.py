"""What changes on a CUDA device: nothing but rounding. Run with `pytest -m gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import tinyruns
import torch
from safetensors.torch import load_file

from coalface.methods import METHODS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", list(METHODS))
def test_a_run_on_the_device_ends_near_the_run_on_the_cpu(name: str, tmp_path: Path) -> None:
    here = tinyruns.run(tmp_path / "cpu", method=name)
    there = tinyruns.run(tmp_path / "cuda", method=name, engine={"device": "cuda"})
    weights = sorted((here / "model").rglob("*.safetensors"))
    assert weights
    for path in weights:
        mine, theirs = load_file(path), load_file(there / path.relative_to(here))
        for tensor in mine:
            torch.testing.assert_close(theirs[tensor], mine[tensor], rtol=1e-2, atol=1e-3)
