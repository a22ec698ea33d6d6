"""The charts of a report page: the curves of a run folder and their captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coalface.core.text import natural
from coalface.evaluation.figures import axis_title, figure_name
from coalface.experiments.report import specs
from coalface.experiments.report.runs import Run, as_dicts, flat_figures, mapping, number, whole_number, without_errors
from coalface.experiments.report.specs import Curve, Interval
from coalface.experiments.report.vega import Chart

NEXT_TO_NOTHING = 0.01
"""What a run sends, as a share of what others send, at which its figure over bytes would stand at 0."""
MOST_LOGGED = 24
"""Charts of logged numbers on one page; the first that the method logged have them."""
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
MOST_CURVES, MOST_HISTOGRAMS = 12, 3
"""Curves of one chart, and lists of a run that have a histogram."""
DRAWN_FAR = 0.01
"""The false accept rate whose threshold stands in a histogram."""
MOST_FIGURES = 12
"""Figures over rounds on one page."""


def overview(runs: Sequence[Run], key: str) -> Chart:
    rows = [
        Interval(run.label, value, (value - error, value + error) if error else None, series)
        for series, run in enumerate(runs)
        if key in run.figures
        for value, error in [(run.figures[key], run.figures.get(f"{key}_se", 0.0))]
    ]
    caption = "Bars: ± one standard error of the run's own figure." if any(row.bar for row in rows) else ""
    spec = specs.intervals(rows, x=axis_title(key), level=_level(runs, key))
    return Chart(f"{figure_name(key)}, by run", spec, caption)


def _level(runs: Sequence[Run], key: str) -> tuple[str, float] | None:
    """The figure of the model that the runs start from, where they agree on it."""
    levels = {(run.start, run.untrained[key]) for run in runs if key in run.untrained}
    return levels.pop() if len(levels) == 1 else None


def _staged(runs: Sequence[Run]) -> bool:
    return any(len({record.get("stage") for record in run.metrics}) > 1 for run in runs)


def _curves(runs: Sequence[Run], key: str) -> list[Curve]:
    """What rounds logged, or a figure, over rounds. Those of several stages are counted on from the first."""
    staged = _staged(runs)
    curves = []
    for series, run in enumerate(runs):
        points = []
        for place, record in enumerate(run.metrics, start=1):
            value = number(record[key] if key in record else flat_figures(record.get("judged")).get(key))
            at = place if staged else whole_number(record.get("round"))
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


def _over_rounds(runs: Sequence[Run], title: str, key: str, caption: str = "") -> list[Chart]:
    spec = specs.lines(_curves(runs, key), x="round", y=title, marks=_marks(runs))
    return [Chart(title, spec, caption)] if spec else []


def progress(runs: Sequence[Run]) -> list[Chart]:
    """Loss, and evaluated figures over rounds, from the model before the first one on, and over bytes."""
    apart = "Losses of different methods are not on one scale." if len({run.method for run in runs}) > 1 else ""
    charts = _over_rounds(runs, "loss", "loss", apart)
    keys = without_errors(key for run in runs for record in run.metrics for key in flat_figures(record.get("judged")))
    by_figure: dict[str, list[str]] = {}
    for key in keys:
        by_figure.setdefault(key.rpartition("/")[2] if len(runs) == 1 else key, []).append(key)
    charts += [
        over_rounds(runs, of_figure[0]) if len(of_figure) == 1 else _lists_over_rounds(runs[0], figure, of_figure)
        for figure, of_figure in list(by_figure.items())[:MOST_FIGURES]
    ]
    for key in keys[:1]:
        charts += _figure_over_bytes(runs, key)
    return charts


def over_rounds(runs: Sequence[Run], key: str) -> Chart:
    """What rounds logged, such as `loss`, or a figure such as `unseen/eer`, which has what a run starts from at 0."""
    starts = {run.start for run in runs if key in run.untrained}
    caption = f"Round 0: {starts.pop() if len(starts) == 1 else 'what each run starts from'}." if starts else ""
    title = axis_title(key) if "/" in key else key.replace("_", " ")
    return Chart(title, specs.lines(_from_start(runs, key), x="round", y=title, marks=_marks(runs)), caption)


def _from_start(runs: Sequence[Run], key: str) -> list[Curve]:
    """What rounds logged, or a figure, with that of what a run starts from at 0."""
    curves = _curves(runs, key)
    return [
        replace(curve, x=[0, *curve.x], y=[run.untrained[key], *curve.y]) if curve.x and key in run.untrained else curve
        for run, curve in zip(runs, curves, strict=True)
    ]


def _lists_over_rounds(run: Run, figure: str, keys: Sequence[str]) -> Chart:
    """A figure of several lists of a run."""
    lists = [(key.rpartition("/")[0], key) for key in keys[:MOST_CURVES]]
    curves = [replace(_from_start([run], key)[0], label=name, series=n) for n, (name, key) in enumerate(lists)]
    caption = f"Round 0: {run.start}." if any(key in run.untrained for key in keys) else ""
    spec = specs.lines(curves, x="round", y=axis_title(figure), marks=_marks([run]))
    return Chart(axis_title(figure), spec, caption)


def _figure_over_bytes(runs: Sequence[Run], key: str) -> list[Chart]:
    """A figure over what was sent until then, to all parties and from them, of the runs that send in place of pooling.

    What is counted in a pooled run is not what brought the images together.
    """
    curves = []
    for series, run in enumerate(runs):
        sent, points = 0.0, [(0.0, run.untrained[key])] if key in run.untrained else []
        for record in run.metrics:
            sent += sum(number(record.get(way)) or 0 for way in ("bytes_down", "bytes_up")) / 1e6
            value = flat_figures(record.get("judged")).get(key)
            points += [] if value is None else [(sent, value)]
        if points and not run.is_pooled:
            curves.append(Curve(run.label, [x for x, _ in points], [y for _, y in points], series))
    widest = max((curve.x[-1] for curve in curves), default=0.0)
    curves = [curve for curve in curves if curve.x[-1] > NEXT_TO_NOTHING * widest]
    spec = specs.lines(curves, x="MB sent, both ways", y=axis_title(key), whole=False)
    absent = [run.label for run in runs if run.label not in {curve.label for curve in curves}]
    caption = f"Without {', '.join(absent)}: next to nothing is sent, or the images are pooled." if absent else ""
    return [Chart(f"{axis_title(key)} by what was sent", spec, caption)] if spec else []


def secure_sums(run: Run) -> list[Chart]:
    """What secure sums took off the numbers of a round: those beyond their clip, and the rounding."""
    titles = {"cut_off": "share of the numbers beyond their clip", "sum_error": "bound on the rounding of a mean"}
    return [chart for key, title in titles.items() for chart in _over_rounds([run], title, key)]


def weightings(run: Run) -> list[Chart]:
    """What Federated Validation did in a run that has it: the weight of each party, and the validators' scores."""
    validation = mapping(mapping(mapping(run.config.get("methods")).get(run.method)).get("validation"))
    share, count = number(validation.get("smoothing")), whole_number(validation.get("candidates"))
    moves = "" if share is None or count is None else f" moves by φ = {share:g} towards the best of {count} that"
    caption = "The weight of each party's backbone in the average, from the next round on. "
    caption += f"After each validation it{moves or ' moves towards the best one that'} the validators scored."
    charts = _by_party(run, WEIGHT, "weighting of the parties", caption)
    score = str(validation.get("score") or "accuracy")
    far = number(validation.get("far"))
    unit = {
        "accuracy": "accuracy on its own pairs, in percent",
        "tar": f"TAR{'' if far is None else f' at FAR {far:g}'} on its own pairs, in percent",
        "loss": "minus the mean loss of its own pairs, times 100",
    }.get(score, score)
    caption = f"What each validator gave the weighting in use: {unit}. A score stands at the round that collected it; "
    caption += "a validator that failed or was late has none."
    return charts + _by_party(run, SCORE, "score by validator", caption)


