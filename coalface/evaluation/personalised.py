"""How well a run serves each client's own people, by test images that were kept out of training: the lab's judge of it.

Each client is judged on the test images of all clients by the model that everybody has, by its own backbone, and by its
own backbone with its branch, as far as the run left them. A pooled run's clients are those of the recipe's partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from coalface.core.local_results import PERSONAL_MODEL
from coalface.core.method import Models, Tensors
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.base import Evaluator
from coalface.evaluation.kinds import SERVED_BY
from coalface.evaluation.metrics.personalised import Personalised as Judged
from coalface.evaluation.metrics.personalised import gallery_of, judge_client, over_clients

START, SHARED, OWN, BRANCH = SERVED_BY
"""The model before the run; everybody's Θ_g; a client's own backbone Θ_l; its features by its branch too, Π(Θ_l)."""
KINDS = (SHARED, OWN, BRANCH)


def tested(clients: Mapping[str, FaceSet], test: FaceSet) -> list[str]:
    """The clients that have test images, sorted: those that are judged. It takes two of them at least."""
    shown = {test.names[label] for label in np.unique(test.labels)}
    return [name for name in sorted(clients) if shown.intersection(clients[name].names)]


class Personalised(Evaluator):
    """Judges each client's own models, and everybody's, on the `test` images of all clients.

    `clients` are their training images by name; test images are told apart by the names of identities. `settings` are
    those of `judge_client`. All images are embedded unaugmented.
    """

    def __init__(self, data: FederatedData, clients: Mapping[str, FaceSet], test: FaceSet, **settings: Any) -> None:
        self.data, self.clients, self.settings = data, clients, settings
        self.names = sorted(clients)
        owner = {identity: n for n, name in enumerate(self.names) for identity in clients[name].names}
        self.test = test.select(np.flatnonzero([test.names[label] in owner for label in test.labels]))
        self.owners = np.array([owner[test.names[label]] for label in self.test.labels], dtype=np.int64)
        self.tested = tested(clients, self.test)
        self.start: Tensors | None = None

    def evaluate_start(self, model: Tensors) -> dict[str, Any]:
        """Keep the model that the run starts from: clients are judged by it as well."""
        self.start = model
        return {}

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """The figures of every kind of model, mean and by client, under `personalised`."""
        judged: dict[str, dict[str, Judged]] = {}
        for kind, model in ((START, self.start), (SHARED, models.shared)):
            if model is not None:
                embedding.load(self.data, model)
                probes = embedding.embeddings(self.data, self.test)
                for name in self.tested:
                    own = embedding.embeddings(self.data, self.clients[name])
                    judged.setdefault(kind, {})[name] = self._judge(name, probes, own)
        for name, model in server.local_results(PERSONAL_MODEL, models):
            if model and name in self.tested:
                embedding.load(self.data, model)
                probes = embedding.embeddings(self.data, self.test)
                own = embedding.embeddings(self.data, self.clients[name])
                judged.setdefault(OWN, {})[name] = self._judge(name, probes, own)
                if "branch.weight" in model:
                    branch = model["branch.weight"].cpu(), model["branch.bias"].cpu()
                    mapped = self._judge(name, F.linear(probes, *branch), F.linear(own, *branch))
                    judged.setdefault(BRANCH, {})[name] = mapped
        return {"personalised": _summary(judged)}

    def _judge(self, name: str, probes: Tensor, own: Tensor) -> Judged:
        """A client by some features of all test images, and of its own images, whose means are its gallery."""
        number = {identity: place for place, identity in enumerate(self.test.names)}
        labels = np.array([number[identity] for identity in self.clients[name].names], dtype=np.int64)
        gallery, identities = gallery_of(embedding.unit(own), labels[self.clients[name].labels])
        place = self.names.index(name)
        return judge_client(
            embedding.unit(probes), self.test.labels, self.owners, place, gallery, identities, **self.settings
        )


def _summary(judged: Mapping[str, Mapping[str, Judged]]) -> dict[str, Any]:
    found: dict[str, Any] = {"clients": {}}
    for kind, each in judged.items():
        found[kind] = (over := over_clients(list(each.values()))).figures()
        found.setdefault("trials", {})[kind] = {"clients": over.clients, "carried": over.carried}
        for name, one in each.items():
            found["clients"].setdefault(name, {})[kind] = one.figures()
            counts = {"genuine": one.genuine, "impostors": one.impostors}
            counts |= {"mated": one.mated, "non-mated": one.non_mated}
            found.setdefault("counts", {})[name] = counts
    return found


def by_kind(personalised: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kind of model -> figure -> percent, the mean over clients, of what `Personalised` gave."""
    return {kind: personalised[kind] for kind in SERVED_BY if kind in personalised}
