"""The charts of pages: what their specifications say, and that they are drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import vl_convert

from coalface.core.errors import RecipeError
from coalface.experiments.report import charts, page, runs, specs, vega
from coalface.experiments.report.specs import Curve, Interval, Spec
from coalface.experiments.report.vega import HOVER, IN_THE_DARK, PALETTE, PAPER, SOFT, Chart, draw
from coalface.experiments.summary import class_embeddings
from coalface.experiments.sweep.charts import is_log, levels_drawn, lines_over
from coalface.experiments.sweep.series import Level, Line, Over, Spread
from coalface.training.losses.base import unit

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '"><script>alert(1)</script>'


def rows(spec: Spec) -> list[dict[str, Any]]:
    return spec["data"]["values"]


def column(spec: Spec, name: str, **where: object) -> list[Any]:
    return [row[name] for row in rows(spec) if where.items() <= row.items()]


def layer(spec: Spec, mark: str) -> dict[str, Any]:
    """The first layer with a mark."""
    return next(layer for layer in spec["layer"] if layer["mark"]["type"] == mark)


def drawn(spec: Spec) -> str:
    return draw(json.dumps(spec))  # not the one that `vega` has in tests


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def spread(mean: float, low: float | None = None, high: float | None = None) -> Spread:
    return Spread(mean, mean if low is None else low, mean if high is None else high, 3, 3)


def swept(*lines: Line, levels: tuple[Level, ...] = ()) -> Spec:
    return lines_over(Over(lines, levels), x="K", y="accuracy")


FORMS = {
    "lines": specs.lines([Curve("a", [0, 5], [1, 2]), Curve("b", [0, 5], [2, 1], 1)], x="x", y="y", marks=[(5, "two")]),
    "one point": specs.lines([Curve("a", [3], [2.0])], x="x", y="y"),
    "roc": specs.roc([Curve("a", [0.0, 1e-4, 1e-2, 1.0], [0.1, 0.25, 0.5, 1.0])]),
    "det": specs.roc([Curve("a", [0.0, 1e-4, 1e-2, 1.0], [0.1, 0.25, 0.5, 1.0])], is_det=True),
    "histogram": specs.histogram([-1, 0, 0.5, 1], [0, 2, 2], [0, 900, 100], ("threshold", 0.4)),
    "intervals": specs.intervals(
        [Interval("a", 80.0, (75.0, 90.0)), Interval("b", 70.0, is_open=True)], x="percent", level=("untrained", 60.0)
    ),
    "long names": specs.intervals([Interval(3 * "a long name ", 1.0)], x="percent", level=None),
    "sweep": swept(
        Line("pfm", {0.0: spread(80, 70, 85), 5.0: None, 50.0: spread(75)}), levels=(Level("b", spread(78)),)
    ),
}


# --- of any form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_drawn_as_large_as_a_phone_is_wide_with_text_that_can_be_read(form: str) -> None:
    svg = drawn(FORMS[form])
    root = ElementTree.fromstring(svg)
    assert float(root.get("width", "")) == specs.WIDTH and texts(svg)
    assert min(float(size) for size in re.findall(r'font-size="([0-9.]+)px"', svg)) >= 11
    colors = set(re.findall(r'(?:fill|stroke)="(#[0-9A-Fa-f]{6})"', svg))
    assert {PAPER, SOFT} <= colors <= set(IN_THE_DARK)  # else it keeps its colour in the dark


def test_the_same_specification_gives_the_same_bytes_whatever_was_drawn_before() -> None:
    first = drawn(FORMS["lines"])
    assert "url(#clip-" in first
    draw.cache_clear()
    drawn(FORMS["sweep"])
    assert drawn(FORMS["lines"]) == first


def test_what_answers_a_pointer_is_not_in_a_drawing() -> None:
    spec = FORMS["lines"]
    assert [layer["name"] for layer in spec["layer"] if "name" in layer] == [HOVER]
    without = {**spec, "layer": [layer for layer in spec["layer"] if "name" not in layer]}
    with_it, as_it_is = (re.sub("clip-[0-9a-f]+", "clip", drawn(form)) for form in (spec, without))
    assert with_it == as_it_is


def test_names_and_titles_are_text() -> None:
    over = Over((Line(EVIL, {1.0: spread(1), 2.0: spread(2)}),), (Level(EVIL, spread(1)),))
    curves = [Curve(EVIL, [0.1, 1], [0.5, 1]), Curve(f"{EVIL}2", [0.1, 1], [0.5, 1])]
    for spec in (
        specs.lines(curves, x=EVIL, y=EVIL, marks=[(1, EVIL)]),
        specs.roc(curves),
        specs.intervals([Interval(EVIL, 1)], x=EVIL, level=(EVIL, 2)),
        specs.histogram([0, 1], [1], [1], (EVIL, 0.5)),
        lines_over(over, x=EVIL, y=EVIL),
    ):
        svg = drawn(spec)
        assert "<script" not in svg and "<script" not in Chart(EVIL, spec).json
        ElementTree.fromstring(svg)
        assert json.loads(Chart(EVIL, spec).json) == spec


def test_a_chart_is_saved_with_its_title_as_its_suffix_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vega, "draw", draw)
    chart = Chart("accuracy over rounds", FORMS["lines"])
    assert "accuracy over rounds" in texts(chart.save(tmp_path / "a.svg").read_text())
    assert chart.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    saved = json.loads(chart.save(tmp_path / "a.json").read_text())
    assert (
        saved["data"] == chart.spec["data"]
        and " ".join(saved["title"]) == chart.title
        and "vega-lite" in saved["$schema"]
    )
    with pytest.raises(RecipeError):
        chart.save(tmp_path / "a.gif")
    bundle = chart._repr_mimebundle_()
    assert bundle["application/vnd.vegalite.v5+json"] == saved and "accuracy over rounds" in bundle["image/svg+xml"]


# --- of a run ---------------------------------------------------------------------------------------------------------


def test_curves_have_their_values_and_keep_the_colour_and_shape_of_their_series() -> None:
    spec = specs.lines([Curve("a", [0, 5, 10], [0, 5, 10]), Curve("c", [0], [3], 2)], x="round", y="loss")
    assert column(spec, "x", series="a") == [0, 5, 10] == column(spec, "y", series="a")
    encoding = layer(spec, "point")["encoding"]
    assert encoding["color"]["scale"] == {"domain": ["a", "c"], "range": [PALETTE[0], PALETTE[2]]}
    assert encoding["shape"]["scale"]["range"] == [specs.SHAPES[0], specs.SHAPES[2]]
    assert {"a", "c", "round"} <= set(texts(drawn(spec)))  # a page has what goes up in the title
    single = specs.lines([Curve("a", [0, 5], [0, 5])], x="round", y="loss")
    assert layer(single, "line")["encoding"]["color"]["legend"] is None


def test_series_beyond_the_palette_differ_by_dashes() -> None:
    curves = [Curve(str(i), [0, 1], [i, i], i) for i in range(2 * len(PALETTE))]
    encoding = layer(specs.lines(curves, x="x", y="y"), "line")["encoding"]
    looks = zip(encoding["color"]["scale"]["range"], encoding["strokeDash"]["scale"]["range"], strict=True)
    assert len({(color, tuple(dash)) for color, dash in looks}) == len(curves)


def test_a_long_curve_is_thinned_and_keeps_its_last_point_and_a_single_one_is_a_dot() -> None:
    spec = specs.lines([Curve("a", range(10_001), [0.0] * 10_000 + [7.0])], x="round", y="loss")
    assert len(rows(spec)) <= 401 and rows(spec)[-1] == {"series": "a", "x": 10_000, "y": 7.0}
    assert [part["mark"]["type"] for part in spec["layer"] if part.get("name") != HOVER] == ["line"]
    assert layer(FORMS["one point"], "point")["data"]["values"] == [{"series": "a", "x": 3, "y": 2}]
    assert specs.lines([Curve("a", [], [])], x="round", y="loss") == {}


def test_an_roc_and_a_det_are_over_the_logarithm_of_the_far() -> None:
    for form, values in (("roc", [25, 50, 100]), ("det", [75, 50])):  # 1 − 1 and FAR 0 have no logarithm
        spec = FORMS[form]
        assert column(spec, "y") == values and column(spec, "x") == [1e-4, 1e-2, 1][: len(values)]
        assert layer(spec, "line")["encoding"]["x"]["scale"]["type"] == "log"
        assert {"0.0001", "0.01", "1"} <= set(texts(drawn(spec)))


def test_a_histogram_shows_shares_of_its_own_pairs_from_the_first_bin_with_any() -> None:
    spec = FORMS["histogram"]
    assert column(spec, "share", pairs="genuine") == [50, 50] and column(spec, "share", pairs="impostor") == [90, 10]
    assert column(spec, "from", pairs="genuine") == [0, 0.5] and "threshold" in texts(drawn(spec))
    assert specs.histogram([0, 1], [1, 2], [1], None) == specs.histogram([0, 1], [0], [0], None) == {}


def test_an_interval_has_its_ends_and_an_open_one_is_a_ring() -> None:
    spec = FORMS["intervals"]
    assert rows(spec) == [
        {"setting": "a", "value": 80, "low": 75, "high": 90},
        {"setting": "b", "value": 70, "low": None, "high": None},
    ]
    assert {"a", "b", "untrained", "percent"} <= set(texts(drawn(spec)))
    root = ElementTree.fromstring(drawn(spec))
    dots = [(e.get("fill"), e.get("stroke")) for e in root.iter(f"{SVG}path") if e.get("d", "").count("A") == 2]
    assert dots == [(PALETTE[0], None), (PAPER, SOFT)]


# --- of a sweep -------------------------------------------------------------------------------------------------------


def test_a_wide_range_is_logarithmic_and_linear_near_a_zero() -> None:
    assert is_log([1, 20]) and not is_log([1, 19.9]) and not is_log([-1, 0.1, 10])
    for numbers, kind in (([1.0, 20.0], "log"), ([0.0, 1.0, 20.0], "symlog"), ([1.0, 19.0], None)):
        spec = swept(Line("pfm", {n: spread(80) for n in numbers}))
        scale = layer(spec, "line")["encoding"]["x"]["scale"]
        assert scale.get("type") == kind and layer(spec, "line")["encoding"]["x"]["axis"]["values"] == numbers


def test_a_line_stands_at_its_values_with_bars_over_its_seeds_and_breaks_at_a_gap() -> None:
    at = {5.0: spread(80, 70, 85), 25.0: spread(75), 45.0: None, 65.0: spread(70, 65, 72), 75.0: spread(70)}
    spec = swept(Line("pfm", at))
    assert column(spec, "at") == [5, 25, 45, 65, 75] and column(spec, "mean") == [80, 75, None, 70, 70]
    assert layer(spec, "rule")["data"]["values"][0] == {"setting": "pfm", "at": 5, "mean": 80, "low": 70, "high": 85}
    (path,) = (e.get("d", "") for e in ElementTree.fromstring(drawn(spec)).iter(f"{SVG}path") if "L" in e.get("d", ""))
    assert path.count("M") == 2 and path.count("L") == 2


def test_a_level_is_dashed_has_a_mark_where_it_was_measured_and_is_left_out_where_it_lies_far_away() -> None:
    line, far = Line("pfm", {5.0: spread(80), 75.0: spread(84)}), Level("untrained", spread(60))
    levels = (Level("solo", spread(79, 78, 80), 75.0), far)
    spec = swept(line, levels=levels)
    assert column(spec, "at", setting="solo") == [5, 75] and column(spec, "mean", setting="solo") == [79, 79]
    assert [r["at"] for r in layer(spec, "point")["data"]["values"] if r["setting"] == "solo"] == [75]
    assert layer(spec, "line")["encoding"]["strokeDash"]["scale"]["range"] == [[], specs.LEVEL]
    assert levels_drawn(Over((line,), levels)) == ([levels[0]], [far])


def test_more_lines_than_there_is_room_for_are_left_to_the_table() -> None:
    lines = [Line(str(i), {1.0: spread(i), 2.0: spread(i)}) for i in range(20)]
    assert set(column(swept(*lines), "setting")) == {str(i) for i in range(16)}


# --- of a method ------------------------------------------------------------------------------------------------------


def validated(folder, weights, scores):
    """Give a run folder lines of weights and scores: party -> a value for each round, None where it has none."""
    lines = []
    for number, _ in enumerate(next(iter(weights.values())), start=1):
        line = {"stage": "train", "round": number, "drift": 0.5}
        for prefix, values in (("weight/", weights), ("score/", scores)):
            line |= {prefix + name: v[number - 1] for name, v in values.items() if v[number - 1] is not None}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_with_validators_draws_weights_and_scores(write_run):
    weights = {"b": [0.5, 0.4, 0.25], "a": [0.5, 0.6, 0.75]}
    folder = validated(write_run("fv", method="pfm-fv"), weights, {"v": [None, 60.0, 70.0]})
    weight, score = charts.weightings(runs.read(folder))
    assert column(weight.spec, "y", series="a") == weights["a"] and column(weight.spec, "y", series="b") == weights["b"]
    assert column(score.spec, "x") == [2, 3]  # the round without a score has no point
    assert "weight/a" not in page.render(runs.read(folder))
    assert charts.weightings(runs.read(write_run("plain"))) == []


def test_of_many_parties_twelve_are_drawn_and_the_others_counted(write_run):
    weights = {f"p{n:02}": [0.05, n / 100] for n in range(15)}
    folder = validated(write_run("fv", method="pfm-fv"), weights, {"v": [1.0, 2.0]})
    (weight, _) = charts.weightings(runs.read(folder))
    assert list(dict.fromkeys(column(weight.spec, "series"))) == [f"p{n:02}" for n in range(3, 15)]
    assert "3 more" in weight.caption


def test_class_embeddings_that_fell_together_are_named(write_run):
    apart = unit(torch.from_numpy(np.random.default_rng(0).standard_normal((40, 64))))
    together = unit(apart * 0.01 + apart[:1])
    folders = {
        name: write_run(name, class_embeddings=class_embeddings(r)) for name, r in (("a", apart), ("b", together))
    }
    (chart,) = charts.class_embeddings([runs.read(f) for f in (*folders.values(), write_run("plain"))])
    before, _, after = chart.caption.partition("b: 40 class embeddings")
    assert "together" not in before and "together" in after
    assert set(column(chart.spec, "series")) == {"a", "b"}
    pairs = class_embeddings(torch.eye(5).repeat(2, 1))  # 5 pairs at 1, 40 at 0
    assert pairs["percentiles"] == pytest.approx({"5": 0.005, "25": 0.005, "50": 0.005, "75": 0.005, "95": 0.995})
    assert (sum(pairs["pairs"]), pairs["mean"]) == (45, pytest.approx(5 / 45)) and class_embeddings(
        torch.ones(1, 3)
    ) == {}


def test_few_rounds_have_a_tick_each_and_none_between_them():
    few, many = (specs.lines([Curve("a", list(range(n)), [0.0] * n)], x="round", y="loss") for n in (4, 40))
    assert layer(few, "line")["encoding"]["x"]["axis"]["values"] == [0, 1, 2, 3]
    assert "values" not in layer(many, "line")["encoding"]["x"]["axis"]


def test_a_pointer_shows_whose_value_it_is():
    """Under `nearest`, Vega-Lite 5 and 6 read a name without a format from the cell about a point, which has none."""
    spec = specs.lines([Curve(name, [0, 1], [1.0, 2.0], n) for n, name in enumerate("ab")], x="round", y="loss")
    compiled = json.dumps(vl_convert.vegalite_to_vega(spec))
    assert r"isValid(datum.datum[\"series\"])" in compiled


def test_a_figure_begins_with_what_the_run_starts_from_and_stands_over_what_was_sent(write_run):
    folder = write_run(gain=22.0)
    run = runs.read(folder)
    by_title = {chart.title: chart for chart in charts.progress([run])}
    over_rounds, over_bytes = by_title["devtest accuracy (%)"], by_title["devtest accuracy (%) by what was sent"]
    assert (
        rows(over_rounds.spec)[0] == {"series": run.label, "x": 0, "y": 60}
        and "Round 0: untrained." in over_rounds.caption
    )
    sent = np.cumsum([line["bytes_down"] + line["bytes_up"] for line in run.metrics]) / 1e6
    evaluated = [i for i, line in enumerate(run.metrics) if line.get("judged")]
    assert column(over_bytes.spec, "x") == pytest.approx([0, *sent[evaluated]], rel=1e-5)
    assert column(over_bytes.spec, "y") == column(over_rounds.spec, "y")
    none, pooled = write_run("none"), write_run("merge", method="merge", pooled=True)
    silent = [{**line, "bytes_down": 0, "bytes_up": 1} for line in run.metrics]
    (none / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in silent))
    (of_all,) = (c for c in charts.progress([runs.read(p) for p in (folder, none, pooled)]) if "sent" in c.title)
    assert set(column(of_all.spec, "series")) == {run.label} and "Without none, merge" in of_all.caption
    assert not any("sent" in chart.title for chart in charts.progress([runs.read(pooled)]))
