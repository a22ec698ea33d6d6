"""How much a cell has trained, against counts of the batches that were loaded; and what a table says of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import yaml
from pages import markdown_rows
from tinydomains import TREE
from tinyruns import Silent

from coalface.experiments.recipe import loader
from coalface.experiments.setup import domains as dealing
from coalface.experiments.sweep.grid import grid
from coalface.experiments.sweep.run import read_cells, sweep
from coalface.experiments.sweep.table import table
from coalface.training.compute import Compute

DEVICES = {"scenario": "devices", "test": {"images": 1}}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the batches that are loaded for training, and their images."""
    counts: Counter[str] = Counter()
    batch = Compute.batch

    def counting(compute: Compute, data: Any, index: Any, *arguments: Any, **options: Any) -> Any:
        counts["steps"] += 1
        counts["images"] += len(index)
        return batch(compute, data, index, *arguments, **options)

    monkeypatch.setattr(Compute, "batch", counting)
    return counts


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg", "local": {"epochs": 2, "batch_size": 5}},
        {"method": "fedavg", "methods": {"fedavg": {"sample": 1}}, "local": {"steps_per_round": 3}},
        {"method": "centralized", "methods": {"centralized": {"batch_size": 12}}},
        {"method": "pfm", "local": {"steps_per_round": 3, "batch_size": 99, "party_batch_size": {"silo-00": 4}}},
        {"method": "solo"},
        {"method": "feduv", "rounds": 3, "methods": {"feduv": {"sample": 2, "length": 127}}, "data": DEVICES},
        {"method": "fedrep", "rounds": 3, "methods": {"fedrep": {"sample": 1}}},
        {"method": "fedbabu", "rounds": 3, "methods": {"fedbabu": {"sample": 1}}},
    ],
)
def test_the_steps_and_images_are_those_that_were_loaded(
    changes: dict[str, Any], loaded: Counter[str], tmp_path: Path
) -> None:
    assert cell_of(tinyruns.write(tmp_path / "tiny.yaml", **changes), tmp_path)["trained"] == loaded


@pytest.mark.parametrize("method", ["fedfr-uda", "source-only", "merge", "dan"])
def test_of_two_domains_who_trains_in_which_stage_counts(method: str, loaded: Counter[str], tmp_path: Path) -> None:
    settings = {"methods": {"fedfr-uda": {"pretrain": 2}}} if method == "fedfr-uda" else {}
    tree = loader.merged(TREE, {"method": method, "local": {"steps_per_round": 3, "batch_size": 4}, **settings})
    assert cell_of(written(tree, tmp_path), tmp_path)["trained"] == loaded


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedfr-joint", {}),
        ("fedfr-joint", {"preset": "official", "epochs": [3, 2], "decay_after": [2, 1]}),
        ("finetune", {"tuning_epochs": 2}),
        ("fedavg", {}),
    ],
)
def test_of_public_images_those_count_that_a_client_trained_on(
    method: str, settings: dict[str, Any], loaded: Counter[str], tmp_path: Path
) -> None:
    changes = {"method": method, "pretrain": None, "rounds": 2, "methods": {method: settings}}
    tree = tinyruns.public_images(**changes).model_dump(mode="json", exclude_unset=True)
    assert cell_of(written(tree, tmp_path), tmp_path)["trained"] == loaded


def written(tree: dict[str, Any], folder: Path) -> Path:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return folder / "tiny.yaml"


def cell_of(recipe: Path, folder: Path) -> dict[str, Any]:
    sweep(recipe, [], folder / "out", Silent())
    (cell,) = read_cells(folder / "out" / "cells.jsonl").values()
    return cell


def test_a_row_says_what_it_trained_and_pairs_of_other_steps_are_named(tmp_path: Path) -> None:
    recipe, changes = tinyruns.write(tmp_path / "tiny.yaml", rounds=1), ["method=fedavg,solo,centralized", "seed=0,1"]
    sweep(recipe, changes, tmp_path / "out", Silent())
    cells, finished = grid(recipe, changes), read_cells(tmp_path / "out" / "cells.jsonl")
    text = table(cells, finished)[0]
    header, _, _, *rows = markdown_rows(text)[:6]
    assert header[4:6] == ["steps", "images seen"]
    assert {row[0]: row[4:6] for row in rows} == {
        f"method={method}": ["2", "32"] for method in ("fedavg", "solo", "centralized")
    }
    assert "Not of equal steps" not in text
    of_solo = {cell.recipe.digest() for cell in cells if cell.recipe.method == "solo"}
    more = {
        h: line | {"trained": {"steps": 1234, "images": 32}} if h in of_solo else line for h, line in finished.items()
    }
    assert "\nNot of equal steps: method=solo (1,234) and method=fedavg (2).\n" in table(cells, more)[0]
    early = {h: {k: v for k, v in line.items() if k != "trained"} if h in of_solo else line for h, line in more.items()}
    text = table(cells, early)[0]
    assert (
        "Not of equal steps" not in text
        and next(r for r in markdown_rows(text) if r[0] == "method=solo")[4:6] == [""] * 2
    )
    of_none = {h: {k: v for k, v in line.items() if k != "trained"} for h, line in finished.items()}
    assert "images seen" not in table(cells, of_none)[0]


def test_the_controls_take_as_many_steps() -> None:
    steps = {"start": 1, "1 target": 2000, "2 targets": 3000, "4 targets": 5000}
    for cell in grid(Path("uda/sweeps/equal-steps"), ["seed=0"]):
        recipe, method = cell.recipe, cell.recipe.build_method()
        parties = dealing.parties(recipe)
        roles = dealing.roles(recipe, parties)
        taken = sum(
            method.round_work("train", number, roles.get(party, "trainer"), party, 600)[0]
            for number in range(1, recipe.rounds + 1)
            for party in parties
        )
        assert taken == next(count for part, count in steps.items() if part in cell.chosen["name"]), cell.name
