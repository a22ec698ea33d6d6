"""Runs side by side: one row a run, differences to the first, and what else sets the runs apart."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from csv import DictWriter
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from coalface.core.text import clean, several, size
from coalface.evaluation.figures import figure_name, figure_of, figure_text
from coalface.experiments.report.long_table import Grid, Record
from coalface.experiments.report.runs import (
    Run,
    duration,
    flatten,
    mapping,
    number,
    read_all,
    whole_number,
    without_errors,
)

WHERE = {
    "config": "These runs differ also in",
    "numerics": "Their numerics differ in",
    "environment": "Their environments differ in",
}
"""Where runs may differ -> how a sentence about it begins."""
OF_EACH_RUN = ("date", "command")
"""What of the environment is another in each run."""
DIFFERENCE = {"difference": "value", "low": "low", "high": "high", "seeds": "seeds", "decided": "is_decided"}
"""What a tidy row has of a difference -> the field of its record."""
FORMULA = ("=", "+", "-", "@")
"""What a formula begins with."""
TIDY = ("run", "method", "seed", "pairs", "figure", "unit", "value", "se", *DIFFERENCE)
"""The columns of tidy rows."""


Intervals = Mapping[tuple[Path, str], tuple[float, float, float, int]]
"""(run folder as given, figure as `list/figure`) -> its difference to the first run, the ends of the interval of that,
and how many seeds it is the mean over."""

INTERVAL = (
    "In brackets is the 95 % interval of the difference: over the people of the pairs, drawn anew with replacement, "
    "the same for both sides, and over the seeds where there are several. Where it holds 0 the difference is undecided."
)
ONE_SEED = (
    "A difference of one seed says nothing of other seeds, and so decides nothing: train both sides with three seeds "
    "or more, and compare all their runs at once."
)
SEVERAL_SEEDS = "Runs that differ in their seed alone are compared together: a difference is that of means over seeds."


@dataclass(frozen=True)
class Row:
    """One run of a comparison."""

    run: Run
    differences: dict[str, Record]
    """Figure as `list/figure` -> how far it lies from the first run's."""

    @property
    def about(self) -> dict[str, Any]:
        """What the whole run did, over all parties; None for what is not known."""
        run, trained = self.run, mapping(self.run.summary.get("trained"))
        return {
            "run": run.label,
            "method": run.method,
            "pooled": run.is_pooled,
            "seed": whole_number(run.summary.get("seed", run.config.get("seed"))),
            "rounds": whole_number(run.summary.get("rounds")),
            "steps": whole_number(trained.get("steps")),
            "images": whole_number(trained.get("images")),
            "bytes_down": whole_number(run.bytes.get("down")),
            "bytes_up": whole_number(run.bytes.get("up")),
            "seconds": number(mapping(run.summary.get("seconds")).get("total")),
        }


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
    """Why figures are absent, or have no difference or no interval, in sentences."""


def compare(paths: Sequence[Path], intervals: Intervals | None = None, left_out: Sequence[str] = ()) -> Comparison:
    """Compare runs with the first of them.

    The difference of a figure is the plain one, without an interval, unless `intervals` has one for (the path as given
    in `paths`, the figure). `left_out` says why some have none. Figures on other pairs have no difference, since it
    would be one of people as well as of runs. Raises FileNotFoundError or ValueError where a run cannot be read.
    """
    runs = read_all(paths)
    first, digests = runs[0], {run.path: run.pairs_digests() for run in runs}
    other_pairs: dict[str, list[str]] = {}
    """List -> the runs that were evaluated on other pairs of this name than the first."""
    for run in runs[1:]:
        for name, digest in digests[run.path].items():
            if digests[first.path].get(name, digest) != digest:
                other_pairs.setdefault(name, []).append(run.label)
    left_out = [*map(_unfinished, (run for run in runs if not run.is_finished)), *left_out]
    with_interval = {(path, key.rpartition("/")[0]) for path, key in intervals or ()}
    for name, labels in other_pairs.items():
        if without := [run.label for run in runs if run.label in labels and (run.path, name) not in with_interval]:
            left_out.append(_on_other_pairs(name, without, first))
    figures = without_errors(key for run in runs for key in run.figures)
    rows = []
    for run in runs:
        differences = {}
        for key in figures if run is not first else ():
            if (interval := (intervals or {}).get((run.path, key))) is not None:
                value, low, high, seeds = interval
                differences[key] = Record(run.label, key, value, by=first.label, low=low, high=high, seeds=seeds)
            elif run.label in other_pairs.get(key.rpartition("/")[0], ()):
                continue
            elif key in run.figures and key in first.figures:
                differences[key] = Record(run.label, key, run.figures[key] - first.figures[key], by=first.label)
        rows.append(Row(run, differences))
    return Comparison(tuple(rows), tuple(figures), tuple(_apart(runs)), tuple(left_out))


