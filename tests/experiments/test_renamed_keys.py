"""Keys of recipes that have other names now: each old one is refused with the new, wherever it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.renamed_keys import RENAMED
from coalface.experiments.sweep.grid import grid

NAMES = {"validators": "clinic", "methods": "fedface"}


def written(key: str) -> str:
    """A key of the table as a recipe has it."""
    return key.replace("*", NAMES.get(key.partition(".")[0], "*"))


def nested(key: str) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: nested(rest)} if rest else {first: 1}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_refused_with_the_new_one(old: str, new: str, tmp_path: Path) -> None:
    said = f"{written(old)} is now called {written(new)}$"
    with pytest.raises(RecipeError, match=f"^{said}"):
        loader.parse(nested(written(old)))
    with pytest.raises(RecipeError, match=rf"^pretrain\.{said}"):
        loader.parse(tinyruns.TINY | {"pretrain": nested(written(old))})
    path = tinyruns.write(tmp_path / "tiny.yaml")
    with pytest.raises(RecipeError, match=said):
        loader.load(path, [f"{written(old)}=1"])
    with pytest.raises(RecipeError, match=said):
        grid(path, [f"{written(old)}=1,2"])


@pytest.mark.parametrize("new", RENAMED.values())
def test_a_new_key_has_no_other_name(new: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loader.parse(tinyruns.TINY | nested(written(new)) | {"rounds": 0})
    assert "is now called" not in str(refused.value)


def test_lists_below_the_old_key_are_told_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump({"judge": {"lists": {"unseen": {}}}}), encoding="utf-8")
    with pytest.raises(RecipeError, match="^judge is now called evaluation$"):
        loader.load(path)
