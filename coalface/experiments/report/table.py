"""Runs side by side: one row a run, differences to the first, and what else sets the runs apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from coalface.experiments.report.runs import (
    Run,
    clean,
    figure_name,
    figure_text,
    flatten,
    mapping,
    number,
    read_all,
    signed,
    size,
    whole_number,
)

Intervals = Mapping[tuple[Path, str], tuple[float, float, float]]
"""(run folder as given to `compare`, figure as `list/figure`) → difference to the first run, low and high end."""


@dataclass(frozen=True)
class Difference:
    """How far a run's figure lies from the first run's, in the figure's own unit (percentage points)."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str | None:
        """`decided` or `undecided` (the interval holds zero); None where no interval was given."""
        if self.low is None or self.high is None:
            return None
        return "undecided" if self.low <= 0 <= self.high else "decided"

    def sentence(self) -> str:
        """The difference in words: `−5.00 points (interval −7.20 to −2.80)`."""
        if self.low is None or self.high is None:
            return f"{signed(self.value)} points"
        doubt = ", undecided" if self.verdict == "undecided" else ""
        return f"{signed(self.value)} points (interval {signed(self.low)} to {signed(self.high)}{doubt})"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return signed(self.value)
        doubt = " undecided" if self.verdict == "undecided" else ""
        return f"{signed(self.value)} [{signed(self.low)}, {signed(self.high)}]{doubt}"


@dataclass(frozen=True)
class Row:
    """One run of a comparison. Bytes are whole runs, over all parties; figures are keyed `list/figure`."""

    run: str
    method: str
    pooled: bool
    seed: int | None
    rounds: int | None
    bytes_down: int | None
    bytes_up: int | None
    seconds: float | None
    figures: dict[str, float]
    differences: dict[str, Difference] = field(default_factory=dict)


@dataclass(frozen=True)
class Apart:
    """A key in which the runs differ besides name, method and seed. `values` is by run; a key not set is "absent"."""

    where: str
    key: str
    values: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side: the rows, the figures in the order of their columns, and what else sets the runs apart."""

    rows: tuple[Row, ...]
    figures: tuple[str, ...]
    apart: tuple[Apart, ...]
    left_out: tuple[str, ...] = ()
    """Why figures have no interval, in sentences."""


def compare(runs: Sequence[Path], intervals: Intervals | None = None, left_out: Sequence[str] = ()) -> Comparison:
    """Compare runs with the first of them: one row a run, differences in percentage points.

    A figure is keyed `list/figure`, such as `devtest/accuracy`. The difference of a figure is the plain one, without
    an interval, unless `intervals` has one for (the path as given in `runs`, the figure). `left_out` says why some have
    none.
    """
    return compare_runs(read_all(runs), intervals, left_out)


def compare_runs(runs: Sequence[Run], intervals: Intervals | None = None, left_out: Sequence[str] = ()) -> Comparison:
    """`compare` for runs already read."""
    if not runs:
        raise ValueError("there is nothing to compare: give at least one run folder")
    first = runs[0].figures
    figures = tuple(dict.fromkeys(key for run in runs for key in run.figures if not key.endswith("_se")))
    rows = []
    for index, run in enumerate(runs):
        differences = {}
        for key in figures if index else ():
            if given := (intervals or {}).get((run.path, key)):
                differences[key] = Difference(*given)
            elif key in run.figures and key in first:
                differences[key] = Difference(run.figures[key] - first[key])
        sent = mapping(run.summary.get("bytes"))
        rows.append(
            Row(
                run=run.label,
                method=run.method,
                pooled=bool(run.summary.get("pooled")),
                seed=whole_number(run.summary.get("seed", run.config.get("seed"))),
                rounds=whole_number(run.summary.get("rounds")),
                bytes_down=whole_number(sent.get("down")),
                bytes_up=whole_number(sent.get("up")),
                seconds=number(mapping(run.summary.get("seconds")).get("total")),
                figures=run.figures,
                differences=differences,
            )
        )
    return Comparison(tuple(rows), figures, tuple(_apart(runs)), tuple(left_out))


def rendered(comparison: Comparison) -> RenderableType:
    """The comparison for a rich console: the table, then what else sets the runs apart."""
    header, *body = _cells(comparison)
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for index, title in enumerate(header):
        table.add_column(Text(title), justify="left" if index < 2 else "right", overflow="fold")
    for cells in body:
        table.add_row(*(Text(cell) for cell in cells))
    return Group(table, *(Text(line, style="yellow") for line in notes(comparison)))


def text(comparison: Comparison, width: int = 160) -> str:
    """The comparison as plain text, at most `width` characters wide."""
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(rendered(comparison))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def markdown(comparison: Comparison) -> str:
    """The comparison as a Markdown table; a pipe in a name is escaped."""
    header, *body = [
        [cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>") for cell in cells]
        for cells in _cells(comparison)
    ]
    rule = ["---" if index < 2 else "---:" for index in range(len(header))]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in [header, rule, *body])
    return table + "".join(f"\n{line}\n" for line in notes(comparison))


def as_json(comparison: Comparison) -> str:
    """The comparison as JSON: `runs` (a row each, `against_first` by figure) and `apart`."""
    runs = []
    for row in comparison.rows:
        entry = {key: value for key, value in vars(row).items() if key != "differences"}
        entry["against_first"] = {
            key: {"difference": d.value, "low": d.low, "high": d.high, "verdict": d.verdict}
            for key, d in row.differences.items()
        }
        runs.append(entry)
    apart = [{"where": a.where, "key": a.key, "values": a.values} for a in comparison.apart]
    tree = {"figures": comparison.figures, "runs": runs, "apart": apart, "left_out": comparison.left_out}
    return json.dumps(tree, indent=2) + "\n"


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know beside the rows, a sentence each."""
    said = []
    pooled = [row.run for row in comparison.rows if row.pooled]
    if pooled:
        said.append(f"Pooled (all the images in one place, not federated): {', '.join(map(clean, pooled))}.")
    said += [f"{clean(sentence)}." for sentence in comparison.left_out]
    for where, title in (("config", "These runs differ also in"), ("numerics", "Their numerics differ in")):
        keys = [a for a in comparison.apart if a.where == where]
        if keys:
            shown = "; ".join(
                f"{clean(a.key)} ({', '.join(map(clean, dict.fromkeys(a.values.values())))})" for a in keys
            )
            said.append(f"{title}: {shown}.")
    return said


