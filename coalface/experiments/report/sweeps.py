"""The page of a sweep: what its table says, and its figures over the settings that take several numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from coalface.core.text import clean
from coalface.evaluation.figures import axis_title, figure_name, figure_of
from coalface.experiments.report import specs
from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.series import Over, Point, Spread, over
from coalface.experiments.report.templates import template
from coalface.experiments.report.vega import Chart, scripts

ENROLLED = "clients by "
"""How the figures of a run's own clients are called: `clients by codewords/eer`."""


@dataclass(frozen=True)
class Axis:
    """One setting that takes several numbers: its charts, and all their numbers."""

    key: str
    charts: tuple[Chart, ...]
    clients: tuple[Chart, ...]
    """Those of the runs' own clients."""
    caption: str
    tables: tuple[tuple[str, Grid], ...]


@dataclass(frozen=True)
class Block:
    """A paragraph, a list or a table of a text."""

    lines: tuple[Markup, ...] = ()
    listed: bool = False
    grid: Grid | None = None


def render(
    name: str, command: str, lead: str, text: str, points: Sequence[Point], axes: Sequence[str], otherwise: str = ""
) -> str:
    """The page as HTML. `text` is the sweep's table in Markdown, `axes` the keys that its figures are drawn over."""
    return template("sweep.html").render(
        scripts=scripts(),
        name=name,
        command=command,
        lead=lead,
        axes=[axis for key in axes if (axis := _axis(points, key, otherwise)).tables],
        blocks=blocks(text),
    )


def _axis(points: Sequence[Point], key: str, otherwise: str) -> Axis:
    names = list(dict.fromkeys(name for point in points for name in point.figures))
    curves = {name: over(points, key, name, otherwise) for name in names}
    curves = {name: curve for name, curve in curves.items() if curve.lines}
    charts = {
        name: Chart(
            f"{axis_title(name)} over {key}",
            specs.swept(curve, x=key, y=axis_title(name)),
            _left_out(curve),
            wide=specs.is_tall(curve),
        )
        for name, curve in curves.items()
    }
    return Axis(
        key,
        tuple(chart for name, chart in charts.items() if not name.startswith(ENROLLED)),
        tuple(chart for name, chart in charts.items() if name.startswith(ENROLLED)),
        _caption(key, list(curves.values())),
        tuple(
            (f"{figure_name(name)} over {key}{figure_of(name).unit.caption}", _numbers(key, curve))
            for name, curve in curves.items()
        ),
    )


def _caption(key: str, curves: Sequence[Over]) -> str:
    """What the charts have in common, in sentences."""
    lines = [line for curve in curves for line in curve.lines]
    numbers = sorted({n for line in lines for n, spread in line.at.items() if spread is not None})
    sentences = ["Mean over seeds."]
    if any(s is not None and s.seeds > 1 for line in lines for s in line.at.values()):
        sentences[0] = "Mean over seeds, with a bar from the lowest to the highest seed."
    if numbers and specs.is_log(numbers):
        sentences.append(f"{key} on a logarithmic scale{', linear near zero' if numbers[0] == 0 else ''}.")
    if any(curve.levels for curve in curves):
        sentences.append(f"Dashed: what the sweep has without {key}, or at one number of it alone.")
    return " ".join(sentences)


def _left_out(curve: Over) -> str:
    """What the table has and a chart has no room for."""
    near, far = specs.levels_drawn(curve)
    beyond = [f"{level.name} {level.value.mean:.{curve.digits}f}" for level in far]
    sentences = [f"Beyond the chart: {', '.join(beyond)}."] if beyond else []
    if more := max(0, len(curve.lines) - specs.MOST_LINES) + len(curve.levels) - len(near) - len(far):
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


def blocks(text: str) -> list[Block]:
    """The paragraphs, lists and tables of a text in the Markdown that tables of sweeps are written in."""
    text_blocks = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.split("\n")
        if all(line.startswith("|") for line in lines) and len(lines) > 1:
            text_blocks.append(Block(grid=_grid(lines)))
        elif all(line.startswith("- ") for line in lines):
            text_blocks.append(Block(tuple(_marked(line[2:]) for line in lines), listed=True))
        else:
            text_blocks.append(Block((_marked(" ".join(lines)),)))
    return text_blocks


def _grid(lines: Sequence[str]) -> Grid:
    header, rule, *body = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines
    ]
    numeric = frozenset(i for i, cell in enumerate(rule) if cell.endswith(":"))
    return Grid(header, [[_marked(cell) for cell in row] for row in body], numeric)


def _marked(text: str) -> Markup:
    """Text with what stands between two pairs of stars in bold and between backticks as code, all else as it is."""
    pieces: list[Markup] = []
    for piece in re.split(r"(\*\*.+?\*\*|`[^`]+`)", clean(text)):
        if piece.startswith("**") and len(piece) > 4:
            pieces.append(Markup("<b>{}</b>").format(piece[2:-2]))
        elif piece.startswith("`") and len(piece) > 2:
            pieces.append(Markup("<code>{}</code>").format(piece[1:-1]))
        else:
            pieces.append(escape(piece))
    return Markup("").join(pieces)


def figures(line: Mapping[str, Mapping[str, float]], clients: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The figures of a cell by one name each, without standard errors; then those of its run's own clients."""
    by_list = {**line, **{f"{ENROLLED}{kind}": by_kind for kind, by_kind in clients.items()}}
    return {
        f"{on}/{name}": value
        for on, by_figure in by_list.items()
        for name, value in by_figure.items()
        if not name.endswith("_se")
    }
