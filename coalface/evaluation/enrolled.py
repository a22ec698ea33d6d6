"""Verification of a run's own clients by images that were kept out of training (`data.test`): as the lab evaluates it.

A template is enrolled for every identity that was trained on. Its own test images are its genuine trials, those of all
others its impostor trials. Parties that verify in a way of their own (`OWN_SCORES`) do so at their executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from coalface.core.local_results import OWN_SCORES, Probes
from coalface.core.method import Models
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.base import Evaluator
from coalface.evaluation.figures import ENROLLED_BY
from coalface.evaluation.metrics.enrolled import Verified, cosine_scores, templates, verify

FEATURES, OWN = ENROLLED_BY
"""What is verified by: the cosine to a template, and what parties score by themselves; only FedUV's do."""


class Enrolled(Evaluator):
    """Verifies a run's own clients by their `test` images; `train` numbers the identities alike.

    All images are embedded once, as at the parties: unaugmented, and without the flip option of verification.
    """

    missing = "data.test: without a shared model nobody is verified on test images"

    def __init__(self, data: FederatedData, train: FaceSet, test: FaceSet) -> None:
        self.data, self.train, self.test = data, train, test

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """The figures of the clients, under `enrolled`; {} without a shared model."""
        if models.shared is None:
            return {}
        embedding.load(self.data.backbone, models.shared)
        clients = np.flatnonzero(self.train.counts())
        place = np.full(len(self.train.names), -1, dtype=np.int64)
        place[clients] = np.arange(len(clients))
        training, probes = embedding.embeddings(self.data, self.train), embedding.embeddings(self.data, self.test)
        enrolled = templates(embedding.unit(training), place[self.train.labels], len(clients))
        by_features = verify(cosine_scores(enrolled, embedding.unit(probes)), clients, self.test.labels)
        figures: dict[str, Any] = {FEATURES: by_features.figures()}
        about = {"clients": len(clients), "trials": _trials(by_features)}
        if server.method.local_step(OWN_SCORES) is not None:
            by_parties, absent = self._by_parties(server, models, probes)
            about["never enrolled"] = absent
            if by_parties is not None:
                figures[OWN] = by_parties.figures()
                about[f"trials of {OWN}"] = _trials(by_parties)
        return {"enrolled": figures | about}

    def _by_parties(self, server: Server, models: Models, probes: Tensor) -> tuple[Verified | None, int]:
        """What parties of one identity each say by themselves, and how many have never enrolled; these are left out."""
        places = {name: place for place, name in enumerate(self.train.names)}
        absent, clients, rows, thresholds = 0, list[int](), [], []
        for party, results in server.local_results(OWN_SCORES, models, Probes(embeddings=probes)):
            if "scores" not in results:
                absent += 1
                continue
            names, shape = self.data.data[party].names, tuple(results["scores"].shape)
            if len(names) != 1 or shape != (len(self.test),):
                raise ValueError(
                    f"{party}: a party that verifies by itself has one identity and a score for each probe; it has "
                    f"{len(names)} identities, and scores {shape} of {len(self.test)} probes"
                )
            clients.append(places[names[0]])
            rows.append(results["scores"].double().numpy())
            thresholds.append(float(results["threshold"]) if "threshold" in results else np.nan)
        whose = np.array(clients, dtype=np.int64)
        genuine = whose[:, None] == self.test.labels[None]
        if not genuine.any() or genuine.all():  # too few have enrolled for trials of both kinds
            return None, absent
        return verify(np.stack(rows), whose, self.test.labels, np.array(thresholds)), absent


def by_kind(enrolled: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kind of verification -> figure -> percent, of what `Enrolled` gave."""
    return {kind: figures for kind, figures in enrolled.items() if kind in ENROLLED_BY}


def _trials(verified: Verified) -> dict[str, int]:
    return {"genuine": verified.genuine, "impostor": verified.impostors}
