"""The page of a sweep, from its cells: `OUT/sweep.html`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from coalface.core.errors import RecipeError
from coalface.core.text import clean, several
from coalface.evaluation import personalised
from coalface.evaluation.enrolled import by_kind
from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.runs import start_name
from coalface.experiments.report.templates import template
from coalface.experiments.report.vega import scripts
from coalface.experiments.sweep import series
from coalface.experiments.sweep.charts import ENROLLED, axis_of, settings
from coalface.experiments.sweep.differences import baseline_of
from coalface.experiments.sweep.grid import AVERAGED, Cell
from coalface.experiments.sweep.records import clients_of, shares
from coalface.experiments.sweep.series import Point

SHORT_LABEL = 16
"""Letters of a setting's name that stand on a line in any table."""
SHARE = "share of the public images that clients trained on"


@dataclass(frozen=True)
class Block:
    """A paragraph, a list or a table of a text."""

    lines: tuple[Markup, ...] = ()
    listed: bool = False
    grid: Grid | None = None


def points(cells: Sequence[Cell], finished: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """The cells of a sweep as points of its drawings; those that are not `finished` have no figures."""
    cell_points, alike = [], len({clients_of(cell.recipe) for cell in cells}) == 1
    for cell in cells:
        line = finished.get(cell.digest, {})
        cell_points.append(
            Point(
                chosen={key: value for key, value in cell.chosen.items() if key not in AVERAGED},
                seed=cell.recipe.seed,
                figures=_figures(line, alike),
                half=cell.recipe.fold_split,
                start=start_name(cell.recipe.starts_trained),
                untrained=_flat(line.get("untrained", {}), {}),
            )
        )
    return cell_points


def _figures(line: Mapping[str, Any], alike: bool) -> dict[str, float]:
    """Those of a cell, of its run's own clients, and how much of the public images these took.

    How clients are served is told where all cells have the same clients: others' figures are of other people.
    """
    by_model = personalised.by_kind(line.get("personalised", {})) if alike else {}
    served = {kind: figures for kind, figures in by_model.items() if kind != personalised.START}
    figures = _flat(line.get("figures", {}), by_kind(line.get("enrolled", {})) | served)
    share = shares(line.get("public_images")).get("all rounds")
    return figures if share is None else {**figures, SHARE: share}


def axes_of(cells: Sequence[Cell], keys: Sequence[str]) -> list[str]:
    """The keys to draw figures over: those that are wanted, else all that take three numbers or more.

    Raises RecipeError where a wanted one does not take two numbers.
    """
    planned = points(cells, {})
    able = series.axes(planned, least=2)
    for key in keys:
        if key not in able:
            names = ", ".join(able) or "none"
            raise RecipeError(
                f"the sweep has fewer than two numbers of {key}; keys with several: {names}", where="--axis"
            )
    return list(dict.fromkeys(keys)) or series.axes(planned)


def command_of(
    path: Path,
    changes: Sequence[str],
    out: Path,
    baselines: Sequence[str],
    axes: Sequence[str],
    drawn: str | None,
    keep_runs: bool,
) -> str:
    """The command that makes a sweep."""
    words = ["coalface", "sweep", str(path), *changes]
    words += [word for baseline in baselines for word in ("--baseline", baseline)]
    words += [word for axis in axes for word in ("--axis", axis)]
    words += ["--figure", drawn] if drawn else []
    return shlex.join([*words, *(["--keep-runs"] if keep_runs else []), "--out", str(out)])


def page(
    cells: Sequence[Cell],
    finished: Mapping[str, Mapping[str, Any]],
    text: str,
    command: str,
    axes: Sequence[str],
    baseline: str | None = None,
) -> str:
    """The page as HTML; `text` is the table of `table.table`, and `baseline` as the table has it."""
    recipe, all_settings = cells[0].recipe, list(dict.fromkeys(cell.setting for cell in cells))
    ran = sum(cell.digest in finished for cell in cells)
    missing = "" if ran == len(cells) else f" of {len(cells):,}; the others are missing in the means"
    lead = f"{several(len(all_settings), 'setting')} in {several(ran, 'run')}{missing}."
    all_points, base = points(cells, finished), baseline_of(all_settings, baseline)
    chosen = next(point.chosen for cell, point in zip(cells, all_points, strict=True) if cell.setting == base)
    return render(recipe.name, command, lead, text, all_points, axes, recipe.method, chosen)


def render(
    name: str,
    command: str,
    lead: str,
    text: str,
    points: Sequence[Point],
    axes: Sequence[str],
    otherwise: str = "",
    baseline: Mapping[str, Any] | None = None,
) -> str:
    """The page as HTML. `text` is the sweep's table in Markdown, `axes` the keys that its figures are drawn over.

    `baseline` is what was chosen in the setting that the others are compared with.
    """
    return template("sweep.html").render(
        scripts=scripts(),
        name=name,
        command=command,
        lead=lead,
        label=_label_width(text),
        settings=settings(points, baseline or {}, otherwise),
        axes=[axis for key in axes if (axis := axis_of(points, key, otherwise)).tables],
        blocks=blocks(text),
    )


def _label_width(text: str) -> int:
    """Letters of a line in the first column of the tables: the longest name of a setting takes two lines at most."""
    names = [block.grid.rows for block in blocks(text) if block.grid]
    longest = max((len(Markup(row[0]).striptags()) for rows in names for row in rows), default=0)
    return 0 if longest <= SHORT_LABEL else longest // 2 + SHORT_LABEL // 2


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
    return Grid([_in_two(title) for title in header], [[_marked(cell) for cell in row] for row in body], numeric)


def _in_two(title: str) -> Markup:
    """The head of a column, which breaks after its first word alone: `unseen`, and beneath it `TAR at FAR 0.01`."""
    first, space, others = title.partition(" ")
    return escape(clean(first + space)) + Markup("&nbsp;").join(clean(others).split(" "))


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


def _flat(line: Mapping[str, Mapping[str, float]], clients: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The figures of a cell by one name each, without standard errors; then those of its run's own clients."""
    by_list = {**line, **{f"{ENROLLED}{kind}": by_kind for kind, by_kind in clients.items()}}
    return {
        f"{on}/{name}": value
        for on, by_figure in by_list.items()
        for name, value in by_figure.items()
        if not name.endswith("_se")
    }
