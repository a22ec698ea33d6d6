"""`coalface/recipes/recipe.schema.json`, by which editors complete and check recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coalface.experiments.recipe.included import FOLDER
from coalface.experiments.recipe.schema import Recipe

SCHEMA = FOLDER / "recipe.schema.json"


def undescribed(schema: Any, where: str = "recipe") -> list[str]:
    """Keys, at any depth, of which a schema says nothing, neither beside them nor where they are defined."""
    if isinstance(schema, list):
        return [key for part in schema for key in undescribed(part, where)]
    if not isinstance(schema, dict):
        return []
    names = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
    silent = [f"{where}.{name}" for name, key in names.items() if not {"description", "$ref", "const"} & key.keys()]
    return silent + [key for name, part in schema.items() for key in undescribed(part, f"{where}.{name}")]


def test_it_is_what_the_recipe_says_now() -> None:
    schema = json.loads(json.dumps(Recipe.model_json_schema(), allow_nan=False))  # other parsers know no Infinity
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema, "write it anew: make schema"


def test_it_describes_every_key_down_to_the_settings_of_losses_and_methods() -> None:
    assert undescribed(Recipe.model_json_schema()) == []


def test_it_knows_every_scenario_by_its_name() -> None:
    scenarios = [part for part in Recipe.model_json_schema()["$defs"].values() if "scenario" in part["properties"]]
    assert len(scenarios) == 6
    assert len({part["properties"]["scenario"]["const"] for part in scenarios}) == 6


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_names_it_for_editors(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == SCHEMA.resolve()
