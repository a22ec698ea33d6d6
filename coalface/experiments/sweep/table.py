"""The table of a sweep: a row for every setting, then what else its runs say, and paired differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coalface.core.text import clean, size
from coalface.evaluation.figures import figure_name
from coalface.experiments.report.long_table import Grid, Record, mean_and_spread, pivot, records_of
from coalface.experiments.report.runs import flat_figures, gaps, start_name, without_errors
from coalface.experiments.sweep import differences, remarks
from coalface.experiments.sweep.grid import Cell
from coalface.experiments.sweep.records import Groups, Line, clients_of, means_of, records, work_of

MANY = 16
"""Parties up to which a table has the final training loss of each."""
ACCEPTED = "accepted"
"""How figures of clients' own thresholds begin; they come last."""

GAPS = "Gap between the domains, source less target, in percent points:"
CLUSTERS = """\
Clusters of the parties' own images against who is in them: mean over parties, then over seeds, in percent;
clusters, identities and images are counts."""
ENROLLED = "Clients verified by their own test images, in percent: mean over seeds ± standard deviation over seeds."
PERSONALISED = """\
Clients' own people on test images, in percent: mean over clients, then over seeds ± standard deviation;
by the model that the run starts from, everybody's, a client's own backbone, and its branch."""
OTHER_PEOPLE = "Settings whose clients have other people than the baseline's are not compared with it."
PUBLIC_IMAGES = """\
Share of the public images that clients trained on in a round, in percent: mean over clients,
then over seeds ± standard deviation."""
COSINES = "Cosines of all pairs of class embeddings: mean over seeds ± standard deviation over seeds."
LOSSES = "Final training loss of each party, smoothed over steps by 0.99: mean over runs ± standard deviation."


class Table(NamedTuple):
    """What a sweep says."""

    text: str
    """In Markdown."""
    whole: bool
    """False where the images that the differences need cannot be read here, and these are left out."""
    differences: Sequence[Record]
    """On the pair lists, in all baselines."""


def table(
    cells: Sequence[Cell],
    finished: Mapping[str, Line],
    baselines: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
) -> Table:
    """The table in Markdown: a row for every setting with its mean and spread over seeds, then the differences.

    Of one baseline, or of none (then to the first setting), they have a row for every setting and figure; of several
    there is a table for each, with a row for every setting.

    Cells that are not `finished` are listed with their reason from `failed`.
    """
    groups: dict[str, list[Line]] = {cell.setting: [] for cell in cells}
    for cell in cells:
        if cell.digest in finished:
            groups[cell.setting].append(finished[cell.digest])
    by_setting = {setting: group for setting, group in groups.items() if group}
    lists = next((cell.recipe.evaluation.pairs for cell in cells if cell.setting in by_setting), {})
    domains = {name: pairs.domain for name, pairs in lists.items() if pairs.domain is not None}
    numbers = records(by_setting, domains)
    halves = list(dict.fromkeys(cell.chosen["fold_split"] for cell in cells if "fold_split" in cell.chosen))
    lines = _main(cells, groups, halves).markdown()
    lines += ["", *remarks.of_figures(cells, bool(halves)), *remarks.of_bounds(cells)]
    lines += remarks.unlike_starts(cells, finished) + remarks.unlike_code(cells, finished)
    if gap := numbers.get("gap"):
        start = [
            record
            for line in next(iter(by_setting.values()))
            for record in records_of(
                "(before any round)", gaps(flat_figures(line["untrained"]), domains), seed=line["seed"]
            )
        ]
        lines += _means(start + gap, GAPS)
    lines += _means(numbers.get("clusters"), CLUSTERS)
    enrolled = numbers.get("enrolled", [])
    metrics = dict.fromkeys(record.metric for record in enrolled)
    lines += _means(enrolled, ENROLLED, by=True, metrics=sorted(metrics, key=lambda name: name.startswith(ACCEPTED)))
    to = differences.bases(groups, by_setting, baselines)
    if "personalised" in numbers:
        people = {cell.setting: clients_of(cell.recipe) for cell in cells}
        alike = [
            {setting: base for setting, base in base_of.items() if people[setting] == people[base]}
            for base_of in to.values()
        ]
        lines += _means(numbers["personalised"], PERSONALISED, by=True)
        lines += differences.of_clients(by_setting, alike)
        if any(len(comparable) < len(base_of) for comparable, base_of in zip(alike, to.values(), strict=True)):
            lines += ["", OTHER_PEOPLE]
    lines += _means(numbers.get("public images"), PUBLIC_IMAGES)
    embeddings = numbers.get("class embeddings", [])
    lines += _means(embeddings, COSINES)
    lines += differences.of_numbers(embeddings, list(to.values()), "these cosines")
    if missing := [cell for cell in cells if cell.digest not in finished]:
        reasons = [(failed or {}).get(cell.digest) for cell in missing]
        names = [cell.name or cell.setting for cell in missing]
        lines += [
            "",
            *(f"- {n}: {f'failed: {why}' if why else 'not run'}" for n, why in zip(names, reasons, strict=True)),
        ]
    whole, apart = True, list[Record]()
    if len(by_setting) > 1:
        try:
            text, apart = differences.of_figures(cells, finished, by_setting, to)
            lines += text
        except (OSError, ValueError) as error:
            whole = False
            lines += ["", f"Differences are left out: their pair lists cannot be made here ({clean(error)})."]
    losses = [Record(r.setting, r.metric, r.value, seed=run) for run, r in enumerate(numbers.get("losses", ()))]
    if 1 < len(dict.fromkeys(record.metric for record in losses)) <= MANY:
        lines += _means(losses, LOSSES, metric_name=str, empty=by_setting)
        lines += differences.of_numbers(numbers["losses"], list(to.values()), "final training loss")
    return Table("\n".join(lines) + "\n", whole, apart)


