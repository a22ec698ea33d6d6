"""The triangle of a weighting grid, and its page."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from coalface.experiments.report import weightings
from coalface.experiments.report.triangles import (
    HEIGHT,
    SCALE,
    SIDE,
    TOP_CORNER,
    WIDTH,
    Cell,
    Mark,
    colour,
    place,
    triangle,
)

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("a", "b", "c")


def grid(steps, score):
    counts = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    return [Cell((w := (i / steps, j / steps, k / steps)), score(w)) for i, j, k in counts]


def shapes(svg, css):
    found = ElementTree.fromstring(str(svg)).iter(f"{SVG}polygon")
    return [one for one in found if css in one.get("class").split()]


def centre(shape):
    points = [tuple(map(float, point.split(","))) for point in shape.get("points").split()]
    return tuple(sum(values) / len(points) for values in zip(*points, strict=True))


def texts(svg):
    return ["".join(one.itertext()) for one in ElementTree.fromstring(str(svg)).iter(f"{SVG}text")]


def test_corners_and_the_middle_stand_where_they_belong():
    top, left, right = (place(w) for w in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    assert top == TOP_CORNER and left[1] == right[1] == TOP_CORNER[1] + SIDE * math.sqrt(3) / 2
    assert right[0] - left[0] == pytest.approx(SIDE) and top[0] == (left[0] + right[0]) / 2
    assert math.dist(top, left) == pytest.approx(SIDE)
    third = place((1 / 3, 1 / 3, 1 / 3))
    assert third == pytest.approx([(top[i] + left[i] + right[i]) / 3 for i in range(2)])
    assert place((0.2, 0.5, 0.3)) == pytest.approx([0.2 * top[i] + 0.5 * left[i] + 0.3 * right[i] for i in range(2)])


def test_each_weighting_has_a_cell_of_its_own_within_the_drawing():
    svg = triangle(NAMES, grid(10, lambda w: w[0]), steps=10, title="t")
    cells = shapes(svg, "cell")
    places = [centre(cell) for cell in cells]
    assert len(cells) == 66 and all(0 < x < WIDTH and 0 < y < HEIGHT - 40 for x, y in places)
    nearest = min(math.dist(p, q) for n, p in enumerate(places) for q in places[:n])
    assert nearest == pytest.approx(SIDE / 10, abs=0.1)  # so the cells touch and do not overlap


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9, 10, 20])
def test_names_and_scale_lie_clear_of_the_cells_however_large_these_are(steps):
    marks = [Mark((0.0, 1.0, 0.0), "best", "")]
    svg = ElementTree.fromstring(str(triangle(NAMES, grid(steps, lambda w: w[0]), steps=steps, title="t", marks=marks)))
    left, top, width, height = map(float, svg.get("viewBox").split())
    points = [
        tuple(map(float, point.split(","))) for one in svg.iter(f"{SVG}polygon") for point in one.get("points").split()
    ]
    x, y = zip(*points, strict=True)
    assert left <= min(x) and max(x) <= left + width
    above, *below = (float(one.get("y")) for one in svg.iter(f"{SVG}text") if one.get("class") == "corner")
    assert top + 10 <= above <= min(y) - 5 and len(below) == 2  # a letter is at most 10 above its baseline, 4 below
    assert all(line >= max(y) + 13 for line in below)
    shift = float(svg.find(f"{SVG}g").get("transform").split()[1].rstrip(")"))
    bars = [float(bar.get("y")) + shift for bar in svg.iter(f"{SVG}rect")]
    assert min(bars) >= max(below) + 10 and max(bars) + 32 <= top + height
    assert steps < 10 or svg.get("viewBox") == f"0.0 0.0 {WIDTH:.1f} {HEIGHT:.1f}"


def test_colours_go_from_the_lowest_score_to_the_highest():
    cells = grid(2, lambda w: 60 + w[0] - w[1])
    drawn = {
        round(c.score, 3): s.get("fill")
        for c, s in zip(cells, shapes(triangle(NAMES, cells, steps=2, title="t"), "cell"), strict=True)
    }
    assert drawn[59] == SCALE[0] and drawn[61] == SCALE[-1] and drawn[60] == colour(0.5)
    assert colour(0.1) == "#f8e0c2"  # halfway between the first two: (251+246)/2, (241+207)/2, (228+160)/2
    light = [sum(int(colour(n / 50)[i : i + 2], 16) for i in (1, 3, 5)) for n in range(51)]
    assert light == sorted(light, reverse=True)  # also read in grey


def test_scores_stand_in_the_cells_and_at_the_scale():
    words = texts(triangle(NAMES, grid(2, lambda w: 60 + 10 * w[0]), steps=2, title="t"))
    assert words.count("65.0") == 2 + 1 and "60.0" in words and "70.0" in words
    words = texts(triangle(NAMES, grid(2, lambda w: -0.02 * w[0]), steps=2, title="t"))
    assert "−0.010" in words and "−0.020" in words
    fine = texts(triangle(NAMES, grid(20, lambda w: w[0]), steps=20, title="t"))
    assert fine[:3] == ["a", "b", "c"]  # too many cells for numbers; they are shown on hovering


def test_equal_scores_have_one_colour_and_no_scale():
    svg = triangle(NAMES, grid(3, lambda w: 50.0), steps=3, title="t")
    assert {cell.get("fill") for cell in shapes(svg, "cell")} == {colour(0.5)} and "50 everywhere" in texts(svg)


@pytest.mark.parametrize("shape", ["best", "equal", "images", "use"])
def test_a_mark_stands_at_its_weighting(shape):
    weights = (0.2, 0.5, 0.3)
    svg = triangle(NAMES, grid(10, lambda w: w[0]), steps=10, title="t", marks=[Mark(weights, shape, "here")])
    (spot,), (halo,) = shapes(svg, "spot"), shapes(svg, "halo")
    assert centre(spot) == pytest.approx(place(weights), abs=0.1) and spot.get("points") == halo.get("points")
    assert "".join(spot.itertext()) == "here"


def test_names_are_text():
    svg = str(triangle(("<b>", "&", "x" * 99), grid(1, lambda w: w[0]), steps=1, title='"<'))
    ElementTree.fromstring(svg)
    assert "<b>" not in svg and "x" * 30 + "…" not in svg and "xxx…" in svg


def found(scorers=("v",), scores=(50.0, 60.0, 60.0)):
    corners = [{"a": 1.0, "b": 0.0, "c": 0.0}, {"a": 0.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 1.0}]
    points = [
        {"weights": w, "scores": dict.fromkeys(scorers, s), "sum": s * len(scorers)}
        for w, s in zip(corners, scores, strict=True)
    ]
    equal = {"name": "equal weights", "weights": dict.fromkeys("abc", 1 / 3)}
    return {
        "run": "run <1>",
        "method": "pfm-fv",
        "rounds": {"a": 3, "b": 3, "c": 3},
        "steps": 1,
        "scored_by": "validators",
        "score": "accuracy",
        "pairs": dict.fromkeys(scorers, 200),
        "points": points,
        "marks": [equal | {"scores": dict.fromkeys(scorers, 55.0), "sum": 55.0 * len(scorers)}],
        "best": points[1:],
        "notes": ["one thing"],
    }


def test_a_page_has_a_triangle_for_each_scorer_and_for_their_sum():
    one, two = weightings.render(found()), weightings.render(found(("v", "w")))
    assert one.count("<figure>") == 1 and two.count("<figure>") == 3 and "sum over the scorers" in two
    assert "Best 60, by 2 weightings; equal weights 55." in one and "Best 120, by 2 weightings" in two
    assert "2 weightings share the best score." in one and "share the best sum." in two and "One thing." in one
    assert "run &lt;1&gt;" in one and "<script" not in one and "src=" not in one and "url(" not in one


def test_best_ones_are_marked_unless_all_are_equal():
    assert weightings.render(found()).count('class="spot best"') == 1 + 2  # the legend's, and both
    flat = weightings.render(found(scores=(60.0, 60.0, 60.0 - 1e-12)))
    assert flat.count('class="spot best"') == 1 and "Every weighting scores 60" in flat


def test_the_table_has_the_best_the_corners_and_the_named():
    table = weightings.table(found(("v", "w")))
    assert table.header == ["weighting", "a", "b", "c", "score of v", "score of w", "sum"]
    assert [row[0] for row in table.rows] == [
        *("best 1", "best 2", "best 3"),
        *(f"{n} alone" for n in "abc"),
        "equal weights",
    ]
    assert table.rows[0][1:] == ["0.000", "1.000", "0.000", "60.00", "60.00", "120.00"]
    assert table.rows[-1][1:] == ["0.333"] * 3 + ["55.00", "55.00", "110.00"]
    assert weightings.table(found()).header[-1] == "score of v"
