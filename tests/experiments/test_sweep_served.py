"""How a sweep's table says how well clients are served: means, paired differences, and whom it compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pages import markdown_rows
from paired_runs import naive_interval
from tinyruns import EVALUATED, Silent
from tinyruns import public_images as recipe

from coalface.core.method import generator
from coalface.evaluation.figures import SERVED_BY, figure_name
from coalface.experiments.recipe import loader, schema
from coalface.experiments.sweep import differences
from coalface.experiments.sweep.grid import grid
from coalface.experiments.sweep.run import read_cells, sweep
from coalface.experiments.sweep.table import table

GRIDS = [
    {"name": "base", "seed": [0, 1]},
    {"name": "faster", "local.lr": 0.5, "seed": [0, 1]},
    {"name": "without a branch", "methods.fedfr-joint.branch": "none", "seed": [0, 1]},
    {"name": "one person each", "data.private.assigned": 3, "seed": 0},
]


DRAWS = 100


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of clients that have models of their own; tests only read it."""
    folder, threads = tmp_path_factory.mktemp("served"), torch.get_num_threads()
    tree = recipe(**EVALUATED).model_dump(mode="json", exclude_unset=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    (folder / "grids.yaml").write_text(yaml.safe_dump({"recipe": "tiny.yaml", "grids": GRIDS}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "DRAWS", DRAWS)
        sweep(folder / "grids.yaml", [], folder / "out", Silent(), baselines=["base"])
    torch.set_num_threads(threads)
    return folder


def cells(swept: Path, name: str) -> list[dict[str, Any]]:
    return [c for c in read_cells(swept / "out" / "cells.jsonl").values() if c["cell"]["name"] == name]


def rows(swept: Path) -> list[list[str]]:
    return markdown_rows((swept / "out" / "table.md").read_text())


def test_each_model_has_its_row_of_means_over_clients_and_seeds(swept: Path) -> None:
    by_model = {(row[0], row[1]): row[2:] for row in rows(swept) if row[1] in SERVED_BY}
    kinds = {"base": 4, "faster": 4, "without a branch": 3, "one person each": 4}
    assert {name: sum(label == name for label, _ in by_model) for name in kinds} == kinds
    (header,) = (row[2:] for row in rows(swept) if row[1] == "by")
    for (name, kind), texts in by_model.items():
        every = [cell["personalised"]["clients"] for cell in cells(swept, name)]
        figures = {figure_name(f): f for f in next(iter(every[0].values()))[kind]}
        assert figures.keys() <= set(header)
        for title, text in zip(header, texts, strict=True):
            seeds = [
                np.mean([client[kind][figures[title]] for client in clients.values()])
                for clients in every
                if title in figures
            ]
            spread = f" ± {np.std(seeds, ddof=1):.2f}" if len(seeds) > 1 else ""
            assert text == (f"{np.mean(seeds):.2f}{spread}" if seeds else "")


def test_differences_are_paired_by_client_and_seed(swept: Path) -> None:
    """Each by its own loop over draws: clients with replacement, anew for every seed, the seeds' means averaged."""
    by_pair = {(row[0], row[1], row[2]): row[3:] for row in rows(swept) if len(row) == 6 and " by " in row[0]}
    assert {(a, b) for a, b, _ in by_pair} == {
        ("base by own", "base by shared"),
        ("base by branch", "base by own"),
        ("faster by branch", "base by branch"),
        ("faster by own", "faster by shared"),
        ("faster by branch", "faster by own"),
        ("without a branch by own", "base by branch"),
        ("without a branch by own", "base by own"),
        ("without a branch by shared", "base by shared"),
        ("without a branch by own", "without a branch by shared"),
        ("one person each by own", "one person each by shared"),
        ("one person each by branch", "one person each by own"),
    }
    apart_at_all = 0
    for (first, second, name), (middle, interval, verdict) in by_pair.items():
        sides = [text.rsplit(" by ", 1) for text in (first, second)]
        apart = []
        for cell in cells(swept, sides[0][0]):
            (base_cell,) = (c for c in cells(swept, sides[1][0]) if c["seed"] == cell["seed"])
            clients, base = (c["personalised"]["clients"] for c in (cell, base_cell))
            (figure,) = (f for f in clients["silo-00"][sides[0][1]] if figure_name(f) == name)
            apart.append([clients[c][sides[0][1]][figure] - base[c][sides[1][1]][figure] for c in sorted(clients)])
        rng, drawn = generator(0, "personalised", "draws"), np.zeros(DRAWS)
        for gaps in apart:
            for draw, places in enumerate(rng.integers(0, len(gaps), (DRAWS, len(gaps)))):
                drawn[draw] += sum(gaps[place] for place in places) / len(gaps) / len(apart)
        by_seed, of_one_seed = [float(np.mean(gaps)) for gaps in apart], len(apart) == 1
        of_draws_alone = of_one_seed or np.ptp(by_seed) == 0
        low, high = np.percentile(drawn, (2.5, 97.5)) if of_draws_alone else naive_interval(drawn, by_seed)
        assert middle == f"{np.mean(apart):+.2f}"
        assert [float(end) for end in interval.split(" to ")] == pytest.approx([low, high], rel=5e-3, abs=0.01)
        sides = "higher" if low > 0 else "lower" if high < 0 else "undecided"
        assert verdict == ("one seed" if of_one_seed else sides)
        apart_at_all += low < high
    of_one = cells(swept, "one person each")[0]["personalised"]["branch"]
    assert apart_at_all and len(by_pair) == 3 * 9 + 2 * len(of_one)


def test_each_of_several_baselines_is_compared_with_and_no_pair_the_other_way_round(swept: Path) -> None:
    groups = {name: cells(swept, name) for name in ("base", "faster", "without a branch")}
    to = [dict.fromkeys(groups, "base"), dict.fromkeys(groups, "faster")]
    lines = differences.of_clients(groups, to)
    compared = {tuple(cell.strip() for cell in line.split("|")[1:3]) for line in lines if line.count(" by ") == 2}
    across = {(a, b) for a, b in compared if a.rsplit(" by ")[0] != b.rsplit(" by ")[0]}
    assert across == {
        ("faster by branch", "base by branch"),
        *(
            ("without a branch by own", f"{base} by {kind}")
            for base in ("base", "faster")
            for kind in ("branch", "own")
        ),
        *(("without a branch by shared", f"{base} by shared") for base in ("base", "faster")),
    }


def test_clients_who_have_other_people_are_not_compared(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text()
    assert "Settings whose clients have other people than the baseline's are not compared with it." in text
    every, lines = grid(swept / "grids.yaml", []), read_cells(swept / "out" / "cells.jsonl")
    with_same_people = [cell for cell in every if cell.chosen["name"] != "one person each"]
    assert "other people than the baseline's" not in table(with_same_people, lines, ["base"])[0]
    changed = [
        cell if cell.chosen["name"] != "faster" else type(cell)(cell.chosen, evaluated_otherwise(cell.recipe))
        for cell in with_same_people
    ]
    moved = {
        cell.recipe.digest(): lines[old.recipe.digest()] for cell, old in zip(changed, with_same_people, strict=True)
    }
    text, *_ = table(changed, moved, ["base"])
    assert "other people than the baseline's" in text and "| faster by branch " in text
    assert "| base by branch " not in "".join(line for line in text.splitlines() if line.startswith("| faster by"))


def evaluated_otherwise(original: schema.Recipe) -> schema.Recipe:
    """The recipe, with impostors of the same client too."""
    return loader.parse(
        loader.merged(original.resolved(), {"evaluation": {"personalised": {"one_to_one": "official"}}})
    )
