"""Recipes that are installed with Coalface are found by name, beside files by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from odd_values import VALUES, places, replaced

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.included import FOLDER, locate, names
from coalface.experiments.sweep.grid import grid

ODD = (*VALUES, {1: 2}, {None: 1})
"""What keys of a recipe seldom have."""


@pytest.mark.parametrize("name", ["lfw/silos", "lfw/silos.yaml", "recipes/lfw/silos.yaml"])
def test_an_included_recipe_has_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(name) == FOLDER / "lfw" / "silos.yaml"
    assert loader.load(name).name == "lfw-silos"


def test_a_file_of_the_same_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lfw" / "silos").mkdir(parents=True)  # a folder is no recipe
    assert locate("lfw/silos.yaml") == FOLDER / "lfw" / "silos.yaml"
    (tmp_path / "lfw" / "silos.yaml").touch()
    assert locate("lfw/silos.yaml") == Path("lfw/silos.yaml")


def test_grids_of_ones_own_can_be_over_an_included_recipe(tmp_path: Path) -> None:
    (tmp_path / "grids.yaml").write_text("recipe: synthetic/silos\ngrids: [{seed: [0, 1]}]\n", encoding="utf-8")
    assert [cell.recipe.seed for cell in grid(tmp_path / "grids.yaml", [])] == [0, 1]


def test_a_name_that_is_not_known_has_the_nearest_one_beside_it() -> None:
    with pytest.raises(RecipeError) as error:
        loader.load("lfw/silo")
    assert error.value.where == "lfw/silo"
    assert "did you mean lfw/silos?" in error.value.text


def test_a_file_of_the_other_ending_and_a_folder_of_recipes_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    for written, meant in (("mine.yml", "did you mean mine.yaml?"), ("synthetic", "did you mean synthetic/")):
        with pytest.raises(RecipeError) as error:
            locate(written)
        assert meant in error.value.text


def test_sweeps_and_federations_have_names_too() -> None:
    assert {"joint/sweeps/southasian", "synthetic/three-silos/federation"} <= set(names())


@pytest.mark.slow
@pytest.mark.ci
def test_an_odd_value_of_any_key_is_taken_or_refused_by_a_recipe_error() -> None:
    tried, refused = set[tuple[Any, ...]](), 0
    for name in names():
        if "/sweeps/" in name:
            continue
        tree = loader.read(name)
        for place in [place for place in places(tree) if place not in tried]:
            for value in ODD:
                try:
                    loader.parse(replaced(tree, place, value))
                except RecipeError:
                    refused += 1
            tried.add(place)
    assert len(tried) > 400 and len(ODD) * len(tried) / 2 < refused < len(ODD) * len(tried)
