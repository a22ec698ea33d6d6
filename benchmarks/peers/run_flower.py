"""Flower's simulation: `FedAvg` over `ClientApp`s in Ray's actors, of which each keeps its network and the images."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from same_work import Work, faces_of, network, train_epoch
from torch import Tensor

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")  # 15 by default
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

torch.set_num_threads(1)  # in the actors too
client_app, kept_network = ClientApp(), functools.cache(network)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    module = kept_network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = faces_of(int(context.node_config["partition-id"]), int(message.content["config"]["images"]))
    train_epoch(module, images, labels)
    reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(RecordDict(reply), reply_to=message)


def run(work: Work, turn: Callable[[], None]) -> dict[str, Tensor]:
    """The global model after the rounds; `turn` is called before each of them, and after the last."""
    server_app, models = ServerApp(), []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        everybody = {"min_train_nodes": work.clients, "min_available_nodes": work.clients}
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **everybody)
        result = strategy.start(
            grid,
            ArrayRecord(network().state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"images": work.images}),
            evaluate_fn=lambda server_round, arrays: turn(),
        )
        models.append(result.arrays.to_torch_state_dict())

    resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 2 // work.workers, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=work.clients, backend_config=resources)
    return models[0]
