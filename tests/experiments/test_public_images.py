"""Recipes whose parties share public images: who is public, and the class embeddings that a pre-training hands on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import naive
import pytest
from safetensors.torch import load_file
from tinyruns import Silent
from tinyruns import public_images as recipe

from coalface.core.errors import RecipeError
from coalface.data.cache import default_cache
from coalface.data.faceset import FaceSet
from coalface.experiments import model_folder
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods.fedfr_joint import FedFRJoint, State


def rows(faces: FaceSet | None) -> list[int]:
    assert faces is not None
    return faces.rows.tolist()


def handed_on(parsed: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[State, Silent]:
    """What a run begins with."""
    view = Silent()
    with monkeypatch.context() as patch:
        states = naive.watched(FedFRJoint, patch, "init")
        experiment.run(parsed, out, view, report=False)
    return states[-1], view


def kept() -> Path:
    """The pre-training in the cache that has class embeddings."""
    (place,) = {path.parent for path in (default_cache() / "pretrained").glob(f"*/{model_folder.CLASSIFIER}")}
    return place


@pytest.fixture(autouse=True)
def own_pretraining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache for this file."""
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path_factory.getbasetemp() / "public-images"))


# --- who is public ----------------------------------------------------------------------------------------------------


def test_public_private_and_evaluated_people_are_apart() -> None:
    parsed = recipe(data={"test": {"images": 2}})
    federated, train, held = Parts(parsed).data, splits.split(parsed).train, splits.split(parsed).held
    public, test = federated.public, splits.split(parsed).test
    assert public is not None and test is not None
    names = [set(public.names), set(train.names), set(held.names)]
    assert [len(people) for people in names] == [6, 6, 2] and len(set.union(*names)) == 14
    assert public.counts().tolist() == [5] * 6 and train.counts().tolist() == [3] * 6  # public people keep all images
    assert set(test.names) == set(train.names) and not set(rows(test)) & set(rows(train))
    assert sorted(name for client in federated.data.values() for name in client.names) == sorted(train.names)
    for client in federated.data.values():  # no image is copied where public ones are trained on beside a client's own
        assert public.beside(client).pixels is public.pixels


def test_they_are_those_that_the_pretraining_trains_on_in_its_order() -> None:
    for parsed in (
        recipe(),
        recipe(seed=3),
        recipe(data={"test": {"images": 1}, "min_images": 3, "max_identities": 4}),
    ):
        public, inner = Parts(parsed).public, splits.split(parsed.pretrain.recipe).train
        assert public is not None and public.names == inner.names
        assert rows(public) == rows(inner) and public.labels.tolist() == inner.labels.tolist()
    assert rows(Parts(recipe(seed=3)).public) == rows(Parts(recipe()).public)  # whatever the seed


def test_other_methods_hold_none() -> None:
    parsed = recipe(method="fedavg")
    assert Parts(parsed).public is None and Parts(parsed).data.public is None


def test_a_pooled_upper_bound_has_the_same_test_images() -> None:
    """Public people are nobody's clients: all their images are trained on, and none of them is a test image."""
    test = {"test": {"images": 2}}
    apart, pooled = recipe(data=test), recipe(method="centralized", pretrain=None, data={**test, "side": "both"})
    private, bound = splits.split(apart).test, splits.split(pooled).test
    assert sorted(rows(private)) == sorted(rows(bound))
    assert private is not None and bound is not None
    public_people = [{faces.names[label] for label in faces.labels} for faces in (private, bound)]
    assert public_people[0] == public_people[1] and len(public_people[0]) == 6
    train, public = splits.split(pooled).train, Parts(apart).public
    assert sorted(rows(train)) == sorted(rows(splits.split(apart).train) + rows(public))
    clients = {name: sorted(faces.names) for name, faces in Parts(pooled).clients.items()}
    assert clients == {name: sorted(f.names) for name, f in Parts(apart).data.data.items()}


