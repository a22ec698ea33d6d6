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
from tinyruns import EVALUATED, Normed, Silent
from tinyruns import public_images as recipe

from coalface.core.method import Models, Tensors
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.evaluation import personalised
from coalface.evaluation.metrics.personalised import OverClients, evaluate_client, over_clients
from coalface.experiments import run as experiment
from coalface.experiments.recipe import sections
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report import page
from coalface.experiments.setup import splits
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods.fedfr_joint import Own
from coalface.models import BACKBONES

PAIRS = {"genuine": 2, "impostors": 32}


def done(made: Recipe, out: Path) -> dict[str, Any]:
    """What the run's summary says of its clients' own people."""
    experiment.run(made, out, Silent(), report=False)
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())["personalised"]
    return found


class Hand:
    """Embeddings by a network of the recipe's, and the protocols on them."""

    def __init__(self, made: Recipe) -> None:
        self.recipe, test = made, splits.split(made).test
        assert test is not None
        self.test: FaceSet = test
        self.clients = Parts(made).clients
        self.start = first_backbone(made).module.state_dict()
        self.whose = {name: party for party, own in self.clients.items() for name in own.names}

    def unit(self, model: Tensors, faces: FaceSet) -> NDArray[np.float32]:
        """(n, d), mapped by Π where the model has one."""
        module = first_backbone(self.recipe).module
        module.load_state_dict({**self.start, **{n: t for n, t in model.items() if not n.startswith("branch.")}})
        with torch.no_grad():
            rows = module.eval()(to_tensor(faces.take(np.arange(len(faces)))))
            if "branch.weight" in model:
                rows = torch.stack([model["branch.weight"] @ row + model["branch.bias"] for row in rows])
        return np.stack([(row / row.norm()).numpy() for row in rows])

    def evaluated(self, models: Mapping[str, Tensors], **modes: Any) -> OverClients:
        """Each client by its model."""
        names, found = [self.test.names[label] for label in self.test.labels], []
        numbers = {name: number for number, name in enumerate(sorted(self.whose))}
        identities = np.array([numbers[name] for name in names])
        order = sorted(self.clients)
        clients = np.array([order.index(self.whose[name]) for name in names])
        for party, model in models.items():
            own = self.clients[party]
            features = self.unit(model, own)
            gallery = []
            for number in range(len(own.names)):
                mean = features[own.labels == number].astype(np.float64).mean(0)
                gallery.append(mean / np.linalg.norm(mean))
            found.append(
                evaluate_client(
                    self.unit(model, self.test),
                    identities,
                    clients,
                    order.index(party),
                    np.stack(gallery).astype(np.float32),
                    np.array([numbers[name] for name in own.names]),
                    fars=(0.1, 0.5),
                    fpirs=(0.25,),
                    **modes,
                )
            )
        return over_clients(found)


def own_models(folder: Path, made: Recipe, *, branch: bool) -> dict[str, Tensors]:
    """What the clients of a run keep."""
    found = {}
    for party in sorted(Parts(made).clients):
        own = naive.kept(folder, party, Own)
        found[party] = {**own.model, **own.kept}
        if branch:
            found[party] |= {"branch.weight": own.branch["turn"], "branch.bias": own.branch["shift"]}
    return found


def test_a_runs_figures_are_those_of_the_protocols(tmp_path: Path) -> None:
    made = recipe(**EVALUATED)
    told, hand = done(made, tmp_path / "run"), Hand(made)
    shared = load_file(tmp_path / "run" / "model" / "backbone.safetensors")
    by_kind = {
        "start": dict.fromkeys(hand.clients, hand.start),
        "shared": dict.fromkeys(hand.clients, shared),
        "own": own_models(tmp_path / "run", made, branch=False),
        "branch": own_models(tmp_path / "run", made, branch=True),
    }
    assert set(told) == {*by_kind, "clients", "trials", "counts"}
    for kind, models in by_kind.items():
        expected = hand.evaluated(models)
        assert told[kind] == pytest.approx(expected.figures()) and len(told[kind]) == 3
        assert told["trials"][kind] == {"clients": 3, "carried": expected.carried}
        for party, model in models.items():
            assert told["clients"][party][kind] == pytest.approx(hand.evaluated({party: model}).figures())
    assert told["counts"] == dict.fromkeys(hand.clients, {**PAIRS, "mated": 4, "non-mated": 8})
    assert len({json.dumps(told["clients"][p]) for p in told["clients"]}) > 1
    said = page.build(tmp_path / "run").read_text()
    assert "3 clients; each has 2 genuine and 32 impostor pairs, 4 mated and 8 non-mated probes." in said
    assert list(personalised.by_kind(told)) == ["start", "shared", "own", "branch"]


