"""Server optimisers against plain loops over numbers, numbers worked by hand, and Flower's strategies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity

from coalface.core.errors import RecipeError
from coalface.core.method import Tensors
from coalface.training.server_optimizers import Adagrad, Adam, Adaptive, ServerOptimizer, ServerSGD, Yogi

TUNED: list[ServerOptimizer] = [
    ServerSGD(lr=0.7, momentum=0.4),
    Adam(lr=0.03, beta1=0.8, beta2=0.95, tau=0.02),
    Yogi(lr=0.03, beta1=0.8, beta2=0.95, tau=0.02),
    Adagrad(lr=0.03, beta1=0.3, tau=0.02),
]


def drawn(seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {"a": torch.from_numpy(rng.normal(0, 0.1, 5)), "b": torch.from_numpy(rng.normal(0, 0.1, (2, 3)))}


def walked(optimizer: ServerOptimizer, means: list[Tensors]) -> list[Tensors]:
    """The backbone after each step."""
    x, moments, path = drawn(0), optimizer.start({name: torch.zeros_like(t) for name, t in drawn(0).items()}), []
    for mean in means:
        x, moments = optimizer.step(x, mean, moments)
        path.append(x)
    return path


@pytest.mark.parametrize("optimizer", TUNED, ids=lambda optimizer: type(optimizer).__name__)
def test_it_is_the_algorithm_number_by_number(optimizer: Any) -> None:
    """Reddi et al., Algorithm 2, with v_{−1} = τ²; of SGD Algorithm 1's step, with momentum."""
    means = [drawn(seed) for seed in range(1, 7)]
    path = walked(optimizer, means)
    for name in ("a", "b"):
        for place in range(drawn(0)[name].numel()):
            x, m = drawn(0)[name].flatten()[place].item(), 0.0
            v = optimizer.tau**2 if isinstance(optimizer, Adaptive) else 0.0
            for mean, state in zip(means, path, strict=True):
                delta = mean[name].flatten()[place].item() - x
                if isinstance(optimizer, ServerSGD):
                    m = optimizer.momentum * m + delta
                    x += optimizer.lr * m
                else:
                    m = optimizer.beta1 * m + (1 - optimizer.beta1) * delta
                    if isinstance(optimizer, Yogi):
                        v -= (1 - optimizer.beta2) * delta**2 * (1 if v > delta**2 else -1)
                    elif isinstance(optimizer, Adam):
                        v = optimizer.beta2 * v + (1 - optimizer.beta2) * delta**2
                    else:
                        v += delta**2
                    x += optimizer.lr * m / (math.sqrt(v) + optimizer.tau)
                assert state[name].flatten()[place].item() == pytest.approx(x, abs=1e-14)


def test_numbers_worked_by_hand() -> None:
    """x = 0, x̄ = 3 and τ = 4: v = 16, then with Δ² = 9 Adam's 8 + 4.5, Yogi's 16 − 4.5, Adagrad's 16 + 9."""
    x, mean = {"w": torch.zeros(1).double()}, {"w": torch.full((1,), 3.0).double(), "running_mean": torch.ones(1)}
    settings = {"lr": 2.0, "tau": 4.0, "beta1": 0.5}
    for optimizer, expected in (
        (Adam(beta2=0.5, **settings), 3 / (math.sqrt(12.5) + 4)),
        (Yogi(beta2=0.5, **settings), 3 / (math.sqrt(11.5) + 4)),
        (Adagrad(**settings), 3 / 9),
        (ServerSGD(lr=0.5), 1.5),
    ):
        moved, moments = optimizer.step(x, mean, optimizer.start({"w": torch.zeros(1).double()}))
        assert moved["w"].item() == pytest.approx(expected, abs=1e-15)
        assert moved["running_mean"].item() == 1.0 and set(moments.first) == {"w"}


def test_a_full_step_of_sgd_is_the_mean_bit_for_bit() -> None:
    x, mean = ({"w": torch.randn(1000, generator=torch.Generator().manual_seed(seed))} for seed in (1, 2))
    moved, _ = ServerSGD().step(x, mean, ServerSGD().start({"w": torch.zeros(1000)}))
    assert moved["w"].numpy().tobytes() == mean["w"].numpy().tobytes()


FLOWERS: list[tuple[ServerOptimizer, Any]] = [
    (TUNED[0], strategy.FedAvgM(server_learning_rate=0.7, server_momentum=0.4)),
    (TUNED[1], strategy.FedAdam(eta=0.03, beta_1=0.8, beta_2=0.95, tau=0.02)),
    (TUNED[2], strategy.FedYogi(eta=0.03, beta_1=0.8, beta_2=0.95, tau=0.02)),
    (Adagrad(lr=0.03, tau=0.02), strategy.FedAdagrad(eta=0.03, tau=0.02)),
]


@pytest.mark.parametrize(("optimizer", "flower"), FLOWERS, ids=lambda value: type(value).__name__)
def test_flowers_strategies_come_to_the_same_numbers(optimizer: Any, flower: Any) -> None:
    """Two clients of 1 and 3 images. Flower's v starts at 0 (Algorithm 2: at τ² or above), and its Adam has a bias
    correction that Algorithm 2 has not: both are set to the paper's."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    clients = [(drawn(2 * seed + 1), drawn(2 * seed + 2)) for seed in range(6)]
    means = [{name: (a[name] + 3 * b[name]) / 4 for name in a} for a, b in clients]
    x = {name: tensor.numpy() for name, tensor in drawn(0).items()}
    flower.v_t = {name: np.full_like(w, 0.02**2) for name, w in x.items()}
    for number, (pair, expected) in enumerate(zip(clients, walked(optimizer, means), strict=True), 1):
        record = ArrayRecord({name: Array(w) for name, w in x.items()})
        flower.current_arrays = record if isinstance(flower, strategy.FedAvgM) else x
        if isinstance(flower, strategy.FedAdam):
            flower.eta = 0.03 * (1 - 0.8 ** (number + 1)) / math.sqrt(1 - 0.95 ** (number + 1))
        replies = []
        for images, client in zip((1, 3), pair, strict=True):
            arrays = ArrayRecord({name: Array(t.numpy()) for name, t in client.items()})
            content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": images})})
            asked = Message(RecordDict(), dst_node_id=1, message_type="train")
            replies.append(Message(content, reply_to=asked))
        arrays, _ = flower.aggregate_train(number, replies)
        x = {name: array.numpy() for name, array in arrays.items()}
        for name, tensor in expected.items():
            assert np.abs(x[name] - tensor.numpy()).max() < 1e-12


@pytest.mark.parametrize(
    ("build", "where"),
    [
        (lambda: Adam(lr=0.0), "lr"),
        (lambda: Yogi(lr=float("nan")), "lr"),
        (lambda: ServerSGD(momentum=1.0), "momentum"),
        (lambda: Adagrad(beta1=-0.1), "beta1"),
        (lambda: Yogi(beta2=1.0), "beta2"),
        (lambda: Adam(tau=0.0), "tau"),
        (lambda: Adam(lr="fast"), "lr"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be_are_refused(build: Any, where: str) -> None:
    with pytest.raises(RecipeError) as error:
        build()
    assert error.value.where == where
