"""Sweeps of two domains, whose seeds are evaluated on people of their own: the table, the comparison and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from commands import said
from pages import markdown_rows
from paired_runs import naive_interval
from tinydomains import TREE, two_domains
from tinyruns import Silent

from coalface.core import codec as wire
from coalface.engine.party.commits import Commit
from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.paired import resample
from coalface.experiments.comparison.paired import intervals
from coalface.experiments.recipe import loader
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep.grid import Cell, grid
from coalface.experiments.sweep.remarks import unlike_starts
from coalface.experiments.sweep.run import read_cells, sweep
from coalface.experiments.sweep.table import table
from coalface.methods.fedfr_uda import Own

SWEPT = ["method=source-only,fedfr-uda", "seed=0,1"]
FIGURES = ["accuracy", "EER", "TAR at FAR 0.1", "rank-1"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of two methods over two splits, with its runs; tests only read it."""
    folder, threads = tmp_path_factory.mktemp("domains"), torch.get_num_threads()
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TREE), encoding="utf-8")
    sweep(folder / "tiny.yaml", SWEPT, folder / "out", Silent(), keep_runs=True)
    torch.set_num_threads(threads)
    return folder


def cells(swept: Path) -> list[Cell]:
    return grid(swept / "tiny.yaml", SWEPT)


def done(swept: Path) -> dict[str, dict[str, Any]]:
    return read_cells(swept / "out" / "cells.jsonl")


def of(swept: Path, method: str) -> list[dict[str, Any]]:
    """The lines of a method's cells, by seed."""
    lines = [cell for cell in done(swept).values() if cell["method"] == method]
    return sorted(lines, key=lambda cell: int(cell["seed"]))


def run(swept: Path, method: str, seed: int) -> Path:
    return swept / "out" / "runs" / str(of(swept, method)[seed]["hash"])


@pytest.mark.slow
@pytest.mark.ci
def test_each_seed_has_its_people_of_the_target_and_both_those_of_the_source(swept: Path) -> None:
    lists = [[cell["lists"] for cell in of(swept, method)] for method in ("source-only", "fedfr-uda")]
    assert lists[0] == lists[1]
    (zero, first_seed) = lists[0]
    assert zero["street"] != first_seed["street"] and zero["studio"] == first_seed["studio"]


def naive_intervals(swept: Path, name: str) -> dict[str, tuple[float, float, float]]:
    """The second method less the first, in points: in each draw the mean over seeds, of which each has its list."""
    drawn: dict[str, Any] = {}
    points: dict[str, list[float]] = {}
    for seed in (0, 1):
        chosen = loader.load(swept / "tiny.yaml", [f"seed={seed}"])
        lists = {first_seedrs.name: first_seedrs for first_seedrs in Parts(chosen).pairs}
        bootstrap = bootstrap_of(lists[name].identities)
        for method, sign in (("fedfr-uda", 1), ("source-only", -1)):
            (evidence,) = of(swept, method)[seed]["evidence"][name]
            for figure, values in resample(evidence, bootstrap).items():
                drawn[figure] = drawn.get(figure, 0) + sign * values.values / 2
                points.setdefault(figure, [0.0, 0.0])[seed] += sign * values.point
    return {
        figure: (100 * np.mean(points[figure]), *(100 * end for end in naive_interval(drawn[figure], apart)))
        for figure, apart in points.items()
    }


