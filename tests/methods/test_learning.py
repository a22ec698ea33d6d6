"""Every registered method learns from images of its parties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from worlds import Tiny, recipe, run

from coalface.core.method import Tensors
from coalface.methods import METHODS, feduv
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.local_work import LocalTraining

GAINS: dict[str, float] = {"fedfr-uda": 0.1, "finetune-pseudo": 0.1}
"""How much better than the untrained model it must get, where that is not `GAIN`."""


CALM = LocalTraining(epochs=5, batch_size=8, lr=0.05, momentum=0.0)
"""For clients of one identity: with momentum their few images pull too far before the server sets them apart."""


LEARNING: dict[str, dict[str, Any]] = {
    "fedface": {"local": CALM},
    "fedaws": {"local": CALM},
    "fedfv": {"local": CALM},
    "feduv": {"local": LocalTraining(epochs=1, batch_size=8, lr=2.0, momentum=0.0), "rounds": 60, "length": 7},
    "fedfr-uda": {"pretrain": 20, "labelling": Labelling(clusters=2)},
    "finetune-pseudo": {"pretrain": 20, "labelling": Labelling(clusters=2)},
}
"""Settings with which a method has something to learn from, by its name."""


COLLAPSES = {"positive-only": "tests/methods/test_positive_only.py", "random-init": "tests/methods/test_random_init.py"}
"""Baselines that must not learn, and where it is held what becomes of them."""


GAIN = 0.15
"""Of the area under the ROC curve of genuine against impostor pairs; 0.5 is chance, the untrained model has 0.6."""


def auc(model: Tensors, build: Tiny, faces: worlds.FaceSet) -> float:
    """The share of (genuine, impostor) pairs of images in which the genuine one has the larger cosine."""
    cosines, labels = worlds.cosines(model, build, faces)
    pairs = torch.triu_indices(len(labels), len(labels), 1)
    values, same = cosines[pairs[0], pairs[1]], labels[pairs[0]] == labels[pairs[1]]
    genuine, impostor = values[same], values[~same]
    return float((genuine[:, None] > impostor[None, :]).double().mean())


def figure(models: Mapping[str, Tensors], shared: Tensors, build: Tiny) -> float:
    """The mean over parties of the figure of the model that each is left with, on its own images.

    Parties of one identity have no impostors: there it is that of the shared model on the images of all.
    """
    if build.one_identity:
        return auc(shared, build, build.trained())
    data = replace(build, uses_target_labels=True)().data
    if build.pooled and build.domains and not build.uses_target_labels:  # of the identities that it is told
        data = {party: faces.only([0, 1]) for party, faces in data.items()}
    return sum(auc(models.get(party, shared), build, faces) for party, faces in data.items()) / len(data)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in METHODS if name not in COLLAPSES])
def test_it_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From images of its parties, whose figure is then `GAIN` above that of the untrained model.

    Codewords keep embeddings apart where there are many more of them than twice their bits (below, one point is on the
    right side of all of them, and all images go there): 16 clients with codewords of 7 bits, which `feduv` does not
    offer.
    """
    monkeypatch.setitem(feduv.SIZES, 7, 4)
    local = LocalTraining(epochs=5, batch_size=8, lr=0.05)
    method, build = recipe(name, **{"rounds": 20, "local": local} | worlds.OWN.get(name, {}) | LEARNING.get(name, {}))
    if name == "feduv":
        build = replace(build, parties=16)
    before = figure({}, build().backbone.shared(), build)
    ran = run(method, tmp_path, build)
    after = figure(ran.own_models(), ran.models.shared or {}, build)
    assert math.isfinite(after)
    assert after >= before + GAINS.get(name, GAIN), f"{name}: {before:.3f} untrained, {after:.3f} trained"
