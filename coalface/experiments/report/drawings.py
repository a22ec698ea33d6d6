"""Line charts, ROC curves, similarity histograms and interval plots as inline SVG.

The SVG is written by hand: it takes its colours from the page's style sheet (light, dark, print), its text is text, and
the same numbers give the same bytes. Every string is escaped and loses its control characters. A drawing is `WIDTH` ×
`HEIGHT` units and scales to its place on the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from coalface.core.text import clean

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 38
MOST_POINTS = 400
"""Points drawn of one curve; a longer one is thinned evenly and keeps its last point."""
MOST_DOTS = 20
"""Points of a curve up to which each has its dot."""
WIDE = 2 * WIDTH + 20
"""Of a drawing over two columns of the page."""
ENDS = 97
"""Room to the right of a chart for the names of its curves."""
SERIES = 8
"""Colours in the style sheet (`s0` to `s7`); further curves repeat them with dashes."""


@dataclass(frozen=True)
class Curve:
    """One curve: `x` ascending, `y` of the same length. `series` is its place in the legend, and so its colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
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


@dataclass(frozen=True)
class _Axis:
    """Maps values from `low` to `high` to the drawing's units from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def line_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    level: tuple[str, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    whole: bool = True,
    named: bool = False,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Markup:
    """Curves over rounds; the vertical axis spans what is drawn.

    `level` is a horizontal reference, such as the untrained model's figure. `marks` are vertical lines with a name,
    such as the start of a stage. `whole`: ticks on the horizontal axis are whole numbers. `named`: each curve's
    name stands at its end. Nothing to draw gives no markup.
    """
    curves = [_thinned(curve) for curve in curves if len(curve.x)]
    if not curves:
        return Markup("")
    x_low, x_high = min(min(c.x) for c in curves), max(max(c.x) for c in curves)
    values = [y for c in curves for y in c.y] + ([level[1]] if level else [])
    y_ticks = ticks(min(values), max(values))
    right = width - (ENDS if named else RIGHT)
    x_axis = _Axis(x_low, x_high, LEFT, right)
    y_axis = _Axis(min(y_ticks[0], *values), max(y_ticks[-1], *values), height - BOTTOM, TOP)
    x_ticks = [t for t in ticks(x_low, x_high) if x_low <= t <= x_high and (not whole or t == round(t))]
    parts = [_grid(x_axis, y_axis, [(t, plain(t)) for t in x_ticks or [x_low]], [(t, plain(t)) for t in y_ticks])]
    for x, name in marks:
        place = x_axis.at(min(max(x, x_low), x_high))
        parts.append(f'<line class="mark" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        if name:
            parts.append(f'<text class="small" x="{place + 3:.1f}" y="{TOP + 9}">{_short(name, 18)}</text>')
    if level:
        y = y_axis.at(level[1])
        parts.append(f'<line class="level" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        above = y - 5 if y - 5 > TOP + 10 else y + 13
        parts.append(f'<text class="small" text-anchor="end" x="{right}" y="{above:.1f}">{safe(level[0])}</text>')
    parts += [_curve(curve, x_axis, y_axis, dots=len(curve.x) <= MOST_DOTS) for curve in curves]
    if named:
        parts += _names(curves, x_axis, y_axis)
    return _svg(parts, title, x_label, height, right=right, width=width)


def roc_chart(curves: Sequence[Curve], *, title: str) -> Markup:
    """ROC curves over a logarithmic FAR. `x` is FAR and `y` TAR, both as fractions; points with FAR 0 are left out."""
    kept = []
    for curve in curves:
        points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if 0 < x <= 1]
        if points:
            kept.append(_thinned(Curve(curve.label, [x for x, _ in points], [y for _, y in points], curve.series)))
    if not kept:
        return Markup("")
    decade = max(-7, min(-1, math.floor(math.log10(min(min(c.x) for c in kept)) + 1e-9)))
    x_axis = _Axis(10.0**decade, 1.0, LEFT, WIDTH - RIGHT, log=True)
    y_axis = _Axis(0, 1, HEIGHT - BOTTOM, TOP)
    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    powers = [(10.0**p, "1" if p == 0 else f"10{str(p).translate(superscripts)}") for p in range(decade, 1)]
    parts = [_grid(x_axis, y_axis, powers, [(t / 100, str(t)) for t in range(0, 101, 20)])]
    chance = " ".join(
        f"{x_axis.at(far):.1f},{y_axis.at(far):.1f}" for far in (10.0 ** (decade * (1 - i / 40)) for i in range(41))
    )
    parts.append(f'<polyline class="level" points="{chance}"/>')
    for curve in kept:
        inside = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if x >= x_axis.low]
        if inside:
            drawn = Curve(curve.label, [x for x, _ in inside], [y for _, y in inside], curve.series)
            parts.append(_curve(drawn, x_axis, y_axis))
    return _svg(parts, title, "FAR")


def histogram(edges: Sequence[float], genuine: Sequence[float], impostor: Sequence[float], *, title: str) -> Markup:
    """Similarities of genuine and impostor pairs, each as shares of its own pairs; n counts over n + 1 edges.

    The horizontal axis spans the bins that hold any pair. Counts that do not fit the edges give no markup.
    """
    if len(edges) < 2 or len(genuine) != len(edges) - 1 or len(impostor) != len(edges) - 1:
        return Markup("")
    used = [i for i in range(len(genuine)) if genuine[i] > 0 or impostor[i] > 0]
    if not used or edges[used[-1] + 1] <= edges[used[0]]:
        return Markup("")
    first, last = used[0], used[-1]
    shares = [
        [100 * count / total for count in counts[first : last + 1]] if (total := sum(counts)) else []
        for counts in (genuine, impostor)
    ]
    x_axis = _Axis(edges[first], edges[last + 1], LEFT, WIDTH - RIGHT)
    top = ticks(0, max((max(s) for s in shares if s), default=1))
    y_axis = _Axis(0, top[-1], HEIGHT - BOTTOM, TOP)
    x_ticks = [t for t in ticks(x_axis.low, x_axis.high) if x_axis.low <= t <= x_axis.high]
    parts = [_grid(x_axis, y_axis, [(t, plain(t)) for t in x_ticks], [(t, plain(t)) for t in top])]
    for name, share in zip(("impostor", "genuine"), reversed(shares), strict=True):
        points = [(x_axis.low, 0.0)]
        for i, value in enumerate(share):
            points += [(edges[first + i], value), (edges[first + i + 1], value)]
        points.append((x_axis.high, 0.0))
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
        parts.append(f'<polygon class="{name}" points="{path}"/>')
    return _svg(parts, title, "similarity (cosine)")


def interval_chart(
    rows: Sequence[Interval], *, title: str, x_label: str, level: tuple[str, float] | None, letters: int = 18
) -> Markup:
    """One dot a row with its bar; `level` is a vertical reference such as the untrained model.

    Names have `letters` letters at most; the drawing is wider where they are more than 18.
    """
    if not rows:
        return Markup("")
    step, left = 26, 128 + math.ceil(6.6 * (letters - 18))
    width = WIDTH + left - 128
    height = TOP + step * len(rows) + BOTTOM + 6
    values = [value for row in rows for value in (row.value, *(row.bar or ()))] + ([level[1]] if level else [])
    x_ticks = ticks(min(values), max(values), about=4)
    x_axis = _Axis(min(x_ticks[0], *values), max(x_ticks[-1], *values), left, width - RIGHT - 6)
    bottom = height - BOTTOM
    parts = []
    for tick in x_ticks:
        x = x_axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{bottom + 15}">{plain(tick)}</text>')
    if level:
        x = x_axis.at(level[1])
        anchor = "start" if x < (left + width) / 2 else "end"
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        shift = 3 if anchor == "start" else -3
        parts.append(
            f'<text class="small" text-anchor="{anchor}" x="{x + shift:.1f}" y="{TOP + 3}">{safe(level[0])}</text>'
        )
    for index, row in enumerate(rows):
        y = TOP + step * (index + 0.5) + 6
        parts.append(f'<text text-anchor="end" x="{left - 10}" y="{y + 4:.1f}">{_short(row.label, letters)}</text>')
        if row.bar:
            ends = [x_axis.at(end) for end in row.bar]
            parts.append(
                f'<line class="bar {css_of(row.series)}" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>'
            )
        hover = f"<title>{safe(row.label)}: {plain(row.value)}</title>"
        parts.append(
            f'<circle class="{"ring" if row.is_open else css_of(row.series)}" cx="{x_axis.at(row.value):.1f}" '
            f'cy="{y}" r="5">{hover}</circle>'
        )
    return _svg(parts, title, x_label, height, right=width - RIGHT, width=width)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that cover low to high, about as many as asked for.

    >>> ticks(0, 9.3)
    [0, 2, 4, 6, 8, 10]
    """
    if not high - low > max(1e-100, 1e-12 * max(abs(low), abs(high))):
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / about
    power = math.floor(math.log10(rough))
    # Steps are kept as whole numbers times a power of ten, so that 0.1 + 0.2 does not become a tick.
    factor = next(f for f in (1, 2, 5, 10) if f * 10.0**power >= rough * 0.999)
    first, last = math.floor(low / 10.0**power / factor + 1e-6), math.ceil(high / 10.0**power / factor - 1e-6)
    scaled = [i * factor for i in range(first, last + 1)]
    return [s * 10**power if power >= 0 else s / 10**-power for s in scaled]


