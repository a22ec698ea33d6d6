"""Write `recipes/recipe.schema.json`, by which editors complete and check recipes: `make schema`."""

from __future__ import annotations

import json
from pathlib import Path

from coalface.experiments.recipe.schema import Recipe

PLACE = Path(__file__).resolve().parents[1] / "recipes" / "recipe.schema.json"


def text() -> str:
    """The schema as it is written."""
    return json.dumps(Recipe.model_json_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
