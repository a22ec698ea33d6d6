"""The figure of a sweep: differences to the first baseline as dots with intervals."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import tinyruns
from commands import said
from pages import markdown_rows

from coalface.core.errors import RecipeError
from coalface.experiments.report import vega
from coalface.experiments.report.long_table import Record
from coalface.experiments.report.vega import Chart, draw
from coalface.experiments.sweep.differences import check_figure, figure
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


def test_a_dot_is_filled_where_several_seeds_decide_and_a_bar_is_its_interval(cells: list[Cell]) -> None:
    base_of = {setting: FEDAVG for setting in (FEDAVG, PFM, SOLO)}
    records = [record(PFM, 10.0, 5.0, 20.0), record(SOLO, -10.0, -30.0, 10.0)]
    chart = figure(cells, records, base_of, METRIC)
    assert chart.title == "unseen accuracy, less that of fedavg" and chart.rows == [
        {"setting": "pfm", "value": 10, "low": 5, "high": 20},
        {"setting": "solo", "value": -10, "low": -30, "high": 10},
    ]
    assert rings(chart) == ["solo"]
    assert rings(figure(cells, [record(PFM, 10.0, 5.0, 20.0, seeds=1)], base_of, METRIC)) == ["pfm"]
    others = [record(SOLO, 3.0, 1.0, 5.0, metric="unseen/eer"), Record(PFM, METRIC, 1.0, SOLO, low=0.5, high=2.0)]
    assert figure(cells, [*records, *others], base_of, METRIC) == chart


def rings(chart: Chart) -> list[str]:
    return [
        row["setting"] for layer in chart.spec["layer"] if "fill" in layer["mark"] for row in layer["data"]["values"]
    ]


def test_an_unknown_figure_names_those_that_there_are(cells: list[Cell]) -> None:
    check_figure(cells, METRIC)
    with pytest.raises(RecipeError, match="unseen"):
        check_figure(cells, "devtest/accuracy")
    with pytest.raises(RecipeError, match=METRIC):
        figure(cells, [record(PFM, 1.0, 0.5, 2.0)], {PFM: FEDAVG}, "unseen/acuracy")


def test_the_command_draws_the_differences_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "draw", draw)
    tinyruns.write(tmp_path / "tiny.yaml", rounds=1)
    words = ("sweep", tmp_path / "tiny.yaml", "method=fedavg,pfm,solo", "seed=0,1", "--figure", METRIC)
    charts: list[Chart] = []
    save = Chart.save
    monkeypatch.setattr(Chart, "save", lambda chart, path: charts.append(chart) or save(chart, path))
    said(*words, "--out", tmp_path / "out", "--quiet")
    drawing = (tmp_path / "out" / "figure.svg").read_text(encoding="utf-8")
    assert {"pfm", "solo", "unseen accuracy, less that of fedavg"} <= {
        "".join(e.itertext()) for e in ElementTree.fromstring(drawing).iter(f"{SVG}text")
    }
    rows = [
        row
        for row in markdown_rows((tmp_path / "out" / "table.md").read_text())
        if row[1] == "unseen accuracy" and row[0] != "setting"
    ]
    table_values = {row[0].removeprefix("method="): float(row[2]) for row in rows}
    (chart,) = charts
    assert {row["setting"]: row["value"] for row in chart.rows} == pytest.approx(table_values, abs=0.0051)
    assert f"--figure {METRIC}" in (tmp_path / "out" / "sweep.html").read_text()
