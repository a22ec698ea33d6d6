"""A recipe that trains on insightface's records and evaluates on its `.bin` packs gives what folders and lists give."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_layouts import people, rfw_lists
from tinyruns import Silent

from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.core.text import shown
from coalface.data.stores import open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.evaluation.finished_model import evaluate_model
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader, schema
from coalface.experiments.setup.parts import Parts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with `faces/` as folders and records, and `other.bin` of other people."""
    for folder, first in (("faces", 0), ("other", 50)):
        names = [f"{folder}-{number}" for number in range(4)]
        people(tmp_path / folder, names, 5, first=first, file="{name}_{:04}.png")
    convert(open_store(tmp_path / "faces"), tmp_path / "records", "rec")
    pairs = Pairs(draw=20, rng=generator(0))
    convert(open_store(tmp_path / "other"), tmp_path / "records" / "other.bin", "bin", pairs=pairs)
    return tmp_path


def recipe(root: Path, source: dict[str, Any], **more: Any) -> schema.Recipe:
    data = {"root": str(root), "faces": source, "size": 32, "partition": {"kind": "equal", "parties": 2}}
    tree = {"rounds": 1, "local": {"batch_size": 8}, "loss": {"name": "softmax", "scale": 16.0}, "data": data, **more}
    return loader.parse(tree)


def test_records_train_as_the_folders_that_they_were_made_of(root: Path) -> None:
    runs = []
    for kind, path in (("folder", "faces"), ("rec", "records")):
        out = root / f"run-{kind}"
        experiment.run(recipe(root, {"kind": kind, "path": path}), out, Silent(), report=False)
        runs.append((out / "model" / "backbone.safetensors").read_bytes())
    assert runs[0] == runs[1]


def test_a_run_over_records_is_evaluated_on_a_bin_by_insightfaces_words(root: Path) -> None:
    words: dict[str, Any] = {"val_targets": ["other"], "margin_list": [1.0, 0.5, 0.0], "embedding_size": 16}
    tree = {
        "rounds": 1,
        "local": {"batch_size": 8},
        "data": {
            "root": str(root),
            "faces": {"kind": "rec", "path": "records"},
            "size": 32,
            "partition": {"kind": "equal", "parties": 2},
        },
        **words,
    }
    made = loader.parse(tree)
    out = experiment.run(made, root / "run", Silent(), report=False)
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["figures"]) == {"other"}
    evaluated = evaluate_model(out, root / "records" / "other.bin")
    assert evaluated["pairs"] == 40
    assert evaluated["accuracy"] == pytest.approx(summary["figures"]["other"]["accuracy"])


def test_identities_of_a_bin_are_nobody_of_the_training_set(root: Path) -> None:
    """Its numbers 00000, 00001 … could be names of the training identities too."""
    lists = {"evaluation": {"pairs": {"x": {"kind": "bin", "path": "records/other.bin"}}}}
    made = recipe(root, {"kind": "rec", "path": "records"}, **lists)
    parts = Parts(made)
    (found,) = parts.pairs
    assert len(found.pairs) == 40 and all(name.startswith("x/") for name in found.faces.names)
    assert found.pairs.fold is not None and np.array_equal(found.pairs.fold, np.repeat(np.arange(10), 4))


def test_a_list_that_is_no_bin_is_refused(root: Path) -> None:
    lists = {"evaluation": {"pairs": {"x": {"kind": "bin", "path": "faces"}}}}
    made = recipe(root, {"kind": "folder", "path": "faces"}, **lists)
    with pytest.raises(RecipeError, match="not a .bin of pairs"):
        _ = Parts(made).pairs


def test_rfw_is_trained_on_by_race_and_evaluated_on_its_lists(root: Path) -> None:
    """One party for each race, and a list of one race; the identities evaluated are left out by hand."""
    for race, first in (("African", 0), ("Asian", 4)):
        names = [f"m.{number}" for number in range(first, first + 4)]
        people(root / "rfw" / "data" / race, names, 3, first=80 + first, file="{name}_{:04}.png")
        rfw_lists(root / "rfw", {race: (names[0], names[1])})
    made = recipe(root, {"kind": "folder", "path": "rfw"})
    by_domain = {**made.data.model_dump(), "partition": {"kind": "by-domain"}}
    deal = Parts(loader.parse({**made.model_dump(), "data": by_domain})).trainers
    assert {name: len(faces) for name, faces in deal.items()} == {"African": 12, "Asian": 12}
    lists = {"evaluation": {"pairs": {"x": {"kind": "layout", "path": "rfw", "list": "rfw-asian"}}}}
    made = recipe(root, {"kind": "folder", "path": "faces"}, **lists)
    (found,) = Parts(made).pairs
    assert len(found.pairs) == 20 and int(found.pairs.same.sum()) == 10
    with pytest.raises(RecipeError, match="the run would also train on"):
        _ = Parts(recipe(root, {"kind": "folder", "path": "rfw"}, **lists)).pairs
    lists["evaluation"]["pairs"]["x"].pop("list")
    unnamed = recipe(root, {"kind": "folder", "path": "faces"}, **lists)
    with pytest.raises(RecipeError, match="choose a list of rfw; it has rfw-african, rfw-asian"):
        _ = Parts(unnamed).pairs


@pytest.mark.parametrize("name", ["b\udcff", "a\tb"])
def test_a_folder_without_a_plain_name_stops_a_run_before_anything_is_written(root: Path, name: str) -> None:
    (root / "faces" / "odd").mkdir()
    (root / "faces" / "odd").rename(root / "faces" / name)
    shutil.copy(next((root / "faces").glob("*/*_0001.png")), root / "faces" / name / "1.png")
    made = recipe(root, {"kind": "folder", "path": "faces"})
    for start in (lambda: experiment.run(made, root / "run", Silent()), lambda: preflight.check(made)):
        with pytest.raises(ValueError, match=f"{re.escape(shown(root / 'faces' / name))}: .*rename it"):
            start()
    assert not (root / "run").exists()
