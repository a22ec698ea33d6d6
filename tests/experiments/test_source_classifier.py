"""The class embeddings with which the source client of two domains begins, and what is said where it gets none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import naive
import pytest
import torch
from safetensors.torch import load_file
from tinydomains import two_domains
from tinyruns import Silent

from coalface.core.errors import RecipeError
from coalface.data.cache import PRETRAINED
from coalface.experiments import model_folder
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.prepare import prepare
from coalface.experiments.recipe.schema import Recipe
from coalface.methods.fedfr_uda import Own

STILL = {"lr": 1e-30, "weight_decay": 0.0, "momentum": 0.0}
"""Local training that leaves all as it began, in float32."""
PRETRAIN = {"pretrain": {"method": "centralized", "rounds": 1, "local": {"steps_per_round": 2, "lr": 0.1}}}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, to look into; the other tests share what is trained for one."""
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / PRETRAINED


def begun(out: Path, *changes: dict[str, Any], **settings: Any) -> tuple[torch.Tensor, list[str]]:
    """(k, d) class embeddings of the source in the first round of stage 3, and what a person was told."""
    view, methods = Silent(), {"methods": {"fedfr-uda": {"labelling": {"threshold": 0.3}, **settings}}}
    experiment.run(two_domains({"local": STILL}, methods, *changes), out, view, report=False)
    return naive.kept(out, "source", Own).learner.head, [note for note in view.notes if "source client" in note]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.ci])])
def test_the_source_goes_on_with_the_classifier_that_the_pre_training_left(
    tmp_path: Path, cache: Path, workers: int
) -> None:
    head, notes = begun(tmp_path / "run", PRETRAIN, {"engine": {"workers": workers}})
    (kept,) = cache.glob(f"*/{model_folder.CLASSIFIER}")
    assert head.shape[0] == 8 and head.equal(load_file(kept)["class_embeddings"]) and notes == []
    means, _ = begun(tmp_path / "means", PRETRAIN, head_init="mean")
    torch.testing.assert_close(means.norm(dim=1), torch.ones(8))
    assert not torch.allclose(means, head)


def test_a_pre_training_of_an_earlier_version_gets_the_classifier_without_training_again(
    tmp_path: Path, cache: Path
) -> None:
    first, _ = begun(tmp_path / "first", PRETRAIN)
    (kept,) = cache.glob(f"*/{model_folder.CLASSIFIER}")
    ledger = (kept.parent / "metrics.jsonl").read_bytes()
    kept.unlink()
    again, _ = begun(tmp_path / "again", PRETRAIN)
    assert again.equal(first) and (kept.parent / "metrics.jsonl").read_bytes() == ledger


OTHER = {"pretrain": {**PRETRAIN["pretrain"], "data": {"calibrate": 0}}}
TWO_ROWS = {"pretrain": {**PRETRAIN["pretrain"], "loss": {"name": "subcenter-arcface"}}}


@pytest.mark.parametrize(
    "changes",
    [OTHER, TWO_ROWS, {**PRETRAIN, "loss": {"name": "subcenter-arcface"}}],
    ids=["other people", "two rows a person before", "two rows a person now"],
)
def test_without_a_classifier_of_its_people_the_source_says_so(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, notes = begun(tmp_path / "run", changes)
    assert len(notes) == 1 and "`pretrain` leaves none" in notes[0]
    with pytest.raises(RecipeError) as refused:
        begun(tmp_path / "asked", changes, head_init="pretrained")
    assert refused.value.where == "methods.fedfr-uda.head_init" and not (tmp_path / "asked").exists()


def test_a_file_of_weights_holds_no_classifier(tmp_path: Path) -> None:
    begun(tmp_path / "first", PRETRAIN)
    file = {"model": {"weights": str(tmp_path / "first" / "model" / "backbone.safetensors")}}
    _, notes = begun(tmp_path / "run", file)
    assert len(notes) == 1 and "model.weights holds none" in notes[0]
    with pytest.raises(RecipeError, match=r"model\.weights holds none"):
        begun(tmp_path / "asked", file, head_init="pretrained")


def test_targets_alone_ask_for_no_classifier(tmp_path: Path) -> None:
    changes = {"method": "finetune-pseudo", "local": STILL}
    view = Silent()
    experiment.run(two_domains(PRETRAIN, changes), tmp_path / "run", view, report=False)
    assert not [note for note in view.notes if "source client" in note]


def test_a_source_at_a_node_of_its_own_is_sent_no_classifier() -> None:
    def make(recipe: Recipe, out: Path, view: Callback) -> None:
        experiment.run(recipe, out, view, report=False)

    prepared = prepare(two_domains({"local": STILL}, PRETRAIN), Silent(), make, elsewhere=True)
    assert prepared.data.class_embeddings == {}
    assert [note for note in prepared.notes if "its node is not sent them" in note]
    asked = two_domains({"local": STILL}, PRETRAIN, {"methods": {"fedfr-uda": {"head_init": "pretrained"}}})
    with pytest.raises(RecipeError, match="its node is not sent them"):
        prepare(asked, Silent(), make, elsewhere=True)
