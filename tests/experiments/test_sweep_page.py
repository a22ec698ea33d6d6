"""The page of a sweep: what the command writes, and what stands in it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import tinyruns
from commands import said
from pages import Reader, markdown_rows

from coalface.cli import main
from coalface.experiments.recipe import loader
from coalface.experiments.sweep import page as charting
from coalface.experiments.sweep import run as sweeping
from coalface.experiments.sweep.grid import Cell, grid
from coalface.experiments.sweep.series import Point

GRIDS = """recipe: tiny.yaml
grids:
  - {method: fedavg, local.steps_per_round: [20, 1, 2], seed: [0, 1]}
  - {method: centralized, local.steps_per_round: 2, seed: [0, 1]}
"""
EVIL = '</title><script>alert(1)</script><img src=x onerror="alert(2)">'


def swept(folder: Path, *arguments: object) -> str:
    """The page that the command writes."""
    text = said("sweep", folder / "grids.yaml", "--out", folder / "out", "--quiet", *arguments)
    assert f"page: {folder / 'out' / 'sweep.html'}" in text.splitlines()[-1]
    return (folder / "out" / "sweep.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charted")
    tinyruns.write(folder / "tiny.yaml", rounds=1)
    (folder / "grids.yaml").write_text(GRIDS)
    swept(folder)
    return folder


def page(folder: Path) -> str:
    return (folder / "out" / "sweep.html").read_text(encoding="utf-8")


def test_the_page_draws_each_figure_over_the_setting_that_takes_several_numbers(finished: Path) -> None:
    text = page(finished)
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["By setting", "Over <code>local.steps_per_round</code>", "The table"]
    by_setting = [f"unseen {figure} (%)" for figure in ("accuracy", "EER")]
    assert re.findall(r"<h3>(.*?)</h3>", text) == [
        *by_setting,
        *(f"{t} over local.steps_per_round" for t in by_setting),
    ]
    assert f"coalface sweep {finished / 'grids.yaml'} --out {finished / 'out'}" in text
    assert "4 settings in 8 runs." in text and "on a logarithmic scale" in text
    for chart in Reader(text).charts[2:]:
        rows = chart["data"]["values"]
        assert [row["at"] for row in rows if row["setting"] == "fedavg"] == [1, 2, 20]
        assert {"fedavg", "centralized"} <= {row["setting"] for row in rows}


def test_the_numbers_of_a_drawing_are_those_of_the_cells(finished: Path) -> None:
    rows = Reader(page(finished)).rows
    head, fedavg, centralized, untrained = rows[:4]
    assert head == ["setting", "local.steps_per_round = 1", "2", "20", "without local.steps_per_round"]
    cells = sweeping.read_cells(finished / "out" / "cells.jsonl").values()
    for column, number in enumerate((1, 2, 20), start=1):
        runs = [c for c in cells if c["cell"]["method"] == "fedavg" and c["cell"]["local.steps_per_round"] == number]
        first, second = (run["figures"]["unseen"]["accuracy"] for run in runs)
        low, high = min(first, second), max(first, second)
        assert fedavg[column] == f"{(first + second) / 2:.2f}({low:.2f} to {high:.2f})"
    assert fedavg[0] == "fedavg" and centralized[0] == "centralized" and centralized[2] and not centralized[3]
    assert untrained[0] == "untrained" and untrained[1:4] == ["", "", ""] and untrained[4]


def test_each_setting_is_a_dot_with_the_range_of_its_seeds_and_the_baseline_a_line(finished: Path) -> None:
    (accuracy, _, *_) = Reader(page(finished)).charts
    cells = sweeping.read_cells(finished / "out" / "cells.jsonl").values()
    rows = {row["setting"]: row for row in accuracy["data"]["values"]}
    first, second = (c["figures"]["unseen"]["accuracy"] for c in cells if c["cell"].get("local.steps_per_round") == 20)
    row = rows["fedavg, steps_per_round=20"]
    assert row["value"] == pytest.approx((first + second) / 2) and (row["low"], row["high"]) == pytest.approx(
        (min(first, second), max(first, second))
    )
    assert set(rows) == {
        *(f"fedavg, steps_per_round={k}" for k in (20, 1, 2)),
        "centralized, steps_per_round=2",
        "untrained",
    }
    assert accuracy["layer"][0]["data"]["values"] == [{"level": row["value"], "name": row["setting"]}]


def test_the_tables_are_those_of_the_markdown(finished: Path) -> None:
    text = (finished / "out" / "table.md").read_text()
    rows = [[cell.strip("*") for cell in row] for row in markdown_rows(text) if not set("".join(row)) <= set("-:")]
    assert Reader(page(finished)).rows[-len(rows) :] == rows and "<b>" in page(finished) and "**" in text
    assert "Differences to method=fedavg, local.steps_per_round=20" in page(finished)


def test_a_sweep_that_is_resumed_writes_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    before = (finished / "out" / "sweep.html").read_bytes()
    swept(finished)
    assert (finished / "out" / "sweep.html").read_bytes() == before
    (finished / "out" / "sweep.html").unlink()
    swept(finished)
    assert (finished / "out" / "sweep.html").read_bytes() == before
    folder = shutil.copytree(finished, tmp_path / "cut")
    path = folder / "out" / "cells.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], *lines[2:]])[:-50])  # one is missing, and one was cut off
    again = swept(folder).replace(str(folder), str(finished))
    assert again.partition("<h2>The table")[0] == before.decode().partition("<h2>The table")[0]  # that has seconds


def test_an_axis_can_be_chosen_and_a_mistake_in_it_shows_before_anything_runs(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    two = swept(folder, "local.steps_per_round=1,2", "seed=0,1")
    assert "<h2>Over" not in two
    two = swept(folder, "local.steps_per_round=1,2", "seed=0,1", "--axis", "local.steps_per_round")
    assert "<h2>Over <code>local.steps_per_round</code>" in two and "logarithmic" not in two
    assert "&#39;local.steps_per_round=1,2&#39;" not in two and "--axis local.steps_per_round --out" in two
    for wrong in ("seed", "method", "local.lr"):
        words = ["coalface", "sweep", str(folder / "grids.yaml"), "--out", str(tmp_path / "none"), "--axis", wrong]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit):
            main.main()
        error = capsys.readouterr().err
        assert all(word in error for word in ("--axis", wrong, "local.steps_per_round"))
    assert not (tmp_path / "none").exists()


def test_cells_that_failed_are_named_and_their_place_is_empty(finished: Path) -> None:
    cells = grid(finished / "grids.yaml", [])
    lines = sweeping.read_cells(finished / "out" / "cells.jsonl")
    absent = [c.recipe.digest() for c in cells if c.chosen.get("local.steps_per_round") == 2][
        :3
    ]  # fedavg's, and a seed
    some = {digest: line for digest, line in lines.items() if digest not in absent}
    text, *_ = sweeping.table(cells, some, (), dict.fromkeys(absent, "it <broke>"))
    html = charting.page(cells, some, text, "coalface sweep", ["local.steps_per_round"])
    assert "4 settings in 5 runs of 8; the others are missing in the means." in html
    assert html.count("failed: it &lt;broke&gt;") == 3 and '<div class="warn">' in html
    fedavg, centralized = Reader(html).rows[1:3]
    assert fedavg[1] and not fedavg[2] and fedavg[3] and centralized[2].endswith("1 of 2 seeds")


def test_figures_of_clients_have_drawings_of_their_own(finished: Path) -> None:
    cells = grid(finished / "grids.yaml", [])
    lines = sweeping.read_cells(finished / "out" / "cells.jsonl")
    for place, line in enumerate(lines.values()):
        line["enrolled"] = {"codewords": {"eer": 5.0 + place}, "trials": {"genuine": 9}}
    html = charting.page(cells, lines, "", "coalface sweep", ["local.steps_per_round"])
    assert (
        "Clients evaluated by their own images (1)" in html
        and "<h3>clients by codewords EER (%) over local.steps_per_round</h3>" in html
    )


def test_how_many_public_images_clients_took_is_drawn_and_how_they_are_served(finished: Path) -> None:
    cells = grid(finished / "grids.yaml", [])
    lines = sweeping.read_cells(finished / "out" / "cells.jsonl")
    for place, line in enumerate(lines.values()):
        line["public_images"] = {"held": 50, "used": {"a": [10, 20 + place], "b": [20, 10]}}
        line["personalised"] = {"start": {"eer": 9.0}, "branch": {"eer": 8.0 - place}, "clients": {}}
    (first, *_) = lines
    (point,) = (
        point for cell, point in zip(cells, charting.points(cells, lines), strict=True) if cell.recipe.digest() == first
    )
    assert point.figures[charting.SHARE] == pytest.approx(30.0)  # (15 of 50 + 15 of 50) / 2
    assert point.figures["clients by branch/eer"] == 8.0 and "clients by start/eer" not in point.figures
    moved = [
        cells[0],
        Cell(cells[1].chosen, loader.parse(loader.merged(cells[1].recipe.resolved(), {"data": {"min_images": 1}}))),
    ]
    (moved_point, _) = charting.points(moved, lines)
    assert (
        charting.SHARE in moved_point.figures and "clients by branch/eer" not in moved_point.figures
    )  # of two sweeps' clients
    html = charting.page(cells, lines, "", "coalface sweep", ["local.steps_per_round"])
    assert f"<h3>{charting.SHARE} (%) over" in html and "<h3>clients by branch EER (%) over" in html


def test_a_cell_is_a_point_without_what_is_averaged_over() -> None:
    start = {"figures": {}, "untrained": {"unseen": {"eer": 40.0}}}
    cells, lines = [], {}
    for half, eer in (("first", 10.0), ("second", 20.0)):
        recipe = tinyruns.tiny(seed=3).model_copy(update={"fold_split": half})
        cells.append(Cell({"method": "pfm", "seed": 3, "fold_split": half}, recipe))
        lines[recipe.digest()] = {**start, "figures": {"unseen": {"eer": eer, "eer_se": 1.0}}}
    points = charting.points(cells, lines)
    assert points == [
        Point({"method": "pfm"}, 3, {"unseen/eer": eer}, half, "untrained", {"unseen/eer": 40.0})
        for half, eer in (("first", 10.0), ("second", 20.0))
    ]
    assert charting.points(cells, {})[0] == Point({"method": "pfm"}, 3, {}, "first", "untrained", {})


def test_a_grid_of_two_settings_is_small_multiples_on_one_scale_and_in_one_colour_a_method() -> None:
    """The lowest number is 71.5, untrained; the highest 90 + 7.5 + 0.5."""
    rises = {"fedavg": 0.0, "pfm": 10.0, "solo": 5.0}
    grid = [(m, k, rate) for m in rises for k in (5, 25, 75) for rate in (0.1, 0.5)]
    chosen = [({"method": m, "K": k, "lr": rate}, 80 + rises[m] + k / 10 + rate) for m, k, rate in grid if m != "solo"]
    chosen += [({"method": m, "K": k, "lr": rate}, 85 + rate) for m, k, rate in grid if m == "solo" and rate < 0.5]
    points = [
        Point(at, 0, {"unseen/accuracy": value}, None, "untrained", {"unseen/accuracy": 71.5}) for at, value in chosen
    ]
    html = charting.render("grid", "", "", "", points, ["K"])
    assert re.findall(r"<h3>(.*?)</h3>", html)[1:] == [f"unseen accuracy (%) over K, lr={rate}" for rate in (0.1, 0.5)]
    _, first, second = Reader(html).charts
    for chart, names in ((first, ["fedavg", "pfm", "solo", "untrained"]), (second, ["fedavg", "pfm", "untrained"])):
        encoding = chart["layer"][0]["encoding"]
        assert encoding["y"]["scale"]["domain"] == [71.5, 98.0] and encoding["color"]["scale"]["domain"] == names
    colours = [
        dict(zip(*chart["layer"][0]["encoding"]["color"]["scale"].values(), strict=True)) for chart in (first, second)
    ]
    assert colours[1].items() <= colours[0].items() and len(set(colours[0].values())) == 4


def test_a_setting_takes_two_lines_at_most_and_the_head_of_a_column_too() -> None:
    name = "method=fedavg, loss.name=cosface, local.steps_per_round=75"
    table = f"| setting | unseen TAR at FAR 0.01 |\n|---|--:|\n| {name} | 80.0 |"
    html = charting.render("grid", "", "", table, [], [])
    letters, _ = re.findall(r"min-width: (\d+)ch", html)  # the other is on paper
    assert len(name) / 2 < int(letters) < len(name) and "unseen TAR&nbsp;at&nbsp;FAR&nbsp;0.01" in html
    short = charting.render("grid", "", "", table.replace(name, "fedavg"), [], [])
    assert len(re.findall(r"min-width: \d+ch", short)) == 1


def test_every_string_is_escaped() -> None:
    point = Point({"method": EVIL, "k": 1}, 0, {f"{EVIL}/eer": 1.0})
    second = Point({"method": EVIL, "k": 2}, 0, {f"{EVIL}/eer": 2.0})
    text = f"| {EVIL} | x |\n|---|--:|\n| **{EVIL}** | a\\|b |\n\n- {EVIL}\n\n**{EVIL}** {EVIL}"
    html = charting.render(EVIL, EVIL, EVIL, text, [point, second], ["k"], EVIL)
    Reader(html).check_offline()
    assert html.count("<b>&lt;/title&gt;") == 2 and ">a|b<" in html
