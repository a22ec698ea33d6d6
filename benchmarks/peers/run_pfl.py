"""pfl-research: `FederatedAveraging` on a `SimulatedBackend` with client data in memory, without metrics or weights.

Two workers are two processes with one collective sum a round, as pfl's guide has it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import same_work
import torch
from same_work import SGD, Work, faces_of, network, softmax
from torch import Tensor


def start_second(work: Work) -> subprocess.Popen[bytes]:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"
    os.environ.update(PFL_WORKER_ADDRESSES=f"{address},{address}", PFL_WORKER_RANK="0")
    silent = json.dumps(dataclasses.asdict(work) | {"out": ""})
    command = [sys.executable, same_work.__file__, __name__, silent]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    return subprocess.Popen(command, env=os.environ | {"PFL_WORKER_RANK": "1"}, **quiet)


def run(work: Work, turn: Callable[[], None]) -> dict[str, Tensor]:
    """The global model after the rounds; `turn` is called before each of them, and after the last."""
    second = start_second(work) if work.workers > 1 and "PFL_WORKER_RANK" not in os.environ else None
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    def gate() -> None:
        if work.workers == 1:
            turn()
            return
        if second is not None:
            turn()
        torch.distributed.barrier()

    class Turns(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            gate()
            return Metrics()

        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            gate()
            return False, Metrics()

    module: Any = network()
    module.loss = MethodType(lambda self, images, labels: softmax(self(images), labels), module)
    module.metrics = MethodType(lambda self, images, labels: {}, module)  # pfl evaluates in its first round
    own_sgd = functools.partial(torch.optim.SGD, momentum=SGD["momentum"], weight_decay=SGD["weight_decay"])
    model = PyTorchModel(module, own_sgd, central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0))
    users = {client: PyTorchTensorDataset(faces_of(client, work.images)) for client in range(work.clients)}
    backend = SimulatedBackend(
        training_data=FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(users))), val_data=None
    )
    FederatedAveraging().run(
        NNAlgorithmParams(central_num_iterations=work.rounds, evaluation_frequency=work.rounds + 1,
                          train_cohort_size=work.clients, val_cohort_size=None),
        backend, model, NNTrainHyperParams(local_num_epochs=1, local_learning_rate=SGD["lr"],
                                           local_batch_size=same_work.BATCH),
        callbacks=[Turns()], send_metrics_to_platform=False,
    )  # fmt: skip
    if second is not None:
        second.wait()
    return dict(module.state_dict())