def _unfinished(run: Run) -> str:
    done, resume = several(len(run.metrics), "round"), f"`coalface resume {shlex.quote(str(run.path))}`"
    if (run.path / "evidence.json").exists():  # the evaluation begins to write it after the last round
        return f"{run.label} has done its {done} and not its evaluation, so it lacks figures; {resume} evaluates it"
    return f"{run.label} is not finished ({done} so far), so it has no figures yet; {resume} goes on if it stopped"


def _on_other_pairs(name: str, labels: Sequence[str], first: Run) -> str:
    runs = " and ".join(labels)
    return (
        f"{name}: {runs} {'was' if len(labels) == 1 else 'were'} evaluated on other pairs than {first.label}, often of "
        "other people (as with another seed of the data), so a difference would say nothing of the runs; none is given"
    )


def grid(comparison: Comparison, *, time: bool = False) -> Grid:
    """The rows as text, with a column for the `time`; a difference stands on a line of its own beneath its figure."""
    rows = []
    forms: dict[str, Callable[[Any], str]] = {"seed": str, "rounds": str}
    forms |= {"steps": "{:,}".format, "images": "{:,}".format, "bytes_down": size, "bytes_up": size}
    forms |= {"seconds": duration} if time else {}
    for row in comparison.rows:
        about = row.about
        cells = [clean(about["run"]), clean(about["method"]) + (" (pooled)" if about["pooled"] else "")]
        cells += ["" if about[key] is None else form(about[key]) for key, form in forms.items()]
        for key in comparison.figures:
            difference = row.differences.get(key)
            beneath = "" if difference is None else f"\n{difference_text(difference)}"
            cells.append(figure_text(row.run.figures, key) + beneath)
        rows.append(cells)
    header = ["run", "method", "seed", "rounds", "steps", "images", "down", "up", *(["time"] if time else [])]
    return Grid.of([*header, *(clean(figure_name(key)) for key in comparison.figures)], rows, left=2)


def difference_text(difference: Record) -> str:
    """For a table: `−5.00 [−7.20, −2.80] 3 seeds`."""
    signed = figure_of(difference.metric).difference_text
    if difference.low is None or difference.high is None:
        return signed(difference.value)
    return f"{signed(difference.value)} [{signed(difference.low)}, {signed(difference.high)}] {_verdict(difference)}"


def difference_sentence(difference: Record) -> str:
    """In words: `−5.00 points (interval −7.20 to −2.80; 3 seeds)`."""
    figure = figure_of(difference.metric)
    signed = figure.difference_text
    text = signed(difference.value) + figure.unit.difference
    if difference.low is None or difference.high is None:
        return text
    return f"{text} (interval {signed(difference.low)} to {signed(difference.high)}; {_verdict(difference)})"


def _verdict(difference: Record) -> str:
    """How many seeds are behind a difference, and whether it is undecided, as it is of one."""
    if difference.seeds < 2:
        return "one seed"
    return f"{difference.seeds} seeds" + ("" if difference.is_decided else ", undecided")


def rendered(comparison: Comparison) -> RenderableType:
    """The comparison for a rich console, in 80 columns: the runs, a line for each of their figures, and the notes."""
    runs = grid(comparison)
    columns = len(runs.header) - len(comparison.figures)
    lines = []
    for title, key in zip(runs.header[columns:], comparison.figures, strict=True):
        lines.append([title, "", ""])
        for row in comparison.rows:
            if key in row.run.figures:
                beside = difference_text(row.differences[key]) if key in row.differences else ""
                lines.append([f"  {clean(row.run.label)}", figure_text(row.run.figures, key), beside])
    about = Grid.of(runs.header[:columns], [row[:columns] for row in runs.rows], left=2)
    figures = Grid.of(["figure", "value", "difference to the first"], lines, left=1).without_empty_columns()
    tables: list[RenderableType] = [_drawn(about), ""]
    if lines:
        tables += [_drawn(figures), ""]
    return Group(*tables, *(Text(line, style="yellow") for line in notes(comparison)))


def _drawn(text_grid: Grid) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for index, title in enumerate(text_grid.header):
        table.add_column(
            Text(title),
            justify="right" if index in text_grid.numeric else "left",
            overflow="fold",
            no_wrap=index in text_grid.numeric,
        )
    for cells in text_grid.rows:
        table.add_row(*map(Text, cells))
    return table


