from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
import torch
import yaml
from tinyruns import Silent, tiny
from typer.testing import CliRunner

from coalface.cli.main import app
from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Tensors
from coalface.engine import checkpoint
from coalface.engine.party.commits import REPLY, Commit
from coalface.evaluation.metrics.verification import ten_fold_accuracy
from coalface.experiments import provenance, weighting_grid
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.methods import fedavg
from coalface.models.embedding import embed

THREE: dict[str, Any] = {
    "method": "fedavg-fv",
    "data": {"faces": {"identities": 22}, "partition": {"parties": 3}},
    "validators": {"v1": {"identities": 4, "pairs": 10}, "v2": {"identities": 4, "pairs": 10}},
}
"""Three silos and two validators whose scores of a round are collected in it, and change nothing."""


def settings(**changes: Any) -> dict[str, Any]:
    return {"methods": {"fedavg-fv": {"validation": {"lag": 0, "smoothing": 0.0, **changes}}}}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinyruns.run(tmp_path_factory.mktemp("grid") / "three", **THREE, **settings())


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A method without validators over four trainers."""
    changes = {"data": {"faces": {"identities": 16}, "partition": {"parties": 4}}}
    return tinyruns.run(tmp_path_factory.mktemp("grid") / "four", method="pfm", rounds=1, **changes)


def replies(run: Path) -> dict[str, Tensors]:
    """The backbones that the trainers sent last."""
    found = checkpoint.load(run / "checkpoints")
    assert found is not None
    models = {}
    for name, commit in sorted(found.record["accepted"].items()):
        if name.startswith("silo"):
            data = Commit.open(run / "parties" / name / f"{commit}.commit").read(REPLY)
            models[name] = codec.decode(bytearray(data or b""), fedavg.Update).backbone
    return models


def last_line(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])  # type: ignore[no-any-return]


# --- the scores -------------------------------------------------------------------------------------------------------


def test_every_point_is_the_score_of_a_mean_by_hand(three: Path) -> None:
    grid = weighting_grid.build(three, steps=2)
    recipe = loader.load(three / "config.yaml")
    backbone, models = first_backbone(recipe), replies(three)
    everyone = Parts(recipe).data
    for point in (*grid.points, *grid.marks):
        mean = {}
        for name, first in models["silo-00"].items():
            total = np.zeros(first.shape)
            for party, tensors in models.items():
                total += point.weights[party] * tensors[name].double().numpy()
            mean[name] = torch.from_numpy(total).to(first.dtype)
        backbone.load(mean)
        for validator, score in point.scores.items():
            pairs, faces = everyone.pairs[validator], everyone.data[validator]
            features = embed(backbone.module, faces).astype(np.float64)
            cosines = np.array([features[i] @ features[j] for i, j in zip(pairs.left, pairs.right, strict=True)])
            assert score == pytest.approx(100 * ten_fold_accuracy(cosines, pairs.same, pairs.fold).mean)
        assert point.sum == pytest.approx(point.scores["v1"] + point.scores["v2"])
    assert len({point.sum for point in grid.points}) > 1  # else nothing was shown


@pytest.mark.parametrize("score", ["accuracy", "loss", "tar"])
def test_the_weighting_in_use_scores_what_the_run_logged(score: str, tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run", **THREE, **settings(score=score, far=0.1), rounds=1)
    grid = weighting_grid.build(run, steps=1)
    found = {point.name: point for point in grid.marks}["weighting in use"]
    assert found.scores == pytest.approx({v: last_line(run)[f"score/{v}"] for v in ("v1", "v2")})
    assert found.weights == pytest.approx({p: last_line(run)[f"weight/{p}"] for p in found.weights})
    assert grid.score == {"tar": "TAR at FAR 0.1"}.get(score, score)
    assert found.weights == pytest.approx(grid.marks[1].weights)  # which began at the shares of the images
    assert grid.pairs == {"v1": 20, "v2": 20} and grid.rounds == dict.fromkeys(found.weights, 1)


def test_a_validator_of_half_a_list_scores_by_its_own_folds(tmp_path: Path) -> None:
    half = {"fold_split": "first", "validators": {"half": {"validates": "unseen"}}}
    half |= {"evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": 100}}}}
    half["data"] = {"faces": {"identities": 22, "images": 8}, "partition": {"parties": 3}}
    run = tinyruns.run(tmp_path / "run", **(THREE | half), **settings(), rounds=1)
    grid = weighting_grid.build(run, steps=1)
    assert grid.pairs == {"half": 100} and len(grid.points) == 3
    assert grid.marks[-1].scores == pytest.approx({"half": last_line(run)["score/half"]})


def test_a_stopped_run_has_the_grid_of_its_last_checkpoint(tmp_path: Path) -> None:
    class Stops(Silent):
        def round(self, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(tiny(**THREE, rounds=4), tmp_path / "run", Stops())
    grid = weighting_grid.build(tmp_path / "run", steps=1)
    assert set(grid.rounds.values()) == {2} and len(grid.points) == 3
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "parties").rglob("*.commit")}
    experiment.resume(tmp_path / "run", Silent())  # looking at it changed nothing
    assert before and last_line(tmp_path / "run")["round"] == 4


# --- who is weighted, and who scores ----------------------------------------------------------------------------------


def test_three_of_more_are_chosen_and_the_others_have_no_weight(four: Path) -> None:
    with pytest.raises(ValueError, match="--parties: name three of the 4 trainers, such as silo-00,silo-01,silo-02"):
        weighting_grid.build(four)
    with pytest.raises(ValueError, match="--parties: name three"):
        weighting_grid.build(four, parties=("silo-00", "silo-00", "silo-01"))
    with pytest.raises(ValueError, match="'silo-3'.*silo-03"):
        weighting_grid.build(four, parties=("silo-00", "silo-01", "silo-3"))
    grid = weighting_grid.build(four, steps=1, parties=("silo-03", "silo-00", "silo-01"))
    assert list(grid.points[0].weights) == ["silo-03", "silo-00", "silo-01"] and grid.left_out == ("silo-02",)
    assert "weights and shares are among silo-03, silo-00, silo-01; the other trainer has no weight" in grid.notes


def test_without_validators_the_evaluation_pairs_score_and_it_is_said(four: Path) -> None:
    grid = weighting_grid.build(four, steps=1, parties=("silo-00", "silo-01", "silo-02"))
    assert grid.scored_by == "evaluation pairs" and grid.score == "accuracy" and grid.pairs == {"unseen": 40}
    assert any("choosing by it would fit them" in note for note in grid.notes)
    assert [point.name for point in grid.marks] == ["equal weights", "shares of the images"]  # it has no FV


def test_the_evaluations_score_is_the_one_of_the_run(tmp_path: Path) -> None:
    changes = {"method": "fedavg", "rounds": 1, "data": {"faces": {"identities": 14}, "partition": {"parties": 3}}}
    run = tinyruns.run(tmp_path / "run", **changes)
    shares = {point.name: point for point in weighting_grid.build(run, steps=1).marks}["shares of the images"]
    accuracy = json.loads((run / "summary.json").read_text())["figures"]["unseen"]["accuracy"]
    assert shares.scores == {"unseen": pytest.approx(accuracy)}


# --- the simplex ------------------------------------------------------------------------------------------------------


def test_the_simplex_has_every_weighting_once() -> None:
    points = weighting_grid.simplex(10)
    assert len(points) == len(set(points)) == 66
    by_loop = {(i / 10, j / 10, k / 10) for i in range(11) for j in range(11) for k in range(11) if i + j + k == 10}
    assert set(points) == by_loop and all(math.fsum(p) == pytest.approx(1) for p in points)
    assert weighting_grid.models(10) == 69


@pytest.mark.parametrize(("step", "steps"), [(0.05, 20), (1 / 3, 3), (0.01, 100)])
def test_a_step_divides_one(step: float, steps: int) -> None:
    assert weighting_grid.steps_of(step) == steps


@pytest.mark.parametrize("step", [0.0, 0.3, 2.0, 0.001, math.nan])
def test_other_steps_are_refused(step: float) -> None:
    with pytest.raises(RecipeError) as error:
        weighting_grid.steps_of(step)
    assert error.value.where == "--step"


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_files_hold_every_weighting(three: Path) -> None:
    grid = weighting_grid.build(three, steps=2)
    kept = json.loads((three / "weighting-grid.json").read_text())
    assert kept == json.loads(json.dumps(grid.as_dict())) and len(kept["points"]) == 6
    assert kept["best"][0]["sum"] == max(p["sum"] for p in kept["points"])
    lines = list(csv.DictReader((three / "weighting-grid.csv").read_text().splitlines()))
    assert len(lines) == 6 + 3 and [line["name"] for line in lines[6:]] == [p.name for p in grid.marks]
    for line, point in zip(lines, (*grid.points, *grid.marks), strict=True):
        assert {p: float(line[f"weight/{p}"]) for p in point.weights} == point.weights
        assert {s: float(line[f"score/{s}"]) for s in point.scores} == point.scores
        assert float(line["sum"]) == point.sum


def test_the_command(three: Path) -> None:
    result = CliRunner().invoke(app, ["weighting-grid", str(three), "--step", "0.5"])
    assert result.exit_code == 0, result.output
    assert "fedavg-fv, round 2: silo-00, silo-01, silo-02; 6 weightings." in result.output
    assert (
        "Scored by the validators v1 (20 pairs), v2 (20 pairs): accuracy in percent, not normalised." in result.output
    )
    for row in ("best 5", "silo-00 alone", "equal weights", "shares of the images", "weighting in use"):
        assert row in result.output
    result = CliRunner().invoke(app, ["weighting-grid", str(three), "--step", "1", "--json"])
    assert json.loads(result.output)["steps"] == 1


# --- what cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (THREE | {"methods": {"fedavg-fv": {"validation": {"fv": "folded", "candidates": 2}}}}, "validation.fv"),
        ({"method": "solo"}, "method"),
        ({"data": {"partition": {"parties": 2}}}, "of 2 trainers of this run 2 have one: silo-00, silo-01"),
        ({"method": "centralized"}, "needs three trainers"),
        ({"model": {"batchnorm": "local"}}, "model.batchnorm"),
        (THREE | {"engine": {"save_replies": False}}, "engine.save_replies=true"),
    ],
    ids=["folded", "solo", "two", "pooled", "batchnorm", "replies"],
)
def test_a_run_that_has_no_grid_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = tinyruns.run(tmp_path / "run", **(changes | {"rounds": 1}))
    with pytest.raises(ValueError, match=message):
        weighting_grid.build(run, steps=1)
    assert not list(run.glob("weighting-grid*"))


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run folder"):
        weighting_grid.build(tmp_path)
    recipe = loader.load(tinyruns.write(tmp_path / "config.yaml", **THREE))
    provenance.keep(tmp_path, recipe.resolved(), {})
    with pytest.raises(ValueError, match="has no checkpoint yet.*coalface resume"):
        weighting_grid.build(tmp_path)


def test_a_grid_needs_somebody_who_scores(four: Path, tmp_path: Path) -> None:
    shutil.copytree(four, tmp_path / "run")
    config_file = tmp_path / "run" / "config.yaml"
    tree = yaml.safe_load(config_file.read_text())
    tree["evaluation"]["pairs"] = {}
    config_file.write_text(yaml.safe_dump(tree))
    provenance.keep(tmp_path / "run", tree, {})
    with pytest.raises(ValueError, match="evaluation.pairs: nothing can score the grid"):
        weighting_grid.build(tmp_path / "run", steps=1, parties=("silo-00", "silo-01", "silo-02"))
