"""Recipes that are installed with Coalface are found by name, beside files by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.included import FOLDER, locate, names
from coalface.experiments.sweep.grid import grid


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
