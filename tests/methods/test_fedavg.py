from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from worlds import recipe

from coalface.core.method import Tensors
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import LOSS, Tiny, run
from coalface.methods.fedavg import FedAvg
from coalface.training.classifier import HEAD
from coalface.training.local_training import fresh_head
from coalface.training.local_work import LocalTraining

FULL = LocalTraining(steps_per_round=1, batch_size=64, lr=0.5, momentum=0.0, weight_decay=0.0)


def equal(left: Tensors, right: Tensors) -> bool:
    return list(left) == list(right) and all(torch.equal(left[n], right[n]) for n in left)


def test_one_step_each_is_one_step_on_the_weighted_mean_gradient(tmp_path: Path) -> None:
    """Σ n_i (θ − η g_i) / Σ n_i = θ − η Σ n_i g_i / Σ n_i, with the gradients from a bare torch network in float64."""
    build = Tiny(flip=False)
    ran = run(FedAvg(rounds=1, local=FULL, loss=LOSS), tmp_path, build)
    world = build()
    net = world.backbone.module.double()
    heads = {n: fresh_head(naive.party(n, build)).double() for n in world.data}
    total = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for name, faces in world.data.items():
        pixels, labels = world.compute.batch(faces, np.arange(len(faces)), np.random.default_rng(0))
        net.zero_grad()
        LOSS(net(pixels.double()), heads[name], labels).backward()
        for key, parameter in net.named_parameters():
            assert parameter.grad is not None
            total[key] += len(faces) * parameter.grad
    images = sum(len(faces) for faces in world.data.values())
    for key, parameter in net.named_parameters():
        expected = (parameter - 0.5 * total[key] / images).detach().float()
        assert torch.allclose(ran.state.backbone[key], expected, atol=1e-6)


@pytest.mark.parametrize(
    "work", [LocalTraining(steps_per_round=3, batch_size=5), LocalTraining(epochs=2, batch_size=4, lr=0.05)]
)
def test_one_party_with_kept_momentum_is_centralised_training(tmp_path: Path, work: LocalTraining) -> None:
    """Averaging over one party is the identity, so all that is left is plain SGD."""
    alone = Tiny(pooled=True)
    federated = run(recipe("fedavg", local=work, momentum="keep")[0], tmp_path / "fedavg", alone)
    central = run(recipe("centralized", local=work)[0], tmp_path / "centralized", alone)
    assert equal(federated.state.backbone, central.state.backbone)


def test_unequal_parties_count_by_their_images(tmp_path: Path) -> None:
    """Each party's own update, from runs in which it is the only one that arrives, averaged by hand."""
    method = recipe("fedavg", rounds=1)[0]
    whole = run(method, tmp_path / "whole").state.backbone
    images = {name: len(faces) for name, faces in Tiny()().data.items()}
    assert len(set(images.values())) == 3
    mean = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in whole.items()}
    for name, n in images.items():
        others = SimulatedFaults(corrupt={other: "nan" for other in images if other != name})
        single = run(method, tmp_path / name, faults=others, min_reply_fraction=0.0).state.backbone
        for key, tensor in single.items():
            mean[key] += n / sum(images.values()) * tensor.double()
    assert all(torch.allclose(mean[n].float(), t, atol=1e-7) for n, t in whole.items())


def test_class_embeddings_and_momentum_never_leave(tmp_path: Path) -> None:
    ran = run(recipe("fedavg", momentum="keep")[0], tmp_path)
    ledgers = "".join(p.read_text() for p in (ran.folder / "ledger").iterdir())
    assert HEAD not in ledgers
    assert "velocity" not in ledgers
    assert '"name": "backbone/up.weight"' in ledgers


@pytest.mark.parametrize(
    ("policy", "shared", "own"),
    [
        ("average", {"weight", "bias", "running_mean", "running_var"}, False),
        ("parameters-only", {"weight", "bias"}, True),
        ("local", set(), True),
    ],
)
def test_batchnorm_is_averaged_or_stays_as_the_policy_says(
    tmp_path: Path, policy: Any, shared: set[str], own: bool
) -> None:
    ran = run(recipe("fedavg")[0], tmp_path, Tiny(norm=True, policy=policy))
    assert {n.removeprefix("norm.") for n in ran.state.backbone if n.startswith("norm.")} == shared
    ledgers = "".join(p.read_text() for p in (ran.folder / "ledger").iterdir())
    assert "num_batches_tracked" not in ledgers
    assert ("running_mean" in ledgers) == (policy == "average")
    assert (ran.models.shared is None) == own
    models = ran.own_models()
    assert set(models) == ({"silo-0", "silo-1", "silo-2"} if own else set())
    for model in models.values():
        assert torch.equal(model["up.weight"], ran.state.backbone["up.weight"])
        assert not torch.equal(model["norm.running_mean"], torch.zeros(16))
    if own:
        means = [m["norm.running_mean"] for m in models.values()]
        assert not torch.equal(means[0], means[1])


def test_a_party_that_was_never_asked_has_the_first_batchnorm(tmp_path: Path) -> None:
    build = Tiny(norm=True, policy="local", parties=4)
    ran = run(recipe("fedavg", rounds=1, sample=1)[0], tmp_path, build)
    fresh_norm = build().backbone.kept()
    same = [all(torch.equal(m[n], t) for n, t in fresh_norm.items()) for m in ran.own_models().values()]
    assert sorted(same) == [False, True, True, True]


def test_a_sample_is_drawn_anew_each_round(tmp_path: Path) -> None:
    ran = run(recipe("fedavg", rounds=6, sample=1)[0], tmp_path)
    rounds = [stats.rounds for stats in ran.server.at.party_stats.values()]
    assert sum(rounds) == 6
    assert sum(r > 0 for r in rounds) > 1


def test_the_learning_rate_follows_the_round(tmp_path: Path) -> None:
    work = replace(FULL, schedule="step", lr_milestone_shares=(0.5,))
    constant = run(FedAvg(rounds=2, local=FULL, loss=LOSS), tmp_path / "constant", Tiny(flip=False))
    falling = run(FedAvg(rounds=2, local=work, loss=LOSS), tmp_path / "falling", Tiny(flip=False))
    first = run(FedAvg(rounds=1, local=FULL, loss=LOSS), tmp_path / "first", Tiny(flip=False)).state.backbone
    for n, start in first.items():
        step = falling.state.backbone[n] - start
        assert torch.allclose(step * 10, constant.state.backbone[n] - start, atol=1e-5)
