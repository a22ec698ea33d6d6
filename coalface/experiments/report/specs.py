"""The forms of charts as Vega-Lite specifications: lines, ROC curves, histograms, intervals, and lines of a sweep.

A specification is a `dict` with its rows in it. `WIDTH` is that of a phone, so that text keeps its size there; a page
gives a live chart the width of its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalface.core.text import clean
from coalface.experiments.report.series import Level, Over, Spread
from coalface.experiments.report.vega import HOVER, PALETTE, PAPER, SOFT

WIDTH, HEIGHT, TALL = 340, 190, 300
FEW = 4
"""Curves up to which a chart is not tall."""
MOST_POINTS = 400
"""Points drawn of one curve; a longer one is thinned evenly and keeps its last point."""
MOST_MARKS, MARKS = 20, 8
"""Points up to which all of a curve's are marked, and how many are of a longer one beside others."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = ([], [6, 3], [2, 2])
"""Of the first series for each colour, the second, and the third."""
LEVEL = [4, 4]
"""The dashes of what is no series: a level, chance."""
MOST_LINES, MOST_LEVELS = 16, 8
"""Lines and levels of one chart of a sweep; its table has all."""
LOG_FROM = 20.0
"""Largest number by smallest from which on the axis of a sweep is logarithmic."""
BESIDE, LEAST = 0.6, 3.0
"""A level is drawn that lies beyond the lines by this share of their span, or by this many percent points, at most.

One that lies further off would press the lines together.
"""

Spec = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One curve: `x` ascending, `y` of the same length. `series` is its place among the page's, and so its colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    series: int = 0


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
    level: tuple[str, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    whole: bool = True,
    height: int = HEIGHT,
) -> Spec:
    """Curves over rounds; the vertical axis spans what is drawn. Nothing to draw gives an empty specification.

    `level` is a horizontal reference, such as the untrained model's figure. `marks` are vertical lines with a name,
    such as the start of a stage. `whole`: the numbers of the horizontal axis are whole.
    """
    curves = [thinned for curve in curves if (thinned := _thinned(curve)).x]
    if not curves:
        return {}
    layers: list[Spec] = []
    if marks:
        at = {"x": _number("at", x)}
        layers += [
            {"data": _values([{"at": place} for place, _ in marks]), "mark": {"type": "rule", "strokeDash": [2, 3]}, "encoding": at},
            {
                "data": _values([{"at": place, "name": clean(name)} for place, name in marks]),
                "mark": {"type": "text", "align": "left", "baseline": "top", "dx": 3, "limit": 110},
                "encoding": {**at, "y": {"value": 0}, "text": {"field": "name"}},
            },
        ]  # fmt: skip
    layers += _level("y", level, y) if level else []
    ends = {"nice": False, "zero": False}
    across = {
        **_number("x", x, scale=ends),
        "axis": {"grid": False, **({"format": "d", "tickMinStep": 1} if whole else {})},
    }
    return _chart(
        [{"series": curve.label, "x": _round(a), "y": _round(b)} for curve in curves for a, b in zip(curve.x, curve.y, strict=True)],
        [*layers, *_curves(curves, x=across, y=_number("y", y, scale={"zero": False}))],
        height,
    )  # fmt: skip


def roc(curves: Sequence[Curve], *, is_det: bool = False) -> Spec:
    """ROC curves over a logarithmic FAR, or with `is_det` 1 − TAR over it, logarithmic too (DET).

    `x` is FAR and `y` TAR, both as fractions; points without a logarithm are left out.
    """
    kept = []
    for curve in curves:
        rates = [
            (far, 1 - tar if is_det else tar) for far, tar in zip(curve.x, curve.y, strict=True) if tar is not None
        ]
        points = [(far, 100 * rate) for far, rate in rates if 0 < far <= 1 and (rate > 1e-9 or not is_det)]
        if points:
            kept.append(_thinned(Curve(curve.label, [x for x, _ in points], [y for _, y in points], curve.series)))
    if not kept:
        return {}
    decade = max(-7, min(-1, math.floor(math.log10(min(min(curve.x) for curve in kept)) + 1e-9)))
    name = "1 − TAR (%)" if is_det else "TAR (%)"
    log = {"type": "log", "nice": False}
    across = {
        **_number("x", "FAR", scale={**log, "domain": [10.0**decade, 1.0], "clamp": True}),
        "axis": _log_axis("~g"),
    }
    up = (
        {**_number("y", name, scale=log), "axis": _log_axis("~g")}
        if is_det
        else _number("y", name, scale={"domain": [0, 100]})
    )
    chance = [10.0 ** (decade * (1 - i / 40)) for i in range(41)]
    layers = [] if is_det else [
        {
            "data": _values([{"x": _round(far), "y": _round(100 * far)} for far in chance]),
            "mark": {"type": "line", "color": SOFT, "strokeDash": LEVEL, "strokeWidth": 1},
            "encoding": {"x": across, "y": up},
        }
    ]  # fmt: skip
    rows = [{"series": c.label, "x": _round(a), "y": _round(b)} for c in kept for a, b in zip(c.x, c.y, strict=True)]
    return _chart(rows, [*layers, *_curves(kept, x=across, y=up)])


