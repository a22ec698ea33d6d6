"""A model in the formats of others gives the same embeddings there; its card says what it is and where it errs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import test_export_client
import torch
import yaml
from cases import by_default
from commands import said
from tinyruns import Silent, picture_folders, tiny

from coalface.core.errors import DataError, RecipeError
from coalface.core.method import generator
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation.finished_model import evaluate_model
from coalface.experiments import model_folder
from coalface.experiments import run as experiment
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.export.client import export_client
from coalface.experiments.export.model import export_model
from coalface.experiments.report import runs
from coalface.models import Backbone, build
from coalface.models.folder import save, write_about
from coalface.models.pretrained.weights import read_weights

FACES = SyntheticFaces(4, 3, 7, size=32, grey=True).generate().pixels


def untrained(folder: Path, name: str, size: int = 112) -> FaceModel:
    """A model's folder, of weights as they are drawn."""
    recipe = tiny(model={"name": name}, data={"size": size, "grey": False})
    backbone = build(name, size=size, channels=3, generator=generator(1, "test"))
    folder.mkdir()
    save(Backbone(backbone).shared(), folder / "backbone.safetensors")
    write_about(folder, model_folder.built(recipe))
    return FaceModel(folder)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("uint8", by_default(1, [True, False]))
def test_an_onnx_file_gives_the_models_embeddings(uint8: bool, fedavg_run: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    words = ["export", fedavg_run, "--to", "onnx", "--out", tmp_path / "out", *(["--uint8"] if uint8 else []), "--json"]
    assert json.loads(said(*words))["parity"] < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    inputs = FACES if uint8 else ((FACES.astype(np.float32) - 127.5) / 127.5).transpose(0, 3, 1, 2)
    model = FaceModel.from_run(fedavg_run)
    for images, faces in ((inputs, FACES), (inputs[:1], FACES[:1])):
        (embeddings,) = session.run(["embeddings"], {"images": images})
        np.testing.assert_allclose(embeddings, model.embed(faces), atol=1e-4)
    if not uint8:  # OpenCV takes one image at a time
        network = cv2.dnn.readNetFromONNX(str(tmp_path / "out" / "model.onnx"))
        network.setInput(np.ascontiguousarray(inputs[:1]))
        np.testing.assert_allclose(network.forward().reshape(1, -1), model.embed(FACES[:1]), atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["coalface"])
    assert about["model"] == model.fingerprint and about["input"] == ("uint8" if uint8 else "float32")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "calibration.json", "model.onnx"]


@pytest.mark.parametrize("name", by_default(0, ["vit-tiny", "mobilefacenet", "ir18", "sphere20", "feduv-cnn"]))
def test_every_kind_of_backbone_goes_to_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    untrained(tmp_path / "model", name)
    parity = export_model(tmp_path / "model", "onnx", tmp_path / "out").parity
    assert parity is not None and parity < 1e-4


def test_safetensors_and_torch_are_read_back(fedavg_run: Path, tmp_path: Path) -> None:
    model = FaceModel.from_run(fedavg_run)
    export_model(fedavg_run, "safetensors", tmp_path / "safetensors")
    again = FaceModel(tmp_path / "safetensors")
    assert again.fingerprint == model.fingerprint and again.thresholds == model.thresholds != []
    np.testing.assert_array_equal(again.embed(FACES), model.embed(FACES))
    export_model(fedavg_run, "torch", tmp_path / "torch")
    tensors = torch.load(tmp_path / "torch" / "model.pt", weights_only=True)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in Backbone(model.network).shared().items())
    assert FaceModel(tmp_path / "torch").fingerprint == model.fingerprint


@pytest.mark.slow
@pytest.mark.ci
def test_who_names_the_wrong_one_of_file_and_folder_is_told_the_right_one(fedavg_run: Path, tmp_path: Path) -> None:
    export_model(fedavg_run, "torch", tmp_path / "out")
    with pytest.raises(DataError, match=f"name its folder, {tmp_path / 'out'}$"):
        FaceModel(tmp_path / "out" / "model.pt")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "model.onnx").touch()
    with pytest.raises(FileNotFoundError, match=f"name the ONNX file, {tmp_path / 'graph' / 'model.onnx'}$"):
        FaceModel(tmp_path / "graph")


