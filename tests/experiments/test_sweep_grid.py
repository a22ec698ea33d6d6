"""The cells of a sweep: the points of a grid on the command line, and of the grids that a file lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tinyruns

from coalface.core.errors import RecipeError
from coalface.experiments.recipe import loader
from coalface.experiments.sweep.grid import grid


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tinyruns.write(tmp_path / "tiny.yaml")


def test_a_grid_has_every_combination_the_last_key_fastest(recipe: Path) -> None:
    cells = grid(recipe, ["method=solo,fedavg", "local.lr=0.1,1e-2", "data.grey=true"])
    assert [cell.chosen for cell in cells] == [
        {"method": "solo", "local.lr": 0.1},
        {"method": "solo", "local.lr": "1e-2"},
        {"method": "fedavg", "local.lr": 0.1},
        {"method": "fedavg", "local.lr": "1e-2"},
    ]
    assert cells[3].recipe.local.lr == 0.01
    assert cells[0].name == "method=solo lr=0.1" and cells[0].setting == "method=solo, local.lr=0.1"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0,1,2", [0, 1, 2]),
        ("[studio],[studio, night]", [["studio"], ["studio", "night"]]),
        ('"a,b",c', ["a,b", "c"]),
        ("null,3", [None, 3]),
        ("", [None]),
        ("1,1,2", [1, 2]),
    ],
)
def test_commas_separate_values_except_in_brackets_and_quotes(
    text: str, values: list[Any], recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "parse", lambda tree: tree)
    assert [cell.recipe["key"] for cell in grid(recipe, [f"key={text}"])] == values  # type: ignore[index]


def listing(recipe: Path, text: str) -> Path:
    path = recipe.with_name("many.yaml")
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_may_list_grids_whose_cells_are_one_sweep(recipe: Path) -> None:
    path = listing(
        recipe,
        "recipe: tiny.yaml\ngrids:\n  - {method: solo, seed: [0, 1]}\n"
        "  - {method: fedavg, local.lr: [0.1, 0.2], seed: [0, 1]}\n  - {method: [solo], seed: 1}\n",
    )
    listed = grid(path, [])
    solo = [{"method": "solo", "seed": s} for s in (0, 1)]
    assert [c.chosen for c in listed] == [
        *solo, *({"method": "fedavg", "local.lr": lr, "seed": s} for lr in (0.1, 0.2) for s in (0, 1))
    ]  # fmt: skip
    assert [c.setting for c in listed[1:3]] == ["method=solo", "method=fedavg, local.lr=0.1"]
    assert [c.chosen for c in grid(path, ["seed=7"])] == [
        {"method": "solo"}, {"method": "fedavg", "local.lr": 0.1}, {"method": "fedavg", "local.lr": 0.2}
    ]  # fmt: skip
    assert {c.recipe.seed for c in grid(path, ["seed=7"])} == {7}


def test_a_grid_with_a_name_is_called_so(recipe: Path) -> None:
    many = "  - {name: the bound, method: [centralized, solo], rounds: 9, local.lr: 0.3, seed: [0, 1]}\n"
    listed = grid(listing(recipe, f"recipe: tiny.yaml\ngrids:\n  - {{method: fedavg, seed: [0, 1]}}\n{many}"), [])
    assert [cell.setting for cell in listed[::2]] == [
        "method=fedavg",
        "the bound, method=centralized",
        "the bound, method=solo",
    ]
    assert [cell.name for cell in listed[2:4]] == [f"the bound method=centralized seed={seed}" for seed in (0, 1)]
    assert {cell.recipe.rounds for cell in listed[2:]} == {9} and all(c.recipe.name == "tiny" for c in listed)
    alone = grid(listing(recipe, "recipe: tiny.yaml\ngrids: [{name: one, method: solo, seed: [0, 1]}]\n"), [])
    assert [cell.setting for cell in alone] == ["one", "one"]


@pytest.mark.parametrize(
    "text",
    [
        "grids: [{seed: 0}]\n",
        "recipe: tiny.yaml\ngrids: []\n",
        "recipe: tiny.yaml\ngrid: 1\ngrids: [{seed: 0}]\n",
    ],
)
def test_a_file_of_grids_with_a_mistake_is_named(text: str, recipe: Path) -> None:
    with pytest.raises(RecipeError) as error:
        grid(listing(recipe, text), [])
    assert error.value.where == str(recipe.with_name("many.yaml"))


def test_the_settings_of_a_method_hold_for_its_cells_alone(recipe: Path) -> None:
    cells = grid(recipe, ["method=fedavg,fedprox", "methods.fedprox.mu=0.01,0.1"])
    assert [cell.setting for cell in cells] == [
        "method=fedavg",
        "method=fedprox, methods.fedprox.mu=0.01",
        "method=fedprox, methods.fedprox.mu=0.1",
    ]
    assert [cell.setting for cell in grid(recipe, ["method=fedavg,fedprox", "methods.fedprox={mu: 0.5}"])] == [
        "method=fedavg",
        "method=fedprox",
    ]
    with pytest.raises(RecipeError) as error:
        grid(recipe, ["method=fedavg,solo", "methods.fedprox.mu=0.01,0.1"])
    assert error.value.where == "methods.fedprox.mu"


def test_a_sweep_over_losses_names_them(recipe: Path) -> None:
    assert [cell.setting for cell in grid(recipe, ["loss=arcface,cosface"])] == ["loss=arcface", "loss=cosface"]
