"""The long table: a record for each number, of which the tables of sweeps, comparisons and pages are pivots.

A pivot is a `Grid` of text. It is written as Markdown here, as HTML by `macros.html`, and for a console by `table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coalface.evaluation.figures import figure_name, figure_of


@dataclass(frozen=True)
class Record:
    """One number of a run, or of how far two runs lie apart."""

    setting: str
    """The run, or the setting of a sweep."""
    metric: str
    """A figure as the summary names it, with its list: `devtest/accuracy`."""
    value: float
    by: str = ""
    """What else it is of: a party, a model, or the setting that a difference is to."""
    seed: int | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    """Behind the interval of a difference."""

    @property
    def is_decided(self) -> bool | None:
        """Whether the interval of a difference is of several seeds and does not hold zero; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.seeds > 1 and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Grid:
    """A table as text. `numeric` columns stand right; `total` is the last line; `left_out` rows are not shown."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    total: Sequence[str] = ()
    left_out: int = 0

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]], left: int, most: int | None = None) -> Grid:
        """A grid whose first `left` columns are names and the others numbers, with `most` rows at most."""
        first_rows = rows[:most]
        return cls(header, first_rows, frozenset(range(left, len(header))), left_out=len(rows) - len(first_rows))

    def without_empty_columns(self) -> Grid:
        filled = [i for i in range(len(self.header)) if any(row[i] for row in self.rows)]
        return Grid(
            header=[self.header[i] for i in filled],
            rows=[[row[i] for i in filled] for row in self.rows],
            numeric=frozenset(place for place, i in enumerate(filled) if i in self.numeric),
            total=[self.total[i] for i in filled] if self.total else (),
            left_out=self.left_out,
        )

    def markdown(self) -> list[str]:
        """Lines of Markdown whose columns stand beneath each other as text too.

        >>> Grid.of(["method", "%"], [["solo", "81.20"]], left=1).markdown()
        ['| method |     % |', '|--------|------:|', '| solo   | 81.20 |']
        """
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            " | ".join(
                cell.rjust(width) if i in self.numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        rule = "|".join(
            "-" * (width + 1) + ":" if i in self.numeric else "-" * (width + 2) for i, width in enumerate(widths)
        )
        first, *body = (f"| {line} |" for line in lines)
        return [first, f"|{rule}|", *body]


Write = Callable[[str, Sequence[Record]], str]
"""A metric and its records of one line -> the text of a cell."""


def pivot(
    records: Iterable[Record],
    heads: Mapping[str, str],
    write: Write,
    metrics: Sequence[str] | None = None,
    metric_name: Callable[[str], str] = figure_name,
    empty: Iterable[str] = (),
) -> Grid:
    """A line for each value of the fields `heads`, under these heads, and a column for each metric, as they come.

    Settings in `empty` have a line whether or not they have a record.
    """
    lines: dict[tuple[str, ...], dict[str, list[Record]]] = {(setting,): {} for setting in empty}
    all_metrics: dict[str, None] = {}
    for record in records:
        all_metrics[record.metric] = None
        line = lines.setdefault(tuple(str(getattr(record, name)) for name in heads), {})
        line.setdefault(record.metric, []).append(record)
    columns = list(all_metrics) if metrics is None else metrics
    rows = [
        [*key, *(write(name, line[name]) if name in line else "" for name in columns)] for key, line in lines.items()
    ]
    return Grid.of([*heads.values(), *map(metric_name, columns)], rows, left=len(heads))


def records_of(setting: str, figures: Mapping[str, float], by: str = "", seed: int | None = None) -> Iterator[Record]:
    """A record for each figure, with its standard error where it has one."""
    for name, value in figures.items():
        if not name.endswith("_se"):
            yield Record(setting, name, value, by, seed, figures.get(f"{name}_se"))


def single(metric: str, records: Sequence[Record]) -> str:
    """The one number of a run: `83.1 ± 1.1`, with its standard error."""
    (record,) = records
    return figure_of(metric).text(record.value, record.error)


def mean_and_spread(metric: str, records: Sequence[Record]) -> str:
    """The mean over seeds ± their standard deviation; a seed's runs are averaged first."""
    seeds: dict[int | None, list[float]] = {}
    for record in records:
        seeds.setdefault(record.seed, []).append(record.value)
    values = [float(np.mean(of_seed)) for of_seed in seeds.values()]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return figure_of(metric).mean_text(float(np.mean(values)), spread)
