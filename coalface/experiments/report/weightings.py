"""The page of a weighting grid: a triangle for each scorer and one for their sum, in one file that works offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.templates import template
from coalface.experiments.report.triangles import Cell, Mark, sign, triangle

SUM = "sum"
SHAPE_OF = {"equal weights": "equal", "shares of the images": "images", "weighting in use": "use"}
"""The mark of each named weighting."""
EQUAL = 1e-9
"""Scores that are no further apart are equal: percent, after rounding."""
SHOWN = 5
"""Best weightings in the table."""


@dataclass(frozen=True)
class Triangle:
    """A drawing with what is said beneath it."""

    title: str
    svg: Markup
    caption: str


def render(found: Mapping[str, Any]) -> str:
    """The page of what `weighting-grid.json` holds, as HTML."""
    points, scorers = found["points"], list(found["points"][0]["scores"])
    names = tuple(points[0]["weights"])
    wanted = [*scorers, *([SUM] if len(scorers) > 1 else [])]
    return template("weightings.html").render(
        found=found,
        said=said(found),
        step=f"{1 / found['steps']:.4g}",
        triangles=[_triangle(found, names, scorer) for scorer in wanted],
        key=[(sign("best"), "best of the grid"), *((sign(SHAPE_OF[m["name"]]), m["name"]) for m in found["marks"])],
        numbers=table(found),
    )


def said(found: Mapping[str, Any]) -> list[str]:
    """What the grid is of, who scores it and how, and what else there is to know, a sentence each."""
    unit = "minus the mean loss of the pairs, times 100" if found["score"] == "loss" else f"{found['score']} in percent"
    scorers = ", ".join(f"{name} ({count:,} pairs)" for name, count in found["pairs"].items())
    of = f"round {max(found['rounds'].values()):,}: {', '.join(found['rounds'])}"
    lines = [
        f"{found['method']}, {of}; {len(found['points']):,} weightings.",
        f"Scored by the {found['scored_by']} {scorers}: {unit}, not normalised.",
    ]
    if len(found["best"]) > 1:
        lines.append(
            f"{len(found['best']):,} weightings share the best {'sum' if len(found['pairs']) > 1 else 'score'}."
        )
    return lines + [f"{note[0].upper()}{note[1:]}." for note in found["notes"]]


def table(found: Mapping[str, Any]) -> Grid:
    """The best weightings by the sum, each party alone, and those that have a name."""
    points = found["points"]
    names, scorers = list(points[0]["weights"]), list(points[0]["scores"])
    ranked = sorted(points, key=lambda point: -round(point[SUM], 9))
    chosen = [(f"best {place}", point) for place, point in enumerate(ranked[:SHOWN], start=1)]
    for name in names:
        chosen += [(f"{name} alone", point) for point in points if point["weights"][name] == 1]
    chosen += [(mark["name"], mark) for mark in found["marks"]]
    summed = [SUM] if len(scorers) > 1 else []
    body = [
        [name, *(f"{w:.3f}" for w in point["weights"].values()), *(f"{_of(point, s):.2f}" for s in [*scorers, *summed])]
        for name, point in chosen
    ]
    header = ["weighting", *names, *(f"score of {scorer}" for scorer in scorers), *summed]
    return Grid(header, body, frozenset(range(1, len(header))))


def _of(point: Mapping[str, Any], scorer: str) -> float:
    return float(point[SUM] if scorer == SUM else point["scores"][scorer])


def _weights(point: Mapping[str, Any]) -> tuple[float, float, float]:
    first, second, third = point["weights"].values()
    return first, second, third


def _triangle(found: Mapping[str, Any], names: tuple[str, ...], scorer: str) -> Triangle:
    points = found["points"]
    cells = [Cell(_weights(point), _of(point, scorer)) for point in points]
    top = max(cell.score for cell in cells)
    best = [cell for cell in cells if cell.score >= top - EQUAL]
    marks = [Mark(cell.weights, "best", "best of the grid") for cell in best] if len(best) < len(cells) else []
    marks += [Mark(_weights(m), SHAPE_OF[m["name"]], f"{m['name']}: {_of(m, scorer):.4g}") for m in found["marks"]]
    first, second, third = names
    title = "sum over the scorers" if scorer == SUM else f"scored by {scorer}"
    svg = triangle((first, second, third), cells, steps=found["steps"], title=title, marks=marks)
    said = f"Best {top:.4g}"
    if len(best) == len(cells):
        said = f"Every weighting scores {top:.4g}"
    elif len(best) > 1:
        said += f", by {len(best)} weightings"
    else:
        said += " at " + ", ".join(f"{name} {w:g}" for name, w in zip(names, best[0].weights, strict=True))
    said += "".join(f"; {m['name']} {_of(m, scorer):.4g}" for m in found["marks"])
    return Triangle(title, svg, said + ".")
