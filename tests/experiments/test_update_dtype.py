"""`engine.update_dtype` of a recipe; what it does to replies is in core/test_compression.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tinyruns

from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight


def test_the_plan_is_what_the_ledgers_say_and_the_numerics_tell_it(tmp_path: Path) -> None:
    recipe = tinyruns.tiny(engine={"update_dtype": "int8"})
    out = experiment.run(recipe, tmp_path / "run", tinyruns.Silent(), report=False)
    said = json.loads((out / "summary.json").read_text())
    assert said["numerics"]["updates"] == "int8"
    planned, exact = preflight.plan(recipe), preflight.plan(tinyruns.tiny())
    up = [s for s in planned.sent if s.direction == "up"]
    (backbone,) = (s for s in up if s.field == "backbone")
    assert backbone.kind == "tensors as int8, aggregated" and "tensors as int8, aggregated" in preflight.describe(
        recipe
    )
    lines = [json.loads(t) for p in (out / "ledger").iterdir() for t in p.read_text().splitlines()]
    tensors = sum(line["bytes"] for line in lines if line["kind"] == "tensor")
    assert tensors == 4 * (backbone.bytes or 0)  # two parties, two rounds
    assert sum(line["bytes"] for line in lines) == said["bytes"]["up"]
    assert planned.in_all("up") == pytest.approx(said["bytes"]["up"], abs=4 * 8)
    assert planned.in_all("up") < 0.4 * exact.in_all("up") and planned.in_all("down") == exact.in_all("down")
    assert {line["dtype"] for line in lines if line["name"] == "backbone/fc.weight"} == {"I8"}
    assert "scales of backbone/fc.weight" in {line["name"] for line in lines}
