"""The differences of a sweep: what each setting is compared with, to one baseline and to several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinyruns
from pages import markdown_rows
from paired_runs import paired

from coalface.evaluation.metrics.bootstrap import bootstrap_of
from coalface.evaluation.metrics.evidence import accuracy_evidence
from coalface.experiments.recipe import loader
from coalface.experiments.report.long_table import Record
from coalface.experiments.setup.parts import Parts
from coalface.experiments.sweep import differences
from coalface.experiments.sweep.grid import Cell, grid
from coalface.experiments.sweep.records import records
from coalface.experiments.sweep.run import table

GRIDS = """recipe: tiny.yaml
grids:
  - {method: [centralized, solo], loss.name: [cosface, arcface], local.steps_per_round: 75, seed: [0, 1]}
  - {method: pfm, loss.name: [cosface, arcface], local.steps_per_round: [5, 75], seed: [0, 1]}
  - {method: fedavg, methods.fedavg.momentum: [reset, none], loss.name: [cosface, arcface],
     local.steps_per_round: [5, 75], seed: [0, 1]}
"""
DATA = {"faces": {"kind": "synthetic", "identities": 24, "images": 4}, "hold_out": 12}
JUDGE = {"pairs": {"unseen": {"kind": "balanced", "pairs": 60}}}
Swept = tuple[list[Cell], dict[str, dict[str, Any]]]
CENTRAL, RESET, NONE = "method=centralized", "methods.fedavg.momentum=reset", "methods.fedavg.momentum=none"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe, and a file of grids over it of which no two have the same keys."""
    folder = tmp_path_factory.mktemp("grids")
    tinyruns.write(folder / "tiny.yaml", data=DATA, evaluation=JUDGE)
    (folder / "grids.yaml").write_text(GRIDS, encoding="utf-8")
    return folder


def finished(cells: Sequence[Cell], path: Path) -> dict[str, dict[str, Any]]:
    """Lines as of finished cells, whose pairs have the scores of a better model the further back the cell stands."""
    (chosen,) = Parts(loader.load(path)).pairs
    is_genuine, lines = chosen.identities.same, {}
    for place, cell in enumerate(cells):
        scores = is_genuine * place / len(cells) + np.random.default_rng(place).normal(0, 0.5, len(is_genuine))
        lines[cell.recipe.digest()] = {
            "cell": cell.chosen,
            "seed": cell.recipe.seed,
            "figures": {"unseen": {"accuracy": 78.0 + 2 * place}},
            "untrained": {"unseen": {"accuracy": 50.0}},
            "bytes": {"down": 1000, "up": 2000},
            "seconds": {"total": 3.0},
            "evidence": {"unseen": [accuracy_evidence(scores, chosen.identities)]},
        }
    return lines


@pytest.fixture(scope="module")
def swept(folder: Path) -> Swept:
    """A finished sweep of the file of grids, as its cells and their lines."""
    cells = grid(folder / "grids.yaml", [])
    return cells, finished(cells, folder / "tiny.yaml")


def tables(text: str) -> dict[str, list[list[str]]]:
    """Baseline -> the rows of its table, without its head."""
    by_baseline = {}
    for part in text.split("\nDifferences to ")[1:]:
        by_baseline[part.partition(":\n")[0]] = markdown_rows(part)[2:]
    return by_baseline


def compared(rows: list[list[str]]) -> dict[str, str]:
    """Setting -> the setting of the row `to …` above it."""
    to, base_of = "", {}
    for label, *_ in rows:
        if label.startswith("to "):
            to = label.removeprefix("to ")
        else:
            base_of[label] = to
    return base_of


@pytest.mark.parametrize(
    ("baselines", "base_of"),
    [
        ([CENTRAL], {"fedavg, 5": "centralized, 5", "fedavg, 75": "centralized, 75"}),
        (
            [f"{CENTRAL}, local.steps_per_round=75"],
            dict.fromkeys(["centralized, 5", "fedavg, 5", "fedavg, 75"], "centralized, 75"),
        ),
    ],
)
@pytest.mark.parametrize("seeds", ["0", "0,1,2"])
def test_one_baseline_has_a_row_for_every_setting_and_figure(
    folder: Path, baselines: list[str], base_of: dict[str, str], seeds: str
) -> None:
    """Each as `paired` gives it for the two settings alone; of one seed nothing is decided."""
    cells = grid(folder / "tiny.yaml", ["method=centralized,fedavg", "local.steps_per_round=5,75", f"seed={seeds}"])
    lines = finished(cells, folder / "tiny.yaml")
    text, whole, _ = table(cells, lines, baselines)
    short = text.replace("method=", "").replace("local.steps_per_round=", "").partition("Differences to")[2]
    (chosen,) = Parts(loader.load(folder / "tiny.yaml")).pairs

    def evidence(setting: str) -> list[Any]:
        name = setting.replace(", ", ", local.steps_per_round=")
        return [lines[c.recipe.digest()]["evidence"]["unseen"] for c in cells if c.setting == f"method={name}"]

    expected = []
    for setting, base in base_of.items():
        by_figure = paired(evidence(setting), evidence(base), bootstrap_of(chosen.identities))
        for figure, name in (("accuracy", "unseen accuracy"), ("eer", "unseen EER")):
            middle, low, high = by_figure[figure].in_unit
            verdict = "higher" if low > 0 else "lower" if high < 0 else "undecided"
            to = [base] if len(set(base_of.values())) > 1 else []
            numbers = [f"{middle:+.2f}", f"{low:+.2f} to {high:+.2f}", "one seed" if seeds == "0" else verdict]
            expected.append([setting, *to, name, *numbers])
    assert whole and markdown_rows(short)[2:] == expected
    assert {row[-1] for row in expected} == ({"one seed"} if seeds == "0" else {"higher", "lower", "undecided"})


