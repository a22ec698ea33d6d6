"""Every registered method over one standing federation of real processes over TLS: the bytes of a run here.

The nodes stand for all of them, so parties are called alike whatever the method: `shares` gives silos and clients of
one identity the names that methods for two domains, or pooled ones, give their parties. A node that a method has no
party for is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinydomains
import yaml
from federations import TWO_SILOS, Standing, digests, draw_from_secrets
from tinyruns import Silent

from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.methods import METHODS

ROLES = {"source": "trainer", "target-00": "trainer", "pooled": "trainer", "clinic": "validator"}
"""All parties of all methods."""

SILOS: dict[str, Any] = {
    **TWO_SILOS,
    "name": "silos",
    "data": {**TWO_SILOS["data"], "partition": {"kind": "shares", "shares": {"source": 1, "target-00": 1}}},
    "validators": {"clinic": {"identities": 4, "pairs": 10}},
    "engine": {"threads": 1},
}
"""Two silos of two identities each, whom a validator evaluates."""

PRETRAINED: dict[str, Any] = {
    **{key: value for key, value in SILOS.items() if key != "validators"},
    "pretrain": {"method": "centralized", "rounds": 1, "local": {"batch_size": 8, "lr": 0.02}},
}
"""The server begins with a model of public identities."""

CLIENTS = loader.merged(
    PRETRAINED,
    {
        "name": "clients",
        "method": "fedface",
        "data": {
            "scenario": "private-public",
            "private": {"identities": 3},
            "partition": {"shares": {"source": 1, "target-00": 1, "pooled": 1}},
        },
        "methods": {"fedfv": {"sample": 1, "equivalents": 5}, "feduv": {"sample": None, "length": 127}},
    },
)
"""Three clients of one identity."""

JOINT = loader.merged(
    PRETRAINED,
    {
        "name": "joint",
        "method": "fedfr-joint",
        "data": {
            "faces": {"images": 5},
            "scenario": "private-public",
            "private": {"identities": 4},
            "test": {"images": 2},
        },
        "methods": {"fedfr-joint": {"threshold": 0.5}},
        "evaluation": {"personalised": {"fars": [0.1], "fpirs": [0.25]}},
    },
)
"""Two clients of two identities each, who hold the public identities' images as well."""

SERVED = loader.merged(
    SILOS,
    {
        "name": "served",
        "data": {"faces": {"images": 5}, "test": {"images": 2}},
        "evaluation": {"personalised": {"fars": [0.1], "fpirs": [0.25]}},
        "methods": {"fedrep": {"head_epochs": 2}, "fedbabu": {"tuning_epochs": 1}},
    },
)
"""The two silos, whose own people are evaluated as well."""

DOMAINS = loader.merged(tinydomains.TREE, {"name": "domains", "data": {"scenario": "domains", "clients": 1}})
"""A source and one target."""

ONE_IDENTITY = ("fedface", "fedaws", "fedfv", "feduv", "positive-only", "random-init")
PERSONAL = ("fedfr-joint", "adafedfr", "ss-fedfr", "cl-fedfr", "finetune", "kd", "fedface-multi")
OWN_MODELS = ("ditto", "fedrep", "fedbabu")
ACROSS_SILOS = (
    *("fedavg", "fedavg-fv", "fedprox", "scaffold", "mime", "mimelite", "slowmo", "pfm", "pfm-fv"),
    *("fednova", "feddyn", "moon", "fedadam", "fedyogi", "fedadagrad"),
    *("fedgc", "privacyface", "solo", "centralized"),
)
RECIPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(ACROSS_SILOS, SILOS),
    **dict.fromkeys(ONE_IDENTITY, CLIENTS),
    **dict.fromkeys(PERSONAL, JOINT),
    "ss-fedfr": loader.merged(JOINT, {"data": {"unlabelled": 0.34}, "methods": {"ss-fedfr": {"pseudo_labels": 0.0}}}),
    **dict.fromkeys(OWN_MODELS, SERVED),
    **dict.fromkeys(tinydomains.METHODS, DOMAINS),
}
"""Method -> the recipe that it is run by."""

STAYS = {"solo": "each party has a model of its own, which the laboratory sees here and no server elsewhere"}
"""Methods that leave no model at the server, and why; all else of them is compared."""

SECRET = ("fedaws", "fedfv", "feduv", "positive-only", "random-init", "fedavg-fv", "pfm-fv")
"""Methods that draw from secrets of the server's, or of the nodes', in a federation."""


def test_every_method_is_run() -> None:
    """A new one takes a line above; one with a teacher trains where its file is, before a federation."""
    assert set(RECIPES) == {name for name, cls in METHODS.items() if not cls.taught} and STAYS.keys() <= set(METHODS)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """Four nodes that stand ready for any of the recipes."""
    with Standing.build(tmp_path_factory.mktemp("standing"), recipe=SILOS, roles=ROLES).taken_down() as federation:
        code, printed = federation.finish(federation.up("--no-run"))
        assert code == 0, printed
        yield federation


@pytest.mark.slow
@pytest.mark.parametrize("method", list(RECIPES))
def test_a_run_over_tls_leaves_the_bytes_of_a_run_here(
    method: str, standing: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = loader.merged(RECIPES[method], {"engine": {"save_replies": True}})  # as a node does
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(saving))
    recipe = standing.use_recipe(tmp_path / "recipe.yaml")
    running = standing.up("--run-config", f'name="{method}" method="{method}"')
    changes = ["engine.on_error=exclude", f"name={method}", f"method={method}"]
    if method not in SECRET:  # else a run here has to wait for them
        local = experiment.run(loader.load(recipe, changes), tmp_path / "here", Silent(), report=False)
    code, printed = standing.finish(running)
    assert code == 0, printed
    served = standing.run(method)
    if method in SECRET:
        draw_from_secrets(standing.run(method), lambda party: standing.home(party, method), monkeypatch)
        local = experiment.run(loader.load(recipe, changes), tmp_path / "here", Silent(), report=False)
    assert (served / "config.yaml").read_bytes() == (local / "config.yaml").read_bytes()
    local_files, served_files = digests(local, dict.fromkeys(ROLES, local)), standing.digests(method)
    trained = {party["name"] for party in summary(local)["parties"] if party["rounds"]}  # a method may sample them
    assert trained and {name.split("/")[1] for name in local_files if name.startswith("parties/")} == trained
    assert all(f"ledger/{party}.jsonl" in local_files for party in trained)
    if method in STAYS:  # what is evaluated and given on
        assert not [name for name in served_files if name.endswith(".safetensors")]
        of_models = {name for name in local_files if name.startswith("model/")} | {"evidence.json"}
        local_files, served_files = (
            {name: files[name] for name in files.keys() - of_models} for files in (local_files, served_files)
        )
    assert served_files == local_files
    assert summary(served)["ledger"]["checked"] == summary(local)["ledger"]["checked"]
    if "personalised" in RECIPES[method]["evaluation"]:  # by everybody's models; of a client's own nothing leaves it
        local_figures, served_figures = summary(local)["personalised"], summary(served)["personalised"]
        assert (
            served_figures["start"] and served_figures["shared"] and served_figures.keys().isdisjoint({"own", "branch"})
        )
        assert all(served_figures[kind] == local_figures[kind] for kind in ("start", "shared"))


def summary(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content
