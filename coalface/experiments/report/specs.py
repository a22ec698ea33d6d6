"""The forms of charts as Vega-Lite specifications: lines, ROC and DET curves, histograms, intervals.

A specification is a `dict` with its rows in it. `WIDTH` is that of a phone, so that text keeps its size there; a page
gives a live chart the width of its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from coalface.core.text import clean
from coalface.experiments.report.vega import HOVER, PALETTE, PAPER, SOFT

WIDTH, HEIGHT, TALL = 340, 190, 300
FEW = 4
"""Curves up to which a chart is not tall."""
BANDED = 3
"""Curves up to which each has its band: more bands than that hide each other."""
MOST_POINTS, MOST_RATES = 400, 300
"""Points drawn of one curve, and of all ROCs of a chart; a longer curve is thinned evenly and keeps its last point."""
MOST_MARKS, MARKS = 20, 8
"""Points up to which all of a curve are marked, and how many are of a longer one beside others."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES: tuple[list[int], ...] = ([], [6, 3], [2, 2])
"""Of the series that first have each colour, of the second ones, and of the third."""
LEVEL = [4, 4]
"""The dashes of what is no series of its own: a level, chance."""
LEAST = 1e-7
"""Percent below which a rate is 0, and has no logarithm."""
MISSED = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 60, 80, 100]
"""Where a DET curve's rates may have a tick, in percent."""
MOST_TICKS = 6
"""Whole numbers that each have a tick."""
NAMES = ("series", "setting", "pairs", "party")
"""The fields of rows that are no numbers."""
SHORT = 16
"""Letters of a row's name up to which it stands beside its dot, on a phone too; a longer one stands above."""

Spec: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One curve: `x` ascending, `y` of the same length. `series` is its place among the page's, and so its colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    series: int = 0
    band: Sequence[tuple[float, float]] = ()
    """The ends of an interval about each `y`, if there are any."""


@dataclass(frozen=True)
class Interval:
    """One row of an interval plot: a value, and where its bar begins and ends if it has one."""

    label: str
    value: float
    bar: tuple[float, float] | None = None
    series: int = 0
    is_open: bool = False
    """Its dot is a ring."""


def lines(
    curves: Sequence[Curve],
    *,
    x: str,
    y: str,
    marks: Sequence[tuple[float, str]] = (),
    whole: bool = True,
    height: int = HEIGHT,
) -> Spec:
    """Curves over rounds; the vertical axis spans what is drawn. Nothing to draw gives an empty specification.

    `marks` are vertical lines with a name, such as the start of a stage. `whole`: the numbers of the horizontal axis
    are whole.
    """
    curves = [_thinned(curve) for curve in curves if curve.x]
    if not curves:
        return {}
    across = number("x", x, nice=False, zero=False, padding=6)
    across["axis"] = {"grid": False, **(_whole(curves) if whole else {})}
    middle = (min(curve.x[0] for curve in curves) + max(curve.x[-1] for curve in curves)) / 2
    values = [value for curve in curves for value in curve.y]
    flat = (
        {"domain": [values[0] - 1, values[0] + 1]} if len(set(values)) == 1 else {}
    )  # else its tick is another number
    up = number("y", y, zero=False, padding=6, **flat) | {"axis": {"title": None}}  # which the chart is called
    return of_layers(_points(curves), [*_stages(marks, x, middle), *_curves(curves, across, up)], height)


