"""The drawing of a figure over a setting: what stands where."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from coalface.experiments.report import axes
from coalface.experiments.report.axes import axis_chart, is_log, placed
from coalface.experiments.report.series import Level, Line, Over, Spread

SVG = "{http://www.w3.org/2000/svg}"


def one(mean: float, low: float | None = None, high: float | None = None) -> Spread:
    return Spread(mean, mean if low is None else low, mean if high is None else high, 3, 3)


def chart(*lines: Line, levels: tuple[Level, ...] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(str(axis_chart(Over(lines, levels), title="t", axis="K")))


def classed(svg: ElementTree.Element, tag: str, css: str) -> list[ElementTree.Element]:
    return [e for e in svg.iter(f"{SVG}{tag}") if e.get("class", "").split()[:1] == [css]]


def texts(svg: ElementTree.Element) -> list[str]:
    return [e.text or "" for e in svg.iter(f"{SVG}text")]


def points(shape: ElementTree.Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, point.split(","))) for point in shape.get("points", "").split()]


def test_a_wide_range_is_logarithmic_and_a_zero_stands_to_its_left() -> None:
    assert is_log([1, 20]) and not is_log([1, 19.9]) and not is_log([-1, 0.1, 10]) and not is_log([0, 5])
    at = placed([1, 10, 100], 0, 200)
    assert [at(n) for n in (1, 10, 100)] == pytest.approx([0, 100, 200])
    at = placed([0, 1, 10, 100], 0, 300)
    assert [at(n) for n in (0, 1, 10, 100)] == pytest.approx([0, 100, 200, 300])
    at = placed([5, 25, 75], 0, 70)
    assert [at(n) for n in (5, 25, 75)] == pytest.approx([0, 20, 70])


def test_the_line_its_bars_and_its_dots_stand_at_their_values() -> None:
    svg = chart(Line("pfm", {5.0: one(80, 70, 85), 25.0: one(75), 75.0: one(70, 65, 72)}))
    (line,) = [points(e) for e in classed(svg, "polyline", "line")]
    bars = [[float(b.get(key, "")) for key in ("x1", "y1", "y2")] for b in classed(svg, "line", "bar")]
    xs = [x for x, _ in line]
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(20 / 70, abs=1e-3)
    step = line[1][1] - line[0][1]  # of five points
    assert line[2][1] - line[1][1] == pytest.approx(step, abs=0.2)
    assert [x for x, _, _ in bars] == [xs[0], xs[2]]  # a single value has none
    ends = [(line[0][1] + 2 * step, line[0][1] - step), (line[2][1] + step, line[2][1] - 0.4 * step)]
    assert [pair for bar in bars for pair in bar[1:]] == pytest.approx([y for pair in ends for y in pair], abs=0.3)
    dots = [e for e in svg.iter(f"{SVG}circle")]
    assert [(float(d.get("cx", "")), float(d.get("cy", ""))) for d in dots] == line
    assert dots[0][0].text == "pfm, 5: 80.00 (70.00 to 85.00)"
    assert texts(svg)[-5:] == ["5", "25", "75", "pfm", "K"]


def test_a_gap_breaks_the_line() -> None:
    at = {1.0: one(50), 2.0: one(51), 3.0: None, 4.0: one(53), 5.0: one(54)}
    svg = chart(Line("a", at), Line("b", {n: one(60) for n in at}))
    assert [len(points(e)) for e in classed(svg, "polyline", "line")] == [2, 2, 5]
    assert len(list(svg.iter(f"{SVG}circle"))) == 9


def test_a_level_runs_over_the_whole_width_with_a_ring_where_it_was_measured() -> None:
    line = Line("pfm", {5.0: one(80), 75.0: one(84)})
    svg = chart(line, levels=(Level("solo", one(79, 78, 80), 75.0), Level("untrained", one(60))))
    level = classed(svg, "line", "level")[0]
    (path,) = [points(e) for e in classed(svg, "polyline", "line")]
    per_point = (path[0][1] - path[1][1]) / 4
    assert float(level.get("y1", "")) == pytest.approx(path[0][1] + per_point, abs=0.2)
    assert float(level.get("x1", "")) < path[0][0] and float(level.get("x2", "")) > path[1][0]
    (ring,) = classed(svg, "circle", "ring")
    assert (ring.get("cx"), ring.get("cy")) == (f"{path[1][0]:.1f}", level.get("y1"))
    assert len(classed(svg, "line", "range")) == 1
    assert "solo" in texts(svg) and "untrained 60.00 ↓" in texts(svg)  # so far below that it would press the line


@pytest.mark.parametrize("first", [80.0, 60.0, 99.0])
def test_names_never_lie_upon_each_other(first: float) -> None:
    """Ends that lie at one place, all of them, at the upper or at the lower edge."""
    lines = [Line("first", {1.0: one(first), 2.0: one(first)})]
    lines += [Line(f"setting {i}", {1.0: one(80 + i / 100), 2.0: one(80 + i / 100)}) for i in range(15)]
    svg = chart(*lines, levels=tuple(Level(f"level {i}", one(80.0)) for i in range(8)))
    names = [e for e in svg.iter(f"{SVG}text") if e.get("class") == "small"]
    places = sorted(float(e.get("y", "")) for e in names)
    assert len(names) == 24 and min(b - a for a, b in zip(places, places[1:], strict=False)) > 12
    assert axes.TOP < places[0] and places[-1] < axes.LARGE[1] - axes.BOTTOM + 5
    assert len({e.get("class") for e in svg.iter(f"{SVG}polyline") if "line" in e.get("class", "").split()}) == 16


def test_more_lines_than_there_is_room_for_are_left_to_the_table() -> None:
    lines = tuple(Line(str(i), {1.0: one(i), 2.0: one(i)}) for i in range(20))
    kept, _ = axes.drawn(Over(lines, ()))
    assert kept == list(lines[:16])
    assert len(classed(chart(*lines), "polyline", "line")) == 16


def test_nothing_to_draw_gives_no_markup_and_names_are_escaped() -> None:
    assert axis_chart(Over((Line("a", {1.0: None, 2.0: None}),), ()), title="t", axis="K") == ""
    assert axis_chart(Over((), (Level("a", one(1)),)), title="t", axis="K") == ""
    svg = axis_chart(Over((Line("<b>\x1b", {1.0: one(1), 2.0: one(2)}),), ()), title="<i>", axis="<u>")
    assert not {"<b>", "<i>", "<u>", "\x1b"} & set(svg.split('"')) and "<b>" not in svg and "<u>" not in svg