def text(comparison: Comparison, width: int = 160) -> str:
    """The comparison as plain text, at most `width` characters wide."""
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(rendered(comparison))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values: `runs` (a row each, `against_first` by figure) and `apart`."""
    verdicts = {None: None, True: "decided", False: "undecided"}
    runs = []
    for row in comparison.rows:
        against_first = {
            key: {
                **{"difference": d.value, "low": d.low, "high": d.high, "seeds": d.seeds},
                "verdict": verdicts[d.is_decided],
            }
            for key, d in row.differences.items()
        }
        runs.append({**row.about, "figures": row.run.figures, "against_first": against_first})
    apart = [vars(key) for key in comparison.apart]
    return {"figures": list(comparison.figures), "runs": runs, "apart": apart, "left_out": list(comparison.left_out)}


def tidy(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each run and figure, with its difference to the first run and the interval of that; None: it has none.

    `seeds` are those behind the difference, and `decided` is whether they are several and the interval has no zero.
    """
    return [
        {name: about[name] for name in ("run", "method", "seed")}
        | {"pairs": key.rpartition("/")[0], "figure": key.rpartition("/")[2], "unit": figure_of(key).unit.name}
        | {"value": figures[key], "se": figures.get(f"{key}_se")}
        | {name: getattr(row.differences.get(key), field, None) for name, field in DIFFERENCE.items()}
        for row in comparison.rows
        for about, figures in [(row.about, row.run.figures)]
        for key in comparison.figures
        if key in figures
    ]


def csv(comparison: Comparison) -> str:
    """The rows of `tidy` as CSV; a text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = StringIO()
    writer = DictWriter(text, TIDY, lineterminator="\n")
    writer.writeheader()
    for row in tidy(comparison):
        texts = {key: clean(value) for key, value in row.items() if isinstance(value, str)}
        writer.writerow(row | {key: f"'{text}" if text.startswith(FORMULA) else text for key, text in texts.items()})
    return text.getvalue()


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know beside the rows, a sentence each."""
    sentences = []
    if with_interval := [d for row in comparison.rows for d in row.differences.values() if d.low is not None]:
        sentences.append(INTERVAL)
        sentences += [ONE_SEED] if any(d.seeds < 2 for d in with_interval) else []
        sentences += [SEVERAL_SEEDS] if any(d.seeds > 1 for d in with_interval) else []
    if pooled := [row.run.label for row in comparison.rows if row.run.is_pooled]:
        sentences.append(f"Pooled (all the images in one place, not federated): {', '.join(map(clean, pooled))}.")
    sentences += [f"{clean(sentence)}." for sentence in comparison.left_out]
    for where, title in WHERE.items():
        if keys := [key for key in comparison.apart if key.where == where]:
            listed = (f"{clean(key.key)} ({', '.join(map(clean, dict.fromkeys(key.values.values())))})" for key in keys)
            sentences.append(f"{title}: {'; '.join(listed)}.")
    return sentences


def _apart(runs: Sequence[Run]) -> list[Apart]:
    """The keys in which the runs differ; name, method and seed have their columns.

    Where the methods differ, a method's own settings are expected to: only those that two runs share and set
    differently are named (the rounds, a learning rate). Where two runs have sources or partitions of different kinds,
    the kinds are named, and not the keys that one of them alone has.
    """
    same_method = len({run.method for run in runs}) == 1
    apart: list[Apart] = []
    for where in WHERE:
        known = [run for run in runs if where == "config" or run.is_finished]
        flat = [flatten(run.config) if where == "config" else _recorded(run, where) for run in known]
        for key in dict.fromkeys(key for settings in flat for key in settings):
            values = [settings.get(key, "absent") for settings in flat]
            kind = f"{key.rpartition('.')[0]}.kind"
            if len({*values} - {"absent"}) < 2 and len({settings[kind] for settings in flat if kind in settings}) > 1:
                continue  # the kinds differ, which is named
            if not {*values} - {"absent", "null"}:
                continue  # of a section that some runs lack
            if len(set(values)) == 1 or (where == "config" and key in ("name", "seed", "method", "method.name")):
                continue
            if where == "environment" and (key in OF_EACH_RUN or ("absent" in values and "plugins." not in key)):
                continue
            if where == "config" and key.startswith("methods.") and not same_method and len({*values} - {"absent"}) < 2:
                continue
            apart.append(Apart(where, key, {run.label: value for run, value in zip(known, values, strict=True)}))
    return apart


def _recorded(run: Run, where: str) -> dict[str, str]:
    """What `summary.json` has of the numerics or the environment; of a plug-in its name, version and digest as one."""
    flat = flatten({key: value for key, value in mapping(run.summary.get(where)).items() if key != "plugins"})
    for key, about in mapping(mapping(run.summary.get(where)).get("plugins")).items():
        values = [str(mapping(about).get(name) or "") for name in ("name", "version", "sha256")]
        flat[f"plugins.{key}"] = " ".join(filter(None, [*values[:2], values[2][:8]]))
    return flat
