"""Positive losses alone: class embeddings and features fall together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from naive_clients import EXACT, STEPS, WHOLE
from test_fedface import agree
from worlds import recipe

from coalface.core.method import Tensors
from coalface.experiments.conformance.learning import cosines
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run
from coalface.methods.fedface import FedFace, PositiveOnly
from coalface.training.local_work import LocalTraining

LONG = LocalTraining(batch_size=8, lr=0.2)


def between(model: Tensors, build: Tiny) -> float:
    """The mean cosine of the features of images of different clients."""
    scores, labels = cosines(model, build, build.trained())
    return float(scores[labels[:, None] != labels[None, :]].mean())


@pytest.mark.slow
@pytest.mark.ci
def test_class_embeddings_and_features_come_together_where_nothing_keeps_them_apart(tmp_path: Path) -> None:
    """Features of different people too, as near as those of one; the spreadout regulariser holds both apart."""
    figures: dict[str, tuple[float, float, Ran]] = {}
    for name in ("positive-only", "fedaws"):
        method, build = recipe(name, rounds=60, local=LONG)
        ran = run(method, tmp_path / name, build, checkpoint_every=60)
        lines = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
        figures[name] = lines[0]["cosine"], lines[-1]["cosine"], ran
    first, last, ran = figures["positive-only"]
    assert first < last and last > 0.6 > 0.5 > figures["fedaws"][1], figures
    features = between(ran.models.shared or {}, build)
    assert features > between(build().backbone.shared(), build) + 0.15  # up to m = 0.9, from where on nothing pulls
    assert features > between(figures["fedaws"][2].models.shared or {}, build) + 0.1


@pytest.mark.parametrize("settings", [{}, {"local": STEPS, "sample": 3}])
def test_it_is_fedfaces_round_without_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """By the plain loop, from the directions that the server draws; and the bytes of the ablation that it is."""
    method = PositiveOnly(**{"rounds": 3, "local": WHOLE} | settings)
    assert agree(method, tmp_path / "loop", monkeypatch, EXACT) == set()
    ablation = FedFace(**{"rounds": 3, "local": WHOLE, "head_init": "random", "spreadout": False} | settings)
    method_run, ablation_run = run(method, tmp_path / "one", EXACT), run(ablation, tmp_path / "other", EXACT)
    assert method_run.bytes() == ablation_run.bytes()
