"""Verification of a run's own clients by images that were kept out of training (`data.test`): the lab's judge of it.

A template is enrolled for every identity that was trained on. Its own test images are its genuine trials, those of all
others its impostor trials. Parties that verify in a way of their own (`Models.verify`) do so at their executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from coalface.core.method import Models
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.kinds import ENROLLED_BY
from coalface.evaluation.metrics.enrolled import Verified, cosine_scores, templates, verify

FEATURES, OWN = ENROLLED_BY
"""What is verified by: the cosine to a template, and what parties score by themselves; only FedUV's do."""


def judge(server: Server, models: Models, here: FederatedData, train: FaceSet, test: FaceSet) -> dict[str, Any]:
    """The figures of a run's clients, as `summary.json` has them below `enrolled`; {} without a shared model.

    `train` and `test` number the identities alike. All images are embedded once, as at the parties: unaugmented, and
    without the flip option of the judge.
    """
    if models.shared is None:
        return {}
    embedding.load(here, models.shared)
    clients = np.flatnonzero(train.counts())
    place = np.full(len(train.names), -1, dtype=np.int64)
    place[clients] = np.arange(len(clients))
    own, probes = embedding.embeddings(here, train), embedding.embeddings(here, test)
    enrolled = templates(embedding.unit(own), place[train.labels], len(clients))
    by_features = verify(cosine_scores(enrolled, embedding.unit(probes)), clients, test.labels)
    found: dict[str, Any] = {FEATURES: by_features.figures()}
    about = {"clients": len(clients), "trials": _trials(by_features)}
    if models.verify is not None:
        mine, absent = _by_parties(server, models, here, probes, train, test)
        about["never enrolled"] = absent
        if mine is not None:
            found[OWN] = mine.figures()
            about[f"trials of {OWN}"] = _trials(mine)
    return found | about


def by_kind(enrolled: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kind of verification -> figure -> percent, of what `judge` gave."""
    return {kind: each for kind, each in enrolled.items() if kind in ENROLLED_BY}


def _by_parties(
    server: Server, models: Models, here: FederatedData, probes: Tensor, train: FaceSet, test: FaceSet
) -> tuple[Verified | None, int]:
    """What parties of one identity each say by themselves, and how many have never enrolled; these are left out."""
    places = {name: place for place, name in enumerate(train.names)}
    absent, clients, rows, thresholds = 0, list[int](), [], []
    for party, said in server.verified(models, probes):
        if "scores" not in said:
            absent += 1
            continue
        names, shape = here.data[party].names, tuple(said["scores"].shape)
        if len(names) != 1 or shape != (len(test),):
            raise ValueError(
                f"{party}: a party that verifies by itself has one identity and a score for each probe; it has "
                f"{len(names)} identities, and scores {shape} of {len(test)} probes"
            )
        clients.append(places[names[0]])
        rows.append(said["scores"].double().numpy())
        thresholds.append(float(said["threshold"]) if "threshold" in said else np.nan)
    whose = np.array(clients, dtype=np.int64)
    same = whose[:, None] == test.labels[None]
    if not same.any() or same.all():  # too few have enrolled for trials of both kinds
        return None, absent
    return verify(np.stack(rows), whose, test.labels, np.array(thresholds)), absent


def _trials(found: Verified) -> dict[str, int]:
    return {"genuine": found.genuine, "impostor": found.impostors}
