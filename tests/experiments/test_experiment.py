"""Experiments made of objects in Python."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
from tinyruns import Linear

import coalface as cf
from coalface.core.errors import RecipeError
from coalface.data.faceset import FaceSet
from coalface.experiments import run
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.methods import METHODS
from coalface.models import BACKBONES, sketch
from coalface.training.losses.registry import LOSSES

PAGE = Path(__file__).parents[2] / "docs/spec/recipes-and-runs.md"


def test_the_example_of_the_page_runs_and_its_recipe_runs_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, cf.Experiment] = {}
    exec(example, names)
    out = Path("runs/a")
    recipe = loader.load("three-silos.yaml")
    assert recipe.resolved() == names["experiment"].recipe.resolved()
    again = run.run(recipe, tmp_path / "again", tinyruns.Silent())
    assert tinyruns.model_bytes(out) == tinyruns.model_bytes(again) != {}
    for name in ("metrics.jsonl", "config.yaml", "receipts.jsonl"):
        assert (out / name).read_bytes() == (again / name).read_bytes()


def test_every_part_is_written_by_the_names_of_a_recipe(tmp_path: Path) -> None:
    experiment = cf.Experiment(
        method=cf.FedAvgFV(rounds=2, loss=cf.ArcFace(margin=0.3)),
        data=cf.PrivatePublic(
            faces=cf.Folder(path="faces"),
            private=cf.Private(identities=6),
            partition=cf.Dirichlet(alpha=0.3),
            party_augment={"silo-00": cf.Augmentation(crop=2)},
        ),
        model=cf.Model(embedding_size=64),
        evaluation=cf.Evaluation(pairs={"lfw": cf.EvaluationPairs(kind="lfw", path="pairs.txt")}),
        validators={"clinic": cf.Validator(validates="lfw")},
        fold_split="first",
        engine=cf.Engine(min_reply_fraction=0.7),
        faults=cf.SimulatedFaults(dropout=0.1),
        pretrain=cf.Experiment(method=cf.Centralized(rounds=1, local=cf.LocalTraining(lr=0.2))),
    )
    experiment.write(tmp_path / "recipe.yaml")
    recipe = loader.load(tmp_path / "recipe.yaml", ["name=run"])
    assert recipe == experiment.recipe
    assert recipe.build_method() == experiment.method
    given = {name: getattr(experiment, name) for name in ("model", "evaluation", "validators", "engine", "faults")}
    assert {name: getattr(recipe, name) for name in given} == given
    inner = recipe.pretrain.recipe
    assert (inner.method, inner.local.lr, inner.model) == ("centralized", 0.2, recipe.model)
    assert recipe.data == experiment.data


@pytest.mark.parametrize("method", METHODS)
def test_a_method_comes_back_from_its_recipe_as_it_was(method: str) -> None:
    settings = METHODS[method]()
    tree = cf.Experiment(method=settings).as_tree()
    recipe = Recipe.model_validate(tree)  # whether method and data fit is another question
    assert (recipe.method, recipe.build_method()) == (method, settings)


def test_classes_of_ones_own_have_names_too() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(cf.FedAvg):
        """Not among the methods."""

        way: float = 1.0

    class Other(cf.CosFace):
        """Not among the losses."""

    recipe = cf.Experiment(method=Mine(way=0.5, loss=Other(scale=20.0))).recipe
    assert recipe.build_method() == Mine(rounds=recipe.rounds, way=0.5, loss=Other(scale=20.0))
    with pytest.raises(RecipeError) as refused:
        cf.Experiment(method=cf.FedAvg(sample="x")).recipe  # noqa: B018
    assert refused.value.where == "methods.fedavg.sample"


class Halves(cf.Partition):
    few: int = 2

    def assign(self, faces: FaceSet, rng: np.random.Generator, domains: object) -> dict[str, FaceSet]:
        return {"a": faces.only(range(self.few)), "b": faces.only(range(self.few, len(faces.names)))}


@pytest.mark.parametrize(
    "backbone",
    [Linear, Linear(32, 3), lambda size, channels: Linear(size, channels), cf.Model(name=Linear, embedding_size=4)],
)
def test_an_experiment_takes_a_backbone_faces_a_partition_and_a_callback_of_ones_own(
    tmp_path: Path, backbone: Any
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 40, 40, 3), "uint8")
    dataset = [(image, place // 5) for place, image in enumerate(pixels)]
    data = cf.Silos(faces=cf.load_faces(dataset, size=32), partition=Halves(few=1))
    heard = tinyruns.Silent()
    experiment = cf.Experiment(method=cf.FedAvg(rounds=1), data=data, model=backbone)
    parties = cf.FinishedRun(experiment.run(tmp_path, heard)).summary["parties"]
    assert [(party["name"], party["images"]) for party in parties] == [("a", 5), ("b", 15)]
    assert len(heard.rounds) == 1


def test_a_backbone_whose_embeddings_have_another_size_is_refused() -> None:
    with pytest.raises(RecipeError, match="8 numbers, not of 4") as refused:
        sketch(BACKBONES.name_of(Linear(32, 1)), size=32, channels=1, embedding_size=4)
    assert refused.value.where == "model.name"


def test_the_names_of_the_package_are_all_there_and_name_every_method_and_loss() -> None:
    for name in cf.__all__:
        assert getattr(cf, name) is not None and name in dir(cf)
    for cls in [*METHODS.values(), *LOSSES.values()]:
        assert getattr(cf, cls.__name__) is cls
    with pytest.raises(AttributeError, match="FedAvgg"):
        cf.FedAvgg  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, coalface; print(*(name for name in sys.modules if name.startswith('coalface.') or name in "
    code += "('torch', 'numpy', 'pydantic', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


def test_a_part_that_cannot_be_is_refused_by_its_key() -> None:
    for make, where in (
        (lambda: cf.Engine(worker=2), "worker"),  # type: ignore[call-arg]
        (lambda: cf.Engine(workers=0), "workers"),
        (lambda: cf.Silos(partition=3), "partition"),  # type: ignore[arg-type]
        (lambda: cf.Silos(faces=cf.Synthetic(), partition={"kind": "equal", "parts": 3}), "partition.parts"),
        (lambda: cf.LocalTraining(lr="0.1"), "lr"),  # type: ignore[arg-type]
        (lambda: cf.LocalTraining(lr_milestones=[2], momentum=None), "momentum"),  # type: ignore[arg-type]
        (lambda: cf.CosFace(scale="x"), "scale"),
        (lambda: cf.SlowMo(slow_lr="x"), "slow_lr"),
        (lambda: cf.SimulatedFaults(corrupt="nan"), "corrupt"),
    ):
        with pytest.raises(RecipeError) as refused:
            make()
        assert refused.value.where == where