def test_models_that_a_run_does_not_leave_are_not_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a branch, and with BatchNorm kept at the clients, there is a client's own model alone."""
    monkeypatch.setitem(BACKBONES, "normed", Normed)
    wanted = {"one_to_one": "official", "one_to_many": "legacy", "fars": [0.1, 0.5], "fpirs": [0.25]}
    changes = {**EVALUATED, "model": {"name": "normed", "batchnorm": "local"}, "evaluation": {"personalised": wanted}}
    made = recipe(**changes, methods={"fedfr-joint": {"branch": "none"}})
    told, hand = done(made, tmp_path / "run"), Hand(made)
    assert set(told) == {"start", "own", "clients", "trials", "counts"}
    models = own_models(tmp_path / "run", made, branch=False)
    expected = hand.evaluated(models, one_to_one="official", one_to_many="legacy").figures()
    assert told["own"] == pytest.approx(expected) and all("official" in n or "legacy" in n for n in told["own"])
    assert {of["impostors"] for of in told["counts"].values()} == {32 + 4}


def test_a_pooled_run_is_evaluated_for_the_clients_of_the_partition(tmp_path: Path) -> None:
    """Public people, whom it trains on as well, are neither clients nor impostors."""
    made = recipe(**EVALUATED, method="centralized")
    both = made.model_copy(update={"data": made.data.model_copy(update={"side": "both"})})
    told, hand = done(both, tmp_path / "both"), Hand(both)
    assert len(hand.test) == 12 and sum(len(own.names) for own in hand.clients.values()) == 6
    shared = load_file(tmp_path / "both" / "model" / "backbone.safetensors")
    assert set(told) == {"start", "shared", "clients", "trials", "counts"}
    assert told["shared"] == pytest.approx(hand.evaluated(dict.fromkeys(hand.clients, shared)).figures())
    assert all(of.items() >= PAIRS.items() for of in told["counts"].values())


# --- clients of whom some have no test images -------------------------------------------------------------------------


def evaluated(clients: Mapping[str, FaceSet], test: FaceSet, models: Mapping[str, Tensors], made: Recipe) -> Any:
    """By the evaluator itself, with models that no run left."""
    here = Parts(made).data
    first = here.backbone.shared()
    settings = dict(sections.Personalised(fars=(0.1, 0.5), fpirs=(0.25,)))
    server: Any = SimpleNamespace(local_results=lambda kind, _: iter(models.items()))
    evaluator = personalised.Personalised(here, clients, test, **settings)
    assert evaluator.evaluate_start(first) == {}
    return evaluator.evaluate(server, Models(shared=first))["personalised"]


def test_a_client_without_test_images_is_not_evaluated_nor_one_without_a_model() -> None:
    made = recipe(**EVALUATED)
    hand = Hand(made)
    model = {name: tensor + 0.01 for name, tensor in first_backbone(made).shared().items()}
    theirs = [i for i, label in enumerate(hand.test.labels) if hand.whose[hand.test.names[label]] != "silo-01"]
    hand.test = hand.test.select(np.array(theirs))
    assert personalised.tested(hand.clients, hand.test) == ["silo-00", "silo-02"]
    told = evaluated(hand.clients, hand.test, {"silo-00": {}, "silo-01": model, "silo-02": model}, made)
    assert set(told["clients"]) == {"silo-00", "silo-02"} and set(told["clients"]["silo-00"]) == {"start", "shared"}
    assert told["own"] == pytest.approx(hand.evaluated({"silo-02": model}).figures())
    assert told["trials"]["own"]["clients"] == 1 and told["trials"]["shared"]["clients"] == 2
    assert told["counts"]["silo-02"]["mated"] == told["counts"]["silo-02"]["non-mated"] == 4


def test_test_images_of_people_who_are_nobodys_are_left_out() -> None:
    made = recipe(**EVALUATED)
    hand = Hand(made)
    others = Parts(made).public
    assert others is not None
    strange = hand.test.beside(others)
    assert evaluated(hand.clients, strange, {}, made) == evaluated(hand.clients, hand.test, {}, made)
