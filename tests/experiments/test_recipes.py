"""Every recipe that comes along loads, and its plan can be printed."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.included import FOLDER
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import OnDisk
from coalface.experiments.setup import sources, splits
from coalface.experiments.setup.sources import unseen
from coalface.experiments.sweep.grid import grid
from coalface.methods import METHODS

RECIPES = sorted(FOLDER.glob("*/*.yaml"))
SWEEPS = sorted(FOLDER.glob("*/sweeps/*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Most recipes name the same few folders, of many files; each is read for every method."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "read", functools.cache(loader.read))
        patch.setattr(sources, "open_store", functools.cache(sources.open_store))
        yield


def absent(recipe: Recipe) -> str:
    """Why it cannot be planned here: images or a teacher that are not included; empty if it can."""
    sources = [getattr(recipe.data, "faces", None), *recipe.data.parts.values()]
    sources += [pairs.source for pairs in recipe.evaluation.pairs.values()]
    paths = [source.path for source in sources if isinstance(source, OnDisk)]
    paths += [pairs.path for pairs in recipe.evaluation.pairs.values() if pairs.path is not None]
    if paths and not os.environ.get("COALFACE_DATA"):
        return "COALFACE_DATA is not set: this recipe reads images that are not included"
    if getattr(recipe.build_method(), "teacher", None) == "":
        return "its teacher comes with the command"
    missing = [path for path in paths if not (recipe.root() / path).exists()]
    return f"{missing[0]} is not below COALFACE_DATA" if missing else ""


def test_there_are_recipes() -> None:
    assert {"silos", "devices", "two-domains"} <= {path.stem for path in RECIPES if path.parent.name == "synthetic"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_loads_evaluates_something_and_prints_its_plan(path: Path) -> None:
    recipe = loader.load(path)
    assert (recipe.evaluation.pairs or recipe.evaluation.personalised) and recipe.data.root is None
    assert not getattr(getattr(recipe.data, "faces", None), "path", "").startswith("/")  # of one machine
    if why := absent(recipe):
        pytest.skip(why)
    text = preflight.describe(recipe)
    assert text.startswith(f"{recipe.name}: {recipe.method} over ") and re.search(
        r"^bytes a round( of \w+)?: down", text, re.MULTILINE
    )


def test_the_page_on_lfws_silos_says_whom_they_train_on() -> None:
    root = Path(__file__).parents[2]
    recipe = loader.load("lfw/silos")
    if why := absent(recipe):
        pytest.skip(why)
    train = splits.split(recipe, unseen).train
    page = " ".join((root / "docs" / "results" / "lfw-silos.md").read_text(encoding="utf-8").split())
    assert f"Training: the {len(train.names):,} identities" in page and f" {len(train):,} images, dealt" in page


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_takes_every_method(path: Path) -> None:
    adapts = loader.load(path).domains is not None
    for method in (name for name, cls in METHODS.items() if (cls.scenario == "domains") is adapts):
        assert loader.load(path, [f"method={method}"]).build_method()


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_cell_of_a_sweep_resolves_and_is_told_from_the_others(path: Path) -> None:
    cells = grid(path, [])
    assert len(cells) > 1 and cells[-1].recipe.resolved()
    assert len({cell.name for cell in cells}) == len(cells)
