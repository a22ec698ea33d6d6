"""Every method on a CUDA device: a run ends near the same run on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tinydomains import two_domains
from tinyruns import Silent, tiny

from coalface.engine.party.setup import GpuArithmetic, set_gpu_arithmetic
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.methods import METHODS

UNTAUGHT = [name for name, cls in METHODS.items() if not cls.taught]
"""Methods that need no teacher's file."""


def fitting(name: str, **engine: Any) -> Recipe:
    """A tiny recipe for the method."""
    cls = METHODS[name]
    if cls.scenario == "domains":
        return two_domains({"method": name, "engine": engine})
    data: dict[str, Any] = {"scenario": "devices"} if cls.scenario == "devices" else {}
    if cls.scenario == "private-public":
        data = {"scenario": "private-public", "private": {"identities": 4}, "partition": {"parties": 2}}
    own = {"fedfv": {"sample": 3, "equivalents": 5}, "feduv": {"sample": 3, "length": 127}}.get(name, {})
    validators = {"evaluation": {"identities": 2, "pairs": 10}} if name.endswith("-fv") else {}
    changes = {"method": name, "data": data, "methods": {name: own}, "validators": validators, "engine": engine}
    return loader.parse(loader.merged(tiny().model_dump(mode="json"), changes))


@pytest.mark.parametrize("name", UNTAUGHT)
def test_there_is_a_recipe_for_every_method(name: str) -> None:
    assert preflight.check(fitting(name))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", UNTAUGHT)
def test_a_run_on_the_device_ends_near_the_run_on_the_cpu(name: str, tmp_path: Path) -> None:
    here, there = (
        experiment.run(fitting(name, device=device), tmp_path / device, Silent(), report=False)
        for device in ("cpu", "cuda")
    )
    weights = sorted((here / "model").rglob("*.safetensors"))
    assert weights
    for path in weights:
        mine, theirs = load_file(path), load_file(there / path.relative_to(here))
        for tensor in mine:
            torch.testing.assert_close(theirs[tensor], mine[tensor], rtol=1e-2, atol=1e-3)


def test_a_run_computes_in_float32_on_gpus_and_puts_torch_s_settings_back(tmp_path: Path) -> None:
    class Watched(Silent):
        def round(self, record: dict[str, Any]) -> None:
            seen.append(set_gpu_arithmetic(GpuArithmetic()))
            assert not torch.backends.cudnn.allow_tf32  # the older flag, which torch's exporter asks

    seen: list[GpuArithmetic] = []
    before = set_gpu_arithmetic(GpuArithmetic(True, True, False))
    try:
        experiment.run(fitting("fedavg"), tmp_path / "run", Watched(), report=False)
        assert set(seen) == {GpuArithmetic()}
    finally:
        assert set_gpu_arithmetic(before) == GpuArithmetic(True, True, False)
