"""The charts of a report page: the curves of a run folder and their captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from coalface.core.text import natural
from coalface.evaluation.figures import axis_title, figure_name, figure_of
from coalface.experiments.report import drawings
from coalface.experiments.report.drawings import Curve, Interval
from coalface.experiments.report.runs import Run, flat_figures, mapping, number, whole_number, without_errors

MOST_LOGGED = 24
"""Drawings of logged numbers on one page; the first that the method logged have them."""
LARGEST = 1e100
"""Values beyond it are not drawn: a loss that has run away would leave nothing else to see."""
RECORD_KEYS = frozenset(
    "stage round asked arrived failed clipped large abandoned reason bytes_down bytes_up bytes_refused bytes_lost "
    "bytes_again loss losses judged seconds checkpoint_seconds cosine cut_off sum_error".split()
)
"""The keys of a metrics line that have their own place on the page; every other number is what the method logged."""
WEIGHT, SCORE = "weight/", "score/"
"""What Federated Validation logs: the weighting in use by party, and its score by validator."""
CLOSENESS = "cosine"
"""What methods log whose server knows all class embeddings: the mean cosine of their pairs."""
COLLAPSED = 0.95
"""Mean cosine of all pairs of class embeddings from which on the page says that they have collapsed."""
MOST_CURVES = 12
"""Curves of one drawing of it."""


@dataclass(frozen=True)
class Drawing:
    """A drawing with its title and what a reader needs to know to read it."""

    title: str
    svg: Markup
    caption: str = ""
    keys: tuple[tuple[str, int], ...] = ()
    """Its own legend, where its curves are not the page's runs: (name, series)."""
    wide: bool = False
    """It takes two columns."""


def overview(runs: Sequence[Run], key: str) -> Drawing:
    rows = [
        Interval(run.label, value, (value - error, value + error) if error else None, series)
        for series, run in enumerate(runs)
        if key in run.figures
        for value, error in [(run.figures[key], run.figures.get(f"{key}_se", 0.0))]
    ]
    title = f"{figure_name(key)}, by run"
    svg = drawings.interval_chart(rows, title=title, x_label=figure_of(key).unit.name, level=_level(runs, key))
    bars = any(row.bar for row in rows)
    return Drawing(title, svg, "Bars: ± one standard error of the run's own figure." if bars else "")


def _level(runs: Sequence[Run], key: str) -> tuple[str, float] | None:
    """The figure of the model that the runs start from, where they agree on it."""
    levels = {(run.start, run.untrained[key]) for run in runs if key in run.untrained}
    return levels.pop() if len(levels) == 1 else None


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
    starts: dict[str, float] = {}
    for place, record in enumerate(runs[0].metrics, start=1):
        starts.setdefault(str(record.get("stage", "")), place)
    return [(place, name) for name, place in starts.items()]


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
    """Loss, evaluated figures and bytes per round."""
    apart = "Losses of different methods are not on one scale." if len({run.method for run in runs}) > 1 else ""
    drawn = _drawn(runs, "loss", lambda record: record.get("loss"), apart)
    keys = without_errors(key for run in runs for record in run.metrics for key in flat_figures(record.get("judged")))
    for key in keys[:12]:

        def take(record: dict[str, Any], key: str = key) -> object:
            return flat_figures(record.get("judged")).get(key)

        drawn += _drawn(runs, axis_title(key), take, level=_level(runs, key))
    for key, title in (("bytes_down", "MB to the parties, a round"), ("bytes_up", "MB from the parties, a round")):
        if any(_varies([number(record.get(key)) or 0 for record in run.metrics]) for run in runs):

            def megabytes(record: dict[str, Any], key: str = key) -> object:
                count = number(record.get(key))
                return None if count is None else count / 1e6

            drawn += _drawn(runs, title, megabytes)
    return drawn


def _varies(counts: Sequence[float]) -> bool:
    """By more than a hundredth: a message of some bytes beside a model's is not worth a drawing."""
    return bool(counts) and max(counts) - min(counts) > 0.01 * max(counts)


def secure_sums(runs: Sequence[Run]) -> list[Drawing]:
    """What secure sums took off the numbers of a round: those beyond their clip, and the rounding."""
    titles = {"cut_off": "share of the numbers beyond their clip", "sum_error": "bound on the rounding of a mean"}
    return [
        drawing
        for key, title in titles.items()
        for drawing in _drawn(runs, title, lambda record, key=key: record.get(key))  # type: ignore[misc]
    ]


def weightings(runs: Sequence[Run]) -> list[Drawing]:
    """What Federated Validation did, for each run that has it: the weight of each party, and the validators' scores."""
    drawn = []
    for run in runs:
        validation = mapping(mapping(mapping(run.config.get("methods")).get(run.method)).get("validation"))
        of = f" in {run.label}" if len(runs) > 1 else ""
        share, count = number(validation.get("smoothing")), whole_number(validation.get("candidates"))
        moves = "" if share is None or count is None else f" moves by φ = {share:g} towards the best of {count} that"
        caption = "The weight of each party's backbone in the average, from the next round on. "
        caption += f"After each validation it{moves or ' moves towards the best one that'} the validators scored."
        drawn += _by_party(run, WEIGHT, f"weighting of the parties{of}", caption)
        score = str(validation.get("score") or "accuracy")
        unit = {
            "accuracy": "accuracy on its own pairs, in percent",
            "tar": f"TAR at FAR {number(validation.get('far')):g} on its own pairs, in percent"
            if number(validation.get("far")) is not None
            else "TAR on its own pairs, in percent",
            "loss": "minus the mean loss of its own pairs, times 100",
        }.get(score, score)
        caption = (
            f"What each validator gave the weighting in use: {unit}. A score stands at the round that collected it; "
        )
        caption += "a validator that failed or was late has none."
        drawn += _by_party(run, SCORE, f"score by validator{of}", caption)
    return drawn


