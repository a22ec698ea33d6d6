"""The Flower engine over the real ClientApp, in one process: the same bits as the local engine, and who is left out."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from grids import InProcessGrid, over_flower, roles, seated
from worlds import recipe

from coalface.core.method import Party, step
from coalface.engine.party.service import PartyService, answer
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Stop, run
from coalface.flower.app import records
from coalface.flower.app.client_app import client_app
from coalface.flower.app.transport import FlowerTransport, Patience
from coalface.methods import METHODS
from coalface.methods.fedavg import FedAvg, Global, Update

SHORT = Patience(join=5, step=0.05, poll=0.01)
SLOW = (pytest.mark.slow, pytest.mark.ci)
THREE = ("scaffold", "pfm-fv", "fedfr-joint")
"""Methods with state at both sides, with validators, and with public images."""


@pytest.mark.parametrize("name", [n if n in THREE else pytest.param(n, marks=SLOW) for n in METHODS])
def test_everything_is_as_the_local_engine_leaves_it(name: str, tmp_path: Path) -> None:
    method, build = recipe(name)
    local = run(method, tmp_path / "local", build).bytes()
    assert run(method, tmp_path / "flower", build, transport=over_flower()).bytes() == local


def stop(record: dict[str, Any]) -> None:
    raise Stop


def test_a_run_that_stopped_goes_on_over_flower_to_the_same_bytes(tmp_path: Path) -> None:
    method, build = recipe("pfm")
    whole = run(method, tmp_path / "whole", build, transport=over_flower()).bytes()
    with pytest.raises(Stop):
        run(method, tmp_path / "stops", build, transport=over_flower(), report=stop)
    assert run(method, tmp_path / "stops", build, transport=over_flower()).bytes() == whole


def test_one_message_goes_to_each_party_in_an_exchange(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("pfm-fv")
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    requests = [m for m in grids[0].sent if m.metadata.message_type == records.STEP]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # a round asks every trainer once, and every validator once with all candidates in one message
    assert len(lines) > 0 and len(requests) == len(lines) * (3 + 2)


def test_a_request_that_is_delivered_twice_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training would move the cursor of the data, which is private state, and write a ledger's line again."""
    delivered: list[str] = []

    class Doubling(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            names = super().push_messages(messages)
            for message in self.sent[-len(names) :]:
                node = message.metadata.dst_node_id
                delivered.append(message.metadata.message_type)
                assert self.apps[node](message, self.contexts[node]).has_content()
            return names

    monkeypatch.setattr("grids.InProcessGrid", Doubling)
    method, build = recipe("fedavg")
    once = run(method, tmp_path / "here", build).bytes()
    assert run(method, tmp_path / "twice", build, transport=over_flower()).bytes() == once
    assert delivered.count(records.STEP) >= 6


def test_the_bytes_in_messages_are_those_that_the_run_and_the_ledgers_count(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("pfm-fv")
    totals = run(method, tmp_path, build, transport=over_flower(grids=grids)).server.at.totals

    def payload(messages: list[Message]) -> int:
        steps = [m.content for m in messages if m.metadata.message_type == records.STEP]
        return sum(len(data) for content in steps for data in records.read(content)[1].values())

    lines = [json.loads(t) for p in (tmp_path / "ledger").iterdir() for t in p.read_text().splitlines()]
    assert payload(grids[0].sent) == totals["down"] > 0
    assert payload(grids[0].answered) == totals["up"] == sum(line["bytes"] for line in lines) > 0


# --- parties that are away, late or wrong -----------------------------------------------------------------------------


def test_the_run_does_not_begin_without_a_party_and_says_who_is_missing(tmp_path: Path) -> None:
    method, build = recipe("fedavg")

    def transport(setup: Any, world: Any) -> FlowerTransport:
        grid = InProcessGrid([seated(PartyService("silo-1", world.members()["silo-1"], setup.context(world), "test"))])
        return FlowerTransport(grid, roles(world), Patience(join=0.05, poll=0.01))

    with pytest.raises(RunFailed, match=r"silo-0, silo-2 did not join within 0.05 s: start their SuperNodes"):
        run(method, tmp_path, build, transport=transport)


def test_a_party_that_goes_is_left_out_and_takes_part_again_when_it_is_back(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=4)

    def report(record: dict[str, Any]) -> None:
        (grids[0].away.add if record["round"] == 1 else grids[0].away.discard)(1000)

    ran = run(method, tmp_path, build, transport=over_flower(grids=grids), report=report, on_error="exclude")
    party_stats = ran.server.at.party_stats
    assert (party_stats["silo-0"].rounds, party_stats["silo-0"].failed) == (3, 1) and party_stats["silo-1"].rounds == 4
    assert '"silo-0 is not there"' in (tmp_path / "metrics.jsonl").read_text()
    down = {name: stats.bytes_down for name, stats in party_stats.items()}
    assert down["silo-0"] * 4 == down["silo-1"] * 3 > 0 and sum(down.values()) == ran.server.at.totals["down"]


def test_a_round_is_countersigned_by_a_node_and_goes_on_without_one(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=3)

    def silent(app: Any, message: Message, context: Any) -> Message:
        """A node that is lost when it is to sign."""
        if message.metadata.message_type == records.COUNTERSIGN:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
        answered: Message = app(message, context)
        return answered

    def report(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            grids[0].apps = {node: functools.partial(silent, app) for node, app in grids[0].apps.items()}

    local = run(method, tmp_path / "local", build, countersign=True)
    over = run(method, tmp_path / "flower", build, transport=over_flower(grids=grids), report=report, countersign=True)
    assert over.bytes() == local.bytes()
    by_run = [
        [json.loads(t) for t in (r.folder / "countersigns.jsonl").read_text().splitlines()] for r in (local, over)
    ]
    first, signed = ([(line.get("round"), line.get("party")) for line in lines] for lines in by_run)
    assert signed == [*first[:2], (2, None), (3, None)] and first[1][1] is not None
    events = [json.loads(text) for text in (tmp_path / "flower" / "events.jsonl").read_text().splitlines()]
    assert [e["why"] for e in events if e["event"] == "not countersigned"] == ["no reply will come"] * 2


def test_a_straggler_is_left_out_and_its_late_reply_is_discarded_and_counted(tmp_path: Path) -> None:
    grids, links = list[InProcessGrid](), list[FlowerTransport]()
    method, build = recipe("fedavg", rounds=3)
    make = over_flower(SHORT, grids)

    def transport(setup: Any, world: Any) -> FlowerTransport:
        links.append(make(setup, world))
        grids[0].held.add(1000)
        return links[0]

    def report(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            grids[0].held.clear()

    ran = run(method, tmp_path, build, transport=transport, report=report, on_error="exclude")
    assert links[0].late == {"silo-0": 1}
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["late"] for event in events if "late" in event] == [{"silo-0": 1}]
    assert (ran.server.at.party_stats["silo-0"].rounds, ran.server.at.party_stats["silo-0"].failed) == (2, 1)
    assert ran.server.at.party_stats["silo-0"].bytes_down * 3 == ran.server.at.party_stats["silo-1"].bytes_down * 2
    assert "silo-0, step train, train round 1: no reply within 0.05 s" in (tmp_path / "metrics.jsonl").read_text()


def test_a_second_node_of_the_same_name_is_left_alone(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    method, build = recipe("fedavg")

    def transport(setup: Any, world: Any) -> FlowerTransport:
        link = over_flower()(setup, world)
        grid: Any = link.grid
        grid.apps[2000], grid.contexts[2000] = grid.apps[1000], grid.contexts[1000]
        return link

    over = run(method, tmp_path / "flower", build, transport=transport)
    assert over.bytes() == run(method, tmp_path / "local", build).bytes()
    assert "a second node says that it is silo-0: it is left alone" in caplog.text


def test_a_node_that_claims_a_name_without_its_key_is_left_alone(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    method, build = recipe("fedavg")
    keys = {f"silo-{i}": f"key {i}".encode() for i in range(3)}

    def transport(key: bytes) -> Any:
        def make(setup: Any, world: Any) -> FlowerTransport:
            grid: Any = over_flower()(setup, world).grid
            grid.keys = {1000: key, 1001: b"key 1", 1002: b"key 2"}
            return FlowerTransport(grid, roles(world), Patience(join=0.05, step=60, poll=0.01), keys=keys)

        return make

    for key, why in ((b"key 1", "has not its key"), (b"of somebody else", "the key of no party"), (b"", "of no party")):
        caplog.clear()
        with pytest.raises(RunFailed, match="silo-0 did not join"):
            run(method, tmp_path / "claims", build, transport=transport(key))
        assert why in caplog.text
    local = run(method, tmp_path / "local", build).bytes()
    assert run(method, tmp_path / "flower", build, transport=transport(b"key 0")).bytes() == local


def test_a_request_for_another_party_is_refused(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg")
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    reply = grids[0].apps[1001](grids[0].first_request(), grids[0].contexts[1001])
    assert records.read(reply.content) == ({"failed": "ValueError"}, {})


@dataclass(frozen=True, kw_only=True)
class Telling(FedAvg):
    """An error that names an image."""

    @step(role="trainer")
    def train(self, party: Party, common: Global) -> Update:
        raise OSError(f"{party.name}: private/ann_0001.png cannot be read")


def test_what_an_error_says_stays_at_the_party(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    _, build = recipe("fedavg")
    with pytest.raises(RunFailed, match=r"silo-0, step train, train round 1: OSError; the party's own log says why"):
        run(Telling(rounds=1), tmp_path, build, transport=over_flower(grids=grids))
    assert "ann_0001" in caplog.text  # in the log of the node


def test_a_node_that_cannot_say_who_it_is_is_not_asked_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    def nobody() -> PartyService:
        raise ValueError("no party is configured here")

    grid = InProcessGrid([client_app(lambda context: functools.partial(answer, nobody))])
    with pytest.raises(RunFailed, match="silo-0 did not join"):
        FlowerTransport(grid, {"silo-0": "trainer"}, Patience(join=0.2, poll=0.01))
    assert len(grid.sent) == 1 and "does not say which party it plays (ValueError), its own log says why" in caplog.text


@pytest.mark.parametrize("failing", ["push_messages", "pull_messages"])
def test_a_superlink_that_fails_is_asked_again_and_not_for_ever(
    failing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (method, build), brief = recipe("fedavg"), Patience(join=5, step=60, poll=0.001)
    local = run(method, tmp_path / "local", build).bytes()
    right, calls = getattr(InProcessGrid, failing), itertools.count(1)

    def fails(self: InProcessGrid, *arguments: Any) -> Any:
        if next(calls) % 4:
            raise OSError("500 Internal Server Error")
        return right(self, *arguments)

    monkeypatch.setattr(InProcessGrid, failing, fails)
    assert run(method, tmp_path / "flower", build, transport=over_flower(brief)).bytes() == local
    assert "the SuperLink failed (OSError: 500 Internal Server Error): it is asked again" in caplog.text
    monkeypatch.setattr(InProcessGrid, failing, lambda self, *arguments: 1 / 0)
    with pytest.raises(RunFailed, match="the SuperLink failed 10 times .*The run goes on from its last checkpoint"):
        run(method, tmp_path / "never", build, transport=over_flower(brief))


def test_messages_are_plain_values_and_bytes_alone(tmp_path: Path) -> None:
    """Nothing is unpickled at either end: a record holds JSON, or the bytes of an encoding."""
    grids: list[InProcessGrid] = []
    method, build = recipe("fedfv")
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    for message in grids[0].sent:
        content: RecordDict = message.content
        for record in content.values():
            if isinstance(record, ConfigRecord):
                assert list(record) == ["json"] and isinstance(record["json"], str)
            else:
                assert list(record) == ["bytes"] and record["bytes"].stype == "coalface"
