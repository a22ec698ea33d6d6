"""A server optimiser in runs: with every method that takes one, beneath protections, after kills, and over Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import by_default
from grids import over_flower
from secure_runs import WIDE
from server_runs import metrics, stopped_and_resumed
from worlds import recipe

from coalface.engine.faults import SimulatedFaults
from coalface.engine.robust.aggregators import Median
from coalface.experiments.conformance.tiny_federation import Tiny, raw, run, workers
from coalface.experiments.plan import on_paper
from coalface.methods import METHODS
from coalface.privacy.dp import PartyPrivacy
from coalface.training.server_optimizers import Adagrad, Adam, ServerOptimizer, ServerSGD, Yogi

PEERS: dict[str, ServerOptimizer] = {"fedadam": Adam(lr=0.05), "fedyogi": Yogi(), "fedadagrad": Adagrad(tau=0.01)}


def takes_one(name: str) -> bool:
    method, build = recipe(name)
    world = build()
    roles: dict[str, list[str]] = {}
    for party, member in world.members().items():
        roles.setdefault(member.role, []).append(party)
    return not on_paper.plan(method, roles, world.backbone, world.at_server).own_server_step


COMPOSED = [name for name in METHODS if takes_one(name)]


def test_methods_that_make_the_mean_their_backbone_take_one_and_no_other() -> None:
    devices = {name for name, cls in METHODS.items() if cls.scenario == "devices"}
    joint = "fedfr-joint adafedfr ss-fedfr cl-fedfr finetune kd fedface-multi fedfr-uda finetune-pseudo".split()
    silos = "fedavg fedprox mime mimelite moon pfm ditto fedrep fedbabu fedgc privacyface".split()
    assert set(COMPOSED) == {*devices, *joint, *silos}


@pytest.mark.parametrize("name", by_default(1, PEERS))
def test_fedavg_with_it_is_the_method_of_its_name(name: str, tmp_path: Path) -> None:
    build = Tiny(norm=True)
    named = run(recipe(name, optimizer=PEERS[name])[0], tmp_path / "named", build)
    composed = run(recipe("fedavg")[0], tmp_path / "composed", build, server_optimizer=PEERS[name])
    assert raw(composed.state.backbone) == raw(named.state.backbone)
    assert raw(composed.server.at.moments.second) == raw(named.state.moments.second)
    assert raw(run(recipe("fedavg")[0], tmp_path / "plain", build).state.backbone) != raw(named.state.backbone)


@pytest.mark.parametrize("name", by_default(0, COMPOSED))
def test_a_full_step_of_sgd_is_the_method_itself_and_yogi_another_bit_for_bit(name: str, tmp_path: Path) -> None:
    method, build = recipe(name)
    plain = run(method, tmp_path / "plain", build)
    assert run(method, tmp_path / "sgd", build, server_optimizer=ServerSGD()).bytes() == plain.bytes()
    yogi: dict[str, Any] = {"server_optimizer": Yogi(lr=0.003)}
    moved = run(method, tmp_path / "yogi", build, **yogi)
    assert raw(moved.state.backbone) != raw(plain.state.backbone)
    stopped = stopped_and_resumed(method, tmp_path / "stopped", 4, build, **yogi)
    assert stopped.bytes() == moved.bytes()


PROTECTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "robust": {"aggregator": Median()},
    "noised": {"privacy": PartyPrivacy(noise_multiplier=1.0, clip=1.0)},
    "secure": {"secure": WIDE},
    "clipped": {"max_update_norm": 0.5, "oversized": "clip"},
}


@pytest.mark.parametrize("rules", PROTECTED.values(), ids=PROTECTED)
def test_it_steps_from_the_mean_that_a_protection_leaves(rules: dict[str, Any], tmp_path: Path) -> None:
    """After noise, masks, bounds and a robust mean, whose bits, and whose ledgers, are what they are without it."""
    build, optimizer = Tiny(parties=4), Adam(lr=0.05)
    method = recipe("fedavg", rounds=1)[0]
    mean = run(method, tmp_path / "mean", build, **rules)
    ran = run(method, tmp_path / "step", build, server_optimizer=optimizer, **rules)
    zeros = {name: torch.zeros_like(t) for name, t in mean.state.backbone.items()}
    x, _ = optimizer.step(build().backbone.shared(), mean.state.backbone, optimizer.start(zeros))
    assert raw(ran.state.backbone) == raw(x)
    ours, others = ran.bytes(), mean.bytes()
    assert {key: ours[key] for key in ours if key.startswith(("ledger", "silo"))} == {
        key: others[key] for key in others if key.startswith(("ledger", "silo"))
    }


@pytest.mark.parametrize("every", by_default(1, [2, 1, 3]))
def test_stopped_anywhere_and_resumed_it_ends_in_the_same_bytes(every: int, tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "server_optimizer": Yogi(),
        "checkpoint_every": every,
        "faults": SimulatedFaults(lost=0.4),
        "min_reply_fraction": 0.6,
        "max_abandoned_rounds": 9,
    }
    method, build = recipe("fedavg", rounds=5, momentum="keep")
    unbroken = run(method, tmp_path / "unbroken", build, **rules)
    assert {line["abandoned"] for line in metrics(unbroken.folder)} == {True, False}
    for after in (0, 4, 8, 11):
        resumed = stopped_and_resumed(method, tmp_path / str(after), after, build, **rules)
        assert resumed.bytes() == unbroken.bytes(), after
        for kind in ("first", "second"):
            assert raw(getattr(resumed.server.at.moments, kind)) == raw(getattr(unbroken.server.at.moments, kind))


@pytest.mark.usefixtures("quick_workers")
def test_over_flower_and_with_workers_it_comes_to_the_same_bytes(tmp_path: Path) -> None:
    method, build = recipe("fedavg")
    rules: dict[str, Any] = {"server_optimizer": Yogi()}
    here = run(method, tmp_path / "here", build, **rules).bytes()
    assert run(method, tmp_path / "flower", build, transport=over_flower(), **rules).bytes() == here
    assert run(method, tmp_path / "two", build, transport=workers(2), **rules).bytes() == here


def test_abandoned_rounds_leave_the_moments_alone(tmp_path: Path) -> None:
    method, build = recipe("fedavg")
    rules: dict[str, Any] = {"faults": SimulatedFaults(lost=0.9), "min_reply_fraction": 1.0, "max_abandoned_rounds": 9}
    ran = run(method, tmp_path, build, server_optimizer=Adam(), **rules)
    assert all(line["abandoned"] for line in metrics(tmp_path))
    assert ran.server.at.moments is None and raw(ran.state.backbone) == raw(build().backbone.shared())


def test_moments_that_are_not_finite_abandon_the_round(tmp_path: Path) -> None:
    """Δ² beyond float32: the step would be 0 for ever after."""
    method, build = recipe("fedavg", rounds=1)

    class Overflowing(Adagrad):
        def accumulate(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
            return v + 1e30 * 1e30 * square

    ran = run(method, tmp_path, build, server_optimizer=Overflowing(), max_abandoned_rounds=9)
    (line,) = metrics(tmp_path)
    assert line["abandoned"] and "moments" in line["reason"]
    assert raw(ran.state.backbone) == raw(build().backbone.shared())
