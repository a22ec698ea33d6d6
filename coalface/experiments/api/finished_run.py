"""A run in Python: its metrics, figures and parties as tables, its model, and how it looks in a notebook."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from coalface.core.checks import unknown_name
from coalface.core.errors import RecipeError
from coalface.core.text import html_table, several
from coalface.evaluation.figures import figure_name, figure_of, figure_text
from coalface.experiments.report import charts, page, runs
from coalface.experiments.report.vega import Chart

if TYPE_CHECKING:
    import pandas

Table: TypeAlias = "pandas.DataFrame | list[dict[str, Any]]"
"""A DataFrame where pandas is installed, else a list with a dict for each row."""


class FinishedRun:
    """A run in a folder: what it left, read when it is asked for.

    Examples:
        >>> run = FinishedRun("runs/a")  # doctest: +SKIP
        >>> run.metrics["loss"].plot()  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises FileNotFoundError where the folder holds no run."""
        self.path = Path(path)
        self._read = runs.read(self.path)

    @functools.cached_property
    def metrics(self) -> Table:
        """A row for each round: stage, loss, replies, bytes down and up, and figures where it is evaluated."""
        rows = []
        for number, record in enumerate(self._read.metrics, 1):
            plain = {key: value for key, value in record.items() if not isinstance(value, dict | list)}
            rows.append({"ordinal": number, **plain, **runs.flat_figures(record.get("judged"))})
        return table(rows, ("ordinal", "stage", "round"))

    @functools.cached_property
    def figures(self) -> Table:
        """A row for each figure of the model that the run left: list, figure, value, standard error and unit."""
        columns, values = ("pairs", "figure", "value", "se", "unit"), self._read.figures
        rows = []
        for key in runs.without_errors(values):
            pairs, _, name = key.rpartition("/")
            row = (pairs, name, values[key], values.get(f"{key}_se"), figure_of(key).unit.name)
            rows.append(dict(zip(columns, row, strict=True)))
        return table(rows, columns, numbers=("value", "se"))

    @functools.cached_property
    def parties(self) -> Table:
        """A row for each party: role, images, identities, rounds, bytes down and up, last loss."""
        rows = [{k: v for k, v in party.items() if k != "judged"} for party in self._read.parties]
        return table(rows, ("name", "role"))

    @property
    def summary(self) -> dict[str, Any]:
        """All of `summary.json`."""
        return self._read.summary

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with every key."""
        return self._read.config

    @property
    def charts(self) -> list[Chart]:
        """The charts of its page: ROC and DET, similarities, by group, over rounds and bytes, and who holds what.

        >>> run.charts[0].save("roc.svg")  # doctest: +SKIP
        """
        return [chart for charts in page.charts_of(self._read).values() for chart in charts]

    def plot(self, metric: str = "loss") -> Chart:
        """A metric by round, or a figure such as `unseen/eer`, as a chart, which a notebook draws and `save` writes.

        Raises RecipeError for a metric that the rounds do not have.
        """
        of_rounds = [{**record, **runs.flat_figures(record.get("judged"))} for record in self._read.metrics]
        names = dict.fromkeys(
            key for record in of_rounds for key, value in record.items() if runs.number(value) is not None
        )
        if metric not in names:
            if metric in self._read.figures:
                raise RecipeError("evaluated at the end alone; fit(…, every=1) evaluates each round", where=metric)
            raise unknown_name(metric, names, "metric")
        return charts.over_rounds([self._read], metric)

    def __repr__(self) -> str:
        parts = [f"{name} {value}" for name, value in self._main_figures()]
        rounds, worse = several(len(self._read.metrics), "round"), runs.below_start(self.summary)
        parts += [worse] if worse else []
        return f"<run {str(self.path)!r}: {', '.join([self._read.method, rounds, *parts])}>"

    def _repr_html_(self) -> str:
        rows = [("method", self._read.method), ("parties", len(self._read.parties))]
        rows += [("rounds", len(self._read.metrics)), *self._main_figures()]
        rows += [("note", worse)] if (worse := runs.below_start(self.summary)) else []
        return html_table(rows, caption=self.path)

    def _main_figures(self) -> list[tuple[str, str]]:
        values = self._read.figures
        return [(figure_name(key), figure_text(values, key, sign=True)) for key in self._read.evaluated[:6]]


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Rows as a DataFrame where pandas is installed: without rows, with these columns; what `numbers` lack is NaN."""
    try:
        import pandas
    except ImportError:
        return list(rows)
    frame = pandas.DataFrame(rows, columns=None if rows else columns)
    return frame.astype(dict.fromkeys(numbers, float))
