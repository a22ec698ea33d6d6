"""`pretrain` of a recipe: made once, kept by content, and what parties begin with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
from safetensors.torch import load_file
from tinyruns import Normed, Silent, model_bytes, tiny

from coalface import models
from coalface.core.errors import RecipeError
from coalface.data.cache import default_cache
from coalface.experiments import run as experiment
from coalface.experiments.plan import preflight


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def test_pretraining_is_kept_by_content_and_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    start = {"method": "centralized", "rounds": 1}
    first, second, other = Silent(), Silent(), Silent()
    experiment.run(tiny(pretrain=start, rounds=1), tmp_path / "a", first)
    assert [name for name, _, _ in first.started] == ["tiny-pretrain", "tiny"]
    experiment.run(tiny(pretrain=start, rounds=1, name="again", method="solo"), tmp_path / "b", second)
    assert [name for name, _, _ in second.started] == ["again"]
    experiment.run(tiny(pretrain={**start, "local": {"lr": 0.01}}, rounds=1), tmp_path / "c", other)
    assert [name for name, _, _ in other.started] == ["tiny-pretrain", "tiny"]
    assert len(list((default_cache() / "pretrained").iterdir())) == 2
    plain = tinyruns.run(tmp_path / "plain", rounds=1)
    assert len({str(model_bytes(folder)) for folder in (tmp_path / "a", tmp_path / "c", plain)}) == 3


STARTS_FROM_PRETRAINING = """
import sys, time
from pathlib import Path
from tinyruns import Silent, tiny
from coalface.experiments import run as experiment

said, out = Path(sys.argv[1]), Path(sys.argv[2])

class Slow(Silent):
    def note(self, text):
        if "waiting for its model" in text:
            said.with_name("waiting").touch()

    def start(self, name, rounds, already=0, sent=(0, 0), before=()):
        with open(said, "a") as file:
            file.write(name + "\\n")
        until = time.monotonic() + 30
        while name == "tiny-pretrain" and not said.with_name("waiting").exists() and time.monotonic() < until:
            time.sleep(0.02)  # so that the other process comes while this one is training

experiment.run(tiny(pretrain={"method": "centralized", "rounds": 1}, rounds=1), out, Slow())
"""


@pytest.mark.slow
@pytest.mark.ci
def test_of_two_processes_with_the_same_pretraining_one_trains_and_the_other_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    said, outs = tmp_path / "started", [tmp_path / "a", tmp_path / "b"]
    command = [sys.executable, "-c", STARTS_FROM_PRETRAINING, str(said)]
    started = [subprocess.Popen([*command, str(out)], stderr=subprocess.PIPE) for out in outs]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    assert sorted(said.read_text().split()) == ["tiny", "tiny", "tiny-pretrain"]
    assert (tmp_path / "waiting").exists()
    assert model_bytes(outs[0]) == model_bytes(outs[1])


def test_the_first_round_starts_from_the_pretrained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    still = {"lr": 1e-30, "weight_decay": 0.0}  # local training moves nothing
    start = {"method": "centralized", "rounds": 1, "local": {"lr": 0.05}}
    out = tinyruns.run(tmp_path / "run", pretrain=start, rounds=1, local=still)
    (place,) = (default_cache() / "pretrained").iterdir()
    given, left = (load_file(folder / "model" / "backbone.safetensors") for folder in (place, out))
    assert all(torch.allclose(given[name], left[name], atol=1e-7) for name in given)
    assert summary(place)["method"] == "centralized"


@pytest.mark.parametrize("batchnorm", ["parameters-only", "local"])
def test_parties_that_keep_their_batchnorm_start_with_that_of_the_pretraining(
    batchnorm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(models.BACKBONES.own, "normed", Normed)
    start = {"method": "centralized", "rounds": 3, "local": {"lr": 0.05}, "model": {"batchnorm": "average"}}
    out = tinyruns.run(tmp_path / "run", pretrain=start, rounds=1, model={"name": "normed", "batchnorm": batchnorm})
    (place,) = (default_cache() / "pretrained").iterdir()
    before = load_file(place / "model" / "backbone.safetensors")
    assert not before["norm.running_mean"].eq(0).all(), "the pre-training leaves no statistics to start with"
    assert summary(out)["untrained"]["unseen"] == summary(place)["figures"]["unseen"]


def test_pretraining_that_leaves_no_model_for_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    local = {"model": {"name": "ir18", "batchnorm": "local"}}
    for start, says in (
        ({"method": "solo"}, "pretrain.method: 'solo' leaves no global model to start from; use centralized$"),
        (
            {"method": "centralized", **local},
            "'centralized' leaves no .*pretrain.model.batchnorm=average in place of l",
        ),
    ):
        recipe = tiny(pretrain={"rounds": 1, **start})
        view = Silent()
        with pytest.raises(RecipeError, match=says):
            experiment.run(recipe, tmp_path / "run", view)
        with pytest.raises(RecipeError, match=says):
            preflight.check(recipe)
        assert view.started == view.notes == []  # nobody trained, and nothing was begun
    assert not (tmp_path / "cache").exists() and not (tmp_path / "run").exists()


PRETRAINED: dict[str, Any] = {"method": "centralized", "rounds": 3, "local": {"lr": 0.05}}
STATISTICS = ("norm.running_mean", "norm.running_var")


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("pfm", {"local": {"steps_per_round": 2}}),
        ("fedface", {"data": {"scenario": "devices"}}),
        ("fedface", {"data": {"scenario": "devices"}, "engine": {"client_batch": "auto"}}),
    ],
)
def test_frozen_statistics_are_the_pretrainings_to_the_bit_and_all_else_is_trained(
    method: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(models.BACKBONES.own, "normed", Normed)
    frozen = {"method": method, "model": {"name": "normed", "batchnorm": "frozen"}, "pretrain": PRETRAINED}
    out = tinyruns.run(tmp_path / "run", rounds=2, **frozen, **changes)
    (place,) = (default_cache() / "pretrained").iterdir()
    before, after = (load_file(folder / "model" / "backbone.safetensors") for folder in (place, out))
    assert not before["norm.running_mean"].eq(0).all(), "the pre-training leaves no statistics to start with"
    assert all(torch.equal(before[name], after[name]) for name in STATISTICS)
    assert not any(torch.equal(before[name], after[name]) for name in before.keys() - set(STATISTICS))
    assert summary(out)["untrained"]["unseen"] == summary(place)["figures"]["unseen"]


def test_frozen_statistics_of_nothing_are_refused(tmp_path: Path) -> None:
    recipe, view = tiny(model={"batchnorm": "frozen"}), Silent()
    for refused in (lambda: preflight.check(recipe), lambda: experiment.run(recipe, tmp_path / "run", view)):
        with pytest.raises(RecipeError, match="none: give model.weights or pretrain") as caught:
            refused()
        assert caught.value.where == "model.batchnorm"
    assert not (tmp_path / "run").exists() and view.started == []
