"""What `--run-config` changes of the values that a kit's project has, read and checked before Flower is given it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.flower.app import project as flowerproject

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""As Flower takes it: `KEY=VALUE`, values without spaces, or in quotes."""


def usual(project: Path) -> dict[str, Any]:
    """The values of a project by their keys: all that a run-config can change."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(flowerproject.leaves(about["tool"]["flwr"]["app"]["config"]))


def read(text: str | None) -> dict[str, Any]:
    """The values of a run-config, or of the TOML file that it names. Raises RecipeError for what Flower cannot read."""
    if text is None:
        return {}
    if text.endswith(".toml"):
        try:
            return dict(flowerproject.leaves(tomllib.loads(Path(text).expanduser().read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            raise RecipeError(f"--run-config {text} cannot be read: {error}") from None
    if left := _PAIR.sub("", text).split():
        raise RecipeError(f"--run-config: {left[0]!r} is no KEY=VALUE; write 'rounds=3 local.lr=0.01'")
    return {key: _value(key, value) for key, value in _PAIR.findall(text)}


def check(project: Path, text: str | None) -> None:
    """Raise RecipeError, with the nearest key, for one that the project has not."""
    values = usual(project)
    for key in read(text):
        try:
            nearest(key, values, "--run-config")
        except RecipeError as error:
            raise RecipeError(
                f"{error}. A run-config changes what the recipe writes out, and nothing else: for another key, write "
                f"it into {project / 'recipe.yaml'}"
            ) from None


def changed(project: Path, run_config: Mapping[str, Any]) -> str | None:
    """What a run-config changes of the values that the project has, as `--run-config` takes it; None: nothing."""
    before = usual(project)
    words = [f"{key}={json.dumps(value)}" for key, value in run_config.items() if before.get(key) != value]
    return " ".join(words) or None


def _value(key: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise RecipeError(
            f"--run-config: {key}={text} is no number, true or false, and text needs quotes of its own: "
            f"'{key}=\"{text}\"'"
        ) from None
