"""Runs that start from weights of a file: one source by its SHA-256, told, recorded, and the same on resume."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from onnx_graphs import linear_graph
from safetensors.torch import load_file
from tinyruns import TINY, Silent, picture_folders, run, tiny, write

from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.experiments import run as experiment
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.export.model import export_model
from coalface.experiments.recipe import loader
from coalface.flower.app import project
from coalface.models import build

CONVENTION = {"mean": 100.0, "std": 50.0, "channels": 3}


@pytest.fixture
def file(tmp_path: Path, fedavg_run: Path) -> Path:
    tensors = load_file(fedavg_run / "model" / "backbone.safetensors")
    torch.save({f"module.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_a_run_starts_from_the_weights_of_a_file(tmp_path: Path, file: Path, fedavg_run: Path) -> None:
    out = run(tmp_path / "b", model={"weights": str(file)}, rounds=1, local={"lr": 1e-30, "weight_decay": 0.0})
    before, after = (load_file(place / "model" / "backbone.safetensors") for place in (fedavg_run, out))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["weights"] == {
        "sha256": loader.load(out / "config.yaml").model.sha256,
        "steps": ["takes away the prefix 'module.'"],
    }


def test_a_run_starts_from_a_partys_own_model(tmp_path: Path, solo_run: Path) -> None:
    model = {"weights": str(solo_run), "party": "silo-01"}
    out = run(tmp_path / "b", model=model, rounds=1, local={"lr": 1e-30, "weight_decay": 0.0})
    before = load_file(solo_run / "model" / "parties" / "silo-01.safetensors")
    torch.testing.assert_close(load_file(out / "model" / "backbone.safetensors"), before, rtol=0, atol=1e-6)
    export_model(solo_run, "safetensors", tmp_path / "exported", party="silo-01")
    assert tiny(model=model).digest() == tiny(model={"weights": str(tmp_path / "exported")}).digest()
    for party in (None, "silo-99"):
        with pytest.raises(RecipeError, match="silo-01") as error:
            tiny(model={**model, "party": party})
        assert error.value.where == "model.weights"


@pytest.mark.usefixtures("quick_workers")
def test_two_workers_start_from_them_too(tmp_path: Path, file: Path) -> None:
    models = [
        load_file(
            run(tmp_path / str(workers), model={"weights": str(file)}, engine={"workers": workers})
            / "model/backbone.safetensors"
        )
        for workers in (1, 2)
    ]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def test_the_digest_names_their_content_and_not_their_place(tmp_path: Path, file: Path) -> None:
    copy, other = tmp_path / "copy.pt", tmp_path / "other.pt"
    shutil.copy(file, copy)
    torch.save({name: tensor + 1 for name, tensor in torch.load(file).items()}, other)
    digests = [tiny(model={"weights": str(path)}).digest() for path in (file, copy, other)]
    assert digests[0] == digests[1] and len({*digests, tiny().digest()}) == 3
    inner = [
        tiny(pretrain={"method": "centralized", "rounds": 1, "model": {"weights": str(path)}}).digest()
        for path in (file, copy, other)
    ]
    assert inner[0] == inner[1] != inner[2]


def test_a_resume_needs_the_same_file(tmp_path: Path, file: Path) -> None:
    out = run(tmp_path / "b", model={"weights": str(file)})
    (out / "summary.json").unlink()
    moved = tmp_path / "moved.pt"
    file.rename(moved)
    with pytest.raises(RecipeError) as error:
        experiment.resume(out, Silent())
    assert error.value.where == "model.weights"
    experiment.resume(out, Silent(), changes=(f"model.weights={moved}",))
    torch.save({name: tensor + 1 for name, tensor in torch.load(moved).items()}, moved)
    (out / "summary.json").unlink()
    with pytest.raises(RecipeError, match="SHA-256") as error:
        experiment.resume(out, Silent(), changes=(f"model.weights={moved}",))
    assert error.value.where == "model.weights"


def test_weights_that_do_not_fit_stop_a_run_before_it_writes(tmp_path: Path, file: Path, fedavg_run: Path) -> None:
    for weights, name, where in ((file, "ir18", "model.weights"), (fedavg_run, "ir18", "model.name")):
        with pytest.raises(RecipeError) as error:
            run(tmp_path / "b", model={"weights": str(weights), "name": name})
        assert error.value.where == where
    with pytest.raises(RecipeError) as error:
        tiny(model={"weights": str(tmp_path / "none.pt")})
    assert error.value.where == "model.weights"
    assert not (tmp_path / "b").exists()


def test_weights_of_another_backbone_name_it(tmp_path: Path) -> None:
    weights = build("mobilefacenet-relu", size=32, channels=3, generator=generator(0, "weights"))
    torch.save(weights.state_dict(), tmp_path / "a.pt")
    teacher = {"teacher": str(tmp_path / "a.pt"), "backbone": "mobilefacenet", "size": 32}
    started = {"model": {"name": "mobilefacenet", "weights": teacher["teacher"]}, "data": {"grey": False}}
    for changes in (started, {"method": "distill", "methods": {"distill": teacher}}):
        with pytest.raises(RecipeError, match="it fits mobilefacenet-relu:") as error:
            run(tmp_path / "b", **changes)
        assert error.value.where == ("model.weights" if "model" in changes else "methods.distill.teacher")


@pytest.mark.parametrize("channels", [1, 3])
def test_weights_for_other_colours_name_the_setting(tmp_path: Path, channels: int) -> None:
    made = build("mobilefacenet-relu", size=32, channels=channels, generator=generator(0, "weights"))
    torch.save(made.state_dict(), tmp_path / "a.pt")
    grey, path = channels == 1, tmp_path / "a.pt"
    setting = f"set data.grey={str(grey).lower()} (in Python, grey={grey})"
    with pytest.raises(RecipeError) as error:
        run(tmp_path / "b", model={"name": "mobilefacenet", "weights": str(path)}, data={"grey": not grey})
    assert f"it fits mobilefacenet-relu: name that backbone, and {setting}" in str(error.value)
    with pytest.raises(RecipeError) as error:
        FaceModel.from_weights(path, "mobilefacenet-relu", size=32, grey=not grey)
    assert f"it fits mobilefacenet-relu: {setting}" in str(error.value)
    assert FaceModel.from_weights(path, "mobilefacenet-relu", size=32, grey=grey).grey == grey


def test_the_input_convention_travels_with_the_model(tmp_path: Path) -> None:
    first = run(tmp_path / "a", model={"input": CONVENTION}, data={"grey": True})
    about = json.loads((first / "model" / "model.json").read_text())
    assert about["channels"] == 1 and about["input"] == {**CONVENTION, "order": "rgb"}
    assert "\n- pixels: RGB, (x − 100) / 50; " in (first / "model" / "README.md").read_text()
    model = FaceModel.from_run(first)
    assert model.network.network.blocks[0].in_channels == 3
    model.save_pretrained(tmp_path / "copy")
    face = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 1), np.uint8)
    np.testing.assert_array_equal(FaceModel(tmp_path / "copy").embed(face), model.embed(face))
    recipe = tiny(model={"weights": str(tmp_path / "copy")}, data={"grey": True})
    assert recipe.model.input is not None and recipe.model.input.mean == 100.0
    second = run(
        tmp_path / "b",
        model={"weights": str(first)},
        data={"grey": True},
        rounds=1,
        local={"lr": 1e-30, "weight_decay": 0.0},
    )
    np.testing.assert_array_equal(FaceModel.from_run(second).embed(face), model.embed(face))
    with pytest.raises(RecipeError) as error:
        tiny(model={"weights": str(first), "input": {"mean": 3}}, data={"grey": True})
    assert error.value.where == "model.input"


def test_the_card_names_the_weights_and_the_teacher_and_no_folder_of_this_machine(tmp_path: Path, file: Path) -> None:
    faces = {"kind": "folder", "path": str(picture_folders(tmp_path / "faces", [f"P{i}" for i in range(8)]))}
    onnx = tmp_path / "teacher.onnx"
    onnx.write_bytes(linear_graph(np.random.default_rng(0).normal(size=(3 * 32 * 32, 128)).astype(np.float32), 32))
    pretrain = {"method": "distill", "teacher": str(onnx), "rounds": 1}
    for out, changes, sources in (
        ("weights", {"model": {"weights": str(file)}}, {"weights": file}),
        ("taught", {"pretrain": pretrain}, {"teacher": onnx}),
    ):
        run(tmp_path / out, rounds=1, data={"faces": faces, "hold_out": 4, "grey": True}, **changes)
        export_model(tmp_path / out, "safetensors", tmp_path / f"{out}-exported")
        for folder in (tmp_path / out / "model", tmp_path / f"{out}-exported"):
            card = (folder / "README.md").read_text("utf-8")
            for kind, source in sources.items():
                sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
                assert f"- {kind}: from `{source.name}`, SHA-256 {sha256}" in card
            assert "- data: folder faces;" in card and str(tmp_path) not in card and ", 1 round, " in card


def test_a_file_becomes_a_model_by_its_backbone_and_input(tmp_path: Path, file: Path, fedavg_run: Path) -> None:
    steps: list[str] = []
    grey = FaceModel.from_run(fedavg_run).grey
    model = FaceModel.from_weights(file, "cnn-small", size=32, grey=grey, note=steps.append)
    assert steps == ["takes away the prefix 'module.'"]
    face = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 1 if grey else 3), np.uint8)
    np.testing.assert_array_equal(model.embed(face), FaceModel.from_run(fedavg_run).embed(face))
    shifted = FaceModel.from_weights(file, "cnn-small", size=32, grey=grey, input={"mean": 3}, note=steps.append)
    shifted.save_pretrained(tmp_path / "shifted")
    np.testing.assert_array_equal(FaceModel(tmp_path / "shifted").embed(face), shifted.embed(face))


def test_nodes_of_a_federation_have_the_digest_and_need_no_file(tmp_path: Path, file: Path) -> None:
    recipe = write(tmp_path / "recipe.yaml", model={"weights": str(file)})
    whole = loader.load(recipe)
    project.new(tmp_path / "project", recipe)
    file.unlink()
    assert loader.load(tmp_path / "project" / "recipe.yaml").digest() == whole.digest()
    plain = tmp_path / "plain.yaml"
    plain.write_text("# as it was written\n" + yaml.safe_dump(TINY))
    project.new(tmp_path / "other", plain)
    assert (tmp_path / "other" / "recipe.yaml").read_text() == plain.read_text()