def _thinned(curve: Curve) -> Curve:
    step = math.ceil(len(curve.x) / MOST_POINTS)
    if step <= 1:
        return curve
    places = sorted({*range(0, len(curve.x), step), len(curve.x) - 1})
    return Curve(curve.label, [curve.x[i] for i in places], [curve.y[i] for i in places], curve.series)


def _curve(curve: Curve, x_axis: _Axis, y_axis: _Axis, dots: bool = False) -> str:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        f'<polyline class="line {css_of(curve.series)}" points="{path}"><title>{safe(curve.label)}</title></polyline>'
    ]
    if dots or len(places) == 1:
        for (x, y), at, value in zip(places, curve.x, curve.y, strict=True):
            hover = f"<title>{safe(curve.label)}, {plain(at)}: {value:.4g}</title>"
            parts.append(f'<circle class="{css_of(curve.series)}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">{hover}</circle>')
    return "".join(parts)


def _names(curves: Sequence[Curve], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    """The name of each curve beside its end, with a line to it where names would lie upon each other."""
    ends = sorted((y_axis.at(curve.y[-1]), place) for place, curve in enumerate(curves))
    places = stacked([y for y, _ in ends], y_axis.end + 4, y_axis.start, gap=13.0)
    parts = []
    for (end, number), y in zip(ends, places, strict=True):
        curve, edge = curves[number], x_axis.end
        x = x_axis.at(curve.x[-1])
        parts.append(
            f'<polyline class="tie {css_of(curve.series)}" '
            f'points="{x:.1f},{end:.1f} {edge + 3:.1f},{end:.1f} {edge + 17:.1f},{y:.1f}"/>'
            f'<text class="small" x="{edge + 20:.1f}" y="{y + 4:.1f}">{_short(curve.label, 12)}</text>'
        )
    return parts


def stacked(ends: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Where names stand whose curves end at `ends`, ascending: beside them, and `gap` apart where there is room."""
    gap = min(gap, (high - low) / max(1, len(ends) - 1))
    places: list[float] = []
    for end in ends:
        places.append(max(end, places[-1] + gap if places else low))
    for place in reversed(range(len(places))):  # back up from the lower edge
        places[place] = min(places[place], high if place == len(places) - 1 else places[place + 1] - gap)
    return places


def _grid(
    x_axis: _Axis, y_axis: _Axis, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]
) -> str:
    parts = []
    for value, name in y_ticks:
        y = y_axis.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{x_axis.end:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{name}</text>')
    for value, name in x_ticks:
        x = x_axis.at(value)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{y_axis.start:g}" y2="{y_axis.start + 4:g}"/>')
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{y_axis.start + 16:g}">{name}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{x_axis.end:g}" y1="{y_axis.start:g}" y2="{y_axis.start:g}"/>')
    return "".join(parts)


def _svg(
    parts: Sequence[str],
    title: str,
    x_label: str,
    height: float = HEIGHT,
    *,
    right: float = WIDTH - RIGHT,
    width: float = WIDTH,
) -> Markup:
    label = f'<text class="label" text-anchor="end" x="{right}" y="{height - 6}">{safe(x_label)}</text>'
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{safe(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}{label}</svg>'
    )


def css_of(series: int) -> str:
    return f"s{series % SERIES}" + (" dash" if series >= SERIES else "")


def _short(name: str, most: int) -> Markup:
    return safe(name if len(name) <= most else name[: most - 1] + "…")


def safe(text: str) -> Markup:
    """A string as it may stand in the page: escaped, without control characters."""
    return escape(clean(text))


def plain(value: float) -> str:
    """A number of an axis."""
    return f"{value:.6g}".replace("-", "−")
