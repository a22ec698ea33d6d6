"""How well a run serves each client's own people, by test images that were kept out of training: the lab's judge of it.

Each client is judged on the test images of all clients by the model that everybody has, by its own backbone, and by its
own backbone with its branch, as far as the run left them. A pooled run's clients are those of the recipe's partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from coalface.core.method import Models, Tensors
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.server import Server
from coalface.evaluation import embedding
from coalface.evaluation.kinds import SERVED_BY
from coalface.evaluation.metrics.personalised import OneToMany, OneToOne, gallery_of, judge_client, over_clients
from coalface.evaluation.metrics.personalised import Personalised as Judged

START, SHARED, OWN, BRANCH = SERVED_BY
"""The model before the run; everybody's Θ_g; a client's own backbone Θ_l; its features by its branch too, Π(Θ_l)."""
KINDS = (SHARED, OWN, BRANCH)


def tested(clients: Mapping[str, FaceSet], test: FaceSet) -> list[str]:
    """The clients that have test images, sorted: those that `judge` judges. It takes two of them at least."""
    shown = {test.names[label] for label in np.unique(test.labels)}
    return [name for name in sorted(clients) if shown.intersection(clients[name].names)]


def judge(
    server: Server,
    models: Models,
    here: FederatedData,
    clients: Mapping[str, FaceSet],
    test: FaceSet,
    start: Tensors,
    *,
    fars: Sequence[float],
    fpirs: Sequence[float],
    one_to_one: OneToOne,
    one_to_many: OneToMany,
) -> dict[str, Any]:
    """What `summary.json` has below `personalised`.

    `clients` are their training images by name, `test` everybody's test images, told apart by the names of identities;
    `start` is the model that the run began with; the others are those of `judge_client`. All images are embedded
    unaugmented.
    """
    names = sorted(clients)
    whose = {identity: n for n, name in enumerate(names) for identity in clients[name].names}
    kept = np.flatnonzero([test.names[label] in whose for label in test.labels])
    test = test.select(kept)
    client = np.array([whose[test.names[label]] for label in test.labels], dtype=np.int64)
    number = {identity: place for place, identity in enumerate(test.names)}
    judged: dict[str, dict[str, Judged]] = {}

    def take(name: str, kind: str, probes: Tensor, own: Tensor) -> None:
        labels = np.array([number[identity] for identity in clients[name].names], dtype=np.int64)
        gallery, identities = gallery_of(embedding.unit(own), labels[clients[name].labels])
        judged.setdefault(kind, {})[name] = judge_client(
            embedding.unit(probes),
            test.labels,
            client,
            names.index(name),
            gallery,
            identities,
            fars=fars,
            fpirs=fpirs,
            one_to_one=one_to_one,
            one_to_many=one_to_many,
        )

    there = tested(clients, test)
    for kind, model in ((START, start), (SHARED, models.shared)):
        if model is not None:
            embedding.load(here, model)
            probes = embedding.embeddings(here, test)
            for name in there:
                take(name, kind, probes, embedding.embeddings(here, clients[name]))
    for name, model in server.personal(models):
        if model and name in there:
            embedding.load(here, model)
            probes, own = embedding.embeddings(here, test), embedding.embeddings(here, clients[name])
            take(name, OWN, probes, own)
            if "branch.weight" in model:
                branch = model["branch.weight"].cpu(), model["branch.bias"].cpu()
                take(name, BRANCH, F.linear(probes, *branch), F.linear(own, *branch))
    return _told(judged)


def _told(judged: Mapping[str, Mapping[str, Judged]]) -> dict[str, Any]:
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
    """Kind of model -> figure -> percent, the mean over clients, of what `judge` gave."""
    return {kind: personalised[kind] for kind in SERVED_BY if kind in personalised}
