"""A model of 175 MB over real processes: it goes through, and its bytes are those that the ledger says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from federations import FACES, Standing
from tinyruns import Silent

from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader

LARGE = {**FACES, "name": "large", "rounds": 1, "local": {"steps_per_round": 1, "batch_size": 2, "lr": 0.01}}
LARGE |= {"model": {"name": "ir50"}, "data": {**FACES["data"], "size": 112}, "evaluation": {"pairs": {}}}


@pytest.mark.slow
def test_a_large_model_goes_through_with_the_bits_of_a_local_run(tmp_path: Path) -> None:
    federation = Standing.build(tmp_path, recipe=LARGE)
    with federation.taken_down():
        code, printed = federation.finish(federation.up(), within=1500)
        assert code == 0, printed
    recipe = loader.load(tmp_path / "recipe.yaml", ["engine.on_error=exclude", "engine.save_replies=true"])
    local = experiment.run(recipe, tmp_path / "local", Silent(), report=False)
    model = (federation.run("large") / "model" / "backbone.safetensors").read_bytes()
    assert len(model) > 174e6 and model == (local / "model" / "backbone.safetensors").read_bytes()
    (record,) = federation.metrics("large")
    assert record == json.loads((local / "metrics.jsonl").read_text()) and record["failed"] == {}
    for party in federation.parties:
        ledger = federation.home(party, "large") / "ledger" / f"{party}.jsonl"
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert sum(line["bytes"] for line in lines) * 3 == record["bytes_up"] > 3 * 174e6
