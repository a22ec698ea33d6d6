"""The summary of a run: `summary.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coalface.core.local_results import CLASS_EMBEDDINGS
from coalface.core.method import Method, Models
from coalface.core.steps import plays
from coalface.core.text import natural
from coalface.data.faceset import FaceSet
from coalface.engine.client_batch import CLIENT_BATCHES
from coalface.engine.server import READ, Server
from coalface.engine.transport import Member
from coalface.evaluation import enrolled, personalised
from coalface.experiments.environment import environment
from coalface.experiments.plan import messages
from coalface.experiments.prepare import PreparedRun
from coalface.experiments.report import runs
from coalface.privacy import ledger
from coalface.training.local_work import LocalTraining, WorksByRound
from coalface.training.losses.spreadout import cosine_histogram, mean_cosine


def of_run(run: PreparedRun, server: Server, models: Models, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was, who took part, what was sent, and what the evaluators have added."""
    recipe, method, members = run.recipe, run.method, server.transport.members
    by_party = evaluated.get("judged", {})
    parties = [
        {"name": name, **_numbers(members[name]), **vars(stats), "judged": by_party.get(name)}
        for name, stats in server.at.party_stats.items()
    ]
    about: dict[str, Any] = {
        "name": recipe.name,
        "method": recipe.method,
        "setting": method.setting,
        "pooled": bool(method.pools),
        "seed": recipe.seed,
        "rounds": len(runs.read_metrics(server.folder)),
        "parties": parties,
        "holdings": holdings(run.data.data, members),
        "bytes": {name: count for name, count in server.at.totals.items() if count or name in ("down", "up")},
        "numerics": server.numerics.record(),
        "messages": messages.as_dicts(run.plan.sent),
        "stays": list(run.plan.stays),
        "environment": environment(recipe),
    }
    if server.private is not None:
        about["privacy"] = server.private.summary() | ({"ended": server.ended} if server.ended else {})
    if server.templates is not None:
        about["templates"] = server.templates.summary() | ({"ended": server.ended} if server.ended else {})
    if run.weights_steps:
        about["weights"] = {"sha256": recipe.model.sha256, "steps": list(run.weights_steps)}
    if rows := _class_embeddings(server, models):
        about["class_embeddings"] = class_embeddings(torch.cat(rows))
    about |= {key: value for key, value in evaluated.items() if key != "judged"}
    work = trained(method, about, runs.read_metrics(server.folder))
    return about if work is None else about | {"trained": work}


def _class_embeddings(server: Server, models: Models) -> list[torch.Tensor]:
    """Those that the server knows, or that the party knows to which all images were pooled."""
    if models.class_embeddings:
        return list(models.class_embeddings.values())
    return [told["class_embeddings"] for _, told in server.local_results(CLASS_EMBEDDINGS, models) if told]


MOST_ROWS, MOST_COLUMNS = 30, 120
"""Of the record of who holds what: of more parties or identities, several are one row or one column."""


