"""The lab's evaluation of how each client's own people are served, against the protocols on embeddings made here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tinyruns import EVALUATED, Normed, Silent, tiny
from tinyruns import public_images as recipe

from coalface.core.method import Models, Tensors
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.evaluation import personalised
from coalface.evaluation.metrics.personalised import evaluate_client, over_clients
from coalface.experiments import run as experiment
from coalface.experiments.recipe import sections
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report import page
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods import solo
from coalface.methods.ditto import TwoModels
from coalface.methods.fedfr_joint import Own
from coalface.models import BACKBONES

PAIRS = {"genuine": 2, "impostors": 32}


def evaluated_run(tiny_recipe: Recipe, out: Path) -> dict[str, Any]:
    """What the run's summary says of its clients' own people."""
    experiment.run(tiny_recipe, out, Silent(), report=False)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())["personalised"]
    return summary


class Hand:
    """Embeddings by a network of the recipe's, and the protocols on them."""

    def __init__(self, tiny_recipe: Recipe) -> None:
        self.recipe, test = tiny_recipe, splits.split(tiny_recipe).test
        assert test is not None
        self.test: FaceSet = test
        self.clients = Parts(tiny_recipe).clients
        self.start = first_backbone(tiny_recipe).module.state_dict()
        self.whose = {name: party for party, faces in self.clients.items() for name in faces.names}

    def unit(self, model: Tensors, faces: FaceSet) -> NDArray[np.float32]:
        """(n, d), mapped by Π where the model has one."""
        module = first_backbone(self.recipe).module
        module.load_state_dict({**self.start, **{n: t for n, t in model.items() if not n.startswith("branch.")}})
        with torch.no_grad():
            rows = module.eval()(to_tensor(faces.take(np.arange(len(faces)))))
            if "branch.weight" in model:
                rows = torch.stack([model["branch.weight"] @ row + model["branch.bias"] for row in rows])
        return np.stack([(row / row.norm()).numpy() for row in rows])

    def evaluated(self, models: Mapping[str, Tensors], **modes: Any) -> tuple[dict[str, float], dict[str, int]]:
        """The means over the clients, each by its model, and how many carry them."""
        names, by_client = [self.test.names[label] for label in self.test.labels], []
        numbers = {name: number for number, name in enumerate(sorted(self.whose))}
        identities = np.array([numbers[name] for name in names])
        order = sorted(self.clients)
        clients = np.array([order.index(self.whose[name]) for name in names])
        for party, model in models.items():
            own_faces = self.clients[party]
            features = self.unit(model, own_faces)
            gallery = []
            for number in range(len(own_faces.names)):
                mean = features[own_faces.labels == number].astype(np.float64).mean(0)
                gallery.append(mean if modes.get("one_to_many") == "official" else mean / np.linalg.norm(mean))
            by_client.append(
                evaluate_client(
                    self.unit(model, self.test),
                    identities,
                    clients,
                    order.index(party),
                    np.stack(gallery).astype(np.float32),
                    np.array([numbers[name] for name in own_faces.names]),
                    fars=(0.1, 0.5),
                    fpirs=(0.25,),
                    **modes,
                )
            )
        return over_clients(by_client)


def own_models(folder: Path, tiny_recipe: Recipe, *, branch: bool) -> dict[str, Tensors]:
    """What the clients of a run keep."""
    models = {}
    for party in sorted(Parts(tiny_recipe).clients):
        kept = naive.kept(folder, party, Own)
        models[party] = {**kept.model, **kept.kept}
        if branch:
            models[party] |= {"branch.weight": kept.branch["turn"], "branch.bias": kept.branch["shift"]}
    return models


