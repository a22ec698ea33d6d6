"""A figure of a sweep over a setting, as inline SVG: lines with the range of their seeds, and levels beside them.

The names of lines and levels stand to the right of the plot, each tied to the end of its own. Colours are the page's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from coalface.experiments.report.drawings import SERIES, css_of, plain, safe, stacked, ticks
from coalface.experiments.report.series import Level, Line, Over, Spread

SMALL, LARGE = (620, 330), (1000, 430)
"""Width and height of a drawing, and of one with more than `FEW` lines."""
FEW = 4
LEFT, TOP, BOTTOM = 46, 14, 40
LETTER, LONGEST = 6.6, 38
"""Width of a letter of a name in a wide font, and the letters of one that are shown."""
GAP = 14.5
"""Between two names."""
APART = 4.0
"""Between the bars of two lines."""
LOG_FROM = 20.0
"""Largest number by smallest from which on the axis is logarithmic."""
MOST_LINES, MOST_LEVELS = 2 * SERIES, SERIES
"""Lines and levels of one drawing."""
BESIDE, LEAST = 0.6, 3.0
"""A level is drawn that lies beyond the lines by this share of their span, or by this many percent points, at most.

One that lies further off would press the lines together; its name then has its value and an arrow.
"""
BEYOND = ("↑", "↓")


def axis_chart(over: Over, *, title: str, axis: str) -> Markup:
    """Lines over the numbers of an axis: the mean over seeds, with a bar from the lowest to the highest seed.

    The axis is logarithmic where its largest number is 20 times its smallest or more; a zero then stands to the left of
    it. Bars of several lines stand slightly beside each other. No line to draw gives no markup.
    """
    lines, levels = drawn(over)
    width, height = LARGE if is_large(over) else SMALL
    floor = height - BOTTOM
    numbers = sorted({n for line in lines for n, spread in line.at.items() if spread is not None})
    if not numbers:
        return Markup("")
    ranges = [(s.low, s.high) for line in lines for s in line.at.values() if s is not None]
    low, high = min(end for end, _ in ranges), max(end for _, end in ranges)
    reach = max(BESIDE * (high - low), LEAST)
    near = [level for level in levels if low - reach <= level.value.mean <= high + reach]
    ends = [value for level in near for value in (level.value.mean, *_bar(level, numbers))]
    y_ticks = ticks(min(low, *ends), max(high, *ends)) if ends else ticks(low, high)
    y_low, y_high = min(low, *ends, y_ticks[0]), max(high, *ends, y_ticks[-1])

    def y_at(value: float) -> float:
        return floor - (value - y_low) / (y_high - y_low) * (floor - TOP)

    names = [_name(line.name) for line in lines]
    names += [_name(level.name, None if level in near else level.value.mean > high, level.value) for level in levels]
    right = width - 28 - LETTER * max(len(name) for name in names)
    pad = 10 + APART / 2 * len(lines)
    x_at = placed(numbers, LEFT + pad, right - pad)
    parts = _frame(numbers, x_at, [(tick, y_at(tick)) for tick in y_ticks], right, floor)
    for level in near:
        parts += _level(level, numbers, x_at, y_at, right, over.digits)
    step = _step([x_at(n) for n in numbers], len(lines))
    tied = []
    for place, line in enumerate(lines):
        shift = (place - (len(lines) - 1) / 2) * step
        parts += _line(line, place, lambda n, shift=shift: x_at(n) + shift, y_at, over.digits)  # type: ignore[misc]
        last = max(n for n, spread in line.at.items() if spread is not None)
        end = line.at[last]
        assert end is not None
        tied.append((y_at(end.mean), x_at(last) + shift, names[place], line.name, css_of(place)))
    for level, name in zip(levels, names[len(lines) :], strict=True):
        y = y_at(min(max(level.value.mean, y_low), y_high))
        tied.append((y, right, name, level.name, "level"))
    parts += _names(tied, right, floor)
    label = f'<text class="label" text-anchor="end" x="{right:g}" y="{height - 5}">{safe(axis)}</text>'
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{safe(title)}; the numbers stand in a table" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}{label}</svg>'
    )


def drawn(over: Over) -> tuple[list[Line], list[Level]]:
    """What a drawing has room for; the table has all."""
    return list(over.lines[:MOST_LINES]), list(over.levels[:MOST_LEVELS])


def is_large(over: Over) -> bool:
    """Whether its drawing takes a row of the page."""
    return len(drawn(over)[0]) > FEW


def is_log(numbers: Sequence[float]) -> bool:
    """Whether an axis with these numbers is logarithmic: of those above zero, where none lies below it."""
    above = [n for n in numbers if n > 0]
    return min(numbers) >= 0 and len(above) > 1 and max(above) / min(above) >= LOG_FROM


def placed(numbers: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Where a number of an axis stands, from `start` to `end`; `numbers` ascend.

    On a logarithmic axis a zero stands to the left of the smallest number above it, by their mean distance.
    """
    places: Mapping[float, float] = {n: n for n in numbers}
    if is_log(numbers):
        above = [math.log10(n) for n in numbers if n > 0]
        zero = above[0] - (above[-1] - above[0]) / (len(above) - 1)
        places = {n: math.log10(n) if n > 0 else zero for n in numbers}
    low, high = places[numbers[0]], places[numbers[-1]]
    shares = {n: (place - low) / (high - low) if high > low else 0.5 for n, place in places.items()}
    return lambda n: start + shares[n] * (end - start)


