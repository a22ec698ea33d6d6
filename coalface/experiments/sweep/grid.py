"""The cells of a sweep: the points of a grid over a recipe, or of several grids that a file lists."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core.checks import UnknownKey
from coalface.core.errors import RecipeError
from coalface.core.parsing import parse_yaml
from coalface.experiments.recipe import included, loader
from coalface.experiments.recipe.schema import Recipe

AVERAGED = ("seed", "fold_split")
"""Keys over which a setting's cells are averaged."""
NAMED = "name"
"""The key of a grid that says what its cells are called, in place of the keys that have one value there."""


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    chosen: dict[str, Any]
    """Swept key -> its value here."""
    recipe: Recipe

    @functools.cached_property
    def digest(self) -> str:
        """That of its recipe, by which its results are found again."""
        return self.recipe.digest()

    @property
    def name(self) -> str:
        """Names the cell for people."""
        return " ".join(_told(key.rpartition(".")[2], value) for key, value in self.chosen.items())

    @property
    def setting(self) -> str:
        """What was swept besides the seed and the half of the folds; cells of one setting are averaged."""
        swept = ", ".join(_told(key, value) for key, value in self.chosen.items() if key not in AVERAGED)
        return swept or self.recipe.method

    @property
    def label(self) -> str:
        """The setting as short as people can read it: what a drawing writes beside its dot."""
        values = {key.rpartition(".")[2]: value for key, value in self.chosen.items() if key not in AVERAGED}
        words = [_shown(value) if key in (NAMED, "method") else _told(key, value) for key, value in values.items()]
        return ", ".join(words) or self.recipe.method


def _told(key: str, value: Any) -> str:
    return str(value) if key == NAMED else f"{key}={_shown(value)}"


def _shown(value: Any) -> str:
    """A value as one would write it on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def grid(path: Path, changes: Sequence[str]) -> list[Cell]:
    """The cells of `key=a,b,c …` over a recipe, the last key fastest. Raises RecipeError.

    Commas separate values, except those inside brackets or quotes: `data.faces.domains=[studio],[studio,night]` has
    two values. Cells of other methods do without the settings of a method.

    The path may be of a file that lists grids over one recipe, `{recipe: FILE, grids: [{key: [a, b]}, …]}`: then the
    cells are those of all of them, and a change takes the place of that key in every grid. A grid may have a `name`, by
    which its cells are called.
    """
    path = included.locate(path)
    changed_axes, tree = _axes(changes), loader.read(path)
    if "grids" not in tree:
        points = _points(tree, changed_axes)
        _check_used(changed_axes, {key for chosen, _ in points for key in chosen})
        return _named(points)
    points = list[tuple[dict[str, Any], Recipe]]()
    given, used = set[str](), set[str]()
    below = loader.read(included.locate(_checked(path, tree), path))
    for listed in tree["grids"]:
        axes = {key: value if isinstance(value, list) else [value] for key, value in listed.items()}
        called = axes.pop(NAMED, [None])[0]
        axes |= changed_axes
        given |= axes.keys()
        for chosen, recipe in _points(below, axes):
            used |= chosen.keys()
            several = {key: value for key, value in chosen.items() if len(axes[key]) > 1}
            points.append((chosen if called is None else {NAMED: str(called), **several}, recipe))
    _check_used(given, used)
    once = {recipe.digest(): place for place, (_, recipe) in reversed(list(enumerate(points)))}
    return _named([points[place] for place in sorted(once.values())])


def _axes(changes: Sequence[str]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator:
            raise RecipeError("not a change: write key=value or key=a,b,c", where=repr(change))
        if key in axes:
            raise RecipeError(f"given twice; write all its values at once, as {key}=a,b,c", where=key)
        try:
            values = parse_yaml(f"[{text}]") or [None]
        except ValueError as error:
            raise RecipeError(f"the values are not YAML ({error}); try them in quotes", where=repr(change)) from None
        axes[key] = [value for place, value in enumerate(values) if value not in values[:place]]
    return axes


def _checked(path: Path, tree: Mapping[str, Any]) -> str:
    """The recipe that a file of grids is over. Raises RecipeError where the file is not one."""
    for key in tree.keys() - {"name", "recipe", "grids"}:
        raise RecipeError(str(UnknownKey(key, ["recipe", "grids"])), where=path)
    if not isinstance(tree.get("recipe"), str):
        raise RecipeError("say which recipe the grids are over, as `recipe: FILE` or `recipe: lfw/silos`", where=path)
    grids = tree["grids"]
    if not isinstance(grids, list) or not grids or not all(isinstance(axes, dict) and axes for axes in grids):
        raise RecipeError("`grids` is a list of mappings from a key to its values, as `- {seed: [0, 1]}`", where=path)
    return str(tree["recipe"])


def _points(tree: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[tuple[dict[str, Any], Recipe]]:
    """Each point of a grid with its recipe, once without the settings of other methods."""
    points: list[tuple[dict[str, Any], Recipe]] = []
    for point in itertools.product(*axes.values()):
        chosen, changed = dict(zip(axes, point, strict=True)), dict(tree)
        method = str(chosen.get("method", tree.get("method", Recipe.model_fields["method"].default)))
        of_others = [
            key for key in chosen if key.startswith("methods.") and not f"{key}.".startswith(f"methods.{method}.")
        ]
        chosen = {key: value for key, value in chosen.items() if key not in of_others}
        if any(chosen == before for before, _ in points):
            continue
        for key, value in chosen.items():
            changed = loader.with_value(changed, key, value)
        points.append((chosen, loader.parse(changed)))
    return points


def _check_used(given: Collection[str], used: Collection[str]) -> None:
    """Raise RecipeError for a setting of a method that no cell has."""
    for key in given:
        if key not in used:
            raise RecipeError("no cell of the sweep has this method; add it to method=…", where=key)


def _named(points: Sequence[tuple[dict[str, Any], Recipe]]) -> list[Cell]:
    """Cells that are told apart by the keys which are not the same at all points.

    A key that some of the grids give, always with the same value, is left out unless cells are called the same without.
    """
    values: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    for chosen, _ in points:
        for key, value in chosen.items():
            counts[key] = counts.get(key, 0) + 1
            if value not in values.setdefault(key, []):
                values[key].append(value)

    def cells(keys: Collection[str]) -> list[Cell]:
        return [Cell({k: v for k, v in chosen.items() if k in keys}, recipe) for chosen, recipe in points]

    vary = {key for key, taken in values.items() if len(taken) > 1 or key == NAMED}
    short = cells(vary)
    if len({cell.name for cell in short}) == len(short):
        return short
    return cells(vary | {key for key, times in counts.items() if times < len(points)})