def histogram(
    edges: Sequence[float], genuine: Sequence[float], impostor: Sequence[float], threshold: float | None = None
) -> Spec:
    """Similarities of genuine and impostor pairs, each as shares of its own pairs; n counts over n + 1 edges.

    The horizontal axis spans the bins that hold any pair. Counts that do not fit the edges give nothing.
    """
    bins = len(edges) - 1
    used = [i for i in range(bins) if len(genuine) == len(impostor) == bins and genuine[i] + impostor[i] > 0]
    if not used or edges[used[-1] + 1] <= edges[used[0]]:
        return {}
    rows = []
    for kind, counts in (("genuine", genuine), ("impostor", impostor)):
        whole = sum(counts) or 1
        for i in range(used[0], used[-1] + 1):
            rows.append(
                {"pairs": kind, "from": _round(edges[i]), "to": _round(edges[i + 1]), "share": _round(100 * counts[i] / whole)}
            )  # fmt: skip
    color = {"field": "pairs", "scale": {"domain": ["genuine", "impostor"], "range": [PALETTE[0], PALETTE[1]]}}
    x, y = _number("from", "cosine similarity", scale={"nice": False, "zero": False}), _number("share", "% of pairs")
    shade = {"color": {**color, "legend": _legend(["genuine pairs"] * 2)}, "opacity": _picked(0.5)}
    layers: list[Spec] = [
        {
            "params": [_pick("pairs")],
            "mark": {"type": "area", "interpolate": "step-after", "line": {"strokeWidth": 1}},
            "encoding": {"x": {**x, "axis": {"grid": False}}, "y": {**y, "stack": None}, **shade},
        },
        {
            "name": HOVER,
            "mark": {"type": "bar", "opacity": 0, "binSpacing": 0},
            "encoding": {
                "x": {**x, "bin": "binned"},
                "x2": {"field": "to"},
                "y": {**y, "stack": None},
                "tooltip": [{"field": name} for name in ("pairs", "from", "to", "share")],
            },
        },
    ]  # fmt: skip
    return _chart(
        rows, [*layers, *(_level("x", ("threshold", threshold), "cosine similarity") if threshold is not None else [])]
    )


def intervals(rows: Sequence[Interval], *, x: str, level: tuple[str, float] | None) -> Spec:
    """One dot a row with its bar; `level` is a vertical reference, such as the untrained model. A ring is open."""
    if not rows:
        return {}
    values: list[Spec] = []
    for row in rows:
        low, high = row.bar or (None, None)
        values.append({"name": clean(row.label), "value": _round(row.value), "low": _round(low), "high": _round(high)})
    longest = max(len(row.label) for row in rows)
    axis: Spec = {"title": None, "labelLimit": WIDTH - 20, "labelColor": SOFT, "domain": False, "ticks": False}
    if longest > 16:  # above its dot: there is no room beside it on a phone
        axis |= {"labelAlign": "left", "labelOffset": -13, "labelPadding": -2, "grid": False}
    names = {"field": "name", "type": "nominal", "sort": None, "axis": axis, "scale": {"padding": 0.5}}
    colors = [PALETTE[row.series % len(PALETTE)] for row in rows]
    color = {"field": "name", "scale": {"domain": [row["name"] for row in values], "range": colors}, "legend": None}
    across = _number("value", x, scale={"zero": False})
    tips = [{"field": key, "format": ".6~g", "title": key} for key in ("value", "low", "high")]
    tooltip = [{"field": "name", "title": "setting"}, *(tips if any(row.bar for row in rows) else tips[:1])]
    dots = {"y": names, "x": across, "tooltip": tooltip}
    is_open = {"values": [row["name"] for row, interval in zip(values, rows, strict=True) if interval.is_open]}
    oneof = {"field": "name", "oneOf": is_open["values"]}
    return _chart(
        values,
        [
            *(_level("x", level, x) if level else []),
            {
                "mark": {"type": "rule", "strokeWidth": 2.5, "opacity": 0.6},
                "encoding": {"y": names, "x": _number("low", x, scale={"zero": False}), "x2": {"field": "high"}, "color": color},
                "transform": [{"filter": "isValid(datum.low)"}],
            },
            {
                "mark": {"type": "point", "size": 90},
                "transform": [{"filter": {"not": oneof}}],
                "encoding": {**dots, "color": color},
            },
            {
                "mark": {"type": "point", "size": 80, "filled": True, "fill": PAPER, "stroke": SOFT, "strokeWidth": 1.6},
                "transform": [{"filter": oneof}],
                "encoding": dots,
            },
        ],
        {"step": 40 if longest > 16 else 28},
    )  # fmt: skip


