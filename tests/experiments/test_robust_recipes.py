"""`engine.aggregator` of a recipe; what the rules do is in engine/test_robust_rules.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml
from torch import Tensor

import coalface as cf
from coalface.core.errors import RecipeError
from coalface.engine.robust.aggregators import Aggregator, MultiKrum
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader

MEDIAN: dict[str, Any] = {"engine": {"aggregator": {"name": "median"}}}
VALIDATED: dict[str, Any] = {
    "data": {"faces": {"identities": 20}},
    "validators": {"v1": {"identities": 2, "pairs": 10}, "v2": {"identities": 2, "pairs": 10}},
}


@pytest.mark.parametrize(
    ("settings", "where", "why"),
    [
        ({"name": "median", "byzantine": 1}, "byzantine", "does not count liars"),
        ({"name": "median", "radius": 1.0}, "radius", "not a key"),
        ({"name": "krum"}, "byzantine", "number of parties that may lie"),
        ({"name": "krum", "byzantine": "few"}, "byzantine", "not allowed"),
        ({"name": "krum", "byzantine": True}, "byzantine", "use a number"),
        ({"name": "crumb"}, "name", "krum"),
        ({"byzantine": 1}, "name", "median"),
    ],
)
def test_settings_that_a_rule_does_not_have_are_refused(settings: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why) as error:
        tinyruns.tiny(engine={"aggregator": settings})
    assert error.value.where == f"engine.aggregator.{where}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "fedavg-fv", **VALIDATED}, "fedavg-fv finds a weight for each party"),
        ({"method": "fednova"}, "fednova finds a weight for each party"),
        ({"method": "solo"}, "solo asks for no mean over parties"),
        ({"method": "centralized"}, "centralized asks for no mean over parties"),
        ({"privacy": {"dp": {"noise_multiplier": 1.0}}}, "privacy.dp adds noise"),
        ({"engine": {"aggregator": {"name": "krum", "byzantine": 2}}}, "step train: 2 replies are too few"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_the_run_with_the_reason(changes: dict[str, Any], why: str) -> None:
    recipe = tinyruns.tiny(**loader.merged(MEDIAN, changes) if "engine" not in changes else changes)
    with pytest.raises(RecipeError, match=why) as error:
        preflight.check(recipe)
    assert error.value.where == "engine.aggregator"


def test_the_dry_run_counts_the_replies_that_are_kept() -> None:
    text = preflight.describe(tinyruns.tiny(**MEDIAN))
    assert "the sums of the means" not in text
    assert "engine.aggregator keeps every single reply" in text
    assert "engine.aggregator" not in preflight.describe(tinyruns.tiny())
    assert "up to three times all that engine.aggregator looks at (6.28 MB)" in text  # 3 · 2 parties · 1.05


def test_an_experiment_and_its_recipe_are_the_same(tmp_path: Path) -> None:
    assert tinyruns.tiny(engine={"aggregator": "median"}).digest() == tinyruns.tiny(**MEDIAN).digest()
    given: list[Any] = [MultiKrum(byzantine=0.2, bucket=2), {"name": "multi-krum", "byzantine": 0.2, "bucket": 2}]
    experiments = [cf.Experiment(method=cf.FedAvg(rounds=2), engine=cf.Engine(aggregator=each)) for each in given]
    first, second = (experiment.recipe for experiment in experiments)
    assert first.engine.aggregator == given[0] and first.digest() == second.digest()
    experiments[0].write(tmp_path / "a.yaml")
    assert yaml.safe_load((tmp_path / "a.yaml").read_text())["engine"]["aggregator"] == given[1]
    assert loader.load(tmp_path / "a.yaml").digest() == first.digest()
    assert cf.Experiment(method=cf.FedAvg(rounds=2)).recipe.digest() != first.digest()


@dataclass(frozen=True, kw_only=True)
class FirstOnly(Aggregator):
    """What the first party sent."""

    def rule(self, vectors: Tensor, f: int) -> Tensor:
        return vectors[0].double()


def test_a_rule_of_ones_own_is_named_by_its_module_and_recorded(tmp_path: Path) -> None:
    name = f"{__name__}:FirstOnly"
    folder = tinyruns.run(tmp_path / "run", engine={"aggregator": {"name": name}})
    environment = json.loads((folder / "summary.json").read_text())["environment"]
    assert "engine.aggregator.name" in environment["plugins"]
    with pytest.raises(RecipeError, match="Aggregator") as error:
        tinyruns.tiny(engine={"aggregator": {"name": f"{__name__}:Path"}})
    assert error.value.where == "engine.aggregator.name"
