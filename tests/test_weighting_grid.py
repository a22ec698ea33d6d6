"""The script that scores the weighted means of three trainers' backbones."""

from __future__ import annotations

import csv
import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
import torch

import coalface
from coalface.core import codec
from coalface.engine import checkpoint
from coalface.engine.party.commits import REPLY, Commit
from coalface.evaluation.metrics.verification import ten_fold_accuracy
from coalface.experiments.recipe import loader
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods import fedavg
from coalface.models.embedding import embed

SCRIPT = Path(coalface.__file__).parents[1] / "benchmarks" / "weighting_grid.py"
TOOLS = runpy.run_path(str(SCRIPT))
THREE: dict[str, Any] = {
    "method": "fedavg-fv",
    "data": {"faces": {"identities": 22}, "partition": {"parties": 3}},
    "validators": {"v1": {"identities": 4, "pairs": 10}, "v2": {"identities": 4, "pairs": 10}},
}
"""Three silos and two validators whose scores of a round are collected in it, and change nothing."""


def settings(**changes: Any) -> dict[str, Any]:
    return {"methods": {"fedavg-fv": {"validation": {"lag": 0, "smoothing": 0.0, **changes}}}}


def test_every_point_is_the_score_of_a_mean_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tinyruns.run(tmp_path / "run", **THREE, engine={"save_replies": True}, **settings())
    last = checkpoint.load(run / "checkpoints")
    assert last is not None
    backbones = {}
    for party in (f"silo-{n:02d}" for n in range(3)):
        data = Commit.open(run / "parties" / party / f"{last.record['accepted'][party]}.commit").read(REPLY)
        backbones[party] = codec.decode(bytearray(data or b""), fedavg.Update).backbone
    recipe = loader.load(run / "config.yaml")
    backbone, parties = first_backbone(recipe), Parts(recipe).data
    points = TOOLS["score_grid"](run, 2)
    assert [point.name for point in points[6:]] == ["equal weights", "shares of the images", "weighting in use"]
    for point in points:
        mean = {}
        for name, tensor in backbones["silo-00"].items():
            total = np.zeros(tensor.shape)
            for party, tensors in backbones.items():
                total += point.weights[party] * tensors[name].double().numpy()
            mean[name] = torch.from_numpy(total).to(tensor.dtype)
        backbone.load(mean)
        for validator, score in point.scores.items():
            pairs = parties.pairs[validator]
            features = embed(backbone.module, parties.data[validator]).astype(np.float64)
            cosines = np.array([features[i] @ features[j] for i, j in zip(pairs.left, pairs.right, strict=True)])
            assert score == pytest.approx(100 * ten_fold_accuracy(cosines, pairs.same, pairs.fold).mean)
    assert len({math.fsum(point.scores.values()) for point in points[:6]}) > 1  # else the loop could not fail

    command = [str(SCRIPT), str(run), "--steps", "1", "--parties", "silo-01,silo-00,silo-02"]
    monkeypatch.setattr(sys, "argv", command)
    capsys.readouterr()
    assert TOOLS["main"]() == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 6 and rows[0]["weight/silo-01"] == "1.0"
    (corner,) = (point for point in points if point.weights["silo-01"] == 1)
    assert {v: float(rows[0][f"score/{v}"]) for v in ("v1", "v2")} == pytest.approx(corner.scores)


@pytest.mark.parametrize("score", ["loss", "tar"])
def test_the_weighting_in_use_scores_what_the_run_logged(score: str, tmp_path: Path) -> None:
    run = tinyruns.run(
        tmp_path / "run", **THREE, engine={"save_replies": True}, **settings(score=score, far=0.1), rounds=1
    )
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    *_, images, in_use = TOOLS["score_grid"](run, 1)
    assert in_use.scores == pytest.approx({v: logged[f"score/{v}"] for v in ("v1", "v2")})
    assert in_use.weights == pytest.approx({p: logged[f"weight/{p}"] for p in in_use.weights})
    assert in_use.weights == pytest.approx(images.weights)  # which it began at


def test_the_simplex_has_every_weighting_once() -> None:
    points = TOOLS["simplex"](10)
    by_loop = {(i / 10, j / 10, k / 10) for i in range(11) for j in range(11) for k in range(11) if i + j + k == 10}
    assert len(points) == 66 and set(points) == by_loop


def test_a_run_without_saved_replies_is_refused(tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run", **THREE, engine={"save_replies": False}, rounds=1)
    with pytest.raises(SystemExit, match="silo-00.*save_replies"):
        TOOLS["score_grid"](run, 1)
