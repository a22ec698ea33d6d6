"""`coalface/recipes/recipe.schema.json`, by which editors complete and check recipes."""

from __future__ import annotations

import json
from typing import Any

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


def test_it_is_what_the_recipe_says_now_and_describes_every_key() -> None:
    schema = json.loads(json.dumps(Recipe.model_json_schema(), allow_nan=False))  # other parsers know no Infinity
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema, "write it anew: make schema"
    assert undescribed(schema) == []
    scenarios = [part for part in schema["$defs"].values() if "scenario" in part["properties"]]
    assert len(scenarios) == 6
    assert len({part["properties"]["scenario"]["const"] for part in scenarios}) == 6


def test_every_recipe_names_it_for_editors() -> None:
    for path in FOLDER.glob("*/*.yaml"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema="), path
        assert (path.parent / first.partition("=")[2]).resolve() == SCHEMA.resolve()
