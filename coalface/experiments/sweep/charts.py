"""The charts of a sweep: its figures by setting, and over the settings that take several numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalface.core.text import clean
from coalface.evaluation.figures import axis_title, figure_name, figure_of
from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.specs import (
    DASHES,
    FEW,
    HEIGHT,
    LEVEL,
    TALL,
    Interval,
    Spec,
    intervals,
    number,
    of_layers,
    pick,
    picked,
    ranged,
    rounded,
    shape_of,
    tips,
    values_of,
)
from coalface.experiments.report.vega import PALETTE, Chart
from coalface.experiments.sweep.series import Level, Line, Over, Point, Spread, over, panels

MOST_LINES, MOST_LEVELS = 16, 8
"""Lines and levels of one chart; the table has all."""
MOST_SETTINGS = 24
"""Settings of one chart with a row for each."""
LOG_FROM = 20.0
"""Largest number by smallest from which on an axis is logarithmic."""
BESIDE, LEAST = 0.6, 3.0
"""A level is drawn that lies beyond the lines by this share of their span, or by this many percent points, at most.

One that lies further off would press the lines together.
"""
ENROLLED = "clients by "
"""How the figures of a run's own clients are called: `clients by codewords/eer`."""


@dataclass(frozen=True)
class Axis:
    """One setting that takes several numbers: its charts, and all their numbers."""

    key: str
    charts: tuple[tuple[Chart, ...], ...]
    """In groups that belong together: the panels of a figure, or all figures."""
    clients: tuple[Chart, ...]
    """Those of the runs' own clients."""
    caption: str
    tables: tuple[tuple[str, Grid], ...]


def settings(points: Sequence[Point], baseline: Mapping[str, Any], otherwise: str) -> list[Chart]:
    """Each figure by setting: a dot at the mean over seeds, a bar from the lowest to the highest, the baseline a line.

    None where the sweep has one setting, or more than a chart has room for.
    """
    names = list(dict.fromkeys(name for point in points for name in point.figures))
    base, charts = [point for point in points if point.chosen == baseline], []
    for name in names:
        rows = over(points, "", name, otherwise).levels  # no cell has a number of that key
        if not 1 < len(rows) <= MOST_SETTINGS:
            continue
        (level,) = over(base, "", name, otherwise).levels[:1] or (None,)
        intervals_of = [
            Interval(row.name, row.value.mean, (row.value.low, row.value.high) if row.value.seeds > 1 else None)
            for row in rows
        ]
        line = (level.name, level.value.mean) if level else None
        charts.append(Chart(axis_title(name), intervals(intervals_of, x=axis_title(name), level=line)))
    return charts


def axis_of(points: Sequence[Point], key: str, otherwise: str) -> Axis:
    """The figures over a key: a chart of each, and their numbers."""
    names = list(dict.fromkeys(name for point in points for name in point.figures))
    curves = {name: over(points, key, name, otherwise) for name in names}
    curves = {name: curve for name, curve in curves.items() if curve.lines}
    cut = panels(points, key) if any(len(curve.lines) > FEW for curve in curves.values()) else {}
    charts: dict[str, tuple[Chart, ...]] = {}
    for name, curve in curves.items():
        title, y = f"{axis_title(name)} over {key}", axis_title(name)
        by_value = {value: over(of_value, key, name, otherwise) for value, of_value in cut.items()}
        by_value = {value: part for value, part in by_value.items() if part.lines}
        if by_value and len(curve.lines) > FEW:
            parts = list(by_value.values())
            specs = [lines_over(part, x=key, y=y, beside=parts) for part in parts]
            charts[name] = tuple(
                Chart(f"{title}, {value}", spec, _left_out(part))
                for (value, part), spec in zip(by_value.items(), specs, strict=True)
            )
        else:
            charts[name] = (Chart(title, lines_over(curve, x=key, y=y), _left_out(curve), len(curve.lines) > FEW),)
    own = [group for name, group in charts.items() if not name.startswith(ENROLLED)]
    return Axis(
        key,
        tuple(own) if cut else (tuple(chart for group in own for chart in group),),
        tuple(chart for name, group in charts.items() if name.startswith(ENROLLED) for chart in group),
        _caption(key, list(curves.values())),
        tuple(
            (f"{figure_name(name)} over {key}{figure_of(name).unit.caption}", _numbers(key, curve))
            for name, curve in curves.items()
        ),
    )