def test_differences_are_paired_list_by_list_and_decided_or_not(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text(encoding="utf-8")
    assert "Differences to method=source-only, percent points" in text and "left out" not in text
    of_lists = text.partition("Final training loss")[0]
    texts = {row[1]: row[2:] for row in markdown_rows(of_lists) if len(row) == 5 and row[0] == "method=fedfr-uda"}
    assert set(texts) == {f"{name} {figure}" for name in ("street", "studio") for figure in FIGURES} - {"studio rank-1"}
    keys = {"accuracy": "accuracy", "EER": "eer", "TAR at FAR 0.1": "tar@far=0.1", "rank-1": "rank-1"}
    expected = {name: naive_intervals(swept, name) for name in ("street", "studio")}
    for row_name, (difference, interval, verdict) in texts.items():
        name, _, figure = row_name.partition(" ")
        middle, low, high = expected[name][keys[figure]]
        assert difference == f"{middle:+.2f}"
        assert [float(end) for end in interval.split(" to ")] == pytest.approx([low, high], rel=5e-3, abs=0.01)
        assert verdict == ("higher" if low > 0 else "lower" if high < 0 else "undecided")
        mean = [
            np.mean([cell["figures"][name][keys[figure]] for cell in of(swept, m)])
            for m in ("source-only", "fedfr-uda")
        ]
        assert float(difference) == pytest.approx(mean[1] - mean[0], abs=0.006)


def test_clusters_have_a_table_of_their_own(swept: Path) -> None:
    text = (swept / "out" / "table.md").read_text(encoding="utf-8")
    assert "Clusters of the parties' own images against who is in them" in text
    (header,) = (row for row in markdown_rows(text) if "pairwise f" in row)
    beneath = markdown_rows(text)[markdown_rows(text).index(header) :]
    own_row = next(row for row in beneath if row[0] == "method=fedfr-uda")
    by_party = [cell["clusters"] for cell in of(swept, "fedfr-uda")]
    assert [sorted(clusters) for clusters in by_party] == [["target-00", "target-01"]] * 2
    for name, texts in zip(header[1:], own_row[1:], strict=True):
        by_seed = [np.mean([party[name.replace(" ", "_")] for party in clusters.values()]) for clusters in by_party]
        assert texts == f"{np.mean(by_seed):.2f} ± {np.std(by_seed, ddof=1):.2f}"
    assert own_row[header.index("identities")] == "3.00 ± 0.00" and own_row[header.index("images")] == "12.00 ± 0.00"
    assert not any("clusters" in cell for cell in of(swept, "source-only"))
    assert beneath[2] == own_row  # and so nothing of the other method, which comes first elsewhere


@pytest.mark.parametrize("seed", [0, 1])
def test_the_clusters_are_evaluated_by_who_is_in_the_partys_images(seed: int, swept: Path) -> None:
    """All pairs of a target's images, one by one."""
    folder = run(swept, "fedfr-uda", seed)
    loaded = loader.load(folder / "config.yaml")
    truth = Parts(loaded).truth
    for party, figures in of(swept, "fedfr-uda")[seed]["clusters"].items():
        (path,) = (folder / "parties" / party).glob("*.commit")
        state = wire.decode(Commit.open(path).states()["Own"], Own)
        labels, true_labels = state.labels.labels.tolist(), truth[party].labels.tolist()
        pairs = [(i, j) for i in range(12) for j in range(i)]
        joined = {(i, j) for i, j in pairs if labels[i] == labels[j] >= 0}
        same_identity = {(i, j) for i, j in pairs if true_labels[i] == true_labels[j]}
        assert len(same_identity) == 3 * 6
        f = 2 * len(joined & same_identity) / (len(joined) + len(same_identity))
        assert figures["pairwise_f"] == pytest.approx(100 * f)


def test_a_setting_that_lacks_a_seed_is_compared_over_the_seeds_that_both_have(swept: Path) -> None:
    """On both lists, that which is the same for both seeds and that of which the second is missing on one side."""
    missing = of(swept, "fedfr-uda")[1]["hash"]
    text, whole, _ = table(cells(swept), {key: cell for key, cell in done(swept).items() if key != missing})
    assert whole and "method=fedfr-uda, seed=1" not in text
    compared = [row for row in markdown_rows(text) if row[0] == "method=fedfr-uda" and len(row) == 5]
    assert [row[1] for row in compared if row[1].startswith("studio")] == [f"studio {name}" for name in FIGURES[:3]]
    federated, base = (of(swept, method)[0]["figures"] for method in ("fedfr-uda", "source-only"))
    apart = {f"{on} accuracy": federated[on]["accuracy"] - base[on]["accuracy"] for on in ("studio", "street")}
    assert {row[1]: row[2] for row in compared if row[1].endswith("accuracy")} == {
        name: f"{value:+.2f}" for name, value in apart.items()
    }
    sentence = "Settings with other seeds than what they are compared with: over the seeds that both have."
    assert sentence in text and sentence not in table(cells(swept), done(swept))[0]


def test_two_runs_of_one_split_are_compared_and_of_two_where_they_were_judged_alike(swept: Path) -> None:
    first, second, second_seed = run(swept, "source-only", 0), run(swept, "fedfr-uda", 0), run(swept, "fedfr-uda", 1)
    comparison = json.loads(said("compare", first, second, "--json"))
    assert {key.partition("/")[0] for key in comparison["runs"][1]["against_first"]} == {"street", "studio"}
    assert "street/rank-1" in comparison["runs"][1]["against_first"]
    apart = {key.partition("/")[0] for _, key in intervals([first, second_seed])}
    assert apart == {"studio"}
    text = said("compare", first, second, second_seed, "--report", swept / "page.html")
    assert "fedfr-uda" in text and "source-only" in text
    page = (swept / "page.html").read_text(encoding="utf-8")
    assert "rank-1" in page and "fedfr-uda" in page


def test_what_is_pooled_is_said_beneath_the_table() -> None:
    cells = [Cell({"method": name}, two_domains({"method": name})) for name in ("fedfr-uda", "dan", "merge")]
    text, *_ = table(cells, {})
    assert "Pooled at one party, and no federation: dan; merge, told who is in the target's images." in text
    assert "Pooled at one party" not in table(cells[:1], {})[0]


def test_runs_that_start_from_other_models_than_their_recipes_say_are_named() -> None:
    recipes = [
        loader.parse({"pretrain": {"method": "centralized"}, "local": {"lr": lr}, "seed": seed})
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    cells = [Cell({"local.lr": recipe.local.lr, "seed": recipe.seed}, recipe) for recipe in recipes]

    def said(*eers: float, other: str = "a") -> list[str]:
        lists = ["a", "a", other, "a"]
        lines = {
            cell.recipe.digest(): {
                "seed": cell.recipe.seed,
                "untrained": {"unseen": {"eer": eer}},
                "lists": {"unseen": on},
            }
            for cell, eer, on in zip(cells, eers, lists, strict=True)
        }
        return [line for line in unlike_starts(cells, lines) if line.startswith("- ")]

    assert said(25.0, 22.0, 25.05, 22.0) == [] == said(25.0, 22.0, 22.4, 22.0, other="b")  # of other pairs
    assert said(25.0, 22.0, 22.4, 22.0) == ["- seed 0: unseen EER 22.40 and 25.00"]