# --- what the pre-training hands on -----------------------------------------------------------------------------------


def test_a_run_begins_with_the_model_and_the_class_embeddings_of_the_pretraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, view = handed_on(recipe(), tmp_path / "one", monkeypatch)
    classifier = load_file(kept() / model_folder.CLASSIFIER)
    assert list(classifier) == ["class_embeddings"] and classifier["class_embeddings"].equal(state.classifier)
    assert state.classifier.shape[0] == 6 and float(state.classifier.std()) > 0.011  # trained, from 0.01 on
    model = load_file(kept() / "model" / "backbone.safetensors")
    assert all(state.backbone[name].equal(tensor) for name, tensor in model.items()) and model.keys() == {
        *state.backbone
    }
    assert any("pre-training" in note for note in view.notes)
    # Class embeddings are no part of the model that is given on, and a run whose parties are private leaves none.
    assert not (tmp_path / "one" / model_folder.CLASSIFIER).exists()
    assert not (kept() / "model" / model_folder.CLASSIFIER).exists()


def test_other_people_are_another_pretraining() -> None:
    """The class embeddings of a pre-training are never those of other people: it is looked up by its images."""
    recipes = [recipe(), recipe(data={"scenario": "private-public", "private": {"identities": 5}})]
    assert Parts(recipes[0].pretrain.recipe).content != Parts(recipes[1].pretrain.recipe).content


def test_without_a_pretraining_they_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = handed_on(recipe(pretrain=None, rounds=1), tmp_path / "run", monkeypatch)
    assert state.classifier.shape[0] == 6 and 0.008 < float(state.classifier.std()) < 0.012


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pretrain": {"method": "fedavg", "rounds": 1}}, "pretrain: .* and 'fedavg' leaves none, or trains on others"),
        ({"pretrain": {"data": {"max_identities": 4}}}, "pretrain: .* and 'centralized' leaves none, or trains on oth"),
        ({"data": {"scenario": "silos"}}, "data.scenario: "),
        ({"data": {"side": "both"}}, "data.side: "),
        ({"data": {"side": "public"}, "pretrain": None}, "data.side: "),
        ({"engine": {"processes_per_party": {"silo-00": 2}}}, "engine.processes_per_party.silo-00: "),
        (
            {"data": {"test": {"images": 2}, "partition": {"parties": 1}}, "evaluation": {"personalised": {}}},
            "evaluation.personalised: ",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anybody_trains(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=says):
        experiment.run(recipe(**changes), tmp_path / "run", Silent(), report=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epochs", [{}, {"local": {"epochs": 4}}])
def test_a_preset_is_taken_by_a_recipe_that_leaves_the_epochs_out(epochs: dict[str, Any]) -> None:
    parsed = recipe(**loader.merged({"methods": {"fedfr-joint": {"preset": "official"}}}, epochs)).build_method()
    assert isinstance(parsed, FedFRJoint) and parsed.detail("epochs") == (10, 8, 6, 4)
    changes = {"methods": {"fedfr-joint": {"preset": "official"}}, "local": {"epochs": 3}}
    with pytest.raises(RecipeError, match="local.epochs is 3, and preset=official would put"):
        recipe(**changes).build_method()


def test_the_command_counts_the_class_embeddings(tmp_path: Path) -> None:
    """Φ goes down and up with the backbone: 6 rows of float32."""
    out = tmp_path / "run"
    experiment.run(recipe(), out, Silent(), report=False)
    summary = json.loads((out / "summary.json").read_text())
    size = first_backbone(recipe()).embedding_size
    sent = {(m["field"], m["direction"]): m["bytes"] for m in summary["messages"]}
    assert sent["classifier", "down"] == sent["classifier", "up"] == 6 * size * 4
    assert {m["field"] for m in summary["messages"] if m["direction"] == "up"} == {
        "header", "backbone", "classifier", "images", "loss",
    }  # fmt: skip
