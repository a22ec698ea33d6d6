from __future__ import annotations

from pathlib import Path
from typing import Any

import naive
import pytest
import torch
from cases import by_default
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from coalface.training.local_work import LocalTraining
from coalface.training.server_optimizers import Adagrad, Adam, Yogi


@pytest.mark.parametrize(
    ("cls", "optimizer"),
    by_default(
        1,
        [(FedYogi, Yogi(lr=0.02, tau=0.01)), (FedAdam, Adam(lr=0.02, tau=0.01)), (FedAdagrad, Adagrad(lr=0.02))],
    ),
)
def test_it_is_algorithm_2_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: Any, optimizer: Any
) -> None:
    """Parties of unequal size; running statistics are the mean's."""
    build = Tiny(flip=False, double=True, norm=True)
    work = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, momentum=0.0, weight_decay=0.0)
    states = naive.watched(cls, monkeypatch)
    run(cls(rounds=3, local=work, loss=LOSS, optimizer=optimizer), tmp_path, build)
    parties, x, m = naive.silos(build, work), build().backbone.shared(), naive.zeros(build)
    v = {n: torch.full_like(t, optimizer.tau**2) for n, t in m.items()}
    for state in states:
        ends = []
        for silo in parties:
            y = dict(x)
            for pixels, labels in silo.batches():
                g, h, running = silo.gradients(y, silo.head, pixels, labels)
                y.update({n: y[n] - 0.1 * g[n] for n in g} | running)
                silo.step_head(h, 0.1)
            ends.append(y)
        mean = naive.mean(naive.shares(parties), ends)
        delta = {n: mean[n] - x[n] for n in m}
        for n, d in delta.items():
            m[n] = optimizer.beta1 * m[n] + (1 - optimizer.beta1) * d
            if cls is FedAdagrad:
                v[n] = v[n] + d**2
            elif cls is FedAdam:
                v[n] = 0.99 * v[n] + 0.01 * d**2
            else:
                v[n] = torch.where(v[n] > d**2, v[n] - 0.01 * d**2, v[n] + 0.01 * d**2)
            mean[n] = x[n] + optimizer.lr * m[n] / (v[n].sqrt() + optimizer.tau)
        x = mean
        assert naive.furthest(state.backbone, x) < 1e-12
        assert naive.furthest(state.moments.second, v) < 1e-12
    assert naive.furthest(x, build().backbone.shared()) > 0.01


def test_a_round_worked_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of a's 3/4 and three times b's −3/4 is −3/8 = Δ. With τ = 1/2, v = 1/4 + 9/64 = 25/64, √v = 5/8, and
    x = −η (3/8) / (9/8) = −1/3 at η = 1."""
    states = naive.watched(FedAdagrad, monkeypatch)
    method = FedAdagrad(
        rounds=1, local=naive.BY_HAND, loss=naive.Square(), momentum="none", optimizer=Adagrad(lr=1.0, tau=0.5)
    )
    run(method, tmp_path, naive.line)
    assert float(states[0].backbone["w"]) == pytest.approx(-1 / 3, abs=1e-15)
    assert float(states[0].moments.second["w"]) == 25 / 64


def test_settings_come_from_a_recipe() -> None:
    method = recipe("fedyogi", optimizer=Yogi(lr=0.3))[0]
    assert isinstance(method, FedYogi) and method.optimizer.lr == 0.3 and FedAdam().optimizer == Adam()
