from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from server_runs import controls, listed, metrics
from toys import CALLS, HOOKS, Moves, State, Values

from coalface.core.method import Federation, Mean, Party, Tensors, like, message, step
from coalface.engine.faults import SimulatedFaults
from coalface.engine.party.request import StepBroken, StepFailed
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, run, stopping

pytestmark = pytest.mark.usefixtures("toy_steps")


def test_a_refused_reply_is_named_and_leaves_its_party_where_it_was(tmp_path: Path) -> None:
    ran = run(Moves(rounds=2), tmp_path, faults=SimulatedFaults(corrupt={"silo-1": "nan"}))
    assert ran.state.values["a"].tolist() == pytest.approx([2 * (12 * 1 + 10 * 3) / 22] * 3)
    assert ran.state.control["a"].tolist() == pytest.approx([2.0 * (1 + 3)] * 3)
    assert metrics(tmp_path)[0]["failed"] == {"silo-1": "values/a holds values that are not finite"}
    assert ran.server.at.party_stats["silo-1"].failed == 2
    assert list((tmp_path / "parties" / "silo-1").iterdir()) == []


@message
class Claim:
    values: Tensors
    spare: Tensors | None = like("values")
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Claims(Moves):
    """`silo-1` claims a share of its own, and leaves `spare` out."""

    field: str = "values"
    share: float = 1.0

    def round(self, fed: Federation, state: State) -> State:
        fed.ask(self.claim, common=Values(values=state.values), aggregate=[Mean(self.field, by="share")])
        return state

    @step(role="trainer")
    def claim(self, party: Party, common: Values) -> Claim:
        if party.name == "silo-1":
            return Claim(values=common.values, spare=None, share=self.share)
        return Claim(values=common.values, spare=common.values)


@pytest.mark.parametrize(
    ("field", "share", "why"),
    [
        *(("values", share, f"share is {share}") for share in (0.0, -1.0, 1e9)),
        ("values", math.nan, "share is nan"),
        ("spare", 1.0, "spare is empty"),
    ],
)
def test_a_reply_whose_weight_or_field_cannot_count_is_refused(
    tmp_path: Path, field: str, share: float, why: str
) -> None:
    run(Claims(rounds=1, field=field, share=share), tmp_path)
    assert metrics(tmp_path)[0]["failed"]["silo-1"].startswith(why)


@pytest.mark.parametrize("kind", ["lost", "dropout"])
def test_control_variates_add_up_whatever_is_lost(tmp_path: Path, kind: str) -> None:
    """SCAFFOLD's invariant: the server's c is the mean of the c_i, through lost replies and abandoned rounds."""
    faults = SimulatedFaults(**{kind: 0.4})
    ran = run(Moves(rounds=12), tmp_path, faults=faults, min_reply_fraction=0.6, max_abandoned_rounds=12)
    records = metrics(tmp_path)
    assert {r["abandoned"] for r in records} == {True, False}
    total = sum(c.total["a"][0].item() for c in controls(ran).values())
    assert ran.state.control["a"][0].item() == pytest.approx(total)
    counted = [r for r in records if not r["abandoned"]]
    accepted = {p: sum(p not in r["failed"] for r in counted) for p in ran.server.at.party_stats}
    assert {p: c.rounds for p, c in controls(ran).items()} == accepted
    trained = {p: sum(call[0] == p for call in CALLS) for p in ran.server.at.party_stats}
    reached = 12 if kind == "lost" else None  # a lost reply was trained for, a dropped party was not
    assert kind == "dropout" or set(trained.values()) == {reached}
    assert kind == "lost" or sum(trained.values()) == sum(r["arrived"] for r in records)


def test_an_abandoned_round_changes_nothing_and_says_why(tmp_path: Path) -> None:
    def broken(party: Party) -> None:
        if party.round == 2 and party.name != "silo-0":
            raise ValueError("cannot read its images")

    HOOKS.append(broken)
    ran = run(Moves(rounds=3), tmp_path, on_error="exclude")
    (HOOKS.clear(), CALLS.clear())
    good = run(Moves(rounds=2), tmp_path / "good")
    assert torch.equal(ran.state.values["a"], good.state.values["a"])
    record = metrics(tmp_path)[1]
    assert (record["abandoned"], record["arrived"]) == (True, 1)
    assert record["reason"].startswith("1 of 3 replies count, 2 are needed (silo-1: silo-1, step move, train round 2:")
    assert [c.rounds for c in controls(ran).values()] == [2, 2, 2]


def only_first(party: Party) -> None:
    if party.name != "silo-0" and CALLS[-1][1] == "remember":
        raise ValueError("no")


def test_what_a_round_accepted_before_it_was_abandoned_does_not_count(tmp_path: Path) -> None:
    """The first ask of the last round goes well and the second does not."""
    HOOKS.append(lambda party: only_first(party) if party.round == 3 else None)
    ran = run(Moves(rounds=3, note=True, at_least=3), tmp_path, on_error="exclude")
    assert metrics(tmp_path)[-1]["abandoned"]
    assert [c.rounds for c in controls(ran).values()] == [2, 2, 2]
    assert {p: m["a"][0].item() for p, m in ran.own_models().items()} == {"silo-0": 2.0, "silo-1": 4.0, "silo-2": 6.0}


