"""The work that all simulators of `benchmarks/peers.py` do: the same network, images, local steps and mean.

python benchmarks/peers/same_work.py RUNNER WORK    # `peers.py` calls it so, and gives the turns on standard input
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalface.models.cnn import CnnSmall

SIZE, IDENTITIES, BATCH = 64, 5, 30
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}
TURN = "TURN "
"""What begins a runner's line when a round has ended."""


@dataclass(frozen=True)
class Work:
    """FedAvg over clients that all take part in every round, with one local epoch in batches of `BATCH` at most."""

    clients: int
    images: int
    """Of each client, of `IDENTITIES` people."""
    rounds: int
    workers: int = 1
    """Processes that train, each with one thread."""
    client_batch: int = 0
    """Coalface's: images of several clients that are computed as one batch."""
    pooled: bool = False
    """The images of all clients as one set, in place of FedAvg."""
    out: str = ""
    """File for the global model after the last round."""


def network() -> CnnSmall:
    """`cnn-small`, whose first outputs are taken as logits, so that its weights are all that is trained."""
    torch.manual_seed(0)
    return CnnSmall(size=SIZE, channels=1)


def pixels_of(client: int, images: int) -> np.ndarray:
    return np.random.default_rng([0, client]).integers(0, 256, (images, SIZE, SIZE, 1), dtype=np.uint8)


def labels_of(images: int) -> np.ndarray:
    return np.arange(images) % IDENTITIES


@functools.cache
def faces_of(client: int, images: int) -> tuple[Tensor, Tensor]:
    """A client's images in [−1, 1] and labels, ready to train on."""
    pixels = torch.from_numpy(pixels_of(client, images).transpose(0, 3, 1, 2).copy())
    return pixels.float().sub_(127.5).div_(127.5), torch.from_numpy(labels_of(images))


def softmax(embeddings: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(embeddings[:, :IDENTITIES], labels)


def train_epoch(module: nn.Module, images: Tensor, labels: Tensor) -> None:
    """A plain loop over the batches, with an optimiser of its own."""
    optimiser = torch.optim.SGD(module.parameters(), **SGD)
    for start in range(0, len(labels), BATCH):
        optimiser.zero_grad()
        softmax(module(images[start : start + BATCH]), labels[start : start + BATCH]).backward()
        optimiser.step()


def main(runner: str, work: Work) -> None:
    """Play a runner's rounds, each when a line comes in; what it took goes out before the next."""
    torch.set_num_threads(1)
    began = time.perf_counter()

    def turn() -> None:
        nonlocal began
        print(f"{TURN}{time.perf_counter() - began}", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()

    run: Callable[[Work, Callable[[], None]], dict[str, Tensor]] = importlib.import_module(runner).run
    model = run(work, turn)
    if work.out:
        torch.save({name: torch.as_tensor(tensor) for name, tensor in model.items()}, work.out)


if __name__ == "__main__":
    main(sys.argv[1], Work(**json.loads(sys.argv[2])))
