"""The page that compares runs."""

from __future__ import annotations

import json

from pages import Reader

from coalface.experiments.comparison import page
from coalface.experiments.comparison.table import compare

KEY = "devtest/accuracy"


def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def edit(folder, **changes):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | changes))


def test_three_runs_have_a_column_each_with_threshold_and_verdict(write_run, tmp_path):
    runs = [write_run("fedface", gain=22.0), write_run("fedavg", method="fedavg", rounds=9), write_run("none")]
    (runs[2] / "summary.json").unlink()
    target = page.build(compare(runs, {(runs[1], KEY): (-2.0, -4.1, 0.1, 3)}), tmp_path / "all.html")
    reader = read(target)
    reader.check_offline()
    assert target == tmp_path / "all.html" and not (runs[0] / "report.html").exists()
    assert "comparison of 3 runs" in reader.text and "fedface against fedavg, none" in reader.text
    assert "fedavg 80.0 ± 1.1 %, −2.00 points (interval −4.10 to +0.10; 3 seeds, undecided)." in reader.text
    assert reader.rows[:3] == [
        ["figure", "fedface", "fedavg", "none"],
        ["devtest accuracy", "82.0 ± 1.1", "80.0 ± 1.1−2.00[−4.10, +0.10]3 seeds, undecided", ""],
        ["devtest TAR at FAR 0.01", "43.0threshold 0.3125", "40.0threshold 0.3125−3.00", ""],
    ]
    assert [
        "config",
        "rounds",
        "6",
        "9",
        "6",
    ] in reader.rows and "none is not finished (6 rounds so far)" in reader.text
    series = [{row.get("series") for row in chart["data"]["values"]} for chart in reader.charts]
    assert sum({"fedface", "fedavg"} <= names for names in series) >= 5  # loss, figures, bytes, ROC and DET


def test_a_difference_is_a_ring_unless_several_seeds_decide_it(write_run, tmp_path):
    runs = [write_run(name) for name in ("a", "b", "c")]
    intervals = {(runs[1], KEY): (-2.0, -4.0, 1.0, 3), (runs[2], KEY): (-3.0, -4.0, -2.0, 3)}
    charts = read(page.build(compare(runs, intervals), tmp_path / "all.html")).charts
    (chart,) = (c for c in charts if [row.get("low") for row in c["data"]["values"]] == [-4, -4])
    assert [row["setting"] for row in chart["data"]["values"]] == ["b", "c"]
    rings = [layer["data"]["values"] for layer in chart["layer"] if "fill" in layer["mark"]]
    assert [[row["setting"] for row in rows] for rows in rings] == [["b"]]


def test_what_the_server_sees_stands_run_by_run(write_run, tmp_path):
    runs = [write_run(name) for name in ("plain", "hidden", "merged")]
    message = {"direction": "up", "field": "backbone", "content": "weight, count"}
    edit(runs[0], messages=[message, {**message, "content": "count"}], readable="an update of 4 images tells of each")
    (runs[1] / "config.yaml").write_text("{method: fedavg, privacy: {secure: {dropouts: 0.1}}}")
    edit(runs[1], privacy={"epsilon": 7.5, "delta": 1e-5})
    edit(runs[2], pooled=True)
    rows = read(page.build(compare(runs), tmp_path / "all.html")).rows
    sums, images = "a sum of each round's replies", "all images: they are pooled"
    assert ["it learns", "each party's replies", sums, images] in rows
    assert ["ε, each party", "no noise", "7.50 at δ = 1e-05", "no noise"] in rows
    (contents,) = (row for row in rows if row[0] == "contents")
    assert contents[1] == "weight, count"
    assert ["can be read from it", "an update of 4 images tells of each", "", ""] in rows


def test_the_same_folders_give_the_same_bytes(write_run, tmp_path):
    runs = [write_run("a"), write_run("b")]
    pages = [page.build(compare(runs), tmp_path / name).read_bytes() for name in ("one.html", "two.html")]
    assert pages[0] == pages[1]


def test_runs_without_figures_are_compared_by_what_they_did(write_run, tmp_path):
    runs = [write_run("a"), write_run("b")]
    for run in runs:
        (run / "summary.json").unlink()
    reader = read(page.build(compare(runs), tmp_path / "all.html"))
    assert "None of these runs has been evaluated yet." in reader.text and ["method", "fedavg", "fedavg"] in reader.rows