def holdings(faces: Mapping[str, FaceSet], members: Mapping[str, Member]) -> dict[str, Any]:
    """Who holds what: images by party and identity, as a matrix with at most `MOST_ROWS` × `MOST_COLUMNS` entries.

    Identities are numbered by the party that has most of their images, and those of a party by how many it has. They
    are not named. A row is a party, or the first and the last of several. Empty where a party's images are not known
    here, or where one party has them all.
    """
    if len(faces) < 2 or any(len(faces[name]) != members[name].images for name in faces):
        return {}
    parties = sorted(faces, key=natural)
    held: dict[str, dict[int, int]] = {}  # identity -> party -> images
    for place, name in enumerate(parties):
        for identity, count in zip(faces[name].names, faces[name].counts().tolist(), strict=True):
            if count:
                held.setdefault(identity, {})[place] = count
    if not held:
        return {}
    owners = {identity: max(by_party, key=lambda p: (by_party[p], -p)) for identity, by_party in held.items()}
    order = sorted(held, key=lambda identity: (owners[identity], -held[identity][owners[identity]], identity))
    high, wide = math.ceil(len(parties) / MOST_ROWS), math.ceil(len(order) / MOST_COLUMNS)
    cells: dict[tuple[int, int], int] = {}
    for column, identity in enumerate(order):
        for place, count in held[identity].items():
            cell = place // high, column // wide
            cells[cell] = cells.get(cell, 0) + count
    groups = [parties[first : first + high] for first in range(0, len(parties), high)]
    images = sorted(sum(by_party.values()) for by_party in held.values())
    return {
        "identities": len(order),
        "shared": sum(len(by_party) > 1 for by_party in held.values()),
        "images": [images[0], images[len(images) // 2], images[-1]],
        "parties": [list(dict.fromkeys([group[0], group[-1]])) for group in groups],
        "identities_per_column": wide,
        "cells": [[*cell, count] for cell, count in sorted(cells.items())],
    }


def trained(method: Method, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Local `steps` and `images` seen, of all trainers together, a pre-training apart; None where nothing tells.

    A method whose rounds are alike has them from the rounds of each party. One that says what a round is
    (`WorksByRound`) has them round by round; where it asks some parties a round, if such rounds are alike.
    """
    local = getattr(method, "local", None)
    trainers = [party for party in summary["parties"] if plays(party["role"], "trainer")]
    if any(party["images"] is None for party in trainers):  # hidden in secure sums
        return None
    used = summary.get("public_images", {}).get("used", {})
    rounds = [record for record in records if not record["abandoned"]]
    pairs: list[tuple[int, int] | None] = []
    if isinstance(method, WorksByRound):
        is_sampled = getattr(method, "sample", None) is not None
        if any(record["failed"] for record in rounds) or (is_sampled and used):
            return None
        active = sum(bool(party["rounds"]) for party in summary["parties"])
        for party in trainers:
            more = used.get(party["name"], [0] * len(rounds))
            works = [
                method.round_work(
                    record["stage"], record["round"], party["role"], party["name"], party["images"] + more[place]
                )
                for place, record in enumerate(rounds)
            ]
            if is_sampled:
                works = _works_of_sampled(works, [record["arrived"] < active for record in rounds], party["rounds"])
            pairs += works
    elif isinstance(local, LocalTraining) and type(method).stages is Method.stages:
        for party in trainers:
            steps, images = local.work(party["name"], party["images"])
            pairs.append((party["rounds"] * steps, party["rounds"] * images))
    if not pairs or None in pairs:
        return None
    steps_of, images_of = zip(*filter(None, pairs), strict=True)
    return {"steps": sum(steps_of), "images": sum(images_of)}


def _works_of_sampled(
    works: Sequence[tuple[int, int] | None], is_of_some: Sequence[bool], asked: int
) -> list[tuple[int, int] | None]:
    """Of what each round would be to a party, what `asked` rounds were: all rounds that were not of some parties alone.

    Which of some it was in nobody has written down, so these must be alike; else [None].
    """
    of_all = [work for work, of_some in zip(works, is_of_some, strict=True) if not of_some]
    kinds = {work for work, of_some in zip(works, is_of_some, strict=True) if of_some}
    if not asked:
        return []
    return [*of_all, *list(kinds) * (asked - len(of_all))] if len(kinds) < 2 else [None]


def _numbers(member: Member) -> dict[str, Any]:
    """What is known of a party: under secure sums not how much it has."""
    return vars(member) if member.images else vars(member) | {"images": None, "identities": None}


def headlines(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The figures that a run ends with, by what was evaluated."""
    clients = enrolled.by_kind(summary.get("enrolled", {}))
    served = personalised.by_kind(summary.get("personalised", {}))
    return {
        **summary["figures"],
        **{f"enrolled by {kind}": figures for kind, figures in clients.items()},
        **{f"personalised {kind}": figures for kind, figures in served.items()},
    }


MOST_CLASS_EMBEDDINGS = 20_000
"""Of more, the first: the time for all pairs grows with the square of their number."""


def class_embeddings(rows: torch.Tensor) -> dict[str, Any]:
    """How close class embeddings are to each other: cosines of all their pairs, percentiles to 0.01."""
    if len(rows) < 2:
        return {}
    rows = rows[:MOST_CLASS_EMBEDDINGS]
    histogram = cosine_histogram(rows)
    up_to, centres = histogram.pairs.cumsum(), (histogram.edges[:-1] + histogram.edges[1:]) / 2
    percentiles = {str(q): float(centres[np.searchsorted(up_to, q / 100 * up_to[-1])]) for q in (5, 25, 50, 75, 95)}
    about = {"count": len(rows), "mean": mean_cosine(rows), "percentiles": percentiles}
    return about | {"edges": histogram.edges.tolist(), "pairs": histogram.pairs.tolist()}


def ledgers(out: Path, server: Server, faults: dict[str, str]) -> dict[str, Any]:
    """What the ledgers say, of the first parties line by line: how much left, as which tensors, and their heads.

    `faults` says of parties what is wrong with their ledgers; these are left out.
    """
    parties, lines, heads, total = list(server.at.party_stats), 0, {}, 0
    distinct: dict[tuple[Any, ...], int] = {}
    for place, party in enumerate([CLIENT_BATCHES, *parties]):
        path = out / f"{CLIENT_BATCHES}.jsonl" if place == 0 else out / "ledger" / f"{party}.jsonl"
        if party in faults:
            continue
        head = ledger.read_head(path)
        lines += head.lines
        if head.lines:
            heads[party] = head.chain
        if place <= READ and path.exists():
            with open(path, encoding="utf-8") as file:
                for text in file:
                    line, count = json.loads(text), 1
                    total += line["bytes"]
                    if place == 0:  # of so many parties at once; their headers differ by a few bytes
                        count = line["parties"]
                    key = (line["name"], line["kind"], tuple(line["shape"]), line["dtype"], line["bytes"] // count)
                    distinct[key] = distinct.get(key, 0) + count
    names = ("name", "kind", "shape", "dtype", "bytes")
    tensors = [{**dict(zip(names, key, strict=True)), "count": count} for key, count in distinct.items()]
    checked = {"heads": len(parties), "whole": min(READ, len(parties)), "faults": faults}
    return {"lines": lines, "bytes": total, "tensors": tensors, "head": heads, "checked": checked}
