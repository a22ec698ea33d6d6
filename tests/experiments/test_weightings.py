"""What a report page shows of Federated Validation."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from coalface.experiments.report import charts, page, runs
from coalface.experiments.report.drawings import BOTTOM, HEIGHT, TOP, Curve, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def validated(folder, weights, scores, settings=None):
    """Give a run folder lines of weights and scores: party -> a value for each round, None where it has none."""
    length = max(len(values) for values in (*weights.values(), *scores.values()))
    lines = []
    for place in range(length):
        line = {"stage": "train", "round": place + 1, "drift": 0.5}
        for prefix, found in (("weight/", weights), ("score/", scores)):
            line |= {prefix + name: v[place] for name, v in found.items() if v[place] is not None}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if settings is not None:
        config = (folder / "config.yaml").read_text().split("methods:")[0]
        (folder / "config.yaml").write_text(config + f"methods: {{pfm-fv: {{validation: {json.dumps(settings)}}}}}\n")
    return folder


def texts(svg):
    return ["".join(one.itertext()) for one in ElementTree.fromstring(str(svg)).iter(f"{SVG}text")]


def lines(svg):
    shapes = ElementTree.fromstring(str(svg)).iter(f"{SVG}polyline")
    return [
        [tuple(map(float, p.split(","))) for p in s.get("points").split()]
        for s in shapes
        if "line" in s.get("class").split()
    ]


def test_a_run_with_validators_has_both_traces(write_run):
    folder = validated(
        write_run("fv", method="pfm-fv"),
        {"b": [0.5, 0.4, 0.25], "a": [0.5, 0.6, 0.75]},
        {"v": [None, 60.0, 70.0]},
        {"smoothing": 0.1, "candidates": 3, "score": "accuracy"},
    )
    weight, score = charts.weightings([runs.read(folder)])
    a, b = lines(weight.svg)
    assert weight.keys == (("a", 0), ("b", 1)) and {"a", "b"} <= set(texts(weight.svg))
    assert a[0] == b[0] and a[2][1] < a[1][1] < a[0][1] < b[1][1] < b[2][1]
    assert "moves by φ = 0.1 towards the best of 3 that" in weight.caption
    ((first, second),) = lines(score.svg)  # the round without a score has no point
    assert first[0] < second[0] and first[1] > second[1] and "in percent" in score.caption
    text = page.render([runs.read(folder)])
    assert "<h2>Federated Validation</h2>" in text and "weight/a" not in text and "What the method logged (1)" in text


def test_a_run_without_them_has_no_such_section(write_run):
    assert "Federated Validation" not in page.build(write_run("plain")).read_text()


def test_of_many_parties_twelve_are_drawn_and_the_others_counted(write_run):
    weights = {f"p{n:02}": [0.05, n / 100] for n in range(15)}
    folder = validated(write_run("fv", method="pfm-fv"), weights, {"v": [50.0, 51.0]})
    drawn = charts.weightings([runs.read(folder)])[0]
    assert [name for name, _ in drawn.keys] == [f"p{n:02}" for n in range(3, 15)]
    assert "The 12 that end highest are drawn; 3 more are left out." in drawn.caption and drawn.wide
    classes = re.findall(r'polyline class="line ([^"]+)"', drawn.svg)
    assert len(classes) == len(set(classes)) == 12  # no two look alike


def test_several_runs_have_theirs_apart(write_run):
    both = [validated(write_run(name, method="pfm-fv"), {"a": [1.0]}, {"v": [50.0]}) for name in ("x", "y")]
    titles = [one.title for one in charts.weightings(runs.read_all(both))]
    assert titles == [f"{what} in {run}" for run in "xy" for what in ("weighting of the parties", "score by validator")]


@pytest.mark.parametrize("ends", [[0.5] * 12, [n / 12 for n in range(12)], [0.0] * 6 + [1.0] * 6])
def test_names_at_the_ends_do_not_lie_upon_each_other(ends):
    curves = [Curve(f"n{i}", [0, 1], [0.5, y], i) for i, y in enumerate(ends)]
    svg = line_chart(curves, title="t", x_label="x", named=True)
    places = {}
    for one in ElementTree.fromstring(str(svg)).iter(f"{SVG}text"):
        if (one.text or "").startswith("n"):
            places[one.text] = float(one.get("y"))
    ys = sorted(places.values())
    assert len(ys) == 12 and min(b - a for a, b in zip(ys, ys[1:], strict=False)) >= 12.9
    assert min(ys) >= TOP and max(ys) <= HEIGHT - BOTTOM + 5
    order = sorted(range(12), key=lambda i: (-ends[i], i))  # from the top: the curve that ends highest
    by_height = sorted(places, key=places.get)
    assert [ends[int(name[1:])] for name in by_height] == [ends[i] for i in order]


def test_a_name_that_would_be_markup_is_text(write_run):
    evil = "</svg><script>alert(1)</script>"
    folder = validated(write_run("fv", method="pfm-fv"), {evil: [1.0], "a": [0.0]}, {"v": [50.0]})
    assert "<script>" not in page.build(folder).read_text()


def test_a_page_tells_trainers_from_validators(write_run):
    parties = [{"name": n, "role": r, "images": 9} for n, r in (("a", "trainer"), ("b", "trainer"), ("v", "validator"))]
    text = page.build(write_run("fv", method="pfm-fv", parties=2)).read_text()
    assert "over 2 parties" in text and "a validator&#39;s images" not in text and "validator's images" not in text
    folder = write_run("fv2", method="pfm-fv")
    summary = json.loads((folder / "summary.json").read_text()) | {"parties": parties}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page.build(folder).read_text()
    assert "over 2 trainers and 1 validator (cross-silo)" in text and "a validator's images and its pairs" in text
