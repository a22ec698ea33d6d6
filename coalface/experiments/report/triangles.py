"""A score over the weightings of three parties, as a triangle of cells in inline SVG.

Each corner is one party's model alone, each cell a weighting of the grid. The colours are part of the drawing, since a
scale must look alike on every page; the marks and the text around it take theirs from the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coalface.experiments.report.drawings import safe, ticks

WIDTH, HEIGHT = 460, 440
"""Of a drawing with `NUMBERED` steps or more; larger cells reach further beyond the corners, and it grows with them."""
TOP_CORNER, SIDE = (WIDTH / 2, 46.0), 336.0
"""The place of the first corner and the length of a side, between the centres of the corner cells."""
NUMBERED = 10
"""Steps of a side up to which each cell shows its score."""
SCALE = ("#fbf1e4", "#f6cfa0", "#e99a5b", "#c7602b", "#8a3413", "#4a1807")
"""From the lowest score to the highest."""
SHAPES = ("best", "equal", "images", "use")
"""The marks that there are."""

Weights = tuple[float, float, float]


@dataclass(frozen=True)
class Cell:
    """One weighting of the grid and its score."""

    weights: Weights
    score: float


@dataclass(frozen=True)
class Mark:
    """A weighting to point out; `shape` is one of `SHAPES`."""

    weights: Weights
    shape: str
    label: str


def triangle(
    corners: tuple[str, str, str], cells: Sequence[Cell], *, steps: int, title: str, marks: Sequence[Mark] = ()
) -> Markup:
    """The first corner is above, the second below on the left, the third on the right; a side has `steps` steps.

    All cells of one score have the colour in the middle of the scale.
    """
    scores = [cell.score for cell in cells]
    low, high = min(scores), max(scores)
    radius = SIDE / steps / math.sqrt(3) if steps > 1 else 40.0
    parts = []
    for cell in cells:
        x, y = place(cell.weights)
        share = (cell.score - low) / (high - low) if high > low else 0.5
        points = " ".join(
            f"{x + radius * math.sin(k * math.pi / 3):.1f},{y - radius * math.cos(k * math.pi / 3):.1f}"
            for k in range(6)
        )
        words = ", ".join(f"{safe(name)} {weight:g}" for name, weight in zip(corners, cell.weights, strict=True))
        hover = f"<title>{words}: {cell.score:.4g}</title>"
        parts.append(f'<polygon class="cell" fill="{colour(share)}" points="{points}">{hover}</polygon>')
        if steps <= NUMBERED:
            ink = "#ffffff" if share > 0.55 else "#1c1b1a"
            number = _number(cell.score, high - low)
            parts.append(
                f'<text class="value" text-anchor="middle" x="{x:.1f}" y="{y + 3.4:.1f}" '
                f'style="fill: {ink}">{number}</text>'
            )
    parts += [_mark(mark, radius) for mark in marks]
    margin = max(0.0, radius - SIDE / NUMBERED / math.sqrt(3))  # above and below
    beside = max(0.0, 8 + radius * math.sqrt(3) / 2 - (WIDTH - SIDE) / 2)
    above, below = 14 - margin, TOP_CORNER[1] + SIDE * math.sqrt(3) / 2 + 38 + margin
    places = (WIDTH / 2, above, "middle"), (8 - beside, below, "start"), (WIDTH - 8 + beside, below, "end")
    for (x, y, anchor), name in zip(places, corners, strict=True):
        label = name if len(name) <= 26 else name[:25] + "…"
        parts.append(f'<text class="corner" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{safe(label)}</text>')
    parts.append(f'<g transform="translate(0 {margin:.1f})">{_scale(low, high)}</g>')
    box = f"{0 - beside:.1f} {0 - margin:.1f} {WIDTH + 2 * beside:.1f} {HEIGHT + 2 * margin:.1f}"
    return Markup(
        f'<svg viewBox="{box}" role="img" aria-label="{safe(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def place(weights: Weights) -> tuple[float, float]:
    """Where a weighting lies: the mean of the corners' places by the weights.

    >>> place((1.0, 0.0, 0.0)) == TOP_CORNER
    True
    """
    height = SIDE * math.sqrt(3) / 2
    x = TOP_CORNER[0] + SIDE / 2 * (weights[2] - weights[1])
    return x, TOP_CORNER[1] + height * (1 - weights[0])


def colour(share: float) -> str:
    """The colour at a share of the scale from 0 to 1, between the two of `SCALE` beside it."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    first = min(int(at), len(SCALE) - 2)
    first_colour, second_colour = ([int(SCALE[n][i : i + 2], 16) for i in (1, 3, 5)] for n in (first, first + 1))
    mixed = (round(a + (at - first) * (b - a)) for a, b in zip(first_colour, second_colour, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def sign(shape: str) -> Markup:
    """A mark alone, for a legend."""
    drawn = _mark(Mark((1.0, 0.0, 0.0), shape, ""), 8.0, at=(11.0, 11.0))
    return Markup(f'<svg viewBox="0 0 22 22" aria-hidden="true">{drawn}</svg>')


def _mark(mark: Mark, radius: float, at: tuple[float, float] | None = None) -> str:
    """Drawn twice, so that it stands out of every colour: a broad pale line beneath a narrow dark one."""
    x, y = at or place(mark.weights)
    if mark.shape == "best":
        corners = [(math.sin(k * math.pi / 3), -math.cos(k * math.pi / 3)) for k in range(6)]
        size = max(radius - 1.5, 5.0)
    elif mark.shape == "equal":
        corners, size = [(0.0, -1.0), (0.87, 0.5), (-0.87, 0.5)], 9.0
    elif mark.shape == "images":
        corners, size = [(-0.75, -0.75), (0.75, -0.75), (0.75, 0.75), (-0.75, 0.75)], 9.0
    else:
        corners = [(math.sin(k * math.pi / 12), -math.cos(k * math.pi / 12)) for k in range(24)]
        size = 8.0
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    hover = f"<title>{safe(mark.label)}</title>" if mark.label else ""
    drawn = f'<polygon class="spot {mark.shape}" points="{points}">{hover}</polygon>'
    return f'<polygon class="halo" points="{points}"/>{drawn}'


def _scale(low: float, high: float) -> str:
    """The colours from the lowest score to the highest, with round numbers beneath."""
    left, right, top = 70.0, WIDTH - 70.0, HEIGHT - 34.0
    if not high > low:
        return (
            f'<rect class="cell" fill="{colour(0.5)}" x="{WIDTH / 2 - 20}" y="{top}" width="40" height="11"/>'
            f'<text text-anchor="middle" x="{WIDTH / 2}" y="{top + 26:.1f}">{low:.4g} everywhere</text>'
        )
    pieces = 48
    wide = (right - left) / pieces
    parts = [
        f'<rect fill="{colour((n + 0.5) / pieces)}" x="{left + n * wide:.2f}" y="{top}" width="{wide + 0.4:.2f}" '
        'height="11"/>'
        for n in range(pieces)
    ]
    for value in [low, *(t for t in ticks(low, high, about=4) if low < t < high), high]:
        share = (value - low) / (high - low)
        if value not in (low, high) and not 0.17 < share < 0.83:  # its number would lie on that of an end
            continue
        x = left + share * (right - left)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 11}" y2="{top + 15}"/>')
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{top + 28:.1f}">{_number(value, high - low)}</text>')
    return "".join(parts)


def _number(value: float, span: float) -> str:
    """With as many places as tell scores of this span apart, four at most."""
    places = 1 if span == 0 else min(4, max(int(span < 100), 1 - math.floor(math.log10(span))))
    return f"{value:.{places}f}".replace("-", "−")
