"""`engine.shards` of a recipe; what several processes do is in engines/test_sharding.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from safetensors.torch import load_file

from coalface import dry, experiment
from coalface.config import RecipeError


@pytest.mark.usefixtures("quick_workers")
def test_a_recipe_says_which_party_several_processes_play(tmp_path: Path, fedavg_run: Path) -> None:
    out = tinyruns.run(tmp_path / "run", name="tiny-fedavg", engine={"shards": {"silo-00": 2, "silo-01": 1}})
    one, many = (load_file(folder / "model" / "backbone.safetensors") for folder in (fedavg_run, out))
    assert all((many[name] - one[name]).abs().max() < 1e-3 for name in one)
    assert json.loads((out / "summary.json").read_text())["numerics"]["shards"] == {"silo-00": 2}
    assert [len(list((out / "parties" / f"silo-0{i}").glob("*.shard"))) for i in range(2)] == [1, 0]
    with pytest.raises(RecipeError, match=r"engine\.shards\.silo-00 would change it: start a new run"):
        experiment.resume(out, tinyruns.Silent(), ("engine.shards.silo-00=3",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": {"shards": {"silo-0": 2}}}, r"engine.shards: the party.*silo-0.*silo-00"),
        ({"engine": {"shards": {"silo-00": 0}}}, r"engine.shards.silo-00: .*greater than or equal to 1"),
        (
            {"engine": {"shards": {"silo-00": 2}}, "loss": {"name": "adaface"}},
            "engine.shards: AdaFace cannot be computed",
        ),
        ({"engine": {"shards": {"silo-00": 2}, "device": "meta"}}, r"engine.shards.silo-00: 2 processes take .*'meta'"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        tinyruns.run(tmp_path / "run", **changes)
    with pytest.raises(RecipeError, match=said):
        dry.check(tinyruns.tiny(**changes))
    assert not (tmp_path / "run").exists()


def test_a_pre_training_is_not_split_and_a_recipe_without_shards_keeps_its_hash() -> None:
    shards = {"engine": {"shards": {"silo-00": 2}}}
    recipe = tinyruns.tiny(pretrain={"method": "centralized", "rounds": 1}, **shards)
    assert recipe.pretraining().engine.shards == {}
    assert tinyruns.tiny().digest() == tinyruns.tiny(engine={"shards": {}}).digest() != tinyruns.tiny(**shards).digest()
