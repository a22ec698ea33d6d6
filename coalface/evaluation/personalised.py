"""How well a run serves each client's own people, by test images that were kept out of training.

Each client is evaluated on the test images of all clients by the model that everybody has, by its own backbone, and by
its own backbone with its branch, as far as the run left them. A pooled run has the clients of the recipe's partition.
Where BatchNorm keeps a part of it at the clients, everybody's model is at each as it is there. A run that leaves one
model per party and no personal ones beside them, as `solo` does, has these as the clients' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from coalface.core.local_results import OWN_MODEL, PERSONAL_MODEL
from coalface.core.method import Models, Tensors
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.base import Evaluator
from coalface.evaluation.figures import SERVED_BY
from coalface.evaluation.metrics.personalised import Personalised as Figures
from coalface.evaluation.metrics.personalised import evaluate_client, gallery_of, over_clients

START, SHARED, OWN, BRANCH = SERVED_BY
"""The model before the run; everybody's Θ_g; a client's own backbone Θ_l; its features by its branch too, Π(Θ_l)."""
KINDS = (SHARED, OWN, BRANCH)


def tested(clients: Mapping[str, FaceSet], test: FaceSet) -> list[str]:
    """The clients that have test images, sorted: those that are evaluated. It takes two of them at least."""
    people = {test.names[label] for label in np.unique(test.labels)}
    return [name for name in sorted(clients) if people.intersection(clients[name].names)]


class Personalised(Evaluator):
    """Evaluates each client's own models, and everybody's, on the `test` images of all clients.

    `clients` are their training images by name; test images are told apart by the names of identities. `settings` are
    those of `evaluate_client`. All images are embedded unaugmented.
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
        """Keep the model that the run starts from: clients are evaluated by it as well."""
        self.start = model
        return {}

    def evaluate(self, server: Server, models: Models) -> dict[str, Any]:
        """The figures of every kind of model, mean and by client, under `personalised`."""
        by_kind: dict[str, dict[str, Figures]] = {}
        for kind, model in ((START, self.start), (SHARED, models.shared)):
            if model is not None:
                probes = self._probes(model)
                by_kind[kind] = {name: self._evaluate(name, probes, self._own(name)) for name in self.tested}
        for kind, name, model in _at_clients(server, models):
            if model and name in self.tested:
                probes, own_images = self._probes(model), self._own(name)
                by_kind.setdefault(kind, {})[name] = self._evaluate(name, probes, own_images)
                if "branch.weight" in model:
                    branch = model["branch.weight"].cpu(), model["branch.bias"].cpu()
                    mapped = self._evaluate(name, F.linear(probes, *branch), F.linear(own_images, *branch))
                    by_kind.setdefault(BRANCH, {})[name] = mapped
        return {"personalised": _summary(by_kind)}

    def _probes(self, model: Tensors) -> Tensor:
        """All test images by a model, which stays loaded."""
        embedding.load(self.data.backbone, model)
        return embedding.embeddings(self.data, self.test)

    def _own(self, name: str) -> Tensor:
        """A client's training images by the model that is loaded."""
        return embedding.embeddings(self.data, self.clients[name])

    def _evaluate(self, name: str, probes: Tensor, own_images: Tensor) -> Figures:
        """A client by some features of all test images, and of its own images, whose means are its gallery."""
        number = {identity: place for place, identity in enumerate(self.test.names)}
        labels = np.array([number[identity] for identity in self.clients[name].names], dtype=np.int64)
        unit = self.settings.get("one_to_many") != "official"
        gallery, identities = gallery_of(embedding.unit(own_images), labels[self.clients[name].labels], unit=unit)
        client = self.names.index(name)
        return evaluate_client(
            embedding.unit(probes), self.test.labels, self.owners, client, gallery, identities, **self.settings
        )


def _at_clients(server: Server, models: Models) -> Iterator[tuple[str, str, Tensors]]:
    """(kind, client, model) of the models that are the clients' own, or differ from client to client."""
    kind = OWN
    for name, model in server.local_results(PERSONAL_MODEL, models):
        kind = SHARED  # beside a personal model, a party's whole backbone is everybody's as it is there
        yield OWN, name, model
    if models.shared is None:
        for name, model in server.local_results(OWN_MODEL, models):
            yield kind, name, model


def _summary(by_kind: Mapping[str, Mapping[str, Figures]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"clients": {}}
    for kind, by_client in by_kind.items():
        summary[kind], carried = over_clients(list(by_client.values()))
        summary.setdefault("trials", {})[kind] = {"clients": len(by_client), "carried": carried}
        for name, client in by_client.items():
            summary["clients"].setdefault(name, {})[kind] = client.figures()
            counts = {"genuine": client.genuine, "impostors": client.impostors}
            counts |= {"mated": client.mated, "non-mated": client.non_mated}
            summary.setdefault("counts", {})[name] = counts
    return summary


def by_kind(personalised: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kind of model -> figure -> percent, the mean over clients, of what `Personalised` gave."""
    return {kind: personalised[kind] for kind in SERVED_BY if kind in personalised}