def _main(cells: Sequence[Cell], groups: Groups, halves: Sequence[str]) -> Grid:
    """The figures of what runs start from, of each setting, and of each half of the folds; bytes and seconds."""
    lists: list[tuple[str, str, Sequence[Line], str]] = []  # name, how many runs, the runs, which of their figures
    starts: dict[str, Sequence[Line]] = {}  # of the first setting that starts so
    for cell in cells:
        if groups[cell.setting]:
            starts.setdefault(start_name(cell.recipe.starts_trained), groups[cell.setting])
    lists += [(start, str(len(group)), group, "untrained") for start, group in starts.items()]
    for setting, group in groups.items():
        planned = sum(cell.setting == setting for cell in cells)
        lists.append((setting, f"{len(group)}" + ("" if len(group) == planned else f" of {planned}"), group, "figures"))
        for half in halves:
            if of_half := [line for line in group if line["cell"].get("fold_split") == half]:
                lists.append((f"{setting}, fold_split={half}", str(len(of_half)), of_half, "figures"))
    first = (group[0]["figures"] for group in groups.values() if group)
    metrics = without_errors(name for figures in first for name in flat_figures(figures))
    titles = ["steps", "images seen"] if any(map(work_of, groups.values())) else []
    rows = []
    for name, count, group, of in lists:
        means = means_of(group, of, metrics)
        ran = bool(group) and of == "figures"
        sent = (size(float(np.mean([line["bytes"][way] for line in group]))) if ran else "" for way in ("down", "up"))
        seconds = f"{np.mean([line['seconds']['total'] for line in group]):.0f}" if ran else ""
        work = [f"{mean:,.0f}" for mean in (work_of(group) if ran else ())] or [""] * len(titles)
        rows.append([name, *means, count, *work, *sent, seconds])
    header = ["setting", *map(figure_name, metrics), "runs" if halves else "seeds", *titles, "down", "up", "seconds"]
    return Grid.of(header, rows, left=1)


def _means(
    numbers: Iterable[Record] | None,
    text: str,
    *,
    by: bool = False,
    metrics: Sequence[str] | None = None,
    metric_name: Callable[[str], str] = figure_name,
    empty: Iterable[str] = (),
) -> list[str]:
    """A row for every setting, and with `by` for what the numbers are of; nothing without numbers."""
    grid = pivot(
        numbers or (),
        {"setting": "setting"} | ({"by": "by"} if by else {}),
        mean_and_spread,
        metrics,
        metric_name,
        empty,
    )
    return ["", *text.split("\n"), "", *grid.markdown()] if grid.rows else []
