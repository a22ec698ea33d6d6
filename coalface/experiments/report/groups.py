"""Figures by group: over lists of pairs, parties and clients, how far they lie apart and who is worst off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import stdev

from coalface.evaluation.figures import SERVED_BY, axis_title, figure_name, figure_of, figure_text
from coalface.evaluation.metrics.verification import ACCURACY
from coalface.experiments.report import specs
from coalface.experiments.report.long_table import Grid
from coalface.experiments.report.runs import Run, flat_figures, gaps, mapping, number, without_errors
from coalface.experiments.report.specs import Interval
from coalface.experiments.report.vega import Chart

LISTS, PARTIES = "lists", "parties"
ONE_OF = {LISTS: "list", PARTIES: "party"}
MOST_DRAWN, MOST_NAMES = 2, 16
"""Figures that are drawn by group, and groups up to which they are."""

Groups = dict[str, dict[str, dict[str, float]]]
"""What figures are taken over -> figure -> name of a group -> value."""


def by_group(run: Run) -> Groups:
    """The figures of a run's lists, of its parties' own models, and of the clients that models serve."""
    groups: Groups = {}
    for key in run.evaluated:
        name, _, figure = key.rpartition("/")
        groups.setdefault(LISTS, {}).setdefault(figure, {})[name] = run.figures[key]
    for party in run.parties:
        judged = flat_figures(party.get("judged"))
        for key in without_errors(judged):
            groups.setdefault(PARTIES, {}).setdefault(key, {})[str(party.get("name", ""))] = judged[key]
    for client, by_kind in mapping(mapping(run.summary.get("personalised")).get("clients")).items():
        for kind, figures in mapping(by_kind).items():
            for figure, value in mapping(figures).items():
                if (finite := number(value)) is not None:
                    over = f"clients, by {SERVED_BY.get(kind, kind)}"
                    groups.setdefault(over, {}).setdefault(figure, {})[str(client)] = finite
    return {
        over: apart
        for over, figures in groups.items()
        if (apart := {figure: values for figure, values in figures.items() if len(values) > 1})
    }


def lists(runs: Sequence[Run]) -> Grid:
    """Each run's figures by list, where it has several or says their domains; a gap is source less target."""
    rows, runs = [], [run for run in runs if run.domains or LISTS in by_group(run)]
    names = list(dict.fromkeys(key.rpartition("/")[2] for run in runs for key in run.evaluated))
    for run in runs:
        label = run.label if len(runs) > 1 else ""
        by_domain = sorted(
            dict.fromkeys(key.rpartition("/")[0] for key in run.evaluated), key=lambda name: run.domains.get(name, "")
        )
        for name in by_domain:
            figures = (figure_text(run.figures, f"{name}/{figure}") for figure in names)
            rows.append([label, name, run.domains.get(name, ""), *figures])
        for title, values in ((f"gap, {run.start}", run.untrained), ("gap", run.figures)):
            if gap := gaps(values, run.domains):
                texts = (figure_of(name).difference_text(gap[name]) if name in gap else "" for name in names)
                rows.append([label, title, "", *texts])
    header = ("run", "list", "domain", *map(figure_name, names))
    return Grid.of(header, rows, left=3).without_empty_columns()


def spreads(runs: Sequence[Run]) -> Grid:
    """Who is worst and who is best off, how far apart these are, and the standard deviation (of n − 1)."""
    rows = []
    for run in runs:
        label = run.label if len(runs) > 1 else ""
        for over, figures in by_group(run).items():
            for key, values in figures.items():
                if better := figure_of(key).better:
                    worst, best = sorted(values, key=lambda name: values[name], reverse=better == "lower")[
                        :: len(values) - 1
                    ]
                    rows.append([label, over, figure_name(key), _named(key, values, worst), _named(key, values, best)])
                    apart = abs(values[best] - values[worst]), stdev(values.values())
                    rows[-1] += [figure_of(key).mean_text(value) for value in apart]
    header = ("run", "over", "figure", "worst", "best", "worst to best", "standard deviation")
    return Grid.of(header, rows, left=3).without_empty_columns()


def _named(key: str, values: Mapping[str, float], name: str) -> str:
    return f"{figure_of(key).text(values[name])}\n{name}"


def charts(run: Run) -> list[Chart]:
    """The first figures by group, a dot each, with a bar where the run knows an interval or a standard error.

    Clients are drawn by the last of the models that serve them, the most personal one.
    """
    drawn, groups = [], by_group(run)
    for over in (LISTS, PARTIES, *[over for over in groups if over not in ONE_OF][-1:]):
        few = {key: values for key, values in groups.get(over, {}).items() if len(values) <= MOST_NAMES}
        for key, values in list(few.items())[:MOST_DRAWN]:
            rows = [Interval(name, value, _bar(run, over, key, name)) for name, value in values.items()]
            ends = "± one standard error" if key.endswith(ACCURACY.name) else "95 % of draws of the people in the pairs"
            caption = f"Bars: {ends}." if any(row.bar for row in rows) else ""
            title = f"{figure_name(key)} by {ONE_OF.get(over) or over.replace('clients', 'client')}"
            drawn.append(Chart(title, specs.intervals(rows, x=axis_title(key), level=None), caption))
    return drawn


def _bar(run: Run, over: str, key: str, name: str) -> tuple[float, float] | None:
    """The ends of a figure's interval, or of its standard error, where the run has one."""
    if over == PARTIES:
        figures = next(flat_figures(party.get("judged")) for party in run.parties if party.get("name") == name)
    elif over == LISTS:
        figures, key = run.figures, f"{name}/{key}"
    else:
        return None
    error = figures.get(f"{key}_se")
    return run.intervals.get(key) if error is None else (figures[key] - error, figures[key] + error)
