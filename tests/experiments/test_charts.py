"""The drawings of pages: what a reader sees of the numbers."""

from __future__ import annotations

import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from coalface.experiments.report import charts, page, runs
from coalface.experiments.report.axes import axis_chart, drawn, is_log, placed
from coalface.experiments.report.drawings import (
    Curve,
    Interval,
    histogram,
    interval_chart,
    line_chart,
    roc_chart,
    ticks,
)
from coalface.experiments.report.series import Level, Line, Over, Spread
from coalface.experiments.summary import class_embeddings
from coalface.training.losses.base import unit

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '"><script>alert(1)</script>'


def shapes(svg, tag, css):
    return [e for e in ElementTree.fromstring(str(svg)).iter(f"{SVG}{tag}") if css in e.get("class", "").split()]


def points(svg, css="line", tag="polyline"):
    return [
        [tuple(map(float, point.split(","))) for point in shape.get("points").split()]
        for shape in shapes(svg, tag, css)
    ]


def texts(svg):
    return ["".join(element.itertext()) for element in ElementTree.fromstring(str(svg)).iter(f"{SVG}text")]


def spread(mean, low=None, high=None):
    return Spread(mean, mean if low is None else low, mean if high is None else high, 3, 3)


# --- of a run ---------------------------------------------------------------------------------------------------------


def test_a_curve_runs_by_its_values_beside_its_level_and_its_stages():
    curve = Curve("loss", [0, 5, 10], [0, 5, 10])
    svg = line_chart([curve], title="loss", x_label="round", level=("untrained", 0), marks=[(5, "two")])
    ((x_left, y_bottom), middle, (x_right, y_top)) = points(svg)[0]
    assert middle == ((x_left + x_right) / 2, (y_bottom + y_top) / 2) and x_left < x_right and y_top < y_bottom
    assert [text for text in texts(svg) if text.isdigit()] == ["0", "2", "4", "6", "8", "10"] * 2
    assert float(shapes(svg, "line", "level")[0].get("y1")) == y_bottom
    assert float(shapes(svg, "line", "mark")[0].get("x1")) == middle[0]
    assert {"untrained", "two", "round"} <= set(texts(svg))


def test_a_long_curve_is_thinned_and_keeps_its_last_point_and_a_single_one_is_a_dot():
    (line,) = points(line_chart([Curve("a", range(10_001), [0.0] * 10_000 + [7.0])], title="a", x_label="round"))
    assert len(line) <= 401 and line[-1][1] < line[0][1]
    assert "<circle" in line_chart([Curve("a", [3], [2.0])], title="a", x_label="round")


def test_an_roc_is_drawn_over_the_logarithm_of_its_far():
    svg = roc_chart([Curve("a", [0.0, 1e-4, 1e-2, 1.0], [0.1, 0.25, 0.5, 1.0])], title="ROC")
    ((first, second, third),) = points(svg)  # FAR 0 has no logarithm
    assert second[0] == (first[0] + third[0]) / 2 and {"10⁻⁴", "10⁻²", "1"} <= set(texts(svg))


def test_a_histogram_shows_shares_of_its_own_pairs():
    svg = histogram([-1, 0, 0.5, 1], [0, 2, 2], [0, 900, 100], title="similarities")
    (genuine,), (impostor,) = (points(svg, css, "polygon") for css in ("genuine", "impostor"))
    floor = genuine[0][1]
    assert (floor - impostor[1][1]) / (floor - genuine[1][1]) == pytest.approx(90 / 50, abs=0.01)
    assert histogram([0, 1], [1, 2], [1], title="") == histogram([0, 1], [0], [0], title="") == ""


def test_an_interval_is_as_long_as_its_error():
    rows = [Interval("a", 80.0, (75.0, 90.0)), Interval("b", 70.0, is_open=True)]
    svg = interval_chart(rows, title="t", x_label="percent", level=None)
    (bar,) = shapes(svg, "line", "bar")
    a, b = (float(e.get("cx")) for e in ElementTree.fromstring(str(svg)).iter(f"{SVG}circle"))
    assert float(bar.get("x2")) - a == pytest.approx(a - b, abs=0.11)
    assert a - float(bar.get("x1")) == pytest.approx((a - b) / 2, abs=0.11)
    assert [e.get("class") for e in ElementTree.fromstring(str(svg)).iter(f"{SVG}circle")] == ["s0", "ring"]


def test_longer_names_make_an_interval_plot_wider():
    rows = [Interval(20 * "long ", 1.0)]
    narrow, wide = (interval_chart(rows, title="", x_label="", level=None, letters=n) for n in (18, 60))
    assert max(map(len, texts(narrow))) == 18 and max(map(len, texts(wide))) == 60
    boxes = [float(ElementTree.fromstring(str(svg)).get("viewBox").split()[2]) for svg in (narrow, wide)]
    assert boxes[1] - boxes[0] == pytest.approx(6.6 * 42, abs=1)


@pytest.mark.parametrize(("low", "span"), [(0.0, 0.0), (60.0, 24.0), (-1e99, 1e99), (3.3, 1e-20), (-7e6, 1e-3)])
def test_ticks_are_few_and_cover_whatever_the_range(low, span):
    marks = ticks(low, low + span)
    assert 2 <= len(marks) <= 13 and marks == sorted(set(marks)) and all(map(math.isfinite, marks))
    slack = 1e-5 * max(abs(low), span)
    assert marks[0] <= low + slack and marks[-1] >= low + span - slack