@pytest.mark.slow
@pytest.mark.ci
def test_insightface_takes_its_own_networks_alone(fedavg_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        export_model(fedavg_run, "insightface", tmp_path / "out")
    assert error.value.where == "--to" and list(tmp_path.iterdir()) == []
    assert "cnn-small" in str(error.value) and str(tmp_path) not in str(error.value)
    model = untrained(tmp_path / "model", "ir18")
    export_model(tmp_path / "model", "insightface", tmp_path / "out")
    listed = json.loads((Path(__file__).parents[1] / "models" / "iresnet_names.json").read_text())["18"]
    tensors = torch.load(tmp_path / "out" / "backbone.pth", weights_only=True)
    assert [f"{name} {str(t.dtype)[6:]} {list(t.shape)}" for name, t in tensors.items()] == listed
    assert all(torch.equal(tensor, model.network.state_dict()[name]) for name, tensor in tensors.items())
    faces = picture_folders(tmp_path / "faces", ["a", "b"])
    figures = []
    for place in (tmp_path / "model", tmp_path / "out"):
        figures.append(json.loads(said("evaluate", place, "--on", faces, "--pairs", "10", "--json")))
    assert figures[0]["eer"] == figures[1]["eer"] and figures[1]["model"] == str(tmp_path / "out")
    again = FaceModel.from_weights(tmp_path / "out" / "backbone.pth", "ir18", size=112, note=lambda step: None)
    assert again.fingerprint == model.fingerprint


def test_a_partys_own_model_and_a_personalised_one_are_exported(solo_run: Path, tmp_path: Path) -> None:
    export_model(solo_run, "safetensors", tmp_path / "own", party="silo-01")
    own = FaceModel.from_run(solo_run, party="silo-01")
    np.testing.assert_array_equal(FaceModel(tmp_path / "own").embed(FACES), own.embed(FACES))
    judged = json.loads((solo_run / "summary.json").read_text())["parties"][1]["judged"]["unseen"]["accuracy"]
    assert f"| unseen | accuracy | {judged:.2f} % |" in (tmp_path / "own" / "README.md").read_text()
    run = experiment.run(test_export_client.recipe(), tmp_path / "run", Silent(), report=False)
    export_client(run, "silo-00", tmp_path / "client")
    export_model(run, "safetensors", tmp_path / "personal", party="silo-00")
    assert FaceModel(tmp_path / "personal").fingerprint == FaceModel(tmp_path / "client").fingerprint
    assert read_weights(tmp_path / "personal").steps == ("leaves out the branch of a personalised model",)
    assert FaceModel.from_run(run).fingerprint != FaceModel(tmp_path / "client").fingerprint
    assert "No figure is known" in (tmp_path / "personal" / "README.md").read_text()


def test_the_card_has_the_hubs_front_matter_and_the_runs_figures(fedavg_run: Path, tmp_path: Path) -> None:
    export_model(fedavg_run, "safetensors", tmp_path / "out", licence="cc-by-nc-4.0")
    _, matter, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    front = yaml.safe_load(matter)
    figures = json.loads((fedavg_run / "summary.json").read_text())["figures"]["unseen"]
    metrics = {metric["type"]: metric["value"] for metric in front["model-index"][0]["results"][0]["metrics"]}
    assert front["license"] == "cc-by-nc-4.0" and metrics["accuracy"] == pytest.approx(figures["accuracy"], abs=1e-3)
    (row,) = [line for line in text.splitlines() if line.startswith("| unseen | accuracy |")]
    _, _, _, value, interval, _ = (cell.strip() for cell in row.split("|"))
    low, high, value = (float(share.removesuffix(" %")) for share in (*interval.split(" to "), value))
    assert low <= value <= high and low < high
    threshold = FaceModel.from_run(fedavg_run).threshold(0.1)
    assert f"| {threshold.cosine:.6f} | 0.1 | unseen |" in text and "carry none below 0.1." in text
    for word in ("- method: fedavg", "Intended:", "Forbidden:", FaceModel.from_run(fedavg_run).fingerprint):
        assert word in text


@pytest.mark.slow
@pytest.mark.ci
def test_an_exported_model_is_evaluated_as_its_run(fedavg_run: Path, tmp_path: Path) -> None:
    faces = picture_folders(tmp_path / "faces", [f"P{i}" for i in range(8)])
    export_model(fedavg_run, "safetensors", tmp_path / "out")
    expected = evaluate_model(fedavg_run, faces, pairs=20)
    assert evaluate_model(tmp_path / "out", faces, pairs=20)["eer"] == expected["eer"]
    pytest.importorskip("onnxruntime")
    export_model(fedavg_run, "onnx", tmp_path / "onnx", uint8=True)
    path = tmp_path / "onnx" / "model.onnx"
    figures = json.loads(said("evaluate", path, "--on", faces, "--pairs", "20", "--json"))
    for name in ("accuracy", "eer", "threshold@far=0.1"):
        assert figures[name] == pytest.approx(expected[name], abs=1e-4)
    assert figures["file"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert figures["input"] == {"mean": 0.0, "std": 1.0, "order": "rgb", "channels": 1}
    model = FaceModel(path)
    assert model.thresholds == FaceModel.from_run(fedavg_run).thresholds != []
    np.testing.assert_allclose(model.embed(FACES), FaceModel.from_run(fedavg_run).embed(FACES), atol=1e-4)


def test_the_card_of_imported_weights_says_what_is_known_of_them(fedavg_run: Path, tmp_path: Path) -> None:
    export_model(fedavg_run, "torch", tmp_path / "torch")
    file = Path(shutil.copy(tmp_path / "torch" / "model.pt", tmp_path / "theirs.pt"))
    model = FaceModel.from_weights(file, "cnn-small", size=32, grey=True, note=lambda step: None)
    with pytest.raises(
        DataError, match="or any other FAR: `save_pretrained` writes a folder FOLDER of it, and .*evaluate FOLDER"
    ):
        model.threshold()
    model.save_pretrained(tmp_path / "model")
    faces = picture_folders(tmp_path / "faces", [f"P{i}" for i in range(8)])
    figures = json.loads(said("evaluate", tmp_path / "model", "--on", faces, "--pairs", "20", "--calibrate", "--json"))
    export_model(tmp_path / "model", "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    for word in ("theirs.pt", hashlib.sha256(file.read_bytes()).hexdigest(), "training data not known"):
        assert word in card
    assert f"| faces | accuracy | {figures['accuracy']:.2f} % |\n" in card and "interval" not in card
    assert "federated-learning" not in card and "No figure is known" not in card
    assert FaceModel(tmp_path / "out").measured["faces"]["eer"] == figures["eer"]
    with pytest.raises(DataError, match=r"those for FAR 0.1 \(--far 0.1\): .*--threshold"):
        FaceModel(tmp_path / "out").threshold(1e-5)
    (tmp_path / "out" / "figures.json").write_text(json.dumps({"00": {"faces": {"eer": "none"}}}))
    with pytest.raises(DataError, match="damaged: delete it, and calibrate the model again"):
        FaceModel(tmp_path / "out").measured  # noqa: B018


def test_a_file_of_weights_becomes_a_models_folder(fedavg_run: Path, tmp_path: Path) -> None:
    export_model(fedavg_run, "torch", tmp_path / "torch")
    file = shutil.copy(tmp_path / "torch" / "model.pt", tmp_path / "theirs.pt")
    with pytest.raises(DataError, match="coalface export .*theirs.pt --backbone NAME --to safetensors"):
        FaceModel(file)
    words = ["export", file, "--backbone", "cnn-small", "--size", "32", "--input", "{channels: 1, mean: 100}"]
    said(*words, "--to", "safetensors", "--out", tmp_path / "out")
    expected = FaceModel.from_weights(file, "cnn-small", size=32, grey=True, input={"channels": 1, "mean": 100})
    np.testing.assert_array_equal(FaceModel(tmp_path / "out").embed(FACES), expected.embed(FACES))
    assert "(n, 1, 32, 32), grey, (x − 100) / 127.5" in (tmp_path / "out" / "README.md").read_text("utf-8")
    with pytest.raises(RecipeError) as error:
        export_model(fedavg_run, "safetensors", tmp_path / "again", backbone="cnn-small")
    assert error.value.where == "--backbone"


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("summary.json", {"name": []}),
        ("summary.json", {"figures": 5}),
        ("summary.json", {"figures": {"unseen": 5, "others": {"eer": None, "accuracy": [1]}}}),
        ("model/calibration.json", {"on": "\ud800"}),
        ("model/calibration.json", {"rate": None}),
    ],
)
def test_a_card_leaves_out_what_is_no_figure(name: str, odd: dict[str, Any], fedavg_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(fedavg_run, tmp_path / "run")
    (run / runs.DIGESTS).unlink()
    kept = json.loads((run / name).read_text())
    if name == "summary.json":
        kept |= odd
    else:
        kept = {model: [threshold | odd for threshold in chosen] for model, chosen in kept.items()}
    (run / name).write_text(json.dumps(kept))
    export_model(run, "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert ("| unseen | accuracy |" in card) == ("figures" not in odd)
    assert ("No threshold is known" in card) == ("rate" in odd) and (r"\ud800" in card) == ("on" in odd)