def _frame(
    numbers: Sequence[float],
    x_at: Callable[[float], float],
    y_ticks: Sequence[tuple[float, float]],
    right: float,
    floor: float,
) -> list[str]:
    """The grid; the ticks of the horizontal axis are the sweep's own numbers, named where there is room."""
    parts, free = [], -math.inf
    for tick, y in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{plain(tick)}</text>')
    for n in numbers:
        x, half = x_at(n), 3.6 * len(plain(n))
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>')
        if x - half > free:
            parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{floor + 16}">{plain(n)}</text>')
            free = x + half
    return [*parts, f'<line class="axis" x1="{LEFT}" x2="{right:g}" y1="{floor}" y2="{floor}"/>']


def _step(places: Sequence[float], lines: int) -> float:
    """How far the bars of two lines stand apart, so that those of one number never reach the next."""
    apart = min((b - a for a, b in zip(places, places[1:], strict=False)), default=math.inf)
    return min(APART, 0.6 * apart / max(1, lines - 1))


def _line(
    line: Line, series: int, x_at: Callable[[float], float], y_at: Callable[[float], float], digits: int
) -> list[str]:
    """Bars, then the line, broken where a number has no run, then its dots."""
    css, bars, dots = css_of(series), [], []
    pieces: list[list[str]] = [[]]
    for n, spread in line.at.items():
        if spread is None:
            pieces.append([])
            continue
        x, y = x_at(n), y_at(spread.mean)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        if spread.high > spread.low:
            bars.append(
                f'<line class="bar s{series % SERIES}" x1="{x:.1f}" x2="{x:.1f}" '
                f'y1="{y_at(spread.low):.1f}" y2="{y_at(spread.high):.1f}"/>'
            )
        hover = f"<title>{safe(line.name)}, {plain(n)}: {safe(shown(spread, digits))}</title>"
        dots.append(f'<circle class="s{series % SERIES}" cx="{x:.1f}" cy="{y:.1f}" r="3.2">{hover}</circle>')
    drawn = [f'<polyline class="line {css}" points="{" ".join(piece)}"/>' for piece in pieces if len(piece) > 1]
    return [*bars, *drawn, *dots]


def _bar(level: Level, numbers: Sequence[float]) -> tuple[float, ...]:
    return (level.value.low, level.value.high) if level.at in numbers else ()


def _level(
    level: Level,
    numbers: Sequence[float],
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
    right: float,
    digits: int,
) -> list[str]:
    """A dashed line over the whole width, with a ring and the range of its seeds where the sweep has it."""
    y = y_at(level.value.mean)
    hover = f"<title>{safe(level.name)}: {safe(shown(level.value, digits))}</title>"
    parts = [f'<line class="level" x1="{LEFT}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}">{hover}</line>']
    if level.at is not None and level.at in numbers:
        x, low, high = x_at(level.at), y_at(level.value.low), y_at(level.value.high)
        parts.append(f'<line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="3.2">{hover}</circle>')
    return parts


def _names(tied: Sequence[tuple[float, float, str, str, str]], right: float, floor: float) -> list[str]:
    """Names to the right, in the order of the ends they are tied to: (y, x, name, whole name, class)."""
    low, high = TOP + 4.0, floor - 2.0
    ordered = sorted(tied, key=lambda tie: tie[0])
    places = stacked([y for y, *_ in ordered], low, high, GAP)
    parts = []
    for (y, x, name, whole, css), at in zip(ordered, places, strict=True):
        path = f"{x:.1f},{y:.1f} {right + 2:.1f},{y:.1f} {right + 12:.1f},{at:.1f}"
        parts.append(f'<polyline class="tie {css}" points="{path}"/>')
        key = f'x1="{right + 12:.1f}" x2="{right + 21:.1f}" y1="{at:.1f}" y2="{at:.1f}"'
        parts.append(f'<line class="{"level" if css == "level" else f"line {css}"}" {key}/>')
        hover = f"<title>{safe(whole)}</title>" if name != whole else ""
        parts.append(f'<text class="small" x="{right + 25:.1f}" y="{at + 4:.1f}">{safe(name)}{hover}</text>')
    return parts


def _name(name: str, above: bool | None = None, value: Spread | None = None) -> str:
    """A name beside the plot; of a level that lies beyond it, with its value and where it lies."""
    beyond = "" if above is None or value is None else f" {value.mean:.2f} {BEYOND[not above]}"
    room = LONGEST - len(beyond)
    return (name if len(name) <= room else name[: room - 1] + "…") + beyond


def shown(spread: Spread, digits: int) -> str:
    """A mean with its range over seeds: `81.37 (80.70 to 82.60)`."""
    between = f" ({spread.low:.{digits}f} to {spread.high:.{digits}f})" if spread.seeds > 1 else ""
    return f"{spread.mean:.{digits}f}{between}"