def _by_party(run: Run, prefix: str, title: str, caption: str) -> list[Drawing]:
    """Curves of the numbers that were logged under `prefix` and a party's name; of many, those that end highest."""
    by_party: dict[str, Curve] = {}
    for key in dict.fromkeys(key for record in run.metrics for key in record if key.startswith(prefix)):
        (curve,) = _curves([run], lambda record, key=key: record.get(key))  # type: ignore[misc]
        if curve.x:
            by_party[key.removeprefix(prefix)] = curve
    ranked = sorted(by_party, key=lambda party: (-by_party[party].y[-1], party))
    parties = sorted(ranked[:MOST_CURVES], key=natural)
    curves = [replace(by_party[party], label=party, series=n) for n, party in enumerate(parties)]
    if len(by_party) > len(parties):
        caption += (
            f" The {len(parties)} that end highest are drawn; {len(by_party) - len(parties):,} more are left out."
        )
    wide = len(parties) > 4
    size = (
        (drawings.WIDE, drawings.HEIGHT + 10 * max(0, len(parties) - 5)) if wide else (drawings.WIDTH, drawings.HEIGHT)
    )
    svg = drawings.line_chart(
        curves,
        title=title,
        x_label="round",
        marks=_marks([run]),
        named=len(parties) > 1,
        width=size[0],
        height=size[1],
    )
    return [Drawing(title, svg, caption, tuple((c.label, c.series) for c in curves), wide)] if svg else []


def logged(runs: Sequence[Run]) -> list[Drawing]:
    """Every further number that the methods logged."""
    keys = dict.fromkeys(
        key
        for run in runs
        for record in run.metrics
        for key in record
        if key not in RECORD_KEYS and not key.startswith((WEIGHT, SCORE)) and number(record[key])
    )
    drawn = []
    for key in list(keys)[:MOST_LOGGED]:
        drawn += _drawn(runs, key, lambda record, key=key: record.get(key))  # type: ignore[misc]
    return drawn


def class_embeddings(runs: Sequence[Run]) -> list[Drawing]:
    """How close the class embeddings that the server knows have come: a histogram of the cosines of all their pairs."""
    curves, captions = [], []
    for series, run in enumerate(runs):
        embeddings = mapping(run.summary.get("class_embeddings"))
        edges, pairs = _numbers(embeddings.get("edges")), _numbers(embeddings.get("pairs"))
        count, mean = whole_number(embeddings.get("count")), number(embeddings.get("mean"))
        used = [i for i, pair_count in enumerate(pairs) if pair_count > 0]
        if len(edges) != len(pairs) + 1 or not used or count is None or mean is None:
            continue
        span = range(max(0, used[0] - 1), min(len(pairs), used[-1] + 2))
        whole = sum(pairs)
        curve = Curve(
            run.label, [(edges[i] + edges[i + 1]) / 2 for i in span], [100 * pairs[i] / whole for i in span], series
        )
        curves.append(curve)
        closeness = " They have fallen together." if mean > COLLAPSED else ""
        of = f"{run.label}: " if len(runs) > 1 else ""
        captions.append(f"{of}{count:,} class embeddings, mean cosine {mean:.3f}.{closeness}")
    title = "cosines between class embeddings, % of pairs"
    svg = drawings.line_chart(curves, title=title, x_label="cosine", whole=False)
    drawn = [Drawing(title, svg, " ".join(captions))] if svg else []
    return drawn + _drawn(runs, "mean cosine between class embeddings", lambda record: record.get(CLOSENESS))


def similarity(runs: Sequence[Run]) -> list[Drawing]:
    """ROC curves of all the runs, a drawing a list; then histograms of the first list, a drawing a run."""
    by_run = [mapping(run.summary.get("curves")) for run in runs]
    names = list(dict.fromkeys(name for curves in by_run for name in curves))
    drawn = []
    for name in names:
        lines = []
        for series, (run, curves) in enumerate(zip(runs, by_run, strict=True)):
            roc = mapping(mapping(curves.get(name)).get("roc"))
            points = [(x, y) for x, y in zip(_numbers(roc.get("far")), _numbers(roc.get("tar")), strict=False)]
            lines.append(Curve(run.label, [x for x, _ in points], [y for _, y in points], series))
        title = f"{name} ROC, TAR (%)"
        if svg := drawings.roc_chart(lines, title=title):
            drawn.append(Drawing(title, svg, "Dashed: chance."))
    for run, curves in zip(runs, by_run, strict=True):
        for name in names[:1] if len(runs) > 1 else names:
            counts = mapping(mapping(curves.get(name)).get("histogram"))
            whose = f"{run.label}: {name}" if len(runs) > 1 else f"{name} similarities"
            title = f"{whose}, % of pairs"
            edges, genuine, impostor = (_numbers(counts.get(key)) for key in ("edges", "genuine", "impostor"))
            if svg := drawings.histogram(edges, genuine, impostor, title=title):
                drawn.append(Drawing(title, svg, "pairs"))
    return drawn


def _numbers(values: object) -> list[float]:
    """The numbers of a list; a list that holds anything else gives none, so that columns never slip."""
    numbers = [number(value) for value in values] if isinstance(values, list) else []
    return [value for value in numbers if value is not None] if None not in numbers else []
