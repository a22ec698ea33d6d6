"""The recipes that are installed with Coalface, by their names: `lfw/silos`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from coalface.core.errors import RecipeError

FOLDER = Path(__file__).parents[2] / "recipes"


def names() -> list[str]:
    """The included recipes, files of grids and federations: `lfw/silos`, `uda/sweeps/cfp`, …"""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


def locate(recipe: str | os.PathLike[str], named_in: Path | None = None) -> Path:
    """A file by its path, or else an included recipe by its name, which may begin with `recipes/` and end in `.yaml`.

    `named_in` is a file whose key `recipe` it is: a path starts at its folder. Raises RecipeError.
    """
    path = (named_in.parent if named_in else Path()) / recipe
    if path.exists() and not path.is_dir():  # a pipe is one as well
        return path
    name = Path(recipe).as_posix().removeprefix("recipes/").removesuffix(".yaml")
    if name in (known_names := names()):
        return FOLDER / f"{name}.yaml"
    if path.is_dir():
        raise RecipeError("a folder; give a recipe, which is a YAML file", where=path)
    beside = {file.stem: str(file) for file in path.parent.glob("*.y*ml")}
    near = [beside[stem] for stem in difflib.get_close_matches(path.stem, beside, n=1)]
    near = near or [known for known in known_names if known.startswith(f"{name}/")][:3]
    near = near or difflib.get_close_matches(name, known_names, n=1)
    near = near or [known for known in known_names if name in known.split("/")][:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    listed = [known for known in known_names if "/sweeps/" not in known]
    text = f"does not exist{hint} Included: {', '.join(listed)}"
    raise RecipeError(f"{path} {text}", where=f"{named_in}, recipe") if named_in else RecipeError(text, where=path)
