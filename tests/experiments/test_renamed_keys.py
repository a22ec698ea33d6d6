"""Keys of recipes that have other names now: each old one is refused with the new, wherever it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinyruns

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


def refused(call: Callable[..., object], *given: object) -> RecipeError:
    with pytest.raises(RecipeError) as error:
        call(*given)
    return error.value


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_refused_with_the_new_one(old: str, new: str) -> None:
    error = refused(loader.parse, nested(written(old)))
    assert error.where == written(old) and str(error).endswith(f" is now called {written(new)}")
    accepted = refused(loader.parse, nested(written(new)) | {"rounds": 0})
    assert "is now called" not in str(accepted)


def test_all_old_keys_are_told_at_once() -> None:
    error = refused(loader.parse, nested("local.batch") | nested("engine.cohorts"))
    assert "local.batch_size" in str(error) and "engine.client_batch" in str(error)


def test_it_is_refused_wherever_it_is_written(tmp_path: Path) -> None:
    path = tinyruns.write(tmp_path / "tiny.yaml")
    assert refused(loader.parse, tinyruns.TINY | {"pretrain": nested("local.batch")}).where == "pretrain.local.batch"
    assert refused(loader.load, path, ["local.batch=1"]).where == "local.batch"
    assert "local.batch: " in str(refused(grid, path, ["local.batch=1,2"]))