def lines_over(over: Over, *, x: str, y: str, beside: Sequence[Over] = ()) -> Spec:
    """Lines over the numbers of a setting: the mean over seeds, with a bar from the lowest to the highest seed.

    Levels are dashed, over the whole width, with a mark where the sweep has them at one number. The axis is logarithmic
    where its largest number is 20 times its smallest or more; near a zero it is linear. No line gives nothing.
    Those that are drawn `beside` it, itself among them, have the same colours and the same vertical axis.
    """
    lines, (levels, _) = over.lines[:MOST_LINES], levels_drawn(over)
    numbers = sorted({n for line in lines for n, spread in line.at.items() if spread is not None})
    if not numbers:
        return {}
    names = [clean(name) for name in (*(line.name for line in lines), *(level.name for level in levels))]
    rows = [_row(line, spread) | {"at": n} for line in lines for n, spread in line.at.items()]
    dots = [row for row in rows if row["mean"] is not None]
    dots += [_row(level, level.value) | {"at": level.at} for level in levels if level.at in numbers]
    rows += [_row(level, level.value) | {"at": end} for level in levels for end in (numbers[0], numbers[-1])]
    places = _places(beside or (over,), names)
    dashes = [LEVEL if i >= len(lines) else DASHES[n // len(PALETTE) % len(DASHES)] for i, n in enumerate(places)]
    up: Spec = {"domain": _ends(beside)} if beside else {"zero": False}
    scale: Spec = {"zero": False}
    if is_log(numbers):
        scale = {"type": "log"} if numbers[0] > 0 else {"type": "symlog", "constant": numbers[1]}
    scale |= {"nice": False, "padding": 12}
    place = {
        "x": number("at", x, **scale) | {"axis": {"grid": False, "values": numbers, "labelOverlap": "greedy"}},
        "y": number("mean", y, **up),
        "color": ranged("setting", names, [PALETTE[n % len(PALETTE)] for n in places]),
        "opacity": picked(1),
    }
    shapes = ranged("setting", names, [shape_of(n) for n in places])
    bar = {"y": number("low", y, **up), "y2": {"field": "high"}, "opacity": picked(0.5)}
    layers: list[Spec] = [
        {
            "params": [pick("setting")],
            "mark": {"type": "line"},
            "encoding": place | {"strokeDash": ranged("setting", names, dashes)},
        },
        {"data": values_of(dots), "mark": {"type": "rule", "strokeWidth": 2}, "encoding": place | bar},
        {
            "data": values_of(dots),
            "mark": {"type": "point", "size": 50},
            "encoding": place | {"shape": shapes, "tooltip": tips("setting", "at", "mean", "low", "high", at=x)},
        },
    ]
    return of_layers(rows, layers, TALL if len(over.lines) > FEW else HEIGHT)


def _places(all_over: Sequence[Over], names: Sequence[str]) -> list[int]:
    """The place of each name among those of all charts that belong together, which decides its colour."""
    everywhere = [clean(line.name) for over in all_over for line in over.lines[:MOST_LINES]]
    everywhere += [clean(level.name) for over in all_over for level in levels_drawn(over)[0]]
    order = list(dict.fromkeys(everywhere))
    return [order.index(name) for name in names]


def _ends(all_over: Sequence[Over]) -> list[float]:
    """The lowest and the highest number that any of the charts draws."""
    spreads = [s for over in all_over for line in over.lines[:MOST_LINES] for s in line.at.values() if s is not None]
    spreads += [level.value for over in all_over for level in levels_drawn(over)[0]]
    return [min(spread.low for spread in spreads), max(spread.high for spread in spreads)]


def _row(setting: Line | Level, spread: Spread | None) -> Spec:
    ends = (None, None, None) if spread is None else (spread.mean, spread.low, spread.high)
    values = zip(("mean", "low", "high"), map(rounded, ends), strict=True)
    return {"setting": clean(setting.name), **dict(values)}


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


def _caption(key: str, curves: Sequence[Over]) -> str:
    """What the charts have in common, in sentences."""
    lines = [line for curve in curves for line in curve.lines]
    numbers = sorted({n for line in lines for n, spread in line.at.items() if spread is not None})
    sentences = ["Mean over seeds."]
    if any(s is not None and s.seeds > 1 for line in lines for s in line.at.values()):
        sentences[0] = "Mean over seeds, with a bar from the lowest to the highest seed."
    if numbers and is_log(numbers):
        sentences.append(f"{key} on a logarithmic scale{', linear near zero' if numbers[0] == 0 else ''}.")
    if any(curve.levels for curve in curves):
        sentences.append(f"Dashed: what the sweep has without {key}, or at one number of it alone.")
    return " ".join(sentences)


def _left_out(curve: Over) -> str:
    """What the table has and a chart has no room for."""
    near, far = levels_drawn(curve)
    beyond = [f"{level.name} {level.value.mean:.{curve.digits}f}" for level in far]
    sentences = [f"Beyond the chart: {', '.join(beyond)}."] if beyond else []
    if more := max(0, len(curve.lines) - MOST_LINES) + len(curve.levels) - len(near) - len(far):
        sentences.append(f"{more} more are in the table alone.")
    return " ".join(sentences)


def _numbers(key: str, curves: Over) -> Grid:
    """A row for every line and level, a column for every number."""
    numbers = sorted({n for line in curves.lines for n in line.at})
    numbers = sorted({*numbers, *(level.at for level in curves.levels if level.at is not None)})
    rows = [[line.name, *(_cell(line.at.get(n), curves.digits) for n in numbers), ""] for line in curves.lines]
    for level in curves.levels:
        at = [_cell(level.value, curves.digits) if level.at == n else "" for n in numbers]
        rows.append([level.name, *at, "" if level.at is not None else _cell(level.value, curves.digits)])
    header = [
        "setting",
        *(f"{key} = {n:g}" if not i else f"{n:g}" for i, n in enumerate(numbers)),
        f"without {key}",
    ]
    if all(level.at is not None for level in curves.levels):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Grid(header, rows, frozenset(range(1, len(header))))


def _cell(value: Spread | None, digits: int) -> str:
    """The mean with its range beneath it, and how many seeds it is of where some are missing."""
    if value is None:
        return ""
    between = f"\n({value.low:.{digits}f} to {value.high:.{digits}f})" if value.seeds > 1 else ""
    missing = "" if value.seeds == value.planned else f"\n{value.seeds} of {value.planned} seeds"
    return f"{value.mean:.{digits}f}{between}{missing}"
