"""The Flower app of a recipe: its project, its run-config, and a whole run through both of its sides in one process."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cases import by_default
from commands import said
from federations import TWO_SILOS, digests
from flwr.app import Message
from grids import InProcessGrid, context, played_here, run_recipe
from onnx_graphs import linear_graph
from tinyruns import Silent

from coalface.core.errors import RecipeError
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.app import project, records, server

SAVING = {**TWO_SILOS, "engine": {**TWO_SILOS["engine"], "save_replies": True}}
"""As nodes do, so that the commits of a local run have the same bytes."""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(SAVING))
    return tmp_path / "recipe.yaml"


def test_a_run_over_flower_leaves_what_a_run_here_leaves(recipe: Path, tmp_path: Path) -> None:
    run_recipe(recipe, tmp_path / "homes", ["silo-00", "silo-01"], out=str(tmp_path / "there"))
    experiment.run(loader.load(recipe, ["engine.on_error=exclude"]), tmp_path / "here", Silent(), report=False)
    served, local = tmp_path / "there", tmp_path / "here"
    assert (served / "config.yaml").read_bytes() == (local / "config.yaml").read_bytes()
    homes = {party: tmp_path / "homes" / party / "faces" for party in ("silo-00", "silo-01")}
    whole = digests(local, dict.fromkeys(homes, local))
    assert digests(served, homes) == whole
    for party in homes:  # what is a party's own lies at its node, and nowhere else
        assert any(name.startswith(f"parties/{party}/") for name in whole) and f"ledger/{party}.jsonl" in whole
    assert not (served / "parties").exists() and not (served / "ledger").exists()


def test_a_second_start_goes_on_and_the_run_config_changes_the_recipe(recipe: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run_recipe(recipe, tmp_path / "homes", ["silo-00", "silo-01"], out=out, rounds=1, **{"local.lr": 0.05})
    resolved = loader.load(tmp_path / "run" / "config.yaml")
    assert (resolved.rounds, resolved.local.lr, resolved.engine.on_error) == (1, 0.05, "exclude")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    run_recipe(recipe, tmp_path / "homes", ["silo-00", "silo-01"], out=out, rounds=1, **{"local.lr": 0.05})
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before  # it was at its end


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"local.lr": 0.5}, r"local.lr was 0.02 and is now 0.5"),
        ({"rounds": 2}, r"rounds was 1 and is now 2"),  # of a finished run, which would else say that it has them all
    ],
)
def test_a_run_that_has_begun_is_not_gone_on_with_by_another_recipe(
    changes: dict[str, Any], difference: str, recipe: Path, tmp_path: Path
) -> None:
    out = {"out": str(tmp_path / "run")}
    run_recipe(recipe, tmp_path / "homes", ["silo-00", "silo-01"], rounds=1, **out)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        RecipeError, match=f"has begun with another recipe: {difference}. Go on with `coalface resume .*/run`"
    ):
        run_recipe(recipe, tmp_path / "homes", ["silo-00", "silo-01"], **out, **{"rounds": 1, **changes})
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_node_without_a_party_or_with_an_unknown_one_says_so_in_its_log(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid([played_here(recipe)])
    for node_config, reason in (
        ({}, "a SuperNode plays one party: start it with --node-config"),
        ({"party": "silo-9", "home": str(tmp_path)}, "unknown party 'silo-9'; this run has silo-00, silo-01"),
    ):
        caplog.clear()
        grid.contexts[1000] = context(1000, node_config, {})
        grid.push_messages([_join()])
        assert reason in caplog.text


def _join() -> Any:
    return Message(records.write({}), 1000, records.JOIN)


def test_batchnorm_that_parties_would_keep_from_a_pre_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    tree = {**TWO_SILOS, "pretrain": {"method": "centralized"}, "model": {"batchnorm": "local"}}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(RecipeError) as error:
        run_recipe(path, tmp_path / "homes", ["silo-00", "silo-01"], out=str(tmp_path / "run"))
    assert error.value.where == "model.batchnorm"


@pytest.mark.parametrize("first", by_default(1, [True, False]))
def test_a_teacher_over_flower_gives_the_bytes_of_a_run_here(first: bool, tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(3 * 32 * 32, 128)).astype(np.float32)
    (tmp_path / "teacher.onnx").write_bytes(linear_graph(matrix, 32))
    distill = {"method": "distill", "rounds": 1}
    distill |= {"methods": {"distill": {"size": 32, "teacher": str(tmp_path / "teacher.onnx")}}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(SAVING | ({"pretrain": distill} if first else distill)))
    recipe = project.new(tmp_path / "project", tmp_path / "recipe.yaml") / "recipe.yaml"
    text, at_nodes = recipe.read_text(), tmp_path / "nodes.yaml"
    at_nodes.write_text(text.replace("teacher.onnx", "gone.onnx") if first else text)  # then the server alone has it
    parties = ["silo-00", "silo-01"] if first else ["pooled"]
    run_recipe(recipe, tmp_path / "homes", parties, at_nodes=at_nodes, out=str(tmp_path / "there"))
    experiment.run(loader.load(recipe, ["engine.on_error=exclude"]), tmp_path / "here", Silent(), report=False)
    for name in ("model/backbone.safetensors", "metrics.jsonl"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


# --- the project ------------------------------------------------------------------------------------------------------


def test_flower_builds_the_project_and_its_keys_are_the_recipes(recipe: Path, tmp_path: Path) -> None:
    assert "its README.md says how" in said("flower", "new", tmp_path / "project", "--recipe", recipe)
    place = tmp_path / "project"
    assert (place / "recipe.yaml").read_bytes() == recipe.read_bytes()
    flwr = [sys.executable, "-c", "from flwr.cli.app import app; app()", "build", "--app", str(place)]
    built = subprocess.run(flwr, cwd=place, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = place.glob("*.fab")
    assert {"pyproject.toml", "client.py", "server.py", "recipe.yaml"} <= set(zipfile.ZipFile(bundle).namelist())
    keys = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    values = {key: value for key, value in keys.items() if key not in server.RUN_KEYS}
    assert values == dict(project.plain_values(SAVING)) and values["local.lr"] == 0.02
    from_project = server.read(place / "recipe.yaml", keys)
    assert from_project.digest() == loader.load(recipe, ["engine.on_error=exclude"]).digest()
    assert "ca.crt \\\n" in (place / "README.md").read_text()