def test_of_several_baselines_one_seed_is_never_bold(swept: Swept) -> None:
    cells, lines = swept
    of_one = [cell for cell in cells if cell.recipe.seed == 0]
    several, one = (table(some, lines, [CENTRAL, RESET])[0].partition("Differences in")[2] for some in (cells, of_one))
    assert several.count("| **") > 1 and "| **" not in one and one.count(" to ") > 40


def test_several_baselines_have_a_table_each_and_like_is_compared_with_like(swept: Swept) -> None:
    cells, lines = swept
    by_baseline = tables(table(cells, lines, [CENTRAL, RESET, NONE])[0])
    assert list(by_baseline) == [CENTRAL, RESET, NONE]
    federated = ["method=pfm", f"method=fedavg, {RESET}", f"method=fedavg, {NONE}"]
    losses, every = ("cosface", "arcface"), [(loss, k) for loss in ("cosface", "arcface") for k in (5, 75)]

    def named(method: str, loss: str, k: int) -> str:
        return f"{method}, loss.name={loss}, local.steps_per_round={k}"

    central = {named(m, loss, k): named(CENTRAL, loss, 75) for m in federated for loss, k in every}
    solo = {loss: named("method=solo", loss, 75) for loss in losses}
    assert compared(by_baseline[CENTRAL]) == central | {solo[loss]: named(CENTRAL, loss, 75) for loss in losses}
    for baseline, methods in ((RESET, ["method=pfm", f"method=fedavg, {NONE}"]), (NONE, ["method=pfm"])):
        to = {named(m, loss, k): named(f"method=fedavg, {baseline}", loss, k) for m in methods for loss, k in every}
        to |= {solo[loss]: named(f"method=fedavg, {baseline}", loss, 75) for loss in losses}
        assert compared(by_baseline[baseline]) == to  # centralised, and `reset` to `none`, stand in a table above


def test_a_cell_of_several_has_the_difference_and_its_interval(swept: Swept, folder: Path) -> None:
    """Each as `paired` gives it for the two settings alone; bold where the interval does not hold zero."""
    cells, lines = swept
    (chosen,) = Parts(loader.load(folder / "tiny.yaml")).pairs
    bootstrap, bold = bootstrap_of(chosen.identities), []
    by_baseline = tables(table(cells, lines, [CENTRAL, RESET])[0])

    def evidence(setting: str) -> list[Any]:
        return [lines[c.recipe.digest()]["evidence"]["unseen"] for c in cells if c.setting == setting]

    for rows in by_baseline.values():
        to = compared(rows)
        for label, *texts in rows:
            if label.startswith("to "):
                assert texts[1] == "" and re.fullmatch(r"\d+\.00 ± 1\.41", texts[0])  # its figures; these have no EER
                continue
            by_figure = paired(evidence(label), evidence(to[label]), bootstrap)
            for text, figure in zip(texts, ("accuracy", "eer"), strict=True):
                d = by_figure[figure].figures()
                plain = f"{d['difference']:+.2f} ({d['low']:+.2f} to {d['high']:+.2f})"
                bold.append(d["verdict"] != "undecided")
                assert text == (f"**{plain}**" if bold[-1] else plain)
    assert any(bold) and not all(bold)


