"""A model that was delivered is read as it was written, or the damaged file is named with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import test_export_client
import test_public_images
from commands import refused
from tinyruns import Silent, model_bytes, picture_folders

from coalface.core.errors import DataError
from coalface.data.readers.pack import default_cache
from coalface.evaluation.finished_model import read_model
from coalface.experiments import run as experiment
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.export.client import GALLERY, export_client
from coalface.experiments.gallery.gallery import Gallery


def overwritten(path: Path) -> None:
    """Four bytes of a weight."""
    data = bytearray(path.read_bytes())
    data[-400:-396] = np.float32(3.0).tobytes()
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_folders(tmp_path_factory.mktemp("faces"), ["Ann", "Bob", "Cid"])


@pytest.mark.parametrize("damage", [overwritten, cut])
@pytest.mark.parametrize(("run", "file"), [("fedavg_run", "backbone"), ("solo_run", "parties/silo-01")])
def test_a_damaged_model_is_told_and_a_resume_writes_it_anew(
    damage: Callable[[Path], None],
    run: str,
    file: str,
    pictures: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out = request.getfixturevalue(run), tmp_path / "a run"
    shutil.copytree(whole, out)
    damage(out / "model" / f"{file}.safetensors")
    party = ("--party", "silo-01") if run == "solo_run" else ()
    line = refused(capsys, monkeypatch, "evaluate", out, "--on", pictures, "--pairs", 4, *party)
    assert f"{file}.safetensors" in line and f"`coalface resume '{out}'` writes it anew" in line
    experiment.resume(out, Silent())
    assert model_bytes(out) == model_bytes(whole)
    assert (out / "model" / "model.json").read_bytes() == (whole / "model" / "model.json").read_bytes()
    read_model(out, party[1] if party else None)


def test_a_model_without_digests_is_refused(fedavg_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fedavg_run / "model", tmp_path / "model"))
    about = json.loads((folder / "model.json").read_text())
    del about["sha256"]
    (folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"model\.json: it is not as it was written: copy the model again"):
        read_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "it cannot be read"),
        (lambda text: "[" * 200_000, "it cannot be read"),
        (lambda text: json.dumps({"backbone": "cnn-small"}), "it cannot be read (size is missing)"),
        (lambda text: text.replace('"size": 32', '"size": 96'), "it is not as it was written"),
    ],
)
def test_model_json_that_is_not_as_it_was_is_named(
    change: Callable[[str], str],
    message: str,
    fedavg_run: Path,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(shutil.copytree(fedavg_run, tmp_path / "run")) / "model" / "model.json"
    path.write_text(change(path.read_text()))
    line = refused(capsys, monkeypatch, "evaluate", tmp_path / "run", "--on", pictures, "--pairs", 4)
    assert line.startswith(f"coalface: {path}: {message}") and "`coalface resume" in line


def test_an_exported_model_is_read_as_it_was_written(tmp_path: Path, pictures: Path) -> None:
    run = experiment.run(test_export_client.recipe(), tmp_path / "run", Silent(), report=False)
    whole = export_client(run, "silo-00", tmp_path / "own")
    assert Gallery(whole / GALLERY, FaceModel(whole)).identify(pictures).matches
    for name, was, becomes in (
        ("backbone.safetensors", b"", b""),
        ("model.json", b'"method": "fedfr-joint"', b'"method": "fedfr-other"'),
        (GALLERY, b'"rate": 0.1', b'"rate": 0.9'),
    ):
        place = Path(shutil.copytree(whole, tmp_path / name))
        content = (place / name).read_bytes()
        if was:
            assert was in content
            (place / name).write_bytes(content.replace(was, becomes))
        else:
            overwritten(place / name)
        with pytest.raises(DataError) as error:
            Gallery(place / GALLERY, FaceModel(place))
        assert error.value.where == str(place / name) and "not as it was written" in error.value.text


@pytest.mark.parametrize("file", ["model/backbone.safetensors", "classifier.safetensors"])
def test_nobody_starts_from_a_damaged_pretraining(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    recipe = test_public_images.recipe()
    experiment.run(recipe, tmp_path / "a", Silent(), report=False)
    (place,) = (default_cache() / "pretrained").iterdir()
    overwritten(place / file)
    with pytest.raises(ValueError, match=r"safetensors: it is not as it was written.*coalface resume .*pretrained"):
        experiment.run(recipe, tmp_path / "b", Silent(), report=False)
    assert not (tmp_path / "b").exists()
    experiment.resume(place, Silent())
    again = experiment.run(recipe, tmp_path / "b", Silent(), report=False)
    assert model_bytes(again) == model_bytes(tmp_path / "a")
