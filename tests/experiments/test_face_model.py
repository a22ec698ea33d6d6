"""A run's model in Python: embeddings, similarities, figures, copies, and a transformer of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx_graphs import linear_graph
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from tinyruns import picture_folders

from coalface.core.errors import DataError, RecipeError
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation.feature_file import model_stamp
from coalface.evaluation.finished_model import evaluate_model
from coalface.experiments.api.face_embedder import FaceEmbedder
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.api.faces import load_faces
from coalface.experiments.recipe.sections import Synthetic

FACES = SyntheticFaces(10, 4, 5, size=32, grey=True).generate()


def test_embeddings_are_those_of_the_network_whatever_the_images_come_as(model: FaceModel, tmp_path: Path) -> None:
    images = FACES.pixels[:3]
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        expected = F.normalize(model((pixels.float() - 127.5) / 127.5)).numpy()
    cv2.imwrite(str(tmp_path / "a.png"), images[0])
    for faces in (images, pixels, list(images), pixels / 255, FACES.select(np.arange(3))):
        np.testing.assert_allclose(model.embed(faces), expected, atol=1e-5)
    for face in (images[0], pixels[0], str(tmp_path / "a.png"), [tmp_path / "a.png"]):
        np.testing.assert_allclose(model.embed(face), expected[:1], atol=1e-5)
    np.testing.assert_allclose(model.embed(images, batch=2), expected, atol=1e-5)
    assert model.embed([]).shape == (0, 128)
    assert model.similarity(images[0], pixels[1]) == pytest.approx(float(expected[0] @ expected[1]), abs=1e-5)
    np.testing.assert_allclose(model.similarity(images, images[:1]), expected @ expected[:1].T, atol=1e-5)


class Pictures:
    """A torch Dataset with attributes of its own, which are not what they are called elsewhere."""

    images = 40
    shape = "square"

    def __len__(self) -> int:
        return len(FACES)

    def __getitem__(self, i: int) -> tuple[NDArray[np.uint8], int]:
        return FACES.pixels[i], int(FACES.labels[i])


def test_every_form_that_load_faces_takes_is_embedded_compared_and_evaluated(model: FaceModel, tmp_path: Path) -> None:
    for person, pixels in zip(FACES.labels, FACES.pixels, strict=True):
        (folder := tmp_path / "faces" / f"P{person}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{len(list(folder.iterdir()))}.png"), pixels)
    loaded = load_faces(Pictures(), size=32, grey=True)
    source = Synthetic(identities=10, images=4, seed=5)
    drawn = load_faces(source, size=32, grey=True)
    forms = ((tmp_path / "faces", FACES), (loaded, FACES), (Pictures(), FACES), (source, drawn.images))
    for form, images in (*forms, (load_faces(source), drawn.images)):
        expected = model.embed(images.take(np.arange(40)))
        np.testing.assert_allclose(model.embed(form), expected, atol=1e-5)
        np.testing.assert_allclose(model.similarity(form, form), expected @ expected.T, atol=1e-5)
        assert model.evaluate(form, pairs=20)["pairs"] == 40
    figures = model.evaluate(FACES.pixels, labels=FACES.labels, pairs=20)
    assert model.evaluate(Pictures(), pairs=20) == figures
    for form in (tmp_path / "faces", source):
        with pytest.raises(RecipeError) as error:
            model.evaluate(form, labels=FACES.labels)
        assert error.value.where == "labels"


def test_figures_are_those_of_the_command_and_show_themselves(model: FaceModel, tmp_path: Path) -> None:
    faces = picture_folders(tmp_path / "faces", [f"P{i}" for i in range(8)])
    figures, expected = model.evaluate(faces, pairs=20), evaluate_model(model.folder, faces, pairs=20)
    assert figures == {key: value for key, value in expected.items() if key not in ("model", "on")}
    assert f"EER  {figures['eer']:.1f} %" in repr(figures) and "<td>40</td>" in figures._repr_html_()
    assert model.evaluate(FACES, pairs=10)["drawn"] == 10
    with pytest.raises(RecipeError) as error:
        model.evaluate(faces, images=faces)
    assert error.value.where == "images"
    with pytest.raises(DataError):
        model.embed(SyntheticFaces(2, 2, 5, size=48, grey=True).generate())


def test_a_saved_model_comes_back_with_the_same_bytes(model: FaceModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "first")
    again = FaceModel.from_pretrained(tmp_path / "first")
    again.save_pretrained(tmp_path / "second")
    for name in ("backbone.safetensors", "model.json", "README.md"):
        as_run = (model.folder / "model" / name).read_bytes()
        assert (tmp_path / "first" / name).read_bytes() == as_run == (tmp_path / "second" / name).read_bytes()
    with pytest.raises(RecipeError) as error:
        model.save_pretrained(tmp_path / "first")
    assert error.value.where == str(tmp_path / "first")


def test_what_was_trained_further_is_saved_and_evaluated(fedavg_run: Path, tmp_path: Path) -> None:
    model = FaceModel.from_run(fedavg_run)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(tmp_path / "further")
    again = FaceModel.from_pretrained(tmp_path / "further")
    np.testing.assert_array_equal(again.embed(FACES), model.embed(FACES))
    assert model.evaluate(FACES)["threshold@far=0.1"] == again.evaluate(FACES)["threshold@far=0.1"]
    assert not np.allclose(model.embed(FACES), FaceModel.from_run(fedavg_run).embed(FACES))


def test_a_party_has_a_model_of_its_own(solo_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="silo-00, silo-01"):
        FaceModel.from_run(solo_run)
    model = FaceModel.from_run(solo_run, party="silo-01")
    model.save_pretrained(tmp_path / "own")
    np.testing.assert_array_equal(FaceModel.from_pretrained(tmp_path / "own").embed(FACES), model.embed(FACES))
    weights = (solo_run / "model" / "parties" / "silo-01.safetensors").read_bytes()
    assert (tmp_path / "own" / "backbone.safetensors").read_bytes() == weights


def test_tensors_of_other_channels_than_the_models_are_refused(model: FaceModel) -> None:
    with pytest.raises(DataError, match=r"\(n, 1, 32, 32\)") as error:
        model(torch.zeros(2, 3, 32, 32))
    assert error.value.where == "images"


def test_the_embedder_is_a_transformer_of_scikit_learn(model: FaceModel, fedavg_run: Path) -> None:
    embedder = FaceEmbedder(str(fedavg_run), flip=True)
    assert clone(embedder).get_params() == {"model": str(fedavg_run), "flip": True}
    embeddings = embedder.fit(FACES.pixels).transform(FACES.pixels)
    np.testing.assert_array_equal(embeddings, model.embed(FACES.pixels, flip=True))
    assert embedder.get_feature_names_out()[-1] == "faceembedder127"
    pipeline = make_pipeline(FaceEmbedder(model), KNeighborsClassifier(1)).set_params(faceembedder__flip=True)
    assert pipeline.fit(FACES.pixels, FACES.labels).score(FACES.pixels, FACES.labels) == 1.0
    for check in ("no_attributes_set_in_init", "fit_score_takes_y", "set_params", "estimator_cloneable"):
        getattr(estimator_checks, f"check_{check}")("FaceEmbedder", FaceEmbedder(str(fedavg_run)))
    estimator_checks.check_parameters_default_constructible("FaceEmbedder", FaceEmbedder())
    estimator_checks.check_mixin_order("FaceEmbedder", FaceEmbedder())


@pytest.mark.slow
@pytest.mark.ci
def test_an_onnx_file_embeds_and_is_evaluated_as_it_is(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(3 * 32 * 32, 8)).astype(np.float32)
    (tmp_path / "a.onnx").write_bytes(linear_graph(matrix, 32))
    model = FaceModel.from_onnx(
        tmp_path / "a.onnx", size=32, grey=True, input={"mean": 100, "std": [1, 2, 4], "order": "bgr", "channels": 3}
    )
    pixels = (np.repeat(FACES.pixels.astype(np.float64), 3, axis=3) - 100) / (1, 2, 4)
    rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1) @ matrix
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(FACES), expected, atol=1e-5)
    assert model.evaluate(FACES, pairs=20)["pairs"] == 40
    with pytest.raises(RecipeError):
        model.save_pretrained(tmp_path / "copy")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.onnx").write_bytes((tmp_path / "a.onnx").read_bytes())
    assert FaceModel.opened(tmp_path / "exported").fingerprint == FaceModel.opened(tmp_path / "a.onnx").fingerprint
    by_command = FaceModel(tmp_path / "a.onnx", input={"mean": 100, "std": [1, 2, 4], "order": "bgr"})
    coloured = np.repeat(FACES.pixels, 3, axis=3)  # the graph says its size and its channels
    np.testing.assert_allclose(by_command.embed(list(coloured)), expected, atol=1e-5)
    other = FaceModel(tmp_path / "a.onnx")
    assert by_command.fingerprint != other.fingerprint
    (tmp_path / "c.onnx").write_bytes(linear_graph(matrix + 1, 32))
    networks = [opened.network for opened in (by_command, other, FaceModel(tmp_path / "c.onnx"))]
    assert len({model_stamp(network) for network in networks}) == 3
    for options in ({"party": "silo-00"}, {"input": {"std": 0}}):
        with pytest.raises(RecipeError):
            FaceModel(tmp_path / "a.onnx", **options)
    whole, detector = linear_graph(matrix, 32), linear_graph(matrix, 32, outputs="yz")
    for content, size in ((b"no graph", 32), (whole[:200], 32), (whole, 48), (detector, 32)):
        (tmp_path / "b.onnx").write_bytes(content)
        with pytest.raises(DataError) as error:
            FaceModel.from_onnx(tmp_path / "b.onnx", size=size)
        assert error.value.where == str(tmp_path / "b.onnx")
