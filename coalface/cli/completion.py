"""What a shell completes: recipes, methods and keys, from files beside the code, so that nothing slow is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coalface.experiments.recipe import included


def recipes(incomplete: str) -> list[str]:
    """Included recipes; without one, a shell completes files."""
    return [name for name in included.names() if name.startswith(incomplete)]


def methods(incomplete: str) -> list[str]:
    """The methods of the package."""
    return [name for name in _schema()["properties"]["methods"]["properties"] if name.startswith(incomplete)]


def changes(incomplete: str) -> list[str]:
    """Keys of a recipe with their `=`; after `method=` the methods."""
    if incomplete.startswith("method="):
        return [f"method={name}" for name in methods(incomplete.removeprefix("method="))]
    schema = _schema()
    return sorted({key for key in _keys(schema, schema, "") if key.startswith(incomplete)})


def _keys(value: Mapping[str, Any], schema: Mapping[str, Any], before: str) -> Iterator[str]:
    """The keys below a value, those of every section that it may be."""
    if "$ref" in value:
        yield from _keys(schema["$defs"][value["$ref"].rpartition("/")[2]], schema, before)
    for other in (*value.get("oneOf", ()), *value.get("anyOf", ())):
        yield from _keys(other, schema, before)
    for name, below in value.get("properties", {}).items():
        if name != "pretrain":  # a recipe again
            yield from list(_keys(below, schema, f"{before}{name}.")) or [f"{before}{name}="]


def _schema() -> dict[str, Any]:
    return dict(json.loads((included.FOLDER / "recipe.schema.json").read_text(encoding="utf-8")))
