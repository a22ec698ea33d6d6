"""Coalface's own FedAvg, class embeddings and all: the loss looks at the network's outputs alone."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import same_work
from same_work import BATCH, IDENTITIES, Work, labels_of, network, pixels_of, softmax
from torch import Tensor

from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.local import InProcess
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.engine.server import Server
from coalface.engine.workers import Workers
from coalface.methods.fedavg import FedAvg
from coalface.models import Backbone
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import CosineLoss


@dataclass(frozen=True)
class OutputSoftmax(CosineLoss):
    """The softmax over the network's outputs; class embeddings are kept and get gradients of zero."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return softmax(embeddings, labels) + 0 * weights.sum()


def world(clients: int, images: int) -> FederatedData:
    pixels = np.concatenate([pixels_of(client, images) for client in range(clients)])
    labels, names = labels_of(images), tuple(f"person-{i}" for i in range(IDENTITIES))
    data = {
        f"client-{client:05d}": FaceSet(pixels, np.arange(client * images, (client + 1) * images), labels, names)
        for client in range(clients)
    }
    return FederatedData(data=data, backbone=Backbone(network()), compute=Compute(augment=Augment(flip=False)))


def run(work: Work, turn: Callable[[], None]) -> dict[str, Tensor]:
    """The global model after the rounds; `turn` is called before each of them, and after the last."""
    local = LocalTraining(batch_size=BATCH, **same_work.SGD)
    method = FedAvg(rounds=work.rounds, local=local, loss=OutputSoftmax())
    build = functools.partial(world, work.clients, work.images)
    federated = build()
    with tempfile.TemporaryDirectory() as place:
        numerics = Numerics(threads=1, client_batch=work.client_batch)
        setup = Setup(method, build, numerics, 0, Path(place), save_replies=False)
        if work.workers > 1:
            transport: InProcess = Workers(setup, federated, work.workers, 4 * work.workers)
        else:
            transport = InProcess(setup, federated)
        server = Server(method, RoundPolicy(run="peers", checkpoint_every=5), setup.numerics, transport, Path(place),
                        backbone=federated.backbone, report=lambda record: turn())  # fmt: skip
        turn()
        state, _ = server.run()
        if isinstance(transport, Workers):
            transport.close()
    return dict(state.backbone)
