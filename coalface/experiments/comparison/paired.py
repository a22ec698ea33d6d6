"""Paired differences between finished runs, from the evidence that they left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.errors import DataError
from coalface.core.parsing import read_json
from coalface.evaluation.metrics.bootstrap import Bootstrap, bootstrap_of
from coalface.evaluation.metrics.pair_figures import MOST_PAIRS
from coalface.evaluation.metrics.paired import (
    PairedDifference,
    Resampled,
    compare,
    of_shared_seeds,
    resample,
    same_pairs,
)
from coalface.evaluation.verification import read_lists
from coalface.experiments.comparison import table
from coalface.experiments.report.runs import read, whole_number

TAIL = "EER has no interval, since of so many impostors only the best are kept, and it lies below them"


def compare_runs(runs: Sequence[Path]) -> table.Comparison:
    """Runs beside the first of them, with the intervals of their differences. Raises as `table.compare` does."""
    return table.compare(runs, intervals(runs), left_out(runs))


def intervals(runs: Sequence[Path]) -> table.Intervals:
    """Difference to the first run and its 95 % interval, in the figure's unit, by (run, `list/figure`).

    Runs that differ in their seed alone are one method: its difference is that of means over the seeds that it has in
    common with the first run's, and each of its runs has it. Runs that were evaluated on other lists or on other folds
    of them, or that kept no evidence, have no entry, and no run that differs from the first in its seed alone.
    """
    first, points = runs[0], dict[tuple[Path, str], tuple[float, float, float, int]]()
    configs = {run: {k: v for k, v in read(run).config.items() if k != "name"} for run in runs}
    seeds = {run: whole_number(config.pop("seed", None)) or 0 for run, config in configs.items()}
    evidence = {run: read_evidence(run) for run in runs}

    def alike(run: Path) -> list[Path]:
        return [other for other in runs if configs[other] == configs[run]]

    bootstraps: dict[str, dict[str, Bootstrap]] = {}  # list -> each that a seed of the first run's has by this name
    for run in alike(first):
        for name, identities in read_lists(run / "judged"):
            by_sha256 = bootstraps.setdefault(name, {})
            by_sha256.setdefault(identities.sha256, bootstrap_of(identities))
    for name, by_sha256 in bootstraps.items():
        drawn = {
            run: merged(
                resampled(evidence[run].get(name, ()), bootstrap, seeds[run]) for bootstrap in by_sha256.values()
            )
            for run in runs
        }
        for run in runs[1:]:
            if configs[run] != configs[first]:
                sides = alike(run), alike(first)
            elif seeds[run] == seeds[first]:
                sides = [run], [first]
            else:
                continue
            for figure, paired in differences(*(merged(drawn[run] for run in side) for side in sides)).items():
                points[run, f"{name}/{figure}"] = *paired.in_unit, paired.seeds
    return points


def left_out(runs: Sequence[Path]) -> list[str]:
    """Why figures of the runs have no interval: a sentence for each list and reason."""
    reasons: list[str] = []
    for run in runs:
        for name, models in read_evidence(run).items():
            own = {figure: drawn for model in models for figure, drawn in model.get("own", {}).items()}
            for figure in (figure for figure, drawn in own.items() if drawn is None):
                reasons.append(f"{name}: {figure} has no interval, since the list has more than {MOST_PAIRS:,} pairs")
            if any(model.get("form") == "tail-1" for model in models):
                reasons.append(f"{name}: {TAIL}")
    return list(dict.fromkeys(reasons))


def resampled(models: Sequence[Mapping[str, Any]], bootstrap: Bootstrap, seed: int) -> dict[str, list[Resampled]]:
    """Figure -> each model's values in every draw; evidence of another list is passed over."""
    by_figure: dict[str, list[Resampled]] = {}
    for evidence in models:
        if evidence.get("list") == bootstrap.pairs.sha256:
            for figure, values in resample(dict(evidence), bootstrap, seed).items():
                by_figure.setdefault(figure, []).append(values)
    return by_figure


def merged(several: Iterable[Mapping[str, Sequence[Resampled]]]) -> dict[str, list[Resampled]]:
    """The figures of several runs together, run by run."""
    together: dict[str, list[Resampled]] = {}
    for drawn in several:
        for figure, values in drawn.items():
            together.setdefault(figure, []).extend(values)
    return together


def differences(
    first: Mapping[str, Sequence[Resampled]], second: Mapping[str, Sequence[Resampled]]
) -> dict[str, PairedDifference]:
    """First less second by figure, over the seeds that both have, of those evaluated on the same folds of the lists."""
    shared = {figure: of_shared_seeds(first[figure], second[figure]) for figure in first if figure in second}
    return {figure: compare(*sides) for figure, sides in shared.items() if same_pairs(*sides)}


def read_evidence(run: Path) -> dict[str, Any]:
    """What a run keeps of its figures by list; nothing where it has none. Raises DataError for what is damaged."""
    if not (path := run / "evidence.json").exists() or not (run / "summary.json").exists():  # it has no figures
        return {}
    kept = read_json(path, "evaluate the run again")
    if not all(isinstance(models, list) and all(map(_is_evidence, models)) for models in kept.values()):
        raise DataError("damaged (not a list of evidence for each list): evaluate the run again", where=path)
    return kept


def _is_evidence(model: Any) -> bool:
    return isinstance(model, dict) and isinstance(model.get("own", {}), dict)
