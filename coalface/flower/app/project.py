"""A project for `flwr run`: a recipe, the app that imports it, and its plain values as run-config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from coalface.core.disk import write_text
from coalface.core.errors import RecipeError
from coalface.core.parsing import parse_yaml
from coalface.experiments.recipe import included, loader
from coalface.experiments.setup import party_data
from coalface.flower.app.templates import render


def new(folder: Path, recipe: Path) -> Path:
    """Write the project of a recipe into a new folder. Raises RecipeError where it is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError("the folder is not empty; name a new one", where=folder)
    loaded, text = loader.load(recipe), included.locate(recipe).read_text(encoding="utf-8")
    party_data.check_elsewhere(loaded)
    name = re.sub(r"[^a-z0-9-]+", "-", loaded.name.lower()).strip("-") or "faces"
    tree = parse_yaml(text) or {}
    if (named := loader.with_files(tree, loaded)) != tree:  # nodes have none of the files
        tree, text = named, yaml.safe_dump(named, sort_keys=False, allow_unicode=True)
    config = dict(plain_values(tree))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "recipe.yaml", text)
    for file in ("client.py", "server.py", "LICENSE", "README.md", "pyproject.toml"):
        text = render(f"project/{file}", name=name, about=f"{loaded.method} by recipe.yaml", config=config)
        write_text(folder / file, text)
    return folder


def plain_values(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, int | float | str | bool]]:
    """The plain values of a recipe, each by its dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from plain_values(value, f"{above}{key}.")
        elif isinstance(value, int | float | str | bool):
            yield f"{above}{key}", value
