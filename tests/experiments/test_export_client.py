"""A client's own model by itself: what is written, that it is the client's, and what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import said
from PIL import Image
from safetensors.torch import load_file
from tinyruns import Normed, Silent, tiny
from torch.nn import functional as F

from coalface.core.codec import decode
from coalface.core.errors import DataError, RecipeError
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.engine.party.commits import Commit
from coalface.evaluation.finished_model import read_model
from coalface.experiments import run as experiment
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.export.client import GALLERY, export_client
from coalface.experiments.gallery.gallery import Gallery
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods.fedfr_joint import Own
from coalface.models import BACKBONES


def recipe(**changes: Any) -> Recipe:
    """Two silos of two people of eight, four of whom are public."""
    tree = {
        "method": "fedfr-joint",
        "data": {"scenario": "private-public", "private": {"identities": 4}, "partition": {"parties": 2}},
    }
    return loader.parse(loader.merged(loader.merged(tiny().model_dump(mode="json"), tree), changes))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return experiment.run(recipe(), tmp_path_factory.mktemp("export") / "run", Silent(), report=False)


@pytest.fixture(scope="module")
def own_batchnorm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run whose BatchNorm has stayed at the clients; its features lie further apart than those of `ran`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES.own, "normed", Normed)
        normed = recipe(model={"name": "normed", "batchnorm": "local"})
        yield experiment.run(normed, tmp_path_factory.mktemp("export") / "normed", Silent(), report=False)


@pytest.fixture(params=["ran", "own_batchnorm"])
def either(request: pytest.FixtureRequest) -> Path:
    """Each of the two in its turn."""
    return Path(request.getfixturevalue(request.param))


def own_state(run: Path, party: str) -> Own:
    (commit,) = (run / "parties" / party).glob("*.commit")
    stored = Commit.open(commit).read("Own")
    assert stored is not None
    return decode(stored, Own)


def features(run: Path, model: dict[str, torch.Tensor], faces: FaceSet) -> np.ndarray[Any, Any]:
    """Unit features by the tensors of a model, made by hand."""
    backbone = first_backbone(loader.load(run / "config.yaml"))
    backbone.load(*({name: model[name] for name in group} for group in (backbone.shared(), backbone.kept())))
    with torch.no_grad():
        embedded = backbone.module.eval()(to_tensor(faces.take(np.arange(len(faces)))))
        return F.normalize(F.linear(embedded, model["branch.weight"], model["branch.bias"])).numpy()


def test_it_holds_the_clients_last_model_its_branch_and_the_means_of_its_people(either: Path, tmp_path: Path) -> None:
    place = export_client(either, "silo-01", tmp_path / "own")
    state, exported = own_state(either, "silo-01"), load_file(place / "backbone.safetensors")
    assert torch.equal(exported["branch.weight"], state.branch["turn"]) and not torch.equal(
        state.branch["turn"], torch.eye(len(state.branch["turn"]))
    )
    client_tensors = {**state.model, **state.kept}
    assert all(torch.equal(exported[name], tensor) for name, tensor in client_tensors.items())
    assert set(exported) == {*client_tensors, "branch.weight", "branch.bias"}  # nothing else of what the client keeps
    untrained = first_backbone(loader.load(either / "config.yaml")).kept()
    assert state.kept.keys() == untrained.keys() and bool(untrained) == (either.name == "normed")
    assert not any(torch.equal(exported[name], tensor) for name, tensor in untrained.items())
    faces = Parts(recipe()).data.data["silo-01"]
    by_hand = features(either, exported, faces)
    about = json.loads((place / "model.json").read_text())
    people, templates = Gallery(place / GALLERY).templates()
    order = np.argsort(faces.names)
    assert people == [faces.names[i] for i in order] and about["party"] == "silo-01"
    means = np.stack([by_hand[faces.labels == number].mean(axis=0) for number in range(len(faces.names))])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    assert either.name == "run" or lengths.max() < 0.999  # a template is none of those that keep the mean's length
    np.testing.assert_allclose(templates, (means / lengths)[order], rtol=0, atol=1e-6)


def test_thresholds_admit_as_many_strangers_as_they_say(either: Path, tmp_path: Path) -> None:
    place = export_client(either, "silo-00", tmp_path / "own")
    gallery, public = Gallery(place / GALLERY), Parts(recipe()).data.public
    assert public is not None
    (threshold,) = gallery.thresholds  # too few strangers for one in a hundred
    assert (threshold.kind, threshold.rate) == ("FPIR", 0.1) and threshold.count == len(public) > 10
    scores = features(either, load_file(place / "backbone.safetensors"), public)
    best = (scores @ gallery.templates()[1].T).max(axis=1)
    # The same arithmetic as the export's, to the last bit: the stranger who comes next may lie just below.
    assert (best >= np.float32(threshold.cosine)).sum() == len(public) // 10


def test_it_is_read_as_a_model_and_its_gallery_looks_people_up(either: Path, tmp_path: Path) -> None:
    place = export_client(either, "silo-00", tmp_path / "own")
    faces = Parts(recipe()).data.data["silo-00"]
    folder = tmp_path / "images"
    for number in range(len(faces)):
        identity_folder = folder / faces.names[faces.labels[number]]
        identity_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(faces.take(np.array([number]))[0, :, :, 0]).save(identity_folder / f"{number}.png")
    with torch.no_grad():
        by_model = F.normalize(read_model(place)[0].module.eval()(to_tensor(faces.take(np.arange(len(faces))))))
    np.testing.assert_allclose(
        by_model.numpy(), features(either, load_file(place / "backbone.safetensors"), faces), atol=1e-5
    )
    gallery = Gallery(place / GALLERY, FaceModel(place))
    matches = {Path(match.file).stem: match for match in gallery.identify(folder, fpir=0.1).matches}
    assert len(matches) == len(faces)
    people, templates = gallery.templates()
    for number in range(len(faces)):
        cosines = templates @ by_model[number].numpy()
        match = matches[str(number)]
        assert match.person == people[int(cosines.argmax())] and abs(match.similarity - cosines.max()) < 1e-5
        assert match.accepted == (match.similarity >= gallery.thresholds[0].cosine)
    identified = json.loads(said("gallery", "identify", place / GALLERY, folder, "--fpir", "0.1", "--json"))
    assert len(identified["matches"]) == len(faces)
    with pytest.raises(DataError) as error:
        gallery.identify(folder, fpir=0.001)
    assert error.value.where == str(place / GALLERY)


@pytest.mark.parametrize(
    ("party", "message"), [("silo-7", "--party: 'silo-7' is not known"), ("silo-00", "already exists")]
)
def test_what_it_cannot_write_it_refuses(ran: Path, tmp_path: Path, party: str, message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    out = tmp_path / ("full" if party == "silo-00" else "own")
    with pytest.raises(RecipeError, match=message):
        export_client(ran, party, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert (tmp_path / "full" / "mine").read_text() == "kept"


def test_a_run_without_own_models_has_none_to_export(fedavg_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        export_client(fedavg_run, "silo-00", tmp_path / "own")
    assert error.value.where == str(fedavg_run) and f"export {fedavg_run} --to onnx" in error.value.text


def test_a_client_that_no_round_has_drawn_has_none(tmp_path: Path) -> None:
    few = recipe(rounds=1, methods={"fedfr-joint": {"sample": 1}})
    run = experiment.run(few, tmp_path / "run", Silent(), report=False)
    (left_out,) = {"silo-00", "silo-01"} - {path.name for path in (run / "parties").iterdir()}
    with pytest.raises(RecipeError, match=f"--party: {left_out} took part in no round"):
        export_client(run, left_out, tmp_path / "own")
    (run / "summary.json").unlink()
    with pytest.raises(RecipeError, match=f"{left_out} has not trained yet.*coalface resume"):
        export_client(run, left_out, tmp_path / "own")
