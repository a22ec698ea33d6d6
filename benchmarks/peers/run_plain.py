"""FedAvg in plain PyTorch: a loop over the clients; or no clients at all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from same_work import Work, faces_of, network, train_epoch
from torch import Tensor


def run(work: Work, turn: Callable[[], None]) -> dict[str, Tensor]:
    """The global model after the rounds; `turn` is called before each of them, and after the last."""
    module = network()
    clients = [faces_of(client, work.images) for client in range(work.clients)]
    if work.pooled:
        clients = [(torch.cat([images for images, _ in clients]), torch.cat([labels for _, labels in clients]))]
    common = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for _ in range(work.rounds):
        turn()
        total = {name: torch.zeros_like(tensor) for name, tensor in common.items()}
        for images, labels in clients:
            module.load_state_dict(common)
            train_epoch(module, images, labels)
            for name, tensor in module.state_dict().items():
                total[name] += (tensor - common[name]) * len(
                    labels
                )  # the models' own sum would round twenty times more
        count = sum(len(labels) for _, labels in clients)
        common = {name: common[name] + tensor / count for name, tensor in total.items()}
    turn()
    return common
