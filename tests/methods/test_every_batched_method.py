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
from coalface.experiments.conformance.tiny_federation import NUMERICS, Ran, Stop, Tiny, run, stopping, workers
from coalface.experiments.conformance.traffic import all_tensors
from coalface.methods import METHODS
from coalface.training.local_work import LocalTraining

BATCHED = [name for name, cls in METHODS.items() if any(d.batched for d in cls.own_steps.values())]
"""The methods that have a batched form of some step."""


batched_methods = pytest.mark.parametrize("name", BATCHED)


def cohorts(name: str, images: int, **changes: Any) -> tuple[Method, Tiny, Numerics]:
    """A method whose parties take one step each, a world in float64, and client batches of so many images."""
    work = LocalTraining(
        epochs=1, batch_size=8, lr=0.5
    )  # momentum and weight decay as by default: one step has no use for them
    method, build = recipe(name, local=work, **changes)
    return method, replace(build, double=True), replace(NUMERICS, client_batch=images)


def test_every_method_of_one_identity_a_party_has_a_batched_form() -> None:
    assert sorted(BATCHED) == sorted(name for name, cls in METHODS.items() if cls.scenario == "devices")


@batched_methods
def test_client_batches_give_what_single_parties_give(name: str, tmp_path: Path) -> None:
    """State, class embeddings and losses to rounding; every tensor's bytes; the ledgers together hold what was sent."""
    method, build, numerics = cohorts(name, 16)
    alone = run(method, tmp_path / "alone", build)
    many = run(method, tmp_path / "many", build, numerics=numerics)
    moved = [t for n, t in alone.state.backbone.items() if not torch.equal(t, build().backbone.shared()[n])]
    assert len(moved) == len(alone.state.backbone)
    for tensor, of_many in zip(all_tensors(alone.state), all_tensors(many.state), strict=True):
        assert tensor.dtype == of_many.dtype
        assert (tensor - of_many).abs().max() < 1e-10

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


@pytest.mark.parametrize("name", by_default(2, BATCHED))
def test_client_batches_stopped_and_resumed_are_never_stopped(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 11)
    rules: dict[str, Any] = {"numerics": numerics, "checkpoint_every": 2}
    unbroken = run(method, tmp_path / "unbroken", build, **rules).bytes()
    assert unbroken["cohorts"]
    enrolled = 7 if name == "feduv" else 0  # who answer singly first
    for after in (0, 1, 4):
        broken = tmp_path / f"stopped after {after}"
        with pytest.raises(Stop):
            run(method, broken, build, transport=stopping(after + enrolled), **rules)
        assert run(method, broken, build, **rules).bytes() == unbroken, after


@pytest.mark.parametrize("name", by_default(1, BATCHED))
@pytest.mark.usefixtures("quick_workers")
def test_client_batches_are_the_same_with_workers(name: str, tmp_path: Path) -> None:
    method, build, numerics = cohorts(name, 11)
    alone = run(method, tmp_path / "alone", build, numerics=numerics).bytes()
    assert run(method, tmp_path / "two", build, numerics=numerics, transport=workers(2)).bytes() == alone
