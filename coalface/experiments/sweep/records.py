"""The numbers of a sweep as one long table: a record for every number of every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coalface.evaluation import clustering, enrolled, personalised
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.long_table import Record, mean_and_spread, records_of
from coalface.experiments.report.runs import flat_figures, gaps

Line = Mapping[str, Any]
"""A finished cell, as a line of `cells.jsonl` has it."""
Groups = Mapping[str, Sequence[Line]]
"""Setting -> its finished cells, one for each seed and half of the folds."""
PEOPLE = (
    "faces min_images max_images exclude exclude_people max_identities private hold_out rehearsal scenario "
    "partition test"
).split()
"""Keys of `data` that decide who a run's clients are."""


def records(groups: Groups, domains: Mapping[str, str]) -> dict[str, list[Record]]:
    """Subject -> records. `domains` says of pair lists which domain they are of."""
    table: dict[str, list[Record]] = {}
    for setting, group in groups.items():
        for line in group:
            for subject, by, figures in _numbers(line, domains):
                table.setdefault(subject, []).extend(records_of(setting, figures, by, line["seed"]))
    return table


def _numbers(line: Line, domains: Mapping[str, str]) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """(subject, what it is of, figures) of what a run has left."""
    figures = flat_figures(line.get("figures"))
    yield "figures", "", figures
    yield "gap", "", gaps(figures, domains)
    yield "clusters", "", clustering.mean(line.get("clusters", {}))
    for kind, of_kind in enrolled.by_kind(line.get("enrolled", {})).items():
        yield "enrolled", kind, of_kind
    for kind, of_kind in personalised.by_kind(line.get("personalised", {})).items():
        yield "personalised", kind, of_kind
    yield "public images", "", shares(line.get("public_images"))
    if embeddings := line.get("class_embeddings"):
        percentiles = {f"percentile {q}": cosine for q, cosine in embeddings.get("percentiles", {}).items()}
        yield "class embeddings", "", {"mean": embeddings["mean"], **percentiles}
    yield "losses", "", line.get("losses", {})


def means_of(group: Sequence[Line], of: str, metrics: Sequence[str]) -> list[str]:
    """A cell for each figure of a group of runs, of what it starts from (`untrained`) or of what it leaves."""
    all_records = [record for line in group for record in records_of("", flat_figures(line[of]), seed=line["seed"])]
    by_metric = {name: [record for record in all_records if record.metric == name] for name in metrics}
    return [mean_and_spread(name, of_metric) if of_metric else "" for name, of_metric in by_metric.items()]


def work_of(group: Sequence[Line]) -> tuple[float, ...]:
    """Local steps, and images that they saw, of all trainers of a run: mean over runs; empty where a cell lacks it."""
    if not group or not all("trained" in line for line in group):
        return ()
    return tuple(float(np.mean([line["trained"][of] for line in group])) for of in ("steps", "images"))


def shares(public: Mapping[str, Any] | None) -> dict[str, float]:
    """Percent of the public images that clients trained on: mean over clients, by what a cell keeps of its run."""
    if not public or not any(public["used"].values()):
        return {}
    percents = [100 * np.array(rounds) / public["held"] for rounds in public["used"].values() if rounds]
    return {
        "first round": float(np.mean([share[0] for share in percents])),
        "last round": float(np.mean([share[-1] for share in percents])),
        "all rounds": float(np.mean([share.mean() for share in percents])),
    }


def clients_of(recipe: Recipe) -> str:
    """What decides who a run's clients are, and how well they are served is evaluated by."""
    data, evaluation = recipe.data.model_dump(mode="json"), recipe.evaluation.model_dump(mode="json")
    public = recipe.side == "public"  # other people altogether; a method that pools both sides has the same clients
    return json.dumps([{key: data.get(key) for key in PEOPLE}, evaluation["personalised"], public], sort_keys=True)
