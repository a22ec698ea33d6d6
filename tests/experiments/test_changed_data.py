"""Whose images a party holds is kept with its private state: other people behind the same names are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tinyruns import Silent, Stop, Stops, picture_folders, tiny

from coalface.core.errors import RecipeError
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.export.client import GALLERY, export_client
from coalface.experiments.gallery.gallery import Gallery
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe

NAMES = [f"person_{n:02d}" for n in range(10)]


def recipe(root: Path) -> Recipe:
    """Two silos of three people of ten, the others of whom are public; their pictures lie in folders."""
    data = {
        "faces": {"kind": "folder", "path": str(root)},
        "hold_out": 0,
        "scenario": "private-public",
        "private": {"identities": 6},
        "partition": {"parties": 2},
    }
    tree = loader.merged(tiny(method="fedfr-joint").model_dump(mode="json"), {"data": data})
    tree["data"]["faces"], tree["evaluation"]["pairs"] = data["faces"], {}
    return loader.parse(tree)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    return picture_folders(tmp_path / "faces", NAMES)


def renamed(root: Path) -> None:
    """One who was the first of all is the last."""
    (root / NAMES[0]).rename(root / "someone")


def one_more(root: Path) -> None:
    picture_folders(root, ["aaron"], seed=3)


def one_image_less(root: Path) -> None:
    next((root / NAMES[2]).iterdir()).unlink()


@pytest.mark.parametrize("change", [renamed, one_more, one_image_less])
def test_nobody_elses_gallery_is_exported(change: Any, root: Path, tmp_path: Path) -> None:
    run = experiment.run(recipe(root), tmp_path / "run", Silent(), report=False)
    for party in ("silo-00", "silo-01"):
        export_client(run, party, tmp_path / "before" / party)
    change(root)
    refused = []
    for party in ("silo-00", "silo-01"):
        try:
            export_client(run, party, tmp_path / "after" / party)
        except RecipeError as error:
            refused.append(str(error))
        else:
            before, after = (Gallery(tmp_path / when / party / GALLERY) for when in ("before", "after"))
            assert before.images() == after.images() and (before.templates()[1] == after.templates()[1]).all()
    assert refused and all("put the data back as it was, or start a new run" in said for said in refused)


def test_a_run_does_not_go_on_with_other_people(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        experiment.run(recipe(root), tmp_path / "run", Stops(), report=False)
    (root / NAMES[0]).rename(root / "someone")
    with pytest.raises(RunFailed, match="images are not those that the party's private state was made from"):
        experiment.resume(tmp_path / "run", Silent())
    (root / "someone").rename(root / NAMES[0])
    assert experiment.resume(tmp_path / "run", Silent()) == tmp_path / "run"


def test_an_image_may_be_mended(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        experiment.run(recipe(root), tmp_path / "run", Stops(), report=False)
    path = next((root / NAMES[0]).iterdir())
    path.write_bytes(next((root / NAMES[1]).iterdir()).read_bytes())
    assert experiment.resume(tmp_path / "run", Silent()) == tmp_path / "run"