def roc(curves: Sequence[Curve], *, is_det: bool = False) -> Spec:
    """ROC curves over a logarithmic FAR, or with `is_det` 1 − TAR over it, logarithmic too (DET).

    `x` is FAR and `y` TAR, both as fractions, as the ends of bands are; points without a logarithm are left out.
    """
    kept = []
    for curve in curves:
        rates = [100 * (1 - tar if is_det else tar) for tar in curve.y]
        floor = min((rate for rate in rates if rate > LEAST), default=0.0) if is_det else 0.0
        ends = [sorted(max(floor, 100 * (1 - end if is_det else end)) for end in pair) for pair in curve.band]
        places = [i for i, far in enumerate(curve.x) if 0 < far <= 1 and (rates[i] > LEAST or not is_det)]
        if places:
            band = [(ends[i][0], ends[i][1]) for i in places] if ends and len(curves) <= BANDED else []
            in_percent = Curve(
                curve.label, [curve.x[i] for i in places], [rates[i] for i in places], curve.series, band
            )
            kept.append(_thinned(in_percent, MOST_RATES // max(BANDED, len(curves))))
    if not kept:
        return {}
    decade = max(-7, min(-1, math.floor(math.log10(min(curve.x[0] for curve in kept)) + 1e-9)))
    axis = {"grid": False, "format": "~g", "labelOverlap": "greedy"}
    across = number("x", "FAR", type="log", nice=False, domain=[10.0**decade, 1.0]) | {"axis": axis}
    if is_det:
        up = number("y", "1 − TAR (%)", type="log", nice=False) | {"axis": axis | {"values": MISSED}}
        return of_layers(_points(kept), [*_bands(kept, across, up), *_curves(kept, across, up)])
    up = number("y", "TAR (%)", domain=[0, 100])
    chance = [10.0 ** (decade * (1 - i / 40)) for i in range(41)]
    dashed = {
        "data": values_of([{"x": rounded(far), "y": rounded(100 * far)} for far in chance]),
        "mark": {"type": "line", "color": SOFT, "strokeDash": LEVEL, "strokeWidth": 1},
        "encoding": {"x": across, "y": up},
    }
    return of_layers(_points(kept), [dashed, *_bands(kept, across, up), *_curves(kept, across, up)])


def histogram(
    edges: Sequence[float], genuine: Sequence[float], impostor: Sequence[float], threshold: tuple[str, float] | None
) -> Spec:
    """Similarities of genuine and impostor pairs, each as shares of its own pairs; n counts over n + 1 edges.

    The horizontal axis spans the bins that hold any pair. Counts that do not fit the edges give nothing. `threshold`,
    with its name, is a vertical line.
    """
    bins = len(edges) - 1
    used = [i for i in range(bins) if len(genuine) == len(impostor) == bins and genuine[i] + impostor[i] > 0]
    if not used or edges[used[-1] + 1] <= edges[used[0]]:
        return {}
    rows = []
    for kind, counts in (("genuine", genuine), ("impostor", impostor)):
        for i in range(used[0], used[-1] + 1):
            row = {"pairs": kind, "from": rounded(edges[i]), "to": rounded(edges[i + 1])}
            rows.append(row | {"share": rounded(100 * counts[i] / (sum(counts) or 1))})
    kinds, drawn = ["genuine", "impostor"], (edges[used[0]], edges[used[-1] + 1])
    x = number("from", "cosine similarity", nice=False, zero=False) | {"axis": {"grid": False}}
    y = number("share", "% of pairs") | {"stack": None}
    area = {
        "params": [pick("pairs")],
        "mark": {"type": "area", "interpolate": "step-after", "line": {"strokeWidth": 1}},
        "encoding": {"x": x, "y": y, "color": ranged("pairs", kinds, PALETTE[:2]), "opacity": picked(0.5)},
    }
    bars = {
        "name": HOVER,
        "mark": {"type": "bar", "opacity": 0, "binSpacing": 0},
        "encoding": {"x": {**x, "bin": "binned"}, "x2": {"field": "to"}, "y": y, "tooltip": tips(*rows[0])},
    }
    return of_layers(rows, [area, *(_level(threshold, "cosine similarity", drawn) if threshold else []), bars])


def intervals(rows: Sequence[Interval], *, x: str, level: tuple[str, float] | None) -> Spec:
    """One dot a row with its bar; `level` is a vertical reference, such as the untrained model. A ring is open."""
    values: list[Spec] = [
        {"setting": clean(row.label), "value": rounded(row.value), "low": rounded(low), "high": rounded(high)}
        for row in rows
        for low, high in [row.bar or (None, None)]
    ]
    is_long = max(len(row["setting"]) for row in values) > SHORT
    axis: Spec = {"title": None, "labelLimit": WIDTH - 20, "domain": False, "ticks": False, "labelColor": SOFT}
    if is_long:
        axis |= {"labelAlign": "left", "labelOffset": -13, "labelPadding": -2}
    names = [row["setting"] for row in values]
    up = {"field": "setting", "type": "nominal", "sort": None, "axis": axis, "scale": {"padding": 0.5, "domain": names}}
    across = number("value", x, zero=False, padding=8) | {"axis": {"grid": not is_long}}
    color = ranged("setting", names, [PALETTE[row.series % len(PALETTE)] for row in rows]) | {"legend": None}
    dots = {
        "x": across,
        "y": up,
        "tooltip": tips(*(values[0] if any(row.bar for row in rows) else ["setting", "value"])),
    }
    bars = {
        "mark": {"type": "rule", "strokeWidth": 2.5, "opacity": 0.6},
        "encoding": {"x": across | {"field": "low"}, "x2": {"field": "high"}, "y": up, "color": color},
    }
    filled = {"mark": {"type": "point", "size": 90}, "encoding": dots | {"color": color}}
    rings = {
        "mark": {"type": "point", "size": 80, "fill": PAPER, "stroke": SOFT, "strokeWidth": 1.6},
        "encoding": dots,
    }
    parts = [(bars, [row.bar is not None for row in rows]), (filled, [not row.is_open for row in rows])]
    layers = [
        layer | {"data": values_of([row for row, is_in in zip(values, chosen, strict=True) if is_in])}
        for layer, chosen in [*parts, (rings, [row.is_open for row in rows])]
        if any(chosen)
    ]
    ends = [end for row in rows for end in (row.value, *(row.bar or ()))]
    levels = _level(level, x, (min(ends), max(ends))) if level else []
    return of_layers(values, [*levels, *layers], (40 if is_long else 28) * len(rows) + 10)


def of_layers(rows: Sequence[Mapping[str, Any]], layers: Sequence[Spec], height: int = HEIGHT) -> Spec:
    """A specification; its width is that of the whole drawing, its height that of the plot."""
    size = {"width": WIDTH, "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**size, "data": values_of(rows), "layer": list(layers)}


def number(field: str, title: str, **scale: Any) -> Spec:
    """An encoding of numbers, on a scale."""
    return {"field": field, "type": "quantitative", "title": clean(title), **({"scale": scale} if scale else {})}


def ranged(field: str, names: Sequence[str], looks: Sequence[Any]) -> Spec:
    """An encoding of names, each with its look: a colour, a shape, or dashes.

    The legend, where there are several, stands below in as many columns as the names leave room for on a phone.
    """
    columns = max(1, WIDTH // (7 * max(map(len, names)) + 40))
    legend = {"title": None, "orient": "bottom", "columns": columns, "labelLimit": WIDTH - 50, "symbolOpacity": 1}
    scale = {"domain": list(names), "range": list(looks)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend if len(names) > 1 else None}


def shape_of(series: int) -> str:
    """Series of one colour have different shapes."""
    return SHAPES[(series + series // len(PALETTE)) % len(SHAPES)]


def pick(field: str) -> Spec:
    """Names are chosen in the legend: the others fade."""
    return {"name": "picked", "select": {"type": "point", "fields": [field], "toggle": "true"}, "bind": "legend"}


def picked(opacity: float) -> Spec:
    return {"condition": {"param": "picked", "value": opacity}, "value": 0.08}


def tips(*fields: str, **titles: str) -> list[Spec]:
    """What a pointer shows of a row."""
    form = {"format": ".6~g"}
    name = {"format": "", "formatType": "number"}  # else Vega-Lite looks for it in the nearest point's cell
    return [
        {"field": field, "title": clean(titles.get(field, field)), **(name if field in NAMES else form)}
        for field in fields
    ]


def values_of(rows: Sequence[Mapping[str, Any]]) -> Spec:
    return {"values": list(rows)}


def rounded(value: float | None) -> float | None:
    """To six digits, which is more than a chart shows."""
    return None if value is None else float(f"{value:.6g}")


def _points(curves: Sequence[Curve], places: Mapping[int, Sequence[int]] | None = None) -> list[Spec]:
    return [
        {"series": curve.label, "x": rounded(curve.x[i]), "y": rounded(curve.y[i])}
        | (
            {end: rounded(value) for end, value in zip(("low", "high"), curve.band[i], strict=True)}
            if curve.band
            else {}
        )
        for number, curve in enumerate(curves)
        for i in (range(len(curve.x)) if places is None else places[number])
    ]


def _bands(curves: Sequence[Curve], x: Spec, y: Spec) -> list[Spec]:
    """The intervals about the points of curves, as areas behind them."""
    if not any(curve.band for curve in curves):
        return []
    names = [curve.label for curve in curves]
    color = ranged("series", names, [PALETTE[curve.series % len(PALETTE)] for curve in curves])
    return [
        {
            "transform": [{"filter": {"field": "low", "valid": True}}],
            "mark": {"type": "area", "opacity": 0.18, "clip": True},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
        }
    ]


def _curves(curves: Sequence[Curve], x: Spec, y: Spec) -> list[Spec]:
    """Lines, marks with a shape for each series, and the values under a pointer. Drag and Ctrl with the wheel zoom."""
    names, several, colors = [curve.label for curve in curves], len(curves) > 1, len(PALETTE)
    place = {"x": x, "y": y, "opacity": picked(1) if several else {"value": 1}}
    place["color"] = ranged("series", names, [PALETTE[curve.series % colors] for curve in curves])
    dashes = ranged("series", names, [DASHES[curve.series // colors % len(DASHES)] for curve in curves])
    shapes = ranged("series", names, [shape_of(curve.series) for curve in curves])
    zoom = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]"}, "bind": "scales"}
    near = {"type": "point", "on": "pointerover", "clear": "pointerout", "nearest": True}
    marked = {number: _marked(len(curve.x), several) for number, curve in enumerate(curves)}
    marks = {
        "data": values_of(_points(curves, marked)),
        "mark": {"type": "point"},
        "encoding": place | {"shape": shapes},
    }
    return [
        {
            "params": [zoom, *([pick("series")] if several else [])],
            "mark": {"type": "line", "clip": True},
            "encoding": place | {"strokeDash": dashes},
        },
        *([marks] if any(marked.values()) else []),
        {
            "name": HOVER,
            "params": [{"name": "near", "select": near}],
            "mark": {"type": "point", "size": 80, "clip": True},
            "encoding": place
            | {"tooltip": tips(*["series"] * several, "x", "y", x=x["title"], y=y["title"])}
            | {"opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}},
        },
    ]


def _marked(count: int, several: bool) -> list[int]:
    """The places of a curve's points that are marked."""
    if count <= MOST_MARKS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (MARKS - 1)) for i in range(MARKS)}) if several else []


def _whole(curves: Sequence[Curve]) -> Spec:
    """An axis of whole numbers, without ticks between them."""
    first, last = math.ceil(min(curve.x[0] for curve in curves)), math.floor(max(curve.x[-1] for curve in curves))
    ticks = {"values": [*range(first, last + 1)]} if last - first < MOST_TICKS else {"tickMinStep": 1}
    return {"format": "d", **ticks}


def _stages(marks: Sequence[tuple[float, str]], x: str, middle: float) -> list[Spec]:
    """Vertical lines, each with its name at its upper end, on the side of the middle, where there is room."""
    if not marks:
        return []
    data = values_of([{"at": place, "stage": clean(name)} for place, name in marks])
    sides = (("align", "'right'", "'left'"), ("dx", -3, 3))
    side = {key: {"expr": f"datum.at > {middle} ? {late} : {early}"} for key, late, early in sides}
    text = {"type": "text", "baseline": "top", "limit": 110, **side}
    at = {"x": number("at", x)}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": [2, 3]}, "encoding": at},
        {"data": data, "mark": text, "encoding": {**at, "y": {"value": 0}, "text": {"field": "stage"}}},
    ]


def _level(level: tuple[str, float], title: str, drawn: tuple[float, float]) -> list[Spec]:
    """A dashed line down a chart from one value to another, with its name beside its upper end, where there is room."""
    name, value = level
    side = {"align": "left", "dx": 3} if value < sum(drawn) / 2 else {"align": "right", "dx": -3}
    data, at = values_of([{"level": rounded(value), "name": clean(name)}]), {"x": number("level", title, zero=False)}
    text = {"type": "text", "baseline": "bottom", "dy": 1, **side}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": LEVEL}, "encoding": at},
        {"data": data, "mark": text, "encoding": {**at, "y": {"value": 0}, "text": {"field": "name"}}},
    ]


def _thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    step = math.ceil(len(curve.x) / most)
    places = sorted({*range(0, len(curve.x), step), len(curve.x) - 1}) if step > 1 else range(len(curve.x))
    band = [curve.band[i] for i in places] if curve.band else ()
    return Curve(clean(curve.label), [curve.x[i] for i in places], [curve.y[i] for i in places], curve.series, band)
