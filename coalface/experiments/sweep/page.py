"""The page of a sweep, from its cells: `OUT/sweep.html`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.errors import RecipeError
from coalface.core.text import several
from coalface.evaluation import personalised
from coalface.evaluation.enrolled import by_kind
from coalface.experiments.report import series, sweeps
from coalface.experiments.report.runs import start_name
from coalface.experiments.report.series import Point
from coalface.experiments.sweep.differences import baseline_of
from coalface.experiments.sweep.grid import AVERAGED, Cell
from coalface.experiments.sweep.records import clients_of, shares

SHARE = "share of the public images that clients trained on"


def points(cells: Sequence[Cell], finished: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """The cells of a sweep as points of its drawings; those that are not in `done` have no figures."""
    cell_points, alike = [], len({clients_of(cell.recipe) for cell in cells}) == 1
    for cell in cells:
        line = finished.get(cell.recipe.digest(), {})
        cell_points.append(
            Point(
                chosen={key: value for key, value in cell.chosen.items() if key not in AVERAGED},
                seed=cell.recipe.seed,
                figures=_figures(line, alike),
                half=cell.recipe.fold_split,
                start=start_name(cell.recipe.starts_trained),
                untrained=sweeps.figures(line.get("untrained", {}), {}),
            )
        )
    return cell_points


def _figures(line: Mapping[str, Any], alike: bool) -> dict[str, float]:
    """Those of a cell, of its run's own clients, and how much of the public images these took.

    How clients are served is told where all cells have the same clients: others' figures are of other people.
    """
    by_model = personalised.by_kind(line.get("personalised", {})) if alike else {}
    served = {kind: figures for kind, figures in by_model.items() if kind != personalised.START}
    figures = sweeps.figures(line.get("figures", {}), by_kind(line.get("enrolled", {})) | served)
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
    recipe, settings = cells[0].recipe, list(dict.fromkeys(cell.setting for cell in cells))
    ran = sum(cell.recipe.digest() in finished for cell in cells)
    missing = "" if ran == len(cells) else f" of {len(cells):,}; the others are missing in the means"
    lead = f"{several(len(settings), 'setting')} in {several(ran, 'run')}{missing}."
    all_points, base = points(cells, finished), baseline_of(settings, baseline)
    chosen = next(point.chosen for cell, point in zip(cells, all_points, strict=True) if cell.setting == base)
    return sweeps.render(recipe.name, command, lead, text, all_points, axes, recipe.method, chosen)
