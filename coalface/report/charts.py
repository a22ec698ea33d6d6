"""The drawings of a report page: which curves a run folder gives, and what is said beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from coalface.report import drawings
from coalface.report.drawings import Curve, Interval
from coalface.report.runs import Run, figure_name, flat_figures, mapping, number, whole_number

MOST_LOGGED = 24
"""Drawings of logged numbers on one page; the first that the method logged have them."""
LARGEST = 1e100
"""Values beyond it are not drawn: a loss that has run away would leave nothing else to see."""
RECORD_KEYS = frozenset(
    "stage round asked arrived failed abandoned bytes_down bytes_up loss judged seconds checkpoint_seconds".split()
)
"""The keys of a metrics line that have their own place on the page; every other number is what the method logged."""


@dataclass(frozen=True)
class Drawing:
    """A drawing with its title and what a reader needs to know to read it."""

    title: str
    svg: Markup
    caption: str = ""


def overview(runs: Sequence[Run], key: str) -> Drawing:
    rows = [
        Interval(run.label, run.figures[key], run.figures.get(f"{key}_se", 0.0), series)
        for series, run in enumerate(runs)
        if key in run.figures
    ]
    title = f"{figure_name(key)}, by run"
    svg = drawings.interval_chart(rows, title=title, x_label="percent", level=_level(runs, key))
    bars = any(row.error for row in rows)
    return Drawing(title, svg, "Bars: ± one standard error of the run's own figure." if bars else "")


def _level(runs: Sequence[Run], key: str) -> tuple[str, float] | None:
    """The figure of the model that the runs start from, where they agree on it."""
    found = {(run.start, run.untrained[key]) for run in runs if key in run.untrained}
    return found.pop() if len(found) == 1 else None


def _staged(runs: Sequence[Run]) -> bool:
    return any(len({record.get("stage") for record in run.metrics}) > 1 for run in runs)


def _curves(runs: Sequence[Run], take: Callable[[dict[str, Any]], object]) -> list[Curve]:
    """A number of the metrics lines over rounds. Rounds of several stages are counted on from the first."""
    staged = _staged(runs)
    curves = []
    for series, run in enumerate(runs):
        points = []
        for place, record in enumerate(run.metrics, start=1):
            value, at = number(take(record)), place if staged else whole_number(record.get("round"))
            if value is not None and abs(value) < LARGEST:
                points.append((place if at is None else at, value))
        points.sort(key=lambda point: point[0])
        curves.append(Curve(run.label, [x for x, _ in points], [y for _, y in points], series))
    return curves


def _marks(runs: Sequence[Run]) -> list[tuple[float, str]]:
    """Where the stages of a run begin; with several runs the drawing would be full of them."""
    if len(runs) > 1 or not _staged(runs):
        return []
    found: dict[str, float] = {}
    for place, record in enumerate(runs[0].metrics, start=1):
        found.setdefault(str(record.get("stage", "")), place)
    return [(place, name) for name, place in found.items()]


def _drawn(
    runs: Sequence[Run],
    title: str,
    take: Callable[[dict[str, Any]], object],
    caption: str = "",
    level: tuple[str, float] | None = None,
) -> list[Drawing]:
    svg = drawings.line_chart(_curves(runs, take), title=title, x_label="round", level=level, marks=_marks(runs))
    return [Drawing(title, svg, caption)] if svg else []


def progress(runs: Sequence[Run]) -> list[Drawing]:
    """Loss, judged figures and bytes per round."""
    apart = "Losses of different methods are not on one scale." if len({run.method for run in runs}) > 1 else ""
    drawn = _drawn(runs, "loss", lambda record: record.get("loss"), apart)
    keys = dict.fromkeys(key for run in runs for record in run.metrics for key in flat_figures(record.get("judged")))
    for key in [key for key in keys if not key.endswith("_se")][:12]:

        def take(record: dict[str, Any], key: str = key) -> object:
            return flat_figures(record.get("judged")).get(key)

        drawn += _drawn(runs, f"{figure_name(key)} (%)", take, level=_level(runs, key))
    for key, title in (("bytes_down", "MB to the parties, a round"), ("bytes_up", "MB from the parties, a round")):
        if any(len({record.get(key) for record in run.metrics}) > 1 for run in runs):

            def megabytes(record: dict[str, Any], key: str = key) -> object:
                count = number(record.get(key))
                return None if count is None else count / 1e6

            drawn += _drawn(runs, title, megabytes)
    return drawn


def logged(runs: Sequence[Run]) -> list[Drawing]:
    """Every further number that the methods logged."""
    keys = dict.fromkeys(
        key
        for run in runs
        for record in run.metrics
        for key in record
        if key not in RECORD_KEYS and number(record[key])
    )
    drawn = []
    for key in list(keys)[:MOST_LOGGED]:
        drawn += _drawn(runs, key, lambda record, key=key: record.get(key))  # type: ignore[misc]
    return drawn


def similarity(runs: Sequence[Run]) -> list[Drawing]:
    """ROC curves of all the runs, a drawing a judge; then histograms of the first judge, a drawing a run."""
    found = [mapping(run.summary.get("curves")) for run in runs]
    judges = list(dict.fromkeys(judge for curves in found for judge in curves))
    drawn = []
    for judge in judges:
        lines = []
        for series, (run, curves) in enumerate(zip(runs, found, strict=True)):
            roc = mapping(mapping(curves.get(judge)).get("roc"))
            points = [(x, y) for x, y in zip(_numbers(roc.get("far")), _numbers(roc.get("tar")), strict=False)]
            lines.append(Curve(run.label, [x for x, _ in points], [y for _, y in points], series))
        title = f"{judge} ROC, TAR (%)"
        if svg := drawings.roc_chart(lines, title=title):
            drawn.append(Drawing(title, svg, "Dashed: chance."))
    for run, curves in zip(runs, found, strict=True):
        for judge in judges[:1] if len(runs) > 1 else judges:
            counts = mapping(mapping(curves.get(judge)).get("histogram"))
            whose = f"{run.label}: {judge}" if len(runs) > 1 else f"{judge} similarities"
            title = f"{whose}, % of pairs"
            edges, genuine, impostor = (_numbers(counts.get(key)) for key in ("edges", "genuine", "impostor"))
            if svg := drawings.histogram(edges, genuine, impostor, title=title):
                drawn.append(Drawing(title, svg, "pairs"))
    return drawn


def _numbers(values: object) -> list[float]:
    """The numbers of a list; a list that holds anything else gives none, so that columns never slip."""
    found = [number(value) for value in values] if isinstance(values, list) else []
    return [value for value in found if value is not None] if None not in found else []