def _by_party(run: Run, prefix: str, title: str, caption: str) -> list[Chart]:
    """Curves of the numbers that were logged under `prefix` and a party's name; of many, those that end highest."""
    by_party: dict[str, Curve] = {}
    for key in dict.fromkeys(key for record in run.metrics for key in record if key.startswith(prefix)):
        (curve,) = _curves([run], key)
        if curve.x:
            by_party[key.removeprefix(prefix)] = curve
    ranked = sorted(by_party, key=lambda party: (-by_party[party].y[-1], party))
    parties = sorted(ranked[:MOST_CURVES], key=natural)
    curves = [replace(by_party[party], label=party, series=n) for n, party in enumerate(parties)]
    if len(by_party) > len(parties):
        caption += (
            f" The {len(parties)} that end highest are drawn; {len(by_party) - len(parties):,} more are left out."
        )
    wide = len(parties) > specs.FEW
    height = specs.TALL if wide else specs.HEIGHT
    spec = specs.lines(curves, x="round", y=title, marks=_marks([run]), height=height)
    return [Chart(title, spec, caption, wide)] if spec else []


def logged(runs: Sequence[Run]) -> list[Chart]:
    """Every further number that the methods logged."""
    keys = dict.fromkeys(
        key
        for run in runs
        for record in run.metrics
        for key in record
        if key not in RECORD_KEYS and not key.startswith((WEIGHT, SCORE)) and number(record[key])
    )
    return [chart for key in list(keys)[:MOST_LOGGED] for chart in _over_rounds(runs, key, key)]