def test_names_and_titles_are_text():
    over = Over((Line(EVIL, {1.0: spread(1), 2.0: spread(2)}),), (Level(EVIL, spread(1)),))
    for svg in (
        line_chart([Curve(EVIL, [1], [1])], title=EVIL, x_label=EVIL, level=(EVIL, 1), marks=[(1, EVIL)], named=True),
        roc_chart([Curve(EVIL, [0.1], [0.5])], title=EVIL),
        interval_chart([Interval(EVIL, 1)], title=EVIL, x_label=EVIL, level=(EVIL, 2)),
        histogram([0, 1], [1], [1], title=EVIL),
        axis_chart(over, title=EVIL, axis=EVIL),
    ):
        assert "<script" not in svg
        ElementTree.fromstring(str(svg))


@pytest.mark.parametrize("ends", [[0.5] * 12, [n / 12 for n in range(12)], [0.0] * 6 + [1.0] * 6])
def test_names_at_the_ends_of_curves_do_not_lie_upon_each_other(ends):
    svg = line_chart(
        [Curve(f"n{i}", [0, 1], [0.5, y], i) for i, y in enumerate(ends)], title="t", x_label="x", named=True
    )
    names = {e.text: float(e.get("y")) for e in shapes(svg, "text", "small")}
    heights = sorted(names.values())
    assert len(names) == 12 and min(b - a for a, b in zip(heights, heights[1:], strict=False)) >= 12.9
    assert [ends[int(name[1:])] for name in sorted(names, key=names.get)] == sorted(ends, reverse=True)


# --- of a sweep -------------------------------------------------------------------------------------------------------


def test_a_wide_range_is_logarithmic_and_a_zero_stands_to_its_left():
    assert is_log([1, 20]) and not is_log([1, 19.9]) and not is_log([-1, 0.1, 10])
    at = placed([0, 1, 10, 100], 0, 300)
    assert [at(n) for n in (0, 1, 10, 100)] == pytest.approx([0, 100, 200, 300])


def test_a_line_stands_at_its_values_with_bars_over_its_seeds_and_breaks_at_a_gap():
    at = {5.0: spread(80, 70, 85), 25.0: spread(75), 45.0: None, 65.0: spread(70, 65, 72), 75.0: spread(70)}
    svg = axis_chart(Over((Line("pfm", at),), ()), title="t", axis="K")
    first, second = points(svg)
    assert (first[1][0] - first[0][0]) / (second[1][0] - first[0][0]) == pytest.approx(20 / 70, abs=0.01)
    assert second[0][1] - first[1][1] == pytest.approx(first[1][1] - first[0][1], abs=0.2)  # 80, 75, 70
    assert len(shapes(svg, "line", "bar")) == 2 and "pfm, 5: 80.00 (70.00 to 85.00)" in svg


def test_a_level_has_a_ring_where_it_was_measured_and_an_arrow_where_it_lies_far_away():
    line = Line("pfm", {5.0: spread(80), 75.0: spread(84)})
    levels = (Level("solo", spread(79, 78, 80), 75.0), Level("untrained", spread(60)))
    svg = axis_chart(Over((line,), levels), title="t", axis="K")
    (ring,) = shapes(svg, "circle", "ring")
    assert float(ring.get("cx")) == points(svg)[0][1][0]
    names = " ".join(texts(svg))
    assert "solo" in names and "untrained 60.00 ↓" in names


def test_more_lines_than_there_is_room_for_are_left_to_the_table():
    lines = tuple(Line(str(i), {1.0: spread(i), 2.0: spread(i)}) for i in range(20))
    assert drawn(Over(lines, ()))[0] == list(lines[:16])
    svg = axis_chart(Over(lines, ()), title="t", axis="K")
    heights = sorted(float(e.get("y")) for e in shapes(svg, "text", "small"))
    assert len(points(svg)) == 16 and min(b - a for a, b in zip(heights, heights[1:], strict=False)) > 12


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
    weight, score = charts.weightings([runs.read(folder)])
    a, b = points(weight.svg)
    assert weight.keys == (("a", 0), ("b", 1)) and a[0] == b[0] and a[2][1] < a[1][1] < a[0][1] < b[1][1] < b[2][1]
    assert len(points(score.svg)[0]) == 2  # the round without a score has no point
    assert "weight/a" not in page.render([runs.read(folder)])
    assert charts.weightings([runs.read(write_run("plain"))]) == []


def test_of_many_parties_twelve_are_drawn_and_the_others_counted(write_run):
    weights = {f"p{n:02}": [0.05, n / 100] for n in range(15)}
    (weight, _) = charts.weightings(
        [runs.read(validated(write_run("fv", method="pfm-fv"), weights, {"v": [1.0, 2.0]}))]
    )
    assert [name for name, _ in weight.keys] == [f"p{n:02}" for n in range(3, 15)] and "3 more" in weight.caption
    assert len(set(re.findall(r'polyline class="line ([^"]+)"', weight.svg))) == 12  # no two look alike


def test_class_embeddings_that_fell_together_are_named(write_run):
    apart = unit(torch.from_numpy(np.random.default_rng(0).standard_normal((40, 64))))
    together = unit(apart * 0.01 + apart[:1])
    folders = {
        name: write_run(name, class_embeddings=class_embeddings(r)) for name, r in (("a", apart), ("b", together))
    }
    (drawing,) = charts.class_embeddings([runs.read(f) for f in (*folders.values(), write_run("plain"))])
    before, _, after = drawing.caption.partition("b: 40 class embeddings")
    assert "together" not in before and "together" in after and len(points(drawing.svg)) == 2
    pairs = class_embeddings(torch.eye(5).repeat(2, 1))  # 5 pairs at 1, 40 at 0
    assert (sum(pairs["pairs"]), pairs["mean"]) == (45, pytest.approx(5 / 45)) and class_embeddings(
        torch.ones(1, 3)
    ) == {}
