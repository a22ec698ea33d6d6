"""Runs compared in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coalface.experiments import compare as differences
from coalface.experiments.api.finished_run import FinishedRun, Table, table
from coalface.experiments.report import table as tables


class Comparison:
    """Runs side by side with the first of them; it shows itself as text, and in a notebook."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._compared = tables.compare(runs, differences.intervals(runs), differences.left_out(runs))

    def to_frame(self) -> Table:
        """A row for each run and figure: value, difference to the first run, and its 95 % interval if it has one."""
        rows = []
        for row in self._compared.rows:
            for key in self._compared.figures:
                record = row.differences.get(key)
                rows.append(
                    {
                        "run": row.run,
                        "method": row.method,
                        "seed": row.seed,
                        "figure": key,
                        "value": row.figures.get(key),
                        "difference": record.value if record else None,
                        "low": record.low if record else None,
                        "high": record.high if record else None,
                    }
                )
        return table(rows)

    def __repr__(self) -> str:
        return tables.text(self._compared, width=100)


def compare(runs: Sequence[str | os.PathLike[str] | FinishedRun]) -> Comparison:
    """Compare runs with the first: figures, differences and 95 % intervals (paired bootstrap over identities).

    Raises FileNotFoundError for a folder that holds no run.
    """
    return Comparison([run.path if isinstance(run, FinishedRun) else Path(run) for run in runs])