def class_embeddings(runs: Sequence[Run]) -> list[Chart]:
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
    spec = specs.lines(curves, x="cosine", y="% of pairs", whole=False)
    charts = [Chart(title, spec, " ".join(captions))] if spec else []
    return charts + _over_rounds(runs, "mean cosine between class embeddings", CLOSENESS)


def similarity(runs: Sequence[Run]) -> list[Chart]:
    """ROC, DET and histograms: of one run all lists in a chart, of several a chart for each list, with all runs in it.

    Of several runs the first list alone has histograms.
    """
    names = list(dict.fromkeys(name for run in runs for name in mapping(run.summary.get("curves"))))
    of_one_run = [[(name if len(names) > 1 else runs[0].label, runs[0], name) for name in names]] if names else []
    of_each_list = [[(run.label, run, name) for run in runs] for name in names]
    charts = []
    for members in of_one_run if len(runs) == 1 else of_each_list:
        of = f"{members[0][2]} " if len({name for _, _, name in members}) == 1 else ""
        curves = [_roc(label, series, _curves_of(run, name)) for series, (label, run, name) in enumerate(members)]
        curves = curves[:MOST_CURVES]
        banded = any(curve.band for curve in curves) and len(curves) <= specs.BANDED
        shaded = " Shaded: 95 % of draws of the people in the pairs." if banded else ""
        if spec := specs.roc(curves):
            charts.append(Chart(f"{of}ROC: TAR (%) over FAR", spec, f"Dashed: chance.{shaded}{_areas(members)}"))
        if spec := specs.roc(curves, is_det=True):
            charts.append(Chart(f"{of}DET: 1 − TAR (%) over FAR", spec, shaded.strip()))
    for run in runs:
        for name in names[: 1 if len(runs) > 1 else MOST_HISTOGRAMS]:
            counts = mapping(_curves_of(run, name).get("histogram"))
            edges, genuine, impostor = (_numbers(counts.get(key)) for key in ("edges", "genuine", "impostor"))
            title = f"{run.label}: {name} similarities" if len(runs) > 1 else f"{name} similarities"
            if spec := specs.histogram(edges, genuine, impostor, _threshold(_curves_of(run, name))):
                charts.append(Chart(title, spec))
    return charts


def _curves_of(run: Run, name: str) -> dict[str, Any]:
    """What the summary has of the curves of a list."""
    return mapping(mapping(run.summary.get("curves")).get(name))


def _roc(label: str, series: int, curves: Mapping[str, Any]) -> Curve:
    """The ROC of a list, with its band where the run has one for every point."""
    rates = mapping(curves.get("roc"))
    far, tar, low, high = (_numbers(rates.get(key)) for key in ("far", "tar", "low", "high"))
    points = list(zip(far, tar, strict=False))
    band = list(zip(low, high, strict=True)) if len(low) == len(high) == len(points) else []
    return Curve(label, [x for x, _ in points], [y for _, y in points], series, band)


def _areas(members: Sequence[tuple[str, Run, str]]) -> str:
    """The area under the ROC of each curve, by its label, that has one, with its interval."""
    areas = []
    for label, run, name in members:
        curves = _curves_of(run, name)
        if (area := number(curves.get("auc"))) is not None:
            ends = " to ".join(f"{end:.2f}" for end in _numbers(mapping(curves.get("intervals")).get("auc")))
            areas.append(f"{label} " * (len(members) > 1) + f"{area:.2f} %" + (ends and f" ({ends})"))
    return f" AUC: {', '.join(areas)}." if areas else ""


def _threshold(curves: Mapping[str, Any]) -> tuple[str, float] | None:
    """That of the FAR that is drawn, where the pairs carry it."""
    at = {number(point.get("far")): number(point.get("threshold")) for point in as_dicts(curves.get("thresholds"))}
    threshold = at.get(DRAWN_FAR)
    return None if threshold is None else (f"FAR {DRAWN_FAR:g}", threshold)


def _numbers(values: object) -> list[float]:
    """The numbers of a list; a list that holds anything else gives none, so that columns never slip."""
    numbers = [number(value) for value in values] if isinstance(values, list) else []
    return [value for value in numbers if value is not None] if None not in numbers else []
