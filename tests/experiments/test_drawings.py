from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from coalface.experiments.report.drawings import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Curve,
    Interval,
    histogram,
    interval_chart,
    line_chart,
    roc_chart,
    ticks,
)

SVG = "{http://www.w3.org/2000/svg}"


def places(svg, tag="polyline", css="line"):
    """The points of the shapes of a class, as numbers."""
    found = []
    for shape in ElementTree.fromstring(str(svg)).iter(f"{SVG}{tag}"):
        if css in shape.get("class", "").split():
            found.append([tuple(map(float, point.split(","))) for point in shape.get("points").split()])
    return found


def texts(svg):
    return ["".join(one.itertext()) for one in ElementTree.fromstring(str(svg)).iter(f"{SVG}text")]


def test_a_line_runs_from_corner_to_corner_of_its_axes():
    svg = line_chart([Curve("loss", [0, 5, 10], [0, 5, 10])], title="loss", x_label="round")
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert places(svg) == [[(LEFT, HEIGHT - BOTTOM), middle, (WIDTH - RIGHT, TOP)]]
    assert texts(svg) == ["0", "2", "4", "6", "8", "10"] * 2 + ["round"]


def test_the_level_and_the_marks_stand_where_they_belong():
    svg = line_chart(
        [Curve("a", [0, 10], [50, 100])], title="a", x_label="round", level=("untrained", 50), marks=[(5, "stage two")]
    )
    root = ElementTree.fromstring(str(svg))
    level = next(e for e in root.iter(f"{SVG}line") if e.get("class") == "level")
    mark = next(e for e in root.iter(f"{SVG}line") if e.get("class") == "mark")
    assert float(level.get("y1")) == HEIGHT - BOTTOM
    assert float(mark.get("x1")) == (LEFT + WIDTH - RIGHT) / 2
    assert "untrained" in texts(svg) and "stage two" in texts(svg)


def test_a_long_curve_is_thinned_and_keeps_its_last_point():
    long = Curve("a", range(10_001), [0.0] * 10_000 + [7.0])
    (line,) = places(line_chart([long], title="a", x_label="round"))
    assert len(line) <= MOST_POINTS + 1
    assert line[-1][0] == WIDTH - RIGHT and line[-1][1] < HEIGHT / 2


def test_an_roc_is_drawn_over_the_logarithm_of_its_far():
    svg = roc_chart([Curve("a", [0.0, 1e-4, 1e-2, 1.0], [0.1, 0.25, 0.5, 1.0])], title="ROC")
    middle = (LEFT + WIDTH - RIGHT) / 2
    ((first, second, third),) = places(svg)  # FAR 0 has no logarithm: left out
    assert (first[0], second[0], third[0]) == (LEFT, middle, WIDTH - RIGHT)
    assert (second[1], third[1]) == ((TOP + HEIGHT - BOTTOM) / 2, TOP)
    assert texts(svg)[6:11] == ["10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "1"]
    ((start, *_, end),) = places(svg, css="level")  # chance: TAR = FAR
    assert start[1] == pytest.approx(HEIGHT - BOTTOM, abs=0.1) and end == (WIDTH - RIGHT, TOP)


def test_a_histogram_shows_shares_of_its_own_pairs():
    svg = histogram([-1, 0, 0.5, 1], [0, 2, 2], [0, 900, 100], title="similarities")
    (genuine,), (impostor,) = places(svg, "polygon", "genuine"), places(svg, "polygon", "impostor")
    height = HEIGHT - BOTTOM - TOP
    assert (genuine[1][1], genuine[3][1]) == pytest.approx([TOP + height / 2] * 2)  # 50 % each; the axis ends at 100
    assert impostor[1][1] == pytest.approx(TOP + 0.1 * height)
    assert genuine[0][0] == LEFT  # the empty bin is not drawn: the axis begins at similarity 0
    assert "0" in texts(svg)


def test_an_interval_is_as_long_as_its_error_says():
    svg = interval_chart([Interval("a", 80.0, 5.0), Interval("b", 70.0)], title="t", x_label="percent", level=None)
    root = ElementTree.fromstring(str(svg))
    bars = [e for e in root.iter(f"{SVG}line") if "bar" in e.get("class")]
    a, b = [float(e.get("cx")) for e in root.iter(f"{SVG}circle")]
    assert len(bars) == 1  # no error, no bar
    assert float(bars[0].get("x2")) - a == pytest.approx((a - b) / 2, abs=0.11)


@pytest.mark.parametrize("drawn", [line_chart([], title="", x_label=""), roc_chart([], title="")])
def test_nothing_gives_nothing(drawn):
    assert drawn == ""


@pytest.mark.parametrize(
    ("edges", "genuine", "impostor"), [([], [], []), ([0, 1], [0], [0]), ([0, 1], [1, 2], [1]), ([1, 1], [1], [1])]
)
def test_counts_that_make_no_histogram_give_nothing(edges, genuine, impostor):
    assert histogram(edges, genuine, impostor, title="") == ""


def test_strings_are_escaped():
    evil = '"><script>alert(1)</script>'
    drawn = [
        line_chart([Curve(evil, [1], [1])], title=evil, x_label=evil, level=(evil, 1), marks=[(1, evil)]),
        roc_chart([Curve(evil, [0.1], [0.5])], title=evil),
        interval_chart([Interval(evil, 1)], title=evil, x_label=evil, level=(evil, 2)),
        histogram([0, 1], [1], [1], title=evil),
    ]
    for svg in drawn:
        assert "<script" not in svg
        ElementTree.fromstring(str(svg))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (60, 84, [60, 65, 70, 75, 80, 85]),
        (-0.3, 0.3, [-0.4, -0.2, 0, 0.2, 0.4]),
        (5, 5, [4.4, 4.6, 4.8, 5, 5.2, 5.4, 5.6]),
    ],
)
def test_ticks_are_round_numbers_that_cover(low, high, expected):
    assert ticks(low, high) == expected


@pytest.mark.parametrize("low", [0.0, -1e99, 1e-99, 3.3, -7e6])
@pytest.mark.parametrize("span", [0.0, 5e-324, 1e-20, 1e-3, 1.0, 12345.6, 1e99])
def test_ticks_stay_few_and_cover_whatever_the_range(low, span):
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 13 and found == sorted(set(found))
    slack = 1e-5 * max(abs(low), span)
    assert found[0] <= low + slack and found[-1] >= low + span - slack
    assert all(math.isfinite(tick) for tick in found)


def test_no_drawing_holds_a_number_that_is_none():
    svg = line_chart([Curve("a", [3], [2.0])], title="a", x_label="round")
    assert not re.search("nan|inf|None", svg)
    assert "circle" in svg  # one point is a dot, since a line of one point cannot be seen