def test_a_runs_figures_are_those_of_the_protocols(tmp_path: Path) -> None:
    tiny_recipe = recipe(**EVALUATED)
    summary, hand = evaluated_run(tiny_recipe, tmp_path / "run"), Hand(tiny_recipe)
    shared = load_file(tmp_path / "run" / "model" / "backbone.safetensors")
    by_kind = {
        "start": dict.fromkeys(hand.clients, hand.start),
        "shared": dict.fromkeys(hand.clients, shared),
        "own": own_models(tmp_path / "run", tiny_recipe, branch=False),
        "branch": own_models(tmp_path / "run", tiny_recipe, branch=True),
    }
    assert set(summary) == {*by_kind, "clients", "trials", "counts"}
    for kind, models in by_kind.items():
        means, carried = hand.evaluated(models)
        assert summary[kind] == pytest.approx(means) and len(summary[kind]) == 3
        assert summary["trials"][kind] == {"clients": 3, "carried": carried}
        for party, model in models.items():
            assert summary["clients"][party][kind] == pytest.approx(hand.evaluated({party: model})[0])
    assert summary["counts"] == dict.fromkeys(hand.clients, {**PAIRS, "mated": 4, "non-mated": 8})
    assert len({json.dumps(summary["clients"][p]) for p in summary["clients"]}) > 1
    html = page.build(tmp_path / "run").read_text()
    assert "3 clients; each has 2 genuine and 32 impostor pairs, 4 mated and 8 non-mated probes." in html
    assert list(personalised.by_kind(summary)) == ["start", "shared", "own", "branch"]


@pytest.mark.parametrize("one_to_many", ["legacy", "official"])
def test_models_that_a_run_does_not_leave_are_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_to_many: str
) -> None:
    """Without a branch there is none; with BatchNorm kept at the clients, everybody's model is another at each."""
    monkeypatch.setitem(BACKBONES.own, "normed", Normed)
    settings = {"one_to_one": "official", "one_to_many": one_to_many, "fars": [0.1, 0.5], "fpirs": [0.25]}
    changes = {**EVALUATED, "model": {"name": "normed", "batchnorm": "local"}, "evaluation": {"personalised": settings}}
    tiny_recipe = recipe(**changes, methods={"fedfr-joint": {"branch": "none"}})
    summary, hand = evaluated_run(tiny_recipe, tmp_path / "run"), Hand(tiny_recipe)
    assert set(summary) == {"start", "shared", "own", "clients", "trials", "counts"}
    left = {path.stem: load_file(path) for path in (tmp_path / "run" / "model" / "parties").iterdir()}
    by_kind = {"own": own_models(tmp_path / "run", tiny_recipe, branch=False), "shared": left}
    for kind, models in by_kind.items():
        expected = hand.evaluated(models, one_to_one="official", one_to_many=one_to_many)[0]
        assert summary[kind] == pytest.approx(expected) and all("official" in n or one_to_many in n for n in expected)
    assert summary["own"] != summary["shared"] and left.keys() == hand.clients.keys()
    assert {of["impostors"] for of in summary["counts"].values()} == {32 + 4}


@pytest.mark.parametrize(
    ("method", "batchnorm", "kinds"),
    [
        ("ditto", "average", {"shared", "own"}),
        ("fedrep", "average", {"shared", "own"}),
        ("fedbabu", "average", {"shared", "own"}),
        ("ditto", "local", {"shared", "own"}),
        ("fedbabu", "local", {"shared", "own"}),
        ("solo", "average", {"own"}),
        ("fedavg", "local", {"own"}),
        ("fedavg", "average", {"shared"}),
    ],
)
def test_silos_are_evaluated_by_what_a_method_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, batchnorm: str, kinds: set[str]
) -> None:
    """No image is public here; `solo` and FedBN leave a client's own model alone, and it is evaluated as such."""
    monkeypatch.setitem(BACKBONES.own, "normed", Normed)
    tiny_recipe = tiny(
        method=method,
        model={"name": "normed", "batchnorm": batchnorm},
        data={"test": {"images": 2}, "partition": {"parties": 3}, "faces": {"identities": 13}},
        evaluation={"personalised": {"fars": [0.1, 0.5], "fpirs": [0.25]}},
    )
    summary, hand = evaluated_run(tiny_recipe, tmp_path / "run"), Hand(tiny_recipe)
    assert set(summary) == {"start", "clients", "trials", "counts"} | kinds
    parties = sorted(hand.clients)
    models = {}
    for party in parties if method != "fedavg" else ():
        two = naive.kept(tmp_path / "run", party, TwoModels)
        own = two.personal if two else naive.kept(tmp_path / "run", party, solo.Own)
        models[party] = {**own.backbone, **own.kept}
    folder = tmp_path / "run" / "model"
    left = {path.stem: load_file(path) for path in folder.glob("parties/*.safetensors")}
    shared = left or dict.fromkeys(parties, load_file(folder / "backbone.safetensors"))
    expected = {"own": models or left, "shared": shared}
    for kind in kinds:
        assert summary[kind] == pytest.approx(hand.evaluated(expected[kind])[0])
    if len(kinds) == 2:
        assert max(naive.furthest(models[party], shared[party]) for party in parties) > 1e-3
    html = page.build(tmp_path / "run").read_text()
    assert ("its own backbone" in html) is ("own" in kinds)


