from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import naive
import pytest
import torch
from cases import by_default
from torch import Tensor

from coalface.core.local_results import PERSONAL_MODEL
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.fedrep import FedRep
from coalface.methods.solo import Own
from coalface.training import local_training
from coalface.training.local_work import LocalTraining
from coalface.training.losses.base import CosineLoss


@pytest.mark.parametrize(
    ("norm", "policy"),
    by_default(1, [(True, "local"), (False, "average"), (True, "average"), (True, "parameters-only")]),
)
@pytest.mark.parametrize(
    ("momentum", "head_momentum"), by_default(2, [("keep", None), ("reset", "keep"), ("keep", "reset"), ("none", None)])
)
def test_it_is_algorithm_1_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: bool, policy: Any, momentum: Any, head_momentum: Any
) -> None:
    """Head epochs over a fixed body, then K steps of the body under that head, with what momentum is kept."""
    build = Tiny(flip=False, double=True, norm=norm, policy=policy)
    work = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1, schedule="cosine", weight_decay=5e-3)
    states = naive.watched(FedRep, monkeypatch)
    settings = {"momentum": momentum, "head_momentum": head_momentum}
    ran = run(FedRep(rounds=3, local=work, loss=LOSS, head_epochs=2, **settings), tmp_path, build)
    head_passes = naive.silos(build, LocalTraining(epochs=2, batch_size=4, weight_decay=5e-3))
    bodies, heads = (({s.name: None for s in head_passes}) for _ in range(2))
    personal = dict(ran.server.local_results(PERSONAL_MODEL, ran.models))
    betas = {"keep": 0.9, "reset": 0.9, "none": 0.0}
    theta, shared = build().backbone.module.state_dict(), set(build().backbone.shared())
    theta = {n: t.clone() for n, t in theta.items() if t.is_floating_point()}
    own = {silo.name: {n: t for n, t in theta.items() if n not in shared} for silo in head_passes}
    body_speed = {silo.name: naive.zeros(build) for silo in head_passes}
    weights = naive.shares(head_passes)
    for state, lr in zip(states, [0.1, 0.075, 0.025], strict=True):
        ends = []
        for silo in head_passes:
            y = {**theta, **own[silo.name]}
            if (head_momentum or momentum) != "keep":
                silo.head_velocity = torch.zeros_like(silo.head)
            if momentum != "keep":
                body_speed[silo.name] = naive.zeros(build)
            silo._work = LocalTraining(
                epochs=2, batch_size=4, momentum=betas[head_momentum or momentum], weight_decay=5e-3
            )
            for pixels, labels in silo.batches():
                _, h, running = silo.gradients(y, silo.head, pixels, labels)
                silo.step_head(h, lr)
                y.update(running)
            silo._work = work
            for pixels, labels in silo.batches():
                g, _, running = silo.gradients(y, silo.head, pixels, labels)
                for n in g:
                    body_speed[silo.name][n] = betas[momentum] * body_speed[silo.name][n] + g[n] + 5e-3 * y[n]
                    y[n] = y[n] - lr * body_speed[silo.name][n]
                y.update(running)
            ends.append({n: t for n, t in y.items() if n in shared})
            own[silo.name] = {n: t for n, t in y.items() if n not in shared}
            bodies[silo.name], heads[silo.name] = y, silo.head
        theta = {**theta, **naive.mean(weights, ends)}
        assert naive.furthest(state.backbone, {n: t for n, t in theta.items() if n in shared}) < 1e-10
    for name, y in bodies.items():
        kept = naive.kept(tmp_path, name, Own)
        assert naive.furthest({"head": kept.head}, {"head": heads[name]}) < 1e-10
        assert naive.furthest(personal[name], y) < 1e-10
    assert naive.furthest(bodies["silo-0"], bodies["silo-1"]) > 1e-3


@dataclass(frozen=True)
class Apart(CosineLoss):
    """The mean of (e − h_y)²/2: on `naive.line`, with h the party's one class embedding, (w − p − h)²/2."""

    def __call__(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        return (embeddings - weights[labels]).square().mean() / 2


def test_numbers_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h ← h − (h − w + p)/2 twice, then w ← w − (w − p − h)/2 twice, from h = 0; p_a = 1, p_b = −1.

    Round 1: h_a = −1/2, −3/4 and w_a = 1/8, 3/16; h_b = 1/2, 3/4 and w_b = −1/8, −3/16; mean −3/32.
    Round 2: h_a = −59/64, −129/128 and w_a = −13/256, −15/512; h_b = 53/64, 111/128 and w_b = −29/256, −63/512.
    """
    monkeypatch.setattr(local_training, "fresh_head", lambda party, rows: torch.zeros(rows, 1, dtype=torch.float64))
    monkeypatch.setattr(naive, "Square", Apart)
    states = naive.worked(FedRep, tmp_path, monkeypatch, momentum="none", head_epochs=2)
    assert states == [{"backbone": -3 / 32}, {"backbone": -51 / 512}]
    kept = [naive.kept(tmp_path, party, Own) for party in "ab"]
    assert [float(own.head) for own in kept] == [-129 / 128, 111 / 128]
    assert [float(own.backbone["w"]) for own in kept] == [-15 / 512, -63 / 512]


def test_a_round_is_the_work_of_both_parts() -> None:
    method = FedRep(local=LocalTraining(steps_per_round=3, batch_size=4), head_epochs=2)
    assert method.round_work("train", 1, "trainer", "a", 10) == (6 + 3, 20 + 12)


def test_it_needs_an_epoch_of_the_head() -> None:
    with pytest.raises(ValueError, match="head_epochs"):
        FedRep(head_epochs=0)
