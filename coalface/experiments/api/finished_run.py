"""A run in Python: its metrics, figures and parties as tables, its model, and how it looks in a notebook."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coalface.core.errors import RecipeError
from coalface.core.text import several
from coalface.evaluation.figures import figure_name, figure_of, figure_text
from coalface.experiments.report import runs

Table = Any
"""A pandas DataFrame where pandas is installed, else a list of dicts."""


class FinishedRun:
    """A run in a folder: what it left, read when it is asked for.

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
        return table(rows)

    @functools.cached_property
    def figures(self) -> Table:
        """A row for each figure of the model that the run left: list, figure, value, standard error and unit."""
        values = self._read.figures
        rows = []
        for key in runs.without_errors(values):
            pairs, _, name = key.rpartition("/")
            error = values.get(f"{key}_se")
            rows.append(
                {"pairs": pairs, "figure": name, "value": values[key], "se": error, "unit": figure_of(key).unit.name}
            )
        return table(rows)

    @functools.cached_property
    def parties(self) -> Table:
        """A row for each party: role, images, identities, rounds, bytes down and up, last loss."""
        return table([{k: v for k, v in party.items() if k != "judged"} for party in self.summary.get("parties", ())])

    @property
    def summary(self) -> dict[str, Any]:
        """All of `summary.json`."""
        return self._read.summary

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with every key."""
        return self._read.config

    def plot(self, metric: str = "loss", ax: Any = None) -> Any:
        """A metric by round on matplotlib axes, which are returned. Raises RecipeError for a metric that it has not."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise RecipeError("it draws with matplotlib; `pip install matplotlib`", where="plot") from None
        points: list[tuple[int, float]] = []
        for number, record in enumerate(self._read.metrics, 1):
            value = {**record, **runs.flat_figures(record.get("judged"))}.get(metric)
            if isinstance(value, int | float):
                points.append((number, value))
        if not points:
            known = sorted({key for record in self._read.metrics for key, v in record.items() if isinstance(v, float)})
            raise RecipeError(f"no round has it; rounds have {', '.join(known)}", where=metric)
        ax = pyplot.subplots()[1] if ax is None else ax
        ax.plot(*zip(*points, strict=True), label=self._read.label)
        ax.set_xlabel("round")
        ax.set_ylabel(figure_of(metric).axis_title)
        return ax

    def __repr__(self) -> str:
        figures = ", ".join(f"{figure_name(key)} {figure_text(self._read.figures, key)}" for key in self._shown())
        rounds = several(len(self._read.metrics), "round")
        return f"<run {str(self.path)!r}: {self._read.method}, {rounds}{f', {figures}' if figures else ''}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = [("method", self._read.method), ("rounds", str(len(self._read.metrics)))]
        rows += [(figure_name(key), figure_text(self._read.figures, key)) for key in self._shown()]
        cells = "".join(f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
        return f"<table><caption>{escape(str(self.path))}</caption>{cells}</table>"

    def _shown(self) -> list[str]:
        return runs.without_errors(self._read.figures)[:6]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Rows as a DataFrame where pandas is installed."""
    try:
        import pandas
    except ImportError:
        return list(rows)
    return pandas.DataFrame(rows)
