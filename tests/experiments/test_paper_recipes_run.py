"""The papers' settings of one identity a client, adaptation and public images run, on tiny sets of the same layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from field_layouts import people, rfw_lists
from tinyruns import Silent

from coalface.core.method import generator
from coalface.data.stores import open_store
from coalface.data.tools.convert import Pairs, convert
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.included import FOLDER
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.sweep.differences import baseline_of
from coalface.experiments.sweep.grid import grid

TINY = ["model.name=cnn-small", "model.embedding_size=16", "data.size=32", "engine.device=cpu", "engine.threads=1"]
PRETRAINED = ["pretrain.local={steps_per_round: 2, total_steps: 4, batch_size: 8}", "pretrain.rounds=2"]
ALONE = ["local.steps_per_round=2", "local.batch_size=8"]
CUT: dict[str, list[str]] = {
    "one-identity/paper-fedfv": [
        "rounds=3", "data.max_identities=12", "data.min_images=4", "data.max_images=4", "methods.fedfv.equivalents=5",
    ],
    "one-identity/paper-fedface": ["rounds=2", "data.private={identities: 5, public: 8}", *PRETRAINED],
    "uda/paper-s": ["rounds=2", *ALONE, *PRETRAINED],
    "uda/paper-l": ["rounds=2", *ALONE, *PRETRAINED],
    "joint/paper": [
        "rounds=2", "local={epochs: 1, batch_size: 8}", "data.min_images=6", "data.max_images=6", "data.test.images=2",
        "data.private={identities: 6, public: 7}", "data.partition.parties=3", *PRETRAINED,
        "evaluation.personalised.fars=[0.1]", "evaluation.personalised.fpirs=[0.2]",
    ],
}  # fmt: skip
"""Recipe -> what makes it a matter of seconds."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the names that the recipes give."""
    root = tmp_path_factory.mktemp("sets")
    people(root / "casia-webface", [f"{45 + n:07}" for n in range(15)], 5, file="{:03}.png")
    for number, race in enumerate(("Caucasian", "African")):
        people(root / "bupt-balancedface" / race, [f"m.{race[0]}{n}" for n in range(6)], 4, first=100 + 10 * number)
        names = ("m.01", "m.0x")
        people(root / "rfw" / "data" / race, names, 2, first=200 + 10 * number, file="{name}_{:04}.png")
        rfw_lists(root / "rfw", {race: names})
    for number, (name, images) in enumerate((("faces_ms1m", 3), ("faces_emore", 7))):
        made = people(root / "made" / name, [f"m.0{n:02}" for n in range(14)], images, first=300 + 100 * number)
        convert(open_store(made), root / name, "rec")
    (root / "lists").mkdir()
    (root / "lists" / "casia-in-lfw.txt").write_text("0000045/001 0000045/002 1\n")
    (root / "lists" / "ms1m-in-target-or-rfw.txt").write_text("m.001/1 m.001/2 1\n")
    for number, name in enumerate(("lfw", "cfp_fp", "agedb_30")):
        made = people(root / "made" / name, [f"{name}-{n}" for n in range(6)], 4, first=600 + 100 * number)
        convert(open_store(made), root / "lists" / f"{name}.bin", "bin", pairs=Pairs(draw=20, rng=generator(number)))
    return root


def changes(name: str, root: Path) -> list[str]:
    return [*TINY, *CUT[name], f"data.root={root}"]


def sweep(name: str) -> Path:
    return Path(name).parent / "sweeps" / Path(name).name


def summary(recipe: Recipe, out: Path) -> dict[str, Any]:
    experiment.run(recipe, out, Silent(), report=False)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


RECIPES = [
    ("one-identity/paper-fedfv", {"lfw", "cfp", "agedb"}, 12),
    ("one-identity/paper-fedface", {"lfw"}, 5),
    ("uda/paper-s", {"african", "caucasian"}, 2),
    ("uda/paper-l", {"african", "caucasian"}, 2),
    pytest.param("joint/paper", set(), 3, marks=(pytest.mark.slow, pytest.mark.ci)),
]


@pytest.mark.parametrize(("name", "lists", "parties"), RECIPES)
def test_the_recipe_of_a_paper_runs(root: Path, tmp_path: Path, name: str, lists: set[str], parties: int) -> None:
    run = summary(loader.load(name, changes(name, root)), tmp_path / "run")
    assert set(run.get("figures", {})) == lists
    assert len([party for party in run["parties"] if party["role"].startswith("trainer")]) == parties
    if name == "joint/paper":
        assert set(run["personalised"]) >= {"start", "shared", "own", "branch"}


STEPS = ["rounds=2", *ALONE, "local.total_steps=4", "local.lr_milestones=[2]"]
CELLS = [
    ("one-identity/paper-fedfv", {"method": "centralized"}, STEPS),
    ("one-identity/paper-fedface", {"name": "FedAvg by clients"}, [
        "rounds=2", "engine.client_batch=0", "local.batch_size=8", "data.private.identities=12",
        "data.partition.parties=4",
    ]),
    ("uda/paper-s", {"name": "bounds"}, STEPS),
    ("uda/paper-l", {"name": "source-only"}, STEPS),
    ("joint/paper", {"name": "100 clients central"}, [*STEPS, "data.private.assigned=4", "data.partition.parties=2"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wanted", "cuts"), CELLS)
def test_a_cell_of_a_papers_sweep_runs(
    root: Path, tmp_path: Path, name: str, wanted: dict[str, str], cuts: list[str]
) -> None:
    axes = next(axes for axes in loader.read(sweep(name))["grids"] if wanted.items() <= axes.items())
    first = {key: value[0] if isinstance(value, list) else value for key, value in axes.items()}
    cut = [change for change in changes(name, root) if "pretrain" not in first or change not in PRETRAINED]
    recipe = loader.load(name, [*cut, *(f"{key}={json.dumps(value)}" for key, value in first.items()), *cuts])
    assert recipe.method == first.get("method", recipe.method)
    assert summary(recipe, tmp_path / "run")["rounds"] == 2


def test_fedfvs_learning_rate_falls_after_the_papers_rounds() -> None:
    recipe = loader.load("one-identity/paper-fedfv")
    rates = [recipe.local.lr_at(round_, recipe.rounds) for round_ in (1, 10_000, 10_001, 13_000, 13_001, 15_000)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("name", "count", "baselines"),
    [
        ("one-identity/paper-fedfv", 17, ["method=fedfv", "method=centralized"]),
        ("one-identity/paper-fedface", 14, ["fedface"]),
        ("uda/paper-s", 23, ["method=fedfr-uda", "source-only"]),
        ("uda/paper-l", 23, ["method=fedfr-uda", "source-only"]),
        ("joint/paper", 24, ["FedFR", "FedAvg"]),
    ],
)
def test_every_cell_of_a_papers_sweep_is_a_recipe(name: str, count: int, baselines: list[str]) -> None:
    settings = [cell.setting for cell in grid(sweep(name), [])]
    assert len(set(settings)) == len(settings) == count
    assert [baseline_of(settings, baseline) for baseline in baselines] == baselines
    head = (FOLDER / sweep(name)).with_suffix(".yaml").read_text(encoding="utf-8")
    assert all(f"--baseline {baseline}" in head for baseline in baselines)