@pytest.mark.parametrize(
    ("quorum", "parties", "need"),
    [(0.5, 3, 2), (0.0, 3, 1), (1.0, 3, 3), (0.28, 25, 7)],  # 0.28 · 25 is a little more than 7 in floating point
)
def test_a_quorum_is_rounded_up(tmp_path: Path, quorum: float, parties: int, need: int) -> None:
    for counted in (need - 1, need):
        faults = SimulatedFaults(corrupt={f"silo-{i}": "nan" for i in range(parties - counted)})
        folder = tmp_path / str(counted)
        run(Moves(rounds=1), folder, Tiny(parties=parties), faults=faults, min_reply_fraction=quorum)
        assert metrics(folder)[0]["abandoned"] == (counted < need)


@pytest.mark.parametrize(("error", "of_one_party"), [(OSError, True), (ValueError, True), (AttributeError, False)])
def test_a_failed_step_ends_a_simulation_with_its_cause(
    error: type[Exception], of_one_party: bool, tmp_path: Path
) -> None:
    """Without its party the run goes on only where the error is not one of the code that all parties run."""

    def broken(party: Party) -> None:
        raise error("the disk is gone")

    HOOKS.append(broken)
    line = broken.__code__.co_firstlineno + 1
    told = rf"silo-0, step move, train round 1: {error.__name__}: the disk is gone \(test_replies.py, line {line}, in "
    with pytest.raises(RunFailed, match=told) as caught:
        run(Moves(), tmp_path)
    assert ("engine.on_error=exclude" in str(caught.value)) == of_one_party
    assert isinstance(caught.value.__cause__, StepBroken) != of_one_party
    assert isinstance(caught.value.__cause__, StepFailed) and isinstance(caught.value.__cause__.__cause__, error)


@dataclass(frozen=True, kw_only=True)
class Weighted(Moves):
    """Only one party has a weight."""

    def round(self, fed: Federation, state: State) -> State:
        aggregate = [Mean("values", by={"silo-1": 1.0})]
        answer = fed.ask(self.move, common=Values(values=state.values), aggregate=aggregate)
        return State(values=answer.aggregated["values"], control=state.control)


def test_a_round_without_any_weight_is_abandoned(tmp_path: Path) -> None:
    run(Weighted(rounds=1), tmp_path, faults=SimulatedFaults(corrupt={"silo-1": "nan"}))
    assert "give a party that answers a weight" in metrics(tmp_path)[0]["reason"]


# --- bytes of what did not count --------------------------------------------------------------------------------------


TROUBLES = [
    SimulatedFaults(),
    SimulatedFaults(corrupt={"silo-1": "absurd"}),
    SimulatedFaults(lost=0.4),
    SimulatedFaults(slow={"silo-2": 3.0}, deadline=1.0),
    SimulatedFaults(dropout=0.3, lost=0.3, corrupt={"silo-0": "shape"}),
]


@pytest.mark.parametrize("faults", TROUBLES, ids=range(len(TROUBLES)))
def test_every_reply_that_was_sent_is_counted_whatever_became_of_it(tmp_path: Path, faults: SimulatedFaults) -> None:
    ran = run(Moves(rounds=8, note=True), tmp_path, faults=faults, max_abandoned_rounds=9, min_reply_fraction=0.4)
    at, bytes_listed, records = ran.server.at, listed(tmp_path), metrics(tmp_path)
    assert {name: stats.bytes_up for name, stats in at.party_stats.items()} == bytes_listed
    assert at.totals["up"] == sum(bytes_listed.values()) == sum(record["bytes_up"] for record in records)
    lines = [json.loads(text) for text in (tmp_path / "ledger" / "silo-0.jsonl").read_text().splitlines()]
    moved = sum(line["bytes"] for line in lines if (line["round"], line["step"]) == (lines[0]["round"], "move"))
    for what, began in (("lost", ("late", "the reply was lost")), ("refused", ("values", "images"))):
        hit = [(p, why) for record in records for p, why in record["failed"].items() if why.startswith(began)]
        assert at.totals.get(what, 0) == sum(record.get(f"bytes_{what}", 0) for record in records)
        assert bool(at.totals.get(what, 0)) == bool(hit)
        if what == "refused":  # it is `move` that is refused, and then `remember` is not asked
            assert at.totals.get(what, 0) == len(hit) * moved
    if faults == SimulatedFaults():
        assert "bytes_lost" not in records[0] and "bytes_refused" not in records[0]


def test_bytes_survive_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"faults": TROUBLES[-1], "max_abandoned_rounds": 9, "min_reply_fraction": 0.4}
    whole = run(Moves(rounds=6), tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        run(Moves(rounds=6), tmp_path / "cut", transport=stopping(7), **settings)
    resumed = run(Moves(rounds=6), tmp_path / "cut", **settings)
    assert resumed.server.at.totals == whole.server.at.totals
    assert resumed.server.at.totals["up"] == sum(listed(tmp_path / "cut").values())