def test_a_pooled_run_is_evaluated_for_the_clients_of_the_partition(tmp_path: Path) -> None:
    """Public people, whom it trains on as well, are neither clients nor impostors."""
    tiny_recipe = recipe(**EVALUATED, method="centralized")
    both_sides = tiny_recipe.model_copy(update={"data": tiny_recipe.data.model_copy(update={"side": "both"})})
    summary, hand = evaluated_run(both_sides, tmp_path / "both"), Hand(both_sides)
    assert len(hand.test) == 12 and sum(len(faces.names) for faces in hand.clients.values()) == 6
    shared = load_file(tmp_path / "both" / "model" / "backbone.safetensors")
    assert set(summary) == {"start", "shared", "clients", "trials", "counts"}
    assert summary["shared"] == pytest.approx(hand.evaluated(dict.fromkeys(hand.clients, shared))[0])
    assert all(of.items() >= PAIRS.items() for of in summary["counts"].values())


# --- clients of whom some have no test images -------------------------------------------------------------------------


def evaluated(clients: Mapping[str, FaceSet], test: FaceSet, models: Mapping[str, Tensors], tiny_recipe: Recipe) -> Any:
    """By the evaluator itself, with models that no run left."""
    data = Parts(tiny_recipe).data
    first = data.backbone.shared()
    settings = dict(sections.Personalised(fars=(0.1, 0.5), fpirs=(0.25,)))
    server: Any = SimpleNamespace(local_results=lambda kind, _: iter(models.items()))
    evaluator = personalised.Personalised(data, clients, test, **settings)
    assert evaluator.evaluate_start(first) == {}
    return evaluator.evaluate(server, Models(shared=first))["personalised"]


def test_a_client_without_test_images_is_not_evaluated_nor_one_without_a_model() -> None:
    tiny_recipe = recipe(**EVALUATED)
    hand = Hand(tiny_recipe)
    model = {name: tensor + 0.01 for name, tensor in first_backbone(tiny_recipe).shared().items()}
    places = [i for i, label in enumerate(hand.test.labels) if hand.whose[hand.test.names[label]] != "silo-01"]
    hand.test = hand.test.select(np.array(places))
    assert personalised.tested(hand.clients, hand.test) == ["silo-00", "silo-02"]
    summary = evaluated(hand.clients, hand.test, {"silo-00": {}, "silo-01": model, "silo-02": model}, tiny_recipe)
    assert set(summary["clients"]) == {"silo-00", "silo-02"}
    assert set(summary["clients"]["silo-00"]) == {"start", "shared"}
    assert summary["own"] == pytest.approx(hand.evaluated({"silo-02": model})[0])
    assert summary["trials"]["own"]["clients"] == 1 and summary["trials"]["shared"]["clients"] == 2
    assert summary["counts"]["silo-02"]["mated"] == summary["counts"]["silo-02"]["non-mated"] == 4


def test_test_images_of_people_who_are_nobodys_are_left_out() -> None:
    tiny_recipe = recipe(**EVALUATED)
    hand = Hand(tiny_recipe)
    public = Parts(tiny_recipe).public
    assert public is not None
    strange = hand.test.beside(public)
    assert evaluated(hand.clients, strange, {}, tiny_recipe) == evaluated(hand.clients, hand.test, {}, tiny_recipe)
