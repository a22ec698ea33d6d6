"""Client batches of every method that has a batched form: what single parties give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import by_default
from worlds import recipe

from coalface.core.method import Method
from coalface.engine.run_state import Numerics
from coalface.experiments.conformance.differences import private_states
from coalface.experiments.conformance.tiny_federation import (
    MANY,
    NUMERICS,
    Ran,
    Stop,
    Tiny,
    run,
    stopping,
    workers,
)
from coalface.experiments.conformance.traffic import all_tensors
from coalface.methods import METHODS
from coalface.training.local_work import LocalTraining

BATCHED = [
    name
    for name, cls in METHODS.items()
    if any(d.batched for d in cls.own_steps.values()) and not recipe(name)[0].unbatchable_reason(Tiny()().backbone)
]
"""The methods that have a batched form of some step, and use it."""


ONE_STEP = LocalTraining(epochs=1, batch_size=12, lr=0.3)
"""On all images of a party: momentum and weight decay are as by default, and one step has no use for momentum."""
SEVERAL = LocalTraining(steps_per_round=3, batch_size=4, lr=0.1)
OWN_FORMS = [name for name in BATCHED if "train_batched" in vars(METHODS[name])]
INHERITING_LAST = sorted(BATCHED, key=lambda name: name not in OWN_FORMS)


def cohorts(name: str, images: int, work: LocalTraining = ONE_STEP, **changes: Any) -> tuple[Method, Tiny, Numerics]:
    """A method with some local work, a world of seven parties in float64, and client batches of so many images."""
    method, build = recipe(name, local=work, **changes)
    return method, replace(build, double=True, parties=MANY), replace(NUMERICS, client_batch=images)


def test_methods_of_one_identity_a_party_and_those_that_average_what_learn_gives_have_a_batched_form() -> None:
    devices = [name for name, cls in METHODS.items() if cls.scenario == "devices"]
    like_fedavg = "fedavg fedprox pfm slowmo fedadam fedyogi fedadagrad fedbabu fedgc".split()
    assert sorted(BATCHED) == sorted([*devices, *like_fedavg])


@pytest.mark.parametrize(
    ("name", "work"),
    [(name, ONE_STEP) for name in BATCHED] + by_default(len(OWN_FORMS), [(name, SEVERAL) for name in INHERITING_LAST]),
)
def test_client_batches_give_what_single_parties_give(name: str, work: LocalTraining, tmp_path: Path) -> None:
    """State, private state and losses to rounding; every tensor's bytes; the ledgers together hold what was sent."""
    method, build, numerics = cohorts(name, 40, work)
    alone = run(method, tmp_path / "alone", build)
    many = run(method, tmp_path / "many", build, numerics=numerics)
    moved = [t for n, t in alone.state.backbone.items() if not torch.equal(t, build().backbone.shared()[n])]
    assert len(moved) == len(alone.state.backbone)
    for tensor, of_many in zip(all_tensors(alone.state), all_tensors(many.state), strict=True):
        assert tensor.dtype == of_many.dtype
        assert (tensor - of_many).abs().max() < 1e-10
    kept, of_batches = (private_states(method, ran.folder) for ran in (alone, many))
    assert kept.keys() == of_batches.keys() and bool(kept) == any(d.keeps for _, d in method.steps.values())
    for party, state in kept.items():
        for tensor, of_many in zip(all_tensors(state), all_tensors(of_batches[party]), strict=True):
            assert tensor.shape == of_many.shape and torch.allclose(tensor, of_many, rtol=0, atol=1e-10), party

    def lines(ran: Ran) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]

    for ours, expected in zip(lines(many), lines(alone), strict=True):
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            if key == "bytes_up":  # a number with another digit may make a header 8 bytes longer or shorter
                assert abs(ours[key] - value) <= 8 * expected["asked"]
            else:
                close = isinstance(value, float | dict) and key != "failed"
                assert ours[key] == (pytest.approx(value, abs=1e-10) if close else value), key
    down = {party: stats.bytes_down for party, stats in alone.server.at.party_stats.items()}
    assert {party: stats.bytes_down for party, stats in many.server.at.party_stats.items()} == down
    rounds = {party: stats.rounds for party, stats in alone.server.at.party_stats.items()}
    assert {party: stats.rounds for party, stats in many.server.at.party_stats.items()} == rounds

    files = [many.folder / "cohorts.jsonl", *sorted((many.folder / "ledger").glob("*.jsonl"))]
    listed = [json.loads(text) for path in files for text in path.read_text().splitlines()]
    assert sum(line["bytes"] for line in listed) == many.server.at.totals["up"]
    single = [json.loads(t) for p in (alone.folder / "ledger").iterdir() for t in p.read_text().splitlines()]
    assert tensor_bytes(listed) == tensor_bytes(single)
    assert all(line.get("parties", 1) > 0 for line in listed)
    assert {line["step"] for line in listed if "parties" in line} == {"train"}
    assert not any(line["step"] == "train" for line in listed if "parties" not in line)
    assert many.server.check_ledgers() == {}


def tensor_bytes(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int, str], int]:
    """The bytes of every tensor by step, round and name."""
    counts: dict[tuple[str, int, str], int] = {}
    for line in lines:
        if line["kind"] == "tensor":
            key = line["step"], line["round"], line["name"]
            counts[key] = counts.get(key, 0) + line["bytes"]
    return counts


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", ["fedavg", *by_default(1, [name for name in BATCHED if name != "fedavg"])])
def test_client_batches_stopped_and_resumed_are_never_stopped(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 24, SEVERAL)
    rules: dict[str, Any] = {"numerics": numerics, "checkpoint_every": 2}
    unbroken = run(method, tmp_path / "unbroken", build, **rules).bytes()
    assert unbroken["cohorts"]
    enrolled = 7 if name == "feduv" else 0  # who answer singly first
    second_round = 2 if name == "fedfv" else 4  # which asks a sample of parties, in fewer batches
    for after in (0, 1, second_round):
        broken = tmp_path / f"stopped after {after}"
        with pytest.raises(Stop):
            run(method, broken, build, transport=stopping(after + enrolled), **rules)
        assert run(method, broken, build, **rules).bytes() == unbroken, after


@pytest.mark.parametrize("name", by_default(1, BATCHED))
@pytest.mark.usefixtures("quick_workers")
def test_client_batches_are_the_same_with_workers(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 24, SEVERAL)
    alone = run(method, tmp_path / "alone", build, numerics=numerics).bytes()
    assert run(method, tmp_path / "two", build, numerics=numerics, transport=workers(2)).bytes() == alone
