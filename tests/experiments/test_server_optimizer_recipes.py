"""`server_optimizer` of a recipe; what optimisers do is in training/test_server_optimizers.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml

import coalface as cf
from coalface.core.errors import RecipeError
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.training.server_optimizers import Adagrad, Yogi


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"name": "yoghi"}, "name"),
        ({"lr": 0.1}, "name"),
        ({"name": "adagrad", "beta2": 0.9}, "beta2"),
        ({"name": "adam", "lr": -1}, "lr"),
        ({"name": "sgd", "momentum": "much"}, "momentum"),
    ],
)
def test_settings_that_an_optimiser_does_not_have_are_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        tinyruns.tiny(server_optimizer=settings)
    assert error.value.where == f"server_optimizer.{where}"


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("slowmo", "in a way of its own"),
        ("scaffold", "in a way of its own"),
        ("fedyogi", "in a way of its own"),
        ("centralized", "in a way of its own"),
        ("solo", "no `backbone`"),
    ],
)
def test_methods_that_it_does_not_fit_are_refused_before_the_run_with_the_reason(method: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why) as error:
        preflight.check(tinyruns.tiny(method=method, server_optimizer="yogi"))
    assert error.value.where == "server_optimizer"
    assert preflight.describe(tinyruns.tiny(method="fedprox", server_optimizer="yogi"))


def test_an_experiment_and_its_recipe_are_the_same(tmp_path: Path) -> None:
    written = loader.load(None, ["server_optimizer=yogi", "server_optimizer.lr=0.1"])
    assert written.server_optimizer == Yogi(lr=0.1)
    experiment = cf.Experiment(method=cf.FedAvg(rounds=2), server_optimizer=cf.Yogi(lr=0.1))
    experiment.write(tmp_path / "a.yaml")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text())["server_optimizer"] == {"name": "yogi", "lr": 0.1}
    assert loader.load(tmp_path / "a.yaml").digest() == experiment.recipe.digest()
    assert cf.Experiment(method=cf.FedAvg(rounds=2)).recipe.digest() != experiment.recipe.digest()


def test_a_pretraining_has_its_own() -> None:
    recipe = tinyruns.tiny(server_optimizer="yogi", pretrain={"method": "centralized", "rounds": 1})
    assert recipe.pretrain.recipe.server_optimizer is None


@dataclass(frozen=True, kw_only=True)
class Half(Adagrad):
    """An optimiser of one's own."""


def test_one_of_ones_own_is_named_by_its_module_and_recorded_and_a_run_uses_it(tmp_path: Path) -> None:
    name = f"{__name__}:Half"
    plain = tinyruns.run(tmp_path / "plain", server_optimizer="adagrad")
    own = tinyruns.run(tmp_path / "own", server_optimizer={"name": name})
    assert "server_optimizer.name" in json.loads((own / "summary.json").read_text())["environment"]["plugins"]
    assert yaml.safe_load((own / "config.yaml").read_text())["server_optimizer"]["name"] == name
    assert tinyruns.model_bytes(own) == tinyruns.model_bytes(plain)
    assert tinyruns.model_bytes(own) != tinyruns.model_bytes(tinyruns.run(tmp_path / "without"))
