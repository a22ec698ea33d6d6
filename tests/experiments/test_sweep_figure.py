"""The figure of a sweep: differences to the first baseline as dots with intervals."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tinyruns
from commands import said
from pages import markdown_rows

from coalface.core.errors import RecipeError
from coalface.experiments.report.long_table import Record
from coalface.experiments.sweep.figure import check_figure, figure
from coalface.experiments.sweep.grid import Cell, grid

SVG = "{http://www.w3.org/2000/svg}"
METRIC = "unseen/accuracy"
FEDAVG, PFM, SOLO = (f"method={name}" for name in ("fedavg", "pfm", "solo"))


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    folder = tmp_path_factory.mktemp("drawn")
    tinyruns.write(folder / "tiny.yaml", rounds=1)
    return grid(folder / "tiny.yaml", ["method=fedavg,pfm,solo", "seed=0,1"])


def record(setting: str, value: float, low: float, high: float, *, seeds: int = 2, metric: str = METRIC) -> Record:
    return Record(setting, metric, value, FEDAVG, low=low, high=high, seeds=seeds)


def dots(svg: str) -> list[tuple[str, float]]:
    """The class of each dot, and where it stands."""
    return [(str(e.get("class")), float(e.get("cx", ""))) for e in ElementTree.fromstring(svg).iter(f"{SVG}circle")]


def test_a_dot_is_filled_where_several_seeds_decide_and_a_bar_is_its_interval(cells: list[Cell]) -> None:
    base_of = {setting: FEDAVG for setting in (FEDAVG, PFM, SOLO)}
    records = [record(PFM, 10.0, 5.0, 20.0), record(SOLO, -10.0, -30.0, 10.0)]
    drawing = figure(cells, records, base_of, METRIC)
    (pfm, at_pfm), (solo, at_solo) = dots(drawing)
    assert (pfm, solo) == ("s0", "ring")
    first, second = (e for e in ElementTree.fromstring(drawing).iter(f"{SVG}line") if "bar" in str(e.get("class")))
    unit = (at_pfm - at_solo) / 20
    for bar, dot, low, high in ((first, at_pfm, 5, 10), (second, at_solo, 20, 20)):
        assert dot - float(bar.get("x1", "")) == pytest.approx(low * unit, abs=0.2)
        assert float(bar.get("x2", "")) - dot == pytest.approx(high * unit, abs=0.2)
    of_one = figure(cells, [record(PFM, 10.0, 5.0, 20.0, seeds=1)], base_of, METRIC)
    assert [name for name, _ in dots(of_one)] == ["ring"]
    others = [record(SOLO, 3.0, 1.0, 5.0, metric="unseen/eer"), Record(PFM, METRIC, 1.0, SOLO, low=0.5, high=2.0)]
    assert len(dots(figure(cells, [*records, *others], base_of, METRIC))) == 2


def test_an_unknown_figure_names_those_that_there_are(cells: list[Cell]) -> None:
    check_figure(cells, METRIC)
    with pytest.raises(RecipeError, match="unseen"):
        check_figure(cells, "devtest/accuracy")
    with pytest.raises(RecipeError, match=METRIC):
        figure(cells, [record(PFM, 1.0, 0.5, 2.0)], {PFM: FEDAVG}, "unseen/acuracy")


def test_the_command_draws_the_differences_of_its_table(cells: list[Cell], tmp_path: Path) -> None:
    tinyruns.write(tmp_path / "tiny.yaml", rounds=1)
    words = ("sweep", tmp_path / "tiny.yaml", "method=fedavg,pfm,solo", "seed=0,1", "--figure", METRIC)
    said(*words, "--out", tmp_path / "out", "--quiet")
    drawing = (tmp_path / "out" / "figure.svg").read_text(encoding="utf-8")
    names = [e.text for e in ElementTree.fromstring(drawing).iter(f"{SVG}text") if e.text in ("pfm", "solo")]
    hovers = [str(e.text) for e in ElementTree.fromstring(drawing).iter(f"{SVG}title")]
    rows = [
        row for row in markdown_rows((tmp_path / "out" / "table.md").read_text()) if row[1:2] == ["unseen accuracy"]
    ]
    table_values = {row[0].removeprefix("method="): float(row[2]) for row in rows}
    drawn = {name: float(value.replace("−", "-")) for name, value in (re.split(": ", hover) for hover in hovers)}
    assert names == ["pfm", "solo"] and drawn == pytest.approx(table_values, abs=0.0051)
    assert f"--figure {METRIC}" in (tmp_path / "out" / "sweep.html").read_text()