def test_what_is_compared_with_a_setting_that_is_not_done_is_left_out(swept: Swept) -> None:
    cells, lines = swept
    absent = f"method=fedavg, {RESET}, loss.name=arcface, local.steps_per_round=75"
    remaining = {c.recipe.digest(): lines[c.recipe.digest()] for c in cells if c.setting != absent}
    whole, part = (tables(table(cells, some, [CENTRAL, RESET])[0])[RESET] for some in (lines, remaining))
    without = {label: to for label, to in compared(whole).items() if to != absent}
    assert compared(part) == without and len(without) == len(compared(whole)) - 3
    only = {c.recipe.digest(): lines[c.recipe.digest()] for c in cells if RESET not in c.setting}
    assert list(tables(table(cells, only, [CENTRAL, RESET, NONE])[0])) == [CENTRAL, NONE]


@pytest.mark.parametrize(("folds", "change"), [([0, 1, 2], {}), (None, {"list": "another"})])
def test_settings_evaluated_on_other_pairs_say_so_in_each_column(
    swept: Swept, folder: Path, folds: list[int] | None, change: dict[str, str]
) -> None:
    cells, lines = swept
    (chosen,) = Parts(loader.load(folder / "tiny.yaml")).pairs
    evidence = accuracy_evidence(np.arange(120.0), chosen.identities, folds=folds) | change
    changed = dict(lines)
    for cell in (c for c in cells if c.setting == "method=solo, loss.name=cosface, local.steps_per_round=75"):
        changed[cell.recipe.digest()] = lines[cell.recipe.digest()] | {"evidence": {"unseen": [evidence]}}
    rows = tables(table(cells, changed, [CENTRAL, RESET])[0])[CENTRAL]
    assert next(row for row in rows if row[0].startswith("method=solo"))[1:] == ["evaluated on other pairs"] * 2
    assert sum("other pairs" in text for row in rows for text in row) == 2
    base, changed = "method=centralized, loss.name=cosface, local.steps_per_round=75", dict(lines)
    for cell in (c for c in cells if c.setting == base):
        changed[cell.recipe.digest()] = lines[cell.recipe.digest()] | {"evidence": {"unseen": [evidence]}}
    rows = tables(table(cells, changed, [CENTRAL, RESET])[0])[CENTRAL]
    saying_so = {row[0]: row[1:] for row in rows if row[1:] == ["evaluated on other pairs"] * 2}
    assert saying_so.keys() == {label for label, to in compared(rows).items() if to == base}


def test_each_setting_is_compared_with_the_baseline_most_like_it() -> None:
    settings = ["method=a, loss=x", "method=a, loss=y", "method=b, loss=x", "method=b, loss=y", "method=c"]
    assert differences.bases_of(settings, "method=a") == {
        "method=a, loss=x": "method=a, loss=x",
        "method=a, loss=y": "method=a, loss=y",
        "method=b, loss=x": "method=a, loss=x",
        "method=b, loss=y": "method=a, loss=y",
        "method=c": "method=a, loss=x",
    }
    assert set(differences.bases_of(settings, None).values()) == {"method=a, loss=x"}
    whole = ["method=a, methods.a.k=2", "method=a", "method=b"]  # a baseline may be a whole setting
    assert differences.bases_of(whole, "method=a") == dict.fromkeys(whole, "method=a")


def test_cosines_of_class_embeddings_are_a_mean_and_percentiles_where_a_cell_has_them() -> None:
    lines = [
        {"seed": 0, "class_embeddings": {"count": 5, "mean": 0.25}},
        {"seed": 1, "class_embeddings": {"count": 5, "mean": 0.5, "percentiles": {"50": 0.305}}},
        {"seed": 2},
    ]
    found = [(r.metric, r.value, r.seed) for r in records({"a": lines}, {})["class embeddings"]]
    assert found == [("mean", 0.25, 0), ("mean", 0.5, 1), ("percentile 50", 0.305, 1)]


def test_losses_of_a_party_are_compared_over_seeds_alone() -> None:
    """Of two seeds 2 and 4 apart 3 ± 12.71, t being 12.706; of three 2, 4 and 3 apart 3 ± 2.48, t being 4.303."""
    base = [Record("base", party, 10.0, seed=seed) for party in ("large", "small") for seed in (0, 1, 2)]
    large = [Record("other", "large", 10.0 + apart, seed=seed) for seed, apart in enumerate((2, 4, 3))]
    small = [Record("other", "small", 10.0 + apart, seed=seed) for seed, apart in enumerate((2, 4))]
    alone = [Record("alone", "large", 9.0, seed=2), Record("pooled", "all", 1.0, seed=0)]
    to = [dict.fromkeys(("base", "other", "alone", "pooled"), "base"), {"base": "other", "other": "other"}]
    lines = differences.of_numbers([*base, *large, *small, *alone], to, "final training loss")
    assert markdown_rows("\n".join(lines))[2:] == [
        ["other", "base", "**+3.00 (+0.52 to +5.48)**", "+3.00 (-9.71 to +15.71)", ""],
        ["alone", "base", "-1.00 (one seed)", "", ""],
    ]
