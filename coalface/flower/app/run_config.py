"""The run-config of a kit's project: `--run-config`, checked before Flower receives it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coalface.core import disk
from coalface.core.checks import unknown_name
from coalface.core.errors import RecipeError
from coalface.core.parsing import read_text
from coalface.core.text import told
from coalface.flower.app.project import plain_values

OPTION = "--run-config"
_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
"""As Flower takes it: `KEY=VALUE`, values without spaces, or in quotes."""


def defaults(project: Path) -> dict[str, Any]:
    """The values of a project by their keys: all that a run-config can change."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(plain_values(about["tool"]["flwr"]["app"]["config"]))


def read(text: str | None) -> dict[str, Any]:
    """The values of a run-config, or of the TOML file that it names. Raises RecipeError for what Flower cannot read."""
    if text is None:
        return {}
    if text.endswith(".toml"):
        try:
            return dict(plain_values(tomllib.loads(read_text(disk.from_home(text)))))
        except (OSError, ValueError, RecursionError) as error:
            raise RecipeError(f"cannot be read: {disk.explained(error)}", where=OPTION) from None
    if unread := _PAIR.sub("", text).split():
        raise RecipeError(f"{unread[0]!r} is not KEY=VALUE; write 'rounds=3 local.lr=0.01'", where=OPTION)
    return {key: _value(key, value) for key, value in _PAIR.findall(text)}


def check(project: Path, text: str | None) -> None:
    """Raise RecipeError, with the nearest key, for one that the project has not."""
    values = defaults(project)
    for key in read(text).keys() - values.keys():
        error = unknown_name(told(key), values, OPTION)
        raise RecipeError(f"{error.text}. Write other keys into {project / 'recipe.yaml'}", where=OPTION)


def changed(project: Path, run_config: Mapping[str, Any]) -> str | None:
    """What a run-config changes of the values that the project has, as `--run-config` takes it; None: nothing."""
    before = defaults(project)
    words = [f"{key}={json.dumps(value)}" for key, value in run_config.items() if before.get(key) != value]
    return " ".join(words) or None


def _value(key: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        key, text = told(key), told(text)
        raise RecipeError(
            f"{key}={text} is neither a number, true nor false; quote text, as in '{key}=\"{text}\"'",
            where=OPTION,
        ) from None