def swept(over: Over, *, x: str, y: str) -> Spec:
    """Lines over the numbers of a setting: the mean over seeds, with a bar from the lowest to the highest seed.

    Levels are dashed, over the whole width. The axis is logarithmic where its largest number is 20 times its smallest
    or more; near a zero it is linear. No line to draw gives nothing.
    """
    drawn, (near, _) = over.lines[:MOST_LINES], levels_drawn(over)
    numbers = sorted({n for line in drawn for n, spread in line.at.items() if spread is not None})
    if not numbers:
        return {}
    rows = [
        {"setting": clean(line.name), "at": n, **_spread(spread)} for line in drawn for n, spread in line.at.items()
    ]
    level_rows, rings = [], []
    for level in near:
        row = {"setting": clean(level.name), **_spread(level.value)}
        level_rows += [row | {"at": n} for n in (numbers[0], numbers[-1])]
        rings += [row | {"at": level.at}] if level.at in numbers else []
    names = [clean(setting.name) for setting in (*drawn, *near)]
    series, legend = {"field": "setting", "type": "nominal"}, _legend(names) if len(names) > 1 else None

    def ranged(values: Sequence[Any]) -> Spec:
        return {**series, "scale": {"domain": names, "range": values}, "legend": legend}

    colors = ranged([PALETTE[i % len(PALETTE)] for i in range(len(names))])
    shapes = ranged([SHAPES[i % len(SHAPES)] for i in range(len(names))])
    dashes = ranged([DASHES[i // len(PALETTE)] if i < len(drawn) else LEVEL for i in range(len(names))])
    scale: Spec = {"nice": False, "zero": False, "padding": 12}
    if is_log(numbers):
        scale |= {"type": "log"} if numbers[0] > 0 else {"type": "symlog", "constant": numbers[1]}
    across = {**_number("at", x, scale), "axis": {"grid": False, "values": numbers, "labelOverlap": "greedy"}}
    up, look = _number("mean", y, {"zero": False}), {"color": colors, "opacity": _picked(1)}
    tips = [{"field": "setting"}, {"field": "at", "title": clean(x), "format": "~g"}]
    tips += [{"field": name, "format": f".{over.digits}f"} for name in ("mean", "low", "high")]
    return _chart(
        [*rows, *level_rows],
        [
            {
                "params": [_pick("setting")],
                "mark": {"type": "line"},
                "encoding": {"x": across, "y": up, "strokeDash": dashes, **look},
            },
            {
                "data": _values([row for row in (*rows, *rings) if row["mean"] is not None]),
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": across, "y": _number("low", y), "y2": {"field": "high"}, **look, "opacity": _picked(0.5)},
            },
            {
                "data": _values([row for row in (*rows, *rings) if row["mean"] is not None]),
                "mark": {"type": "point", "size": 50},
                "encoding": {"x": across, "y": up, "shape": shapes, **look, "tooltip": tips},
            },
        ],
        TALL if is_tall(over) else HEIGHT,
    )  # fmt: skip


def is_tall(over: Over) -> bool:
    """Whether a chart of a sweep has many lines: it takes more room."""
    return len(over.lines) > FEW


def is_log(numbers: Sequence[float]) -> bool:
    """Whether an axis with these numbers is logarithmic: of those above zero, where none lies below it."""
    above = [n for n in numbers if n > 0]
    return min(numbers) >= 0 and len(above) > 1 and max(above) / min(above) >= LOG_FROM


def levels_drawn(over: Over) -> tuple[list[Level], list[Level]]:
    """The levels of a chart that are drawn, and those that lie too far from its lines."""
    spreads = [spread for line in over.lines[:MOST_LINES] for spread in line.at.values() if spread is not None]
    if not spreads:
        return [], []
    low, high = min(spread.low for spread in spreads), max(spread.high for spread in spreads)
    reach = max(BESIDE * (high - low), LEAST)
    near = [level for level in over.levels if low - reach <= level.value.mean <= high + reach]
    return near[:MOST_LEVELS], [level for level in over.levels if level not in near]


def _spread(spread: Spread | None) -> Spec:
    if spread is None:
        return dict.fromkeys(("mean", "low", "high"))
    return {"mean": _round(spread.mean), "low": _round(spread.low), "high": _round(spread.high)}


def _chart(rows: Sequence[Mapping[str, Any]], layers: Sequence[Spec], height: object = HEIGHT) -> Spec:
    size = {"width": WIDTH, "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**size, "data": _values(rows), "layer": list(layers)}


def _curves(curves: Sequence[Curve], *, x: Spec, y: Spec) -> list[Spec]:
    """Lines, marks with a shape for each series, and the values under a pointer. Drag and Ctrl with the wheel zoom."""
    names = [curve.label for curve in curves]
    by_series, several = {"field": "series", "type": "nominal"}, len(curves) > 1
    legend = _legend(names) if several else None

    def ranged(values: Sequence[Any]) -> Spec:
        chosen = [
            values[(curve.series // len(PALETTE) if values is DASHES else curve.series) % len(values)]
            for curve in curves
        ]
        return {**by_series, "scale": {"domain": names, "range": chosen}, "legend": legend}

    color, opacity = ranged(PALETTE), _picked(1)
    zoom = {"name": "zoom", "select": {"type": "interval", "zoom": "wheel![event.ctrlKey]"}, "bind": "scales"}
    tooltip = [{"field": "series", "title": "series"}] if several else []
    tooltip += [{"field": axis["field"], "title": axis["title"], "format": ".6~g"} for axis in (x, y)]
    marked = [
        {"series": curve.label, "x": _round(curve.x[i]), "y": _round(curve.y[i])}
        for curve in curves
        for i in _marked(len(curve.x), several)
    ]
    return [
        {
            "params": [zoom, *([_pick("series")] if several else [])],
            "mark": {"type": "line", "clip": True},
            "encoding": {"x": x, "y": y, "color": color, "strokeDash": ranged(DASHES), "opacity": opacity if several else {"value": 1}},
        },
        {
            "data": _values(marked),
            "mark": {"type": "point", "clip": True},
            "encoding": {"x": x, "y": y, "color": color, "shape": ranged(SHAPES), "opacity": opacity if several else {"value": 1}},
        },
        {"name": HOVER, "mark": {"type": "point", "size": 150, "opacity": 0}, "encoding": {"x": x, "y": y, "tooltip": tooltip}},
    ]  # fmt: skip


def _marked(count: int, several: bool) -> list[int]:
    """The places of a curve's points that are marked."""
    if count <= MOST_MARKS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (MARKS - 1)) for i in range(MARKS)}) if several else []


def _level(axis: str, level: tuple[str, float], title: str) -> list[Spec]:
    """A dashed line across, with its name at the end."""
    name, value = level
    data, at = _values([{"level": _round(value)}]), {axis: _number("level", title)}
    place = {"x": {"value": "width"}} if axis == "y" else {"y": {"value": 0}}
    side = {"align": "right", "dy": -6} if axis == "y" else {"align": "left", "baseline": "top", "dx": 4}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": LEVEL}, "encoding": at},
        *([{"data": data, "mark": {"type": "text", **side}, "encoding": {**at, **place, "text": {"value": clean(name)}}}] if name else []),
    ]  # fmt: skip


def _legend(names: Sequence[str]) -> Spec:
    """Below the chart, in as many columns as the names leave room for on a phone."""
    longest = max(len(name) for name in names)
    return {"title": None, "orient": "bottom", "columns": max(1, WIDTH // (7 * longest + 40)), "labelLimit": WIDTH - 50}


def _pick(field: str) -> Spec:
    """Choose series in the legend: the others fade."""
    return {"name": "picked", "select": {"type": "point", "fields": [field], "toggle": "true"}, "bind": "legend"}


def _picked(opacity: float) -> Spec:
    return {"condition": {"param": "picked", "value": opacity}, "value": 0.08}


def _number(field: str, title: str, scale: Spec | None = None) -> Spec:
    return {"field": field, "type": "quantitative", "title": clean(title), **({"scale": scale} if scale else {})}


def _log_axis(form: str) -> Spec:
    return {"format": form, "grid": False, "labelOverlap": "greedy"}


def _values(rows: Sequence[Mapping[str, Any]]) -> Spec:
    return {"values": list(rows)}


def _round(value: float | None) -> float | None:
    """To six digits, which is more than a chart shows."""
    return None if value is None else float(f"{value:.6g}")


def _thinned(curve: Curve) -> Curve:
    label, step = clean(curve.label), math.ceil(len(curve.x) / MOST_POINTS)
    places = sorted({*range(0, len(curve.x), step), len(curve.x) - 1}) if step > 1 else range(len(curve.x))
    return Curve(label, [curve.x[i] for i in places], [curve.y[i] for i in places], curve.series)
