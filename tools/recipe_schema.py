"""Write `coalface/recipes/recipe.schema.json`, by which editors complete and check recipes: `make schema`."""

from __future__ import annotations

import json

from coalface.experiments.recipe.included import FOLDER
from coalface.experiments.recipe.schema import Recipe

PLACE = FOLDER / "recipe.schema.json"


def text() -> str:
    """The schema as it is written."""
    return json.dumps(Recipe.model_json_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
