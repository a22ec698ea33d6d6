"""Paired differences between finished runs, from the evidence that they left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core.method import generator
from coalface.evaluation.metrics.bootstrap import Bootstrap, PairIdentities, draw_identities
from coalface.evaluation.metrics.paired import PairedDifference, Resampled, compare, resample, same_pairs
from coalface.evaluation.verification import read_lists
from coalface.experiments.report.runs import check

DRAWS = 2000

TAIL = "EER has no interval, since of so many impostors only the best are kept, and it lies below them"
EARLY = (
    "TAR and EER have no interval, since {run} was evaluated before these had evidence; `coalface resume RUN` "
    "evaluates a finished run again"
)

Evidence = Mapping[str, Sequence[Mapping[str, Any]]]
"""List name -> model by model, as a run keeps it."""


def intervals(runs: Sequence[Path]) -> dict[tuple[Path, str], tuple[float, float, float]]:
    """Difference to the first run and its 95 % interval, in percent points, by (run, `list/figure`).

    Runs that were evaluated on other lists or on other folds of them, or that kept no evidence, have no entry.
    """
    first, found = runs[0], {}
    evidence = {run: _evidence(run) for run in runs}
    for name, identities in read_lists(first / "judged"):
        bootstrap = bootstrap_of(identities)
        drawn = {run: resampled(evidence[run].get(name, ()), bootstrap) for run in runs}
        for run in runs[1:]:
            for figure in drawn[run].keys() & drawn[first].keys():
                if not same_pairs(drawn[run][figure], drawn[first][figure]):
                    continue
                paired = compare(drawn[run][figure], drawn[first][figure]).figures()
                numbers = (paired["difference"], paired["low"], paired["high"])
                found[run, f"{name}/{figure}"] = tuple(float(n) for n in numbers if isinstance(n, float | int))
    return {key: (d, low, high) for key, (d, low, high) in found.items()}


def left_out(runs: Sequence[Path]) -> list[str]:
    """Why figures of the runs have no interval: a sentence for each list and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for name, models in _evidence(run).items():
            forms = [(str(model.get("form")), "fars" in model) for model in models]
            if any(form == "tail-1" for form, _ in forms):
                reasons[name, TAIL] = []
            elif not all(fars for _, fars in forms):
                reasons.setdefault((name, EARLY), []).append(str(run))
    return [f"{name}: {reason.format(run=' and '.join(those))}" for (name, reason), those in reasons.items()]


def bootstrap_of(identities: PairIdentities) -> Bootstrap:
    """The draws of a list, the same for whoever compares on it."""
    return draw_identities(identities, generator(2048, "bootstrap", identities.sha256), DRAWS)


def resampled(models: Sequence[Mapping[str, Any]], bootstrap: Bootstrap) -> dict[str, list[Resampled]]:
    """Figure -> each model's values in every draw; evidence of another list is passed over."""
    found: dict[str, list[Resampled]] = {}
    for evidence in models:
        if evidence["list"] == bootstrap.pairs.sha256:
            for figure, values in resample(dict(evidence), bootstrap).items():
                found.setdefault(figure, []).append(values)
    return found


def paired(
    first: Sequence[Sequence[Mapping[str, Any]]], second: Sequence[Sequence[Mapping[str, Any]]], bootstrap: Bootstrap
) -> dict[str, PairedDifference]:
    """First less second by figure; each side is given by its runs over the seeds, each run by its models.

    Nothing where the sides were evaluated on other folds of the list.
    """
    sides = [resampled([e for run in side for e in run], bootstrap) for side in (first, second)]
    shared = [f for f in sides[0] if f in sides[1] and same_pairs(sides[0][f], sides[1][f])]
    return {figure: compare(sides[0][figure], sides[1][figure]) for figure in shared}


def _evidence(run: Path) -> dict[str, Any]:
    path = run / "evidence.json"
    check(run)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
