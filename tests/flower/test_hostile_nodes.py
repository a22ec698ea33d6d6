"""Nodes and servers that say over Flower something else than they should: what is refused, and who loses a reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from google.protobuf.message import DecodeError
from grids import InProcessGrid, over_flower
from worlds import recipe

from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Stop, run
from coalface.flower.app import records
from coalface.flower.app.transport import FlowerTransport, Patience

HASTE = Patience(join=0.02, poll=0.005)


def answering(change: Any, about: str = records.STEP) -> Any:
    """A transport whose first node gives what `change` makes of its replies to steps, or to others."""

    def transport(setup: Any, world: Any) -> FlowerTransport:
        grids: list[InProcessGrid] = []
        link = over_flower(grids=grids)(setup, world)
        right = grids[0].apps[1000]

        def wrong(message: Message, context: Any) -> Message:
            reply: Message = right(message, context)
            return change(message, reply) if message.metadata.message_type == about else reply

        grids[0].apps[1000] = wrong
        return link

    return transport


def test_a_party_that_says_that_what_it_keeps_does_not_hold_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    method, build = recipe("fedavg")

    def stop(record: dict[str, Any]) -> None:
        raise Stop

    with pytest.raises(Stop):  # round 1 has its checkpoint by then
        run(method, tmp_path, build, transport=over_flower(), report=stop, on_error="exclude")

    def fault(message: Message, reply: Message) -> Message:
        return Message(records.write({"fault": ["x"] * 99}), reply_to=message)

    with pytest.raises(RunFailed, match="what silo-0 keeps does not hold"):
        run(method, tmp_path, build, transport=answering(fault, records.CHECK), on_error="stop")
    ran = run(method, tmp_path, build, transport=answering(fault, records.CHECK), on_error="exclude")
    rounds = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert ["silo-0" in line["failed"] for line in rounds] == [False, True, True]
    assert ran.server.at.round == 3 and '"left out", "party": "silo-0"' in (tmp_path / "events.jsonl").read_text()


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
        FlowerTransport(grid, {"silo-0": "trainer"}, HASTE)


def test_a_node_with_other_numbers_than_the_recipe_has_is_left_alone() -> None:
    grid = InProcessGrid([lambda message, context: Message(joining("11"), reply_to=message)])
    for counts in ((12, 2), (11, 3)):
        with pytest.raises(RunFailed, match="by the recipe"):
            FlowerTransport(grid, {"silo-0": "trainer"}, HASTE, counts={"silo-0": counts})
    link = FlowerTransport(grid, {"silo-0": "trainer"}, HASTE, counts={"silo-0": (11, 2)})
    assert link.members["silo-0"].images == 11


def test_a_node_with_other_code_of_the_method_is_left_alone() -> None:
    grid = InProcessGrid([lambda message, context: Message(joining(), reply_to=message)])
    with pytest.raises(RunFailed, match="has other code"):
        FlowerTransport(grid, {"silo-0": "trainer"}, HASTE, code="abc")


def instead(change_bytes: Callable[[bytes], bytes] = bytes, **changes: Any) -> Any:
    """A reply that says something else, of the same bytes or of others."""

    def change(message: Message, reply: Message) -> Message:
        values, data = records.read(reply.content)
        return Message(records.write(values | changes, {"reply": change_bytes(data["reply"])}), reply_to=message)

    return change


HEADS = [None, "x", [-1000, "0" * 64], [0, "0" * 64], [True, "0" * 64], [1, "no hash"]]


@pytest.mark.parametrize(
    "change",
    [
        *(lambda message, reply, text=text: Message(text, reply_to=message) for text in (*HOSTILE, saying("[1]"))),
        instead(id="of another request"),
        instead(lambda data: data[:-1] + b"\x01"),
        *(instead(head=head) for head in HEADS),
    ],
)
def test_a_reply_that_is_none_is_its_partys_failure_and_no_others(change: Any, tmp_path: Path) -> None:
    method, build = recipe("fedavg", rounds=1)
    ran = run(method, tmp_path, build, transport=answering(change), on_error="exclude")
    stats = ran.server.at.party_stats
    assert (stats["silo-0"].rounds, stats["silo-0"].failed, stats["silo-1"].rounds) == (0, 1, 1)


def test_a_reply_of_an_earlier_round_is_refused(tmp_path: Path) -> None:
    replies: list[RecordDict] = []

    def repeat_first(message: Message, reply: Message) -> Message:
        replies.append(reply.content)
        return Message(replies[0], reply_to=message)

    method, build = recipe("fedavg")
    ran = run(method, tmp_path, build, transport=answering(repeat_first), on_error="exclude")
    assert (ran.server.at.party_stats["silo-0"].rounds, ran.server.at.party_stats["silo-0"].failed) == (1, 2)


@pytest.mark.parametrize("error", [KeyError("a class that Flower has not"), DecodeError("no message of protobuf")])
def test_a_message_that_flower_cannot_read_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    right = InProcessGrid.pull_messages

    def pull(self: InProcessGrid, message_ids: Iterable[str]) -> list[Message]:
        messages = right(self, message_ids)
        if any((m.metadata.src_node_id, m.metadata.message_type) == (1000, records.STEP) for m in messages):
            raise error
        return messages

    monkeypatch.setattr(InProcessGrid, "pull_messages", pull)
    method, build = recipe("fedavg")
    stats = run(method, tmp_path, build, transport=over_flower(), on_error="exclude").server.at.party_stats
    assert stats["silo-0"].failed == stats["silo-1"].rounds == stats["silo-2"].rounds == 3


def test_what_a_party_says_is_cut_and_shown_in_the_metrics(tmp_path: Path) -> None:
    method, build = recipe("fedavg", rounds=1)
    long = records.write({"failed": "\x1b[31m" + "x" * 60_000})
    transport = answering(lambda message, reply: Message(long, reply_to=message))
    run(method, tmp_path, build, transport=transport, on_error="exclude")
    (reason,) = json.loads((tmp_path / "metrics.jsonl").read_text())["failed"].values()
    assert "\\x1b[31mxxx" in reason and len(reason) < 400


def test_a_party_answers_no_request_of_a_run_that_its_recipe_does_not_name(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=1)
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    request = grids[0].first_request()
    values, data = records.read(request.content)
    for name, key in ((values["run"], "id"), ("another", "failed"), (["test"], "failed")):
        request.content = records.write({**values, "run": name}, data)
        answered = grids[0].apps[1000](request, grids[0].contexts[1000])
        assert key in records.read(answered.content)[0]


def test_a_party_answers_no_request_whose_numbers_are_called_otherwise(tmp_path: Path) -> None:
    """1.0 and true are equal to 1: as a round of their own they would be answered once more."""
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=1)
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    request = grids[0].first_request()
    values, data = records.read(request.content)
    for name in ("round", "rounds", "ordinal", "call"):
        for alias in (float(values[name]), bool(values[name]), str(values[name])):
            request.content = records.write({**values, name: alias}, data)
            answered = grids[0].apps[1000](request, grids[0].contexts[1000])
            assert records.read(answered.content)[0] == {"failed": "TypeError"}


def test_a_hostile_server_is_answered_and_leaves_the_node_as_it_was(tmp_path: Path) -> None:
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=1)
    run(method, tmp_path, build, transport=over_flower(grids=grids))
    (grid,) = grids
    for content in HOSTILE:
        for about in (records.JOIN, records.STEP, records.SETTLE, records.CHECK):
            message = Message(content, 1000, about)
            message.metadata.__dict__["_message_id"] = "hostile"
            assert records.read(grid.apps[1000](message, grid.contexts[1000]).content)[0] == {"failed": "ValueError"}
    assert "reply" in records.read(grid.apps[1000](grid.first_request(), grid.contexts[1000]).content)[1]