def _cells(comparison: Comparison) -> list[list[str]]:
    """The header and the rows as text; a difference stands on a line of its own beneath its figure."""
    table = [
        ["run", "method", "seed", "rounds", "down", "up", *(clean(figure_name(key)) for key in comparison.figures)]
    ]
    for row in comparison.rows:
        cells = [clean(row.run), clean(row.method) + (" (pooled)" if row.pooled else "")]
        cells += ["" if value is None else str(value) for value in (row.seed, row.rounds)]
        cells += ["" if value is None else size(value) for value in (row.bytes_down, row.bytes_up)]
        for key in comparison.figures:
            lines = [figure_text(row.figures, key)]
            if key in row.differences:
                lines.append(str(row.differences[key]))
            cells.append("\n".join(lines))
        table.append(cells)
    return table


def _apart(runs: Sequence[Run]) -> list[Apart]:
    """The keys in which the runs differ; name, method and seed have their columns.

    Where the methods differ, a method's own settings are expected to: only those that two runs share and set
    differently are named (the rounds, a learning rate). Where two runs have sources or partitions of different kinds,
    the kinds are named, and not the keys that one of them alone has.
    """
    same_method = len({run.method for run in runs}) == 1
    found = []
    for where in ("config", "numerics"):
        flat = [flatten(run.config if where == "config" else mapping(run.summary.get("numerics"))) for run in runs]
        for key in dict.fromkeys(key for one in flat for key in one):
            values = [one.get(key, "absent") for one in flat]
            kind = f"{key.rpartition('.')[0]}.kind"
            if len({*values} - {"absent"}) < 2 and len({one[kind] for one in flat if kind in one}) > 1:
                continue  # the kinds differ, which is named
            if len(set(values)) == 1 or (where == "config" and key in ("name", "seed", "method", "method.name")):
                continue
            if where == "config" and key.startswith("methods.") and not same_method and len({*values} - {"absent"}) < 2:
                continue
            found.append(Apart(where, key, {run.label: value for run, value in zip(runs, values, strict=True)}))
    return found
