"""The Flower engine over the real ClientApp, in one process: the same bits as the local engine, and who is left out."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from grids import InProcessGrid, over_flower, roles, seated
from worlds import Stop, recipe, run

from coalface.core.method import Party, step
from coalface.engine.party.service import PartyService, answer
from coalface.engine.transport import RunFailed
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
    here = run(method, tmp_path / "local", build).bytes()
    assert run(method, tmp_path / "flower", build, transport=over_flower()).bytes() == here


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
    asked = [m for m in grids[0].sent if m.metadata.message_type == records.STEP]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    # a round asks every trainer once, and every validator once with all candidates in one message
    assert len(lines) > 0 and len(asked) == len(lines) * (3 + 2)


def test_a_request_that_is_delivered_twice_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training would move the cursor of the data, which is private state, and write a ledger's line again."""
    delivered: list[str] = []

    class Doubling(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            found = super().push_messages(messages)
            for message in self.sent[-len(found) :]:
                node = message.metadata.dst_node_id
                delivered.append(message.metadata.message_type)
                assert self.apps[node](message, self.contexts[node]).has_content()
            return found

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

    def transport(made: Any, world: Any) -> FlowerTransport:
        grid = InProcessGrid([seated(PartyService("silo-1", world.members()["silo-1"], made.context(world)))])
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


def test_a_straggler_is_left_out_and_its_late_reply_is_discarded_and_counted(tmp_path: Path) -> None:
    grids, links = list[InProcessGrid](), list[FlowerTransport]()
    method, build = recipe("fedavg", rounds=3)
    make = over_flower(SHORT, grids)

    def transport(made: Any, world: Any) -> FlowerTransport:
        links.append(make(made, world))
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

    def transport(made: Any, world: Any) -> FlowerTransport:
        link = over_flower()(made, world)
        grid: Any = link._grid
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

    def transport(shown: bytes) -> Any:
        def make(made: Any, world: Any) -> FlowerTransport:
            grid: Any = over_flower()(made, world)._grid
            grid.keys = {1000: shown, 1001: b"key 1", 1002: b"key 2"}
            return FlowerTransport(grid, roles(world), Patience(join=0.05, step=60, poll=0.01), keys=keys)

        return make

    for key, why in ((b"key 1", "has not its key"), (b"of somebody else", "the key of no party"), (b"", "of no party")):
        caplog.clear()
        with pytest.raises(RunFailed, match="silo-0 did not join"):
            run(method, tmp_path / "claims", build, transport=transport(key))
        assert why in caplog.text
    here = run(method, tmp_path / "local", build).bytes()
    assert run(method, tmp_path / "flower", build, transport=transport(b"key 0")).bytes() == here


def test_a_request_for_another_party_is_refused(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg")
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    asked = next(m for m in grids[0].sent if m.metadata.message_type == records.STEP and m.metadata.dst_node_id == 1000)
    reply = grids[0].apps[1001](asked, grids[0].contexts[1001])
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
    here = run(method, tmp_path / "local", build).bytes()
    right, calls = getattr(InProcessGrid, failing), [0]

    def fails(self: InProcessGrid, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] % 4:
            raise OSError("500 Internal Server Error")
        return right(self, *given)

    monkeypatch.setattr(InProcessGrid, failing, fails)
    assert run(method, tmp_path / "flower", build, transport=over_flower(brief)).bytes() == here
    assert "the SuperLink failed (OSError: 500 Internal Server Error): it is asked again" in caplog.text
    monkeypatch.setattr(InProcessGrid, failing, lambda self, *given: 1 / 0)
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


def answering(number: int, changed: Any, grids: list[InProcessGrid], about: str = records.STEP) -> Any:
    """A transport one of whose nodes gives what `changed` makes of its replies to steps, or to others."""

    def transport(made: Any, world: Any) -> FlowerTransport:
        link = over_flower(grids=grids)(made, world)
        right = grids[0].apps[1000 + number]

        def wrong(message: Message, context: Any) -> Message:
            reply: Message = right(message, context)
            return changed(message, reply) if message.metadata.message_type == about else reply

        grids[0].apps[1000 + number] = wrong
        return link

    return transport


def test_a_party_that_says_that_what_it_keeps_does_not_hold_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    method, build = recipe("fedavg")
    with pytest.raises(Stop):  # round 1 has its checkpoint by then
        run(method, tmp_path, build, transport=over_flower(), report=stop, on_error="exclude")

    def fault(asked: Message, reply: Message) -> Message:
        return Message(records.write({"fault": ["x"] * 99}), reply_to=asked)

    with pytest.raises(RunFailed, match="what silo-0 keeps does not hold"):
        run(method, tmp_path, build, transport=answering(0, fault, [], records.CHECK), on_error="stop")
    ran = run(method, tmp_path, build, transport=answering(0, fault, [], records.CHECK), on_error="exclude")
    rounds = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert ["silo-0" in each["failed"] for each in rounds] == [False, True, True]
    assert ran.server.at.round == 3 and '"left out", "party": "silo-0"' in (tmp_path / "events.jsonl").read_text()


# --- nodes and servers that say something else ------------------------------------------------------------------------


def saying(text: Any) -> RecordDict:
    return RecordDict({"said": ConfigRecord({"json": text})})


def joining(images: str = "4", identities: str = "2", name: str = "silo-0", role: str = "trainer") -> RecordDict:
    return saying(f'{{"name": "{name}", "role": "{role}", "images": {images}, "identities": {identities}}}')


COUNTS = ("Infinity", "NaN", "1e400", "1" + "0" * 400, "9007199254740993")
"""Numbers that JSON, or a float, has no room for."""
HOSTILE = [saying(text) for text in ("[" * 200_000, '{"a":' * 5_000, '{"name": "' + "x" * (1 << 20) + '"}')]
HOSTILE += [joining(count) for count in COUNTS]
"""What no party or server of ours says."""
NOT_A_PARTY = [RecordDict({}), saying("[1]"), saying(3), records.write({"name": "silo-0"})]
NOT_A_PARTY += [joining(images) for images in ('"x"', "-5", "2.5", "true", f"{10**15}")]
NOT_A_PARTY += [joining("0", "0"), joining("5", "6"), joining(role="validator"), joining(name="silo-9")]


@pytest.mark.parametrize("content", [*HOSTILE, *NOT_A_PARTY])
def test_a_node_that_cannot_be_the_party_is_left_alone(content: RecordDict) -> None:
    grid = InProcessGrid([lambda message, context: Message(content, reply_to=message)])
    with pytest.raises(RunFailed, match="silo-0 did not join"):
        FlowerTransport(grid, {"silo-0": "trainer"}, Patience(join=0.02, poll=0.005))


def test_a_node_with_other_numbers_than_the_recipe_has_is_left_alone() -> None:
    grid = InProcessGrid([lambda message, context: Message(joining("11"), reply_to=message)])
    for counts in ((12, 2), (11, 3)):
        with pytest.raises(RunFailed, match="by the recipe"):
            FlowerTransport(grid, {"silo-0": "trainer"}, Patience(join=0.02, poll=0.005), counts={"silo-0": counts})
    assert (
        FlowerTransport(grid, {"silo-0": "trainer"}, SHORT, counts={"silo-0": (11, 2)}).members["silo-0"].images == 11
    )


def instead(**changes: Any) -> Any:
    """A reply that says something else; `data` is what its bytes become."""

    def changed(asked: Message, reply: Message) -> Message:
        said, data = records.read(reply.content)
        whole = {"reply": changes["data"](data["reply"])} if "data" in changes else data
        return Message(records.write(said | {k: v for k, v in changes.items() if k != "data"}, whole), reply_to=asked)

    return changed


HEADS = [None, "x", [-1000, "0" * 64], [0, "0" * 64], [True, "0" * 64], [1, "no hash"]]


@pytest.mark.parametrize(
    "changed",
    [
        *(lambda asked, reply, text=text: Message(text, reply_to=asked) for text in (*HOSTILE, saying("[1]"))),
        instead(id="of another request"),
        instead(data=lambda data: data[:-1] + b"\x01"),
        *(instead(head=head) for head in HEADS),
    ],
)
def test_a_reply_that_is_none_is_its_partys_failure_and_no_others(changed: Any, tmp_path: Path) -> None:
    method, build = recipe("fedavg", rounds=1)
    ran = run(method, tmp_path, build, transport=answering(0, changed, []), on_error="exclude")
    stats = ran.server.at.party_stats
    assert (stats["silo-0"].rounds, stats["silo-0"].failed, stats["silo-1"].rounds) == (0, 1, 1)


def test_a_reply_of_an_earlier_round_is_refused(tmp_path: Path) -> None:
    first: list[RecordDict] = []

    def again(asked: Message, reply: Message) -> Message:
        first.append(reply.content)
        return Message(first[0], reply_to=asked)

    method, build = recipe("fedavg")
    ran = run(method, tmp_path, build, transport=answering(0, again, []), on_error="exclude")
    assert (ran.server.at.party_stats["silo-0"].rounds, ran.server.at.party_stats["silo-0"].failed) == (1, 2)


def test_a_message_that_flower_cannot_read_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = InProcessGrid.pull_messages

    def pull(self: InProcessGrid, message_ids: Iterable[str]) -> list[Message]:
        found = right(self, message_ids)
        if any((m.metadata.src_node_id, m.metadata.message_type) == (1000, records.STEP) for m in found):
            raise KeyError("a class that Flower has not")
        return found

    monkeypatch.setattr(InProcessGrid, "pull_messages", pull)
    method, build = recipe("fedavg")
    stats = run(method, tmp_path, build, transport=over_flower(), on_error="exclude").server.at.party_stats
    assert stats["silo-0"].failed == stats["silo-1"].rounds == stats["silo-2"].rounds == 3


def test_what_a_party_says_is_cut_and_shown_in_the_metrics(tmp_path: Path) -> None:
    method, build = recipe("fedavg", rounds=1)
    long = records.write({"failed": "\x1b[31m" + "x" * 60_000})
    says = answering(0, lambda asked, reply: Message(long, reply_to=asked), [])
    run(method, tmp_path, build, transport=says, on_error="exclude")
    (reason,) = json.loads((tmp_path / "metrics.jsonl").read_text())["failed"].values()
    assert "\\x1b[31mxxx" in reason and len(reason) < 400


def test_a_hostile_server_is_answered_and_leaves_the_node_as_it_was(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=1)
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    (grid,) = grids
    for content in HOSTILE:
        for about in (records.JOIN, records.STEP, records.SETTLE, records.CHECK):
            asked = Message(content, 1000, about)
            asked.metadata.__dict__["_message_id"] = "hostile"
            assert records.read(grid.apps[1000](asked, grid.contexts[1000]).content)[0] == {"failed": "ValueError"}
    right = next(m for m in grid.sent if m.metadata.message_type == records.STEP and m.metadata.dst_node_id == 1000)
    assert "reply" in records.read(grid.apps[1000](right, grid.contexts[1000]).content)[1]
