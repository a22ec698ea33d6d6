"""The page that compares runs: a column for each run, paired verdicts, and their curves in the same charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coalface.core.text import size
from coalface.evaluation.figures import figure_name, figure_of, figure_text
from coalface.evaluation.metrics.figure import PERCENT
from coalface.evaluation.metrics.verification import TAR
from coalface.experiments.comparison import table
from coalface.experiments.comparison.table import Comparison, difference_sentence
from coalface.experiments.report import charts, faults, grids, groups, specs
from coalface.experiments.report.long_table import Grid, Record
from coalface.experiments.report.runs import Run, as_dicts, mapping, number
from coalface.experiments.report.specs import Interval
from coalface.experiments.report.templates import template, write_page
from coalface.experiments.report.vega import Chart, scripts

MOST_DRAWN = 3
"""Figures that are drawn run by run; the table has all."""


def build(comparison: Comparison, to: Path) -> Path:
    """Write the page of a comparison and return its path; the same run folders give the same bytes."""
    return write_page(to, render(comparison))


def render(comparison: Comparison) -> str:
    """The page as HTML."""
    runs = [row.run for row in comparison.rows]
    drawn = comparison.figures[:MOST_DRAWN]
    overview = [charts.overview(runs, key) for key in drawn]
    overview += [chart for key in drawn if (chart := _against_first(comparison, key))]
    return template("comparison.html").render(
        scripts=scripts(),
        labels=[run.label for run in runs],
        verdicts=_verdicts(comparison),
        troubles=[f"{run.label}: {' '.join(sentences)}" for run in runs if (sentences := faults.at_the_head(run))],
        figures=_figures(comparison),
        notes=[f"{sentence}." for sentence in comparison.left_out],
        overview=overview,
        similarity=charts.similarity(runs),
        progress=charts.progress(runs),
        groups=_groups(runs),
        work=_work(comparison),
        seen=_seen(runs),
        apart=_apart(comparison),
        logged=charts.class_embeddings(runs) + charts.logged(runs),
    )


def differences_chart(records: Sequence[Record], labels: Mapping[str, str], base: str) -> Chart:
    """How far settings lie from `base` in one figure: a dot with its interval, a ring where nothing is decided."""
    metric = records[0].metric
    rows = [
        Interval(
            labels[record.setting],
            record.value,
            None if record.low is None or record.high is None else (record.low, record.high),
            is_open=not record.is_decided,
        )
        for record in records
    ]
    unit = "percent points" if figure_of(metric).unit == PERCENT else figure_of(metric).unit.name
    title = f"{figure_name(metric)}, less that of {base}"
    return Chart(title, specs.intervals(rows, x=f"less that of {base}, {unit}", level=("", 0.0)))


def _against_first(comparison: Comparison, key: str) -> Chart | None:
    records = [row.differences[key] for row in comparison.rows if key in row.differences]
    labels = {row.run.label: row.run.label for row in comparison.rows}
    return differences_chart(records, labels, comparison.rows[0].run.label) if records else None


def _verdicts(comparison: Comparison) -> list[str]:
    """The first figure in words, run by run."""
    if not comparison.figures:
        return ["None of these runs has been evaluated yet."]
    key, sentences = comparison.figures[0], []
    for row in comparison.rows:
        if key in row.run.figures:
            against = f", {difference_sentence(row.differences[key])}" if key in row.differences else ""
            sentences.append(f"{row.run.label} {figure_text(row.run.figures, key, sign=True)}{against}.")
    return [f"{figure_name(key)}: {sentences[0]}", *sentences[1:]]


def _figures(comparison: Comparison) -> Grid:
    """A row for each figure: its value, the threshold of a TAR, and the difference with its interval."""
    rows = []
    for key in comparison.figures:
        cells = []
        for row in comparison.rows:
            lines = [figure_text(row.run.figures, key)]
            if (threshold := _threshold(row.run, key)) is not None:
                lines.append(f"threshold {threshold:.4f}")
            if key in row.differences:
                lines += (
                    table.difference_text(row.differences[key]).replace(" [", "\n[").replace("] ", "]\n").split("\n")
                )
            cells.append("\n".join(lines))
        rows.append([figure_name(key), *cells])
    return Grid.of(["figure", *(row.run.label for row in comparison.rows)], rows, left=1)


def _threshold(run: Run, key: str) -> float | None:
    """That of a TAR at FAR, where the pairs carry it."""
    name, _, figure = key.rpartition("/")
    points = as_dicts(mapping(mapping(run.summary.get("curves")).get(name)).get("thresholds"))
    at = {TAR.at(far): number(p.get("threshold")) for p in points if (far := number(p.get("far"))) is not None}
    return at.get(figure)


def _work(comparison: Comparison) -> Grid:
    """What each run did and sent: the columns of the comparison's table before its figures, as rows."""
    whole = table.grid(comparison, time=True)
    columns = list(zip(whole.header, *whole.rows, strict=True))
    rows = [column for column in columns[1 : len(columns) - len(comparison.figures)] if any(column[1:])]
    return Grid.of(["what", *columns[0][1:]], rows, left=1)


def _groups(runs: Sequence[Run]) -> list[tuple[str, str, Grid]]:
    """Title, caption and table of the figures that only some kinds of runs have."""
    return [
        ("By list", "In percent. The gap is the source's figure less the target's, in points.", groups.lists(runs)),
        ("How evenly they serve all", "Worst to best in points; the deviation is of n − 1.", groups.spreads(runs)),
        ("Clusters for labels", "In percent but for counts.", grids.clusters(runs)),
        ("Clients verified by their own images", "In percent.", grids.enrolled(runs)),
        ("Each client's own people", "In percent, the mean over clients.", grids.personalised(runs)),
    ]


def _apart(comparison: Comparison) -> Grid:
    labels = [row.run.label for row in comparison.rows]
    rows = [[a.where, a.key, *(a.values.get(label, "") for label in labels)] for a in comparison.apart]
    header = ("where", "key", *labels)
    return Grid.of(header, rows, left=len(header), most=grids.MOST_ROWS)


def _seen(runs: Sequence[Run]) -> Grid:
    """What reaches the server, run by run."""
    rows = [
        ["it learns", *map(_learnt, runs)],
        ["contents", *(", ".join(_contents(run)) for run in runs)],
        ["sent by the parties", *("" if (up := number(run.bytes.get("up"))) is None else size(up) for run in runs)],
        ["ε, each party", *(_epsilon(run) for run in runs)],
        ["can be read from it", *(str(run.summary.get("readable") or "") for run in runs)],
    ]
    return Grid.of(["what", *(run.label for run in runs)], [row for row in rows if any(row[1:])], left=len(runs) + 1)


def _learnt(run: Run) -> str:
    if mapping(run.config.get("privacy")).get("secure"):
        return "a sum of each round's replies"
    return "all images: they are pooled" if run.is_pooled else "each party's replies" if run.bytes else ""


def _contents(run: Run) -> list[str]:
    """What the fields hold that parties send."""
    sent = (message for message in as_dicts(run.summary.get("messages")) if message.get("direction") == "up")
    contents = (str(message.get("content") or message.get("field") or "") for message in sent)
    return list(dict.fromkeys(word for content in contents for word in content.split(", ")))


def _epsilon(run: Run) -> str:
    privacy = mapping(run.summary.get("privacy"))
    spent, delta = number(privacy.get("epsilon")), number(privacy.get("delta"))
    if not privacy:
        return "no noise"
    return "no bound" if spent is None else f"{spent:.2f} at δ = {delta or 0:g}"
