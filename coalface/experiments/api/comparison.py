"""Runs compared in Python."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from coalface.core.text import html_table
from coalface.experiments.api.finished_run import FinishedRun, Table, table
from coalface.experiments.comparison import paired
from coalface.experiments.comparison import table as comparison_table


class Comparison:
    """Runs side by side with the first of them; it shows itself as text, and in a notebook."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._compared = paired.compare_runs(runs)

    def to_frame(self) -> Table:
        """A row for each run and figure: value, difference to the first run, and its 95 % interval if it has one.

        `seeds` are those behind the difference, and `decided` is whether they are several and the interval has no zero.
        """
        rows = comparison_table.tidy(self._compared)
        return table(rows, comparison_table.TIDY, numbers=("value", "se", "difference", "low", "high", "seeds"))

    def __repr__(self) -> str:
        return comparison_table.text(self._compared, width=100)

    def _repr_html_(self) -> str:
        grid = comparison_table.grid(self._compared)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in comparison_table.notes(self._compared))
        return html_table(grid.rows, grid.header) + notes


AnyRun = str | os.PathLike[str] | FinishedRun


def compare(runs: AnyRun | Sequence[AnyRun], *others: AnyRun) -> Comparison:
    """Compare runs, one by one or as a list, with the first: figures, differences and 95 % intervals.

    The bootstrap is paired, over identities and seeds. Runs that differ in their seed alone are compared together, and
    a difference of one seed has no verdict.

    Raises FileNotFoundError for a folder that holds no run.
    """
    alone = isinstance(runs, str | os.PathLike | FinishedRun)
    compared = [*([runs] if alone else runs), *others]  # type: ignore[misc]
    if len(compared) < 1 + alone:
        raise TypeError("there is nothing to compare: give coalface.compare(first, second)")
    return Comparison([run.path if isinstance(run, FinishedRun) else Path(run) for run in compared])
