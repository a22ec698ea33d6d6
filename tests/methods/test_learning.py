"""Every registered method learns from images of its parties."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import worlds
from worlds import recipe

from coalface.experiments.conformance.learning import GAIN, LEARNING, ROUNDS, learned
from coalface.methods import METHODS, feduv
from coalface.training.clustering.pseudo_labels import Labelling
from coalface.training.local_work import LocalTraining

GAINS: dict[str, float] = {"fedfr-uda": 0.1, "finetune-pseudo": 0.1}
"""How much better than the untrained model it must get, where that is not `GAIN`."""


CALM = LocalTraining(epochs=5, batch_size=8, lr=0.05, momentum=0.0)
"""For clients of one identity: with momentum their few images pull too far before the server sets them apart."""


SETTINGS: dict[str, dict[str, Any]] = {
    "feddyn": {"alpha": 1.0},  # at 0.01 its first rounds go too far for so few
    "fedface": {"local": CALM},
    "fedaws": {"local": CALM},
    "fedfv": {"local": CALM},
    "feduv": {"local": LocalTraining(epochs=1, batch_size=8, lr=2.0, momentum=0.0), "rounds": 60, "length": 7},
    "fedfr-uda": {"pretrain": 20, "labelling": Labelling(clusters=2)},
    "finetune-pseudo": {"pretrain": 20, "labelling": Labelling(clusters=2)},
}
"""Settings with which a method has something to learn from, by its name."""


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.learns])
def test_it_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From images of its parties, whose figure is then `GAIN` above that of the untrained model.

    Codewords keep embeddings apart where there are many more of them than twice their bits (below, one point is on the
    right side of all of them, and all images go there): 16 clients with codewords of 7 bits, which `feduv` does not
    offer.
    """
    monkeypatch.setitem(feduv.SIZES, 7, 4)
    work = {"local": LEARNING} if hasattr(METHODS[name], "local") else {}
    settings = {"rounds": ROUNDS, **work} | worlds.OWN.get(name, {}) | SETTINGS.get(name, {})
    method, build = recipe(name, **settings)
    if name == "feduv":
        build = replace(build, parties=16)
    before, after = learned(method, build, tmp_path)
    assert math.isfinite(after)
    assert after >= before + GAINS.get(name, GAIN), f"{name}: {before:.3f} untrained, {after:.3f} trained"
