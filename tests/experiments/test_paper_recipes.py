"""The papers' own settings run from start to end where their data sets are: here tiny ones of synthetic faces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import by_default
from field_layouts import people
from tinyruns import Silent

from coalface.core.method import generator
from coalface.data.stores import open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import LOSS
from coalface.experiments.sweep.differences import baseline_of
from coalface.experiments.sweep.grid import Cell, grid

SMALL = [
    "model.name=cnn-small", "model.embedding_size=16", "data.size=32", "loss.scale=16", "loss.margin=0.1",
    "engine.device=cpu", "engine.threads=1",
    "local.steps_per_round=2", "local.total_steps=8", "local.lr_milestones=[4, 6]", "local.batch_size=4",
    "methods.centralized.batch_size=12",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the names that the recipes give."""
    root = tmp_path_factory.mktemp("sets")
    for number, name in enumerate(("faces_emore", "faces_glintasia", "faces_vgg_112x112")):
        made = people(root / "made" / name, [f"{name}-{n}" for n in range(8)], 4, first=100 * number)
        convert(open_store(made), root / name, "rec")
    (root / "lists").mkdir()
    for number, name in enumerate(("lfw", "cplfw", "calfw", "cfp_fp", "agedb_30")):
        pairs = Pairs(draw=20, rng=generator(number))
        folder = people(root / "made" / name, [f"{name}-{n}" for n in range(6)], 4, first=1000 + 100 * number)
        convert(open_store(folder), root / "lists" / f"{name}.bin", "bin", pairs=pairs)
    return root


@pytest.mark.parametrize(
    ("recipe", "method", "parties"),
    by_default(
        1,
        [
            ("paper-3-party", "pfm-fv", ["asian", "ms1m", "vgg"]),
            ("paper-3-party", "centralized", ["pooled"]),
            ("paper-12-party", "fedavg-fv", [f"{name}-{part}" for name in ("asian", "ms1m", "vgg") for part in "abcd"]),
        ],
    ),
)
def test_the_recipe_of_pfms_paper_runs(
    root: Path, tmp_path: Path, recipe: str, method: str, parties: list[str]
) -> None:
    made = loader.load(
        f"pfm/{recipe}",
        [*SMALL, "engine.processes_per_party={}", f"method={method}", f"data.root={root}"],
    )
    out = experiment.run(made, tmp_path / "run", Silent(), report=False)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == 4
    assert set(summary["figures"]) == {"lfw", "cplfw", "calfw", "cfp", "agedb"}
    trainers = [p for p in summary["parties"] if p["role"] == "trainer"]
    assert [p["name"] for p in trainers] == parties
    validators = [p["name"] for p in summary["parties"] if p["role"] == "validator"]
    assert validators == (["agedb", "calfw", "cfp", "cplfw", "lfw"] if method.endswith("-fv") else [])


# --- the sweeps -------------------------------------------------------------------------------------------------------

Chosen = tuple[str, str, str, int, str]
"""Method, its variant, network and loss, K, the half."""
BOTH = ("first", "second")
VARIANTS = [
    ("centralized", ""), ("pfm", ""), ("pfm-fv", "local"), ("fedavg-fv", "local"), ("fedavg", "reset"),
    ("fedavg", "none"),
]  # fmt: skip


def cells(name: str) -> list[Cell]:
    return grid(Path("pfm/sweeps", name), [])


def chosen(cell: Cell) -> Chosen:
    method: Any = cell.recipe.build_method()
    variant = method.validation.norm if hasattr(method, "validation") else ""
    variant = method.momentum if cell.recipe.method == "fedavg" else variant
    made = cell.recipe
    assert made.fold_split is not None and made.local.steps_per_round is not None
    return (
        made.method,
        variant,
        f"{made.model.name} {LOSS.name_of(made.loss)}",
        made.local.steps_per_round,
        made.fold_split,
    )


def paper(setting: str, k: int, variants: list[tuple[str, str]]) -> set[Chosen]:
    return {(method, variant, setting, k, half) for method, variant in variants for half in BOTH}


def test_the_three_party_sweep_is_the_papers_grid() -> None:
    """Fig. 4 (a) to (e), Solo of Table 1, and the norms of Fig. 5."""
    wanted: set[Chosen] = set()
    for setting in ("ir18 arcface", "ir18 cosface", "ir34 arcface"):
        wanted |= paper(setting, 100, [*VARIANTS, ("solo", "")])
    for k in (400, 1600):
        wanted |= paper("ir18 arcface", k, VARIANTS[1:])  # centralised training does not depend on K
    wanted |= paper("ir18 arcface", 100, [(m, n) for m in ("pfm-fv", "fedavg-fv") for n in ("moving", "none")])
    found = [chosen(cell) for cell in cells("paper-3-party")]
    assert set(found) == wanted and len(found) == len(wanted) == 70


def test_the_twelve_party_sweep_is_the_papers() -> None:
    found = [chosen(cell) for cell in cells("paper-12-party")]
    assert set(found) == paper("ir18 arcface", 100, VARIANTS) and len(found) == 12
    every = Path("pfm/sweeps/paper-12-party")
    assert len(grid(every, ["local.steps_per_round=100,400,1600"])) == 36  # as its head says


@pytest.mark.parametrize("name", ["paper-3-party", "paper-12-party"])
def test_every_cell_has_the_papers_numbers(name: str) -> None:
    found = cells(name)
    assert len({cell.recipe.digest() for cell in found}) == len(found)
    for cell in found:
        made, local = cell.recipe, cell.recipe.local
        assert local.steps_per_round in (100, 400, 1600)
        marks = (*local.lr_milestones, local.total_steps)
        assert marks == (10 * 12_800, 18 * 12_800, 24 * 12_800, 26 * 12_800)
        assert not any(mark % local.steps_per_round for mark in marks if mark is not None)
        assert (local.lr, local.momentum, made.data.size, made.data.grey) == (0.1, 0.9, 112, False)
        assert (made.loss.scale, made.loss.margin) == (64, {"arcface": 0.5, "cosface": 0.35}[LOSS.name_of(made.loss)])
        if hasattr(method := made.build_method(), "validation"):
            fv = method.validation
            assert (fv.candidates, fv.smoothing, fv.epsilon, fv.forgetting, fv.score) == (
                3, 0.01, 0.001, 0.01, "accuracy"
            )  # fmt: skip
        step = sum(
            local.party_batch_size.get(party, local.batch_size)
            for party in made.engine.processes_per_party
            if party != "pooled"
        )
        rest = 8 * local.batch_size if name == "paper-12-party" else 0  # silos on one GPU each
        assert step + rest == made.methods["centralized"].batch_size == 64 * 16


@pytest.mark.parametrize("name", ["paper-3-party", "paper-12-party"])
def test_centralised_training_is_there_for_every_network_and_loss(name: str) -> None:
    found = cells(name)
    assert baseline_of([cell.setting for cell in found], "method=centralized") == found[0].setting
    for half in BOTH:
        of = [cell.recipe for cell in found if cell.recipe.fold_split == half]
        pooled = {(made.model.name, LOSS.name_of(made.loss)) for made in of if made.method == "centralized"}
        assert {(made.model.name, LOSS.name_of(made.loss)) for made in of} == pooled
