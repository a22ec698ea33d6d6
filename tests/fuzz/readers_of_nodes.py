"""Readers of what Flower carries: what a node says to the server, and what a server asks of a node."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from grids import InProcessGrid, over_flower
from reader import PLACE, Reader, joined, parts
from worlds import recipe

from coalface.core import codec
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import run
from coalface.flower.app import records
from coalface.flower.app.transport import FlowerTransport, Patience

AT_ONCE = Patience(join=0, step=0, poll=0)
ABOUT = (records.STEP, records.JOIN, records.SETTLE, records.CHECK, records.COUNTERSIGN)


class Refused(Exception):
    """What was said is nobody's answer, or nobody's question."""


@contextmanager
def quietly() -> Iterator[None]:
    """Without the log of each message that is refused."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


# --- at the server ----------------------------------------------------------------------------------------------------

REQUEST = Request(
    "run", "silo", "train", 1, 1, 1, 1, "train", codec.Encoded(bytearray(b"common")), None, None, (0, None)
)
MEMBER = {"name": "silo", "role": "trainer", "images": 4, "identities": 2, "public": None, "code": None}
ANSWER = {"id": REQUEST.id, "sha256": hashlib.sha256(b"reply").hexdigest(), "head": [3, "0" * 64]}


class OneNode(InProcessGrid):
    """A grid of a node whose message is made as it is pulled, as Flower does it."""

    def __init__(self, says: Callable[[Message], Message]) -> None:
        super().__init__([lambda message, context: message])
        self._says = says

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        names = list(message_ids)
        said = [self._says(self._replies[name][1]) for name in names if name in self._replies]
        super().pull_messages(names)  # one that cannot be made is there as before
        return said


def hear(says: Callable[[Message], Message]) -> None:
    """Let a node join, and ask it for a step, for its ledger and for a signature: whatever it says ends no run."""
    with quietly():
        try:
            transport = FlowerTransport(OneNode(says), {"silo": "trainer"}, AT_ONCE)
        except RunFailed:  # it did not join
            raise Refused from None
        ((_, reply),) = transport.exchange([REQUEST])
        transport.check({"silo": None}, 1)
        transport.countersign("silo", {})
        transport.finalize({"silo": None}, 1)
    if isinstance(reply, StepFailed):
        raise Refused(reply)


def hear_objects(data: bytes) -> None:
    """A node that joins as it should, and then says what follows from the objects that it has pushed."""
    objects = {str(place): with_length(content) for place, content in enumerate(parts(data, 7))}

    def says(message: Message) -> Message:
        if message.metadata.message_type == records.JOIN:
            return Message(records.write(MEMBER), reply_to=message)
        said: Any = inflate_object_from_contents("0", dict(objects))
        said.metadata.__dict__["_message_id"] = "1"  # as Flower does: what is no message has none
        return cast(Message, said)

    hear(says)


def with_length(content: bytes) -> bytes:
    """An object whose head has the length of its body, which mutation would not find."""
    head, _, body = content.partition(b"\0")
    return b"%s %d\0%s" % (head.rpartition(b" ")[0], len(body), body)


def objects_of(content: RecordDict) -> bytes:
    """The objects of a message, the ones that hold others first, each named by its place."""
    message = Message(content, 1, records.STEP)
    nested = list(reversed(get_all_nested_objects(message).items()))
    deflated = [thing.deflate() for _, thing in nested]
    for place, (name, _) in enumerate(nested):
        deflated = [content.replace(name.encode(), str(place).encode()) for content in deflated]
    return joined(*deflated)


def hear_texts(data: bytes) -> None:
    """A node that says texts of JSON, and bytes."""
    joins, answers, reply = parts(data, 3)

    def says(message: Message) -> Message:
        content = records.write({}, {"reply": reply})
        text = joins if message.metadata.message_type == records.JOIN else answers
        content.config_records["said"]["json"] = text.decode("utf-8", "replace")
        return Message(content, reply_to=message)

    hear(says)


# --- at a party -------------------------------------------------------------------------------------------------------


def node_of_a_run() -> tuple[InProcessGrid, bytes]:
    """The nodes of a run that has ended, and what the first was asked first."""
    grids: list[InProcessGrid] = []
    method, build = recipe("fedavg", rounds=1)
    run(method, PLACE / "node", build, transport=over_flower(grids=grids))
    values, data = records.read(grids[0].first_request().content)
    return grids[0], asking(records.STEP, values, *data.values())


def asking(about: str, values: Any, *data: bytes) -> bytes:
    return bytes([ABOUT.index(about)]) + joined(json.dumps(values).encode(), *data)


def ask(data: bytes) -> None:
    """Ask a node: what is asked, a text of JSON, the messages of a step."""
    about = ABOUT[data[0] % len(ABOUT)] if data else records.JOIN
    text, common, each = parts(data[1:], 3)
    content = records.write({}, {name: sent for name, sent in (("common", common), ("each", each)) if sent})
    content.config_records["said"]["json"] = text.decode("utf-8", "replace")
    with quietly():
        answered = NODES.apps[1000](Message(content, 1000, about), NODES.contexts[1000])
    values, _ = records.read(answered.content)
    if "failed" in values or "fault" in values:
        raise Refused(values)


NODES, ASKED = node_of_a_run()
NODE_READERS = {
    "node-answer": Reader(
        hear_texts, (joined(json.dumps(MEMBER).encode(), json.dumps(ANSWER).encode(), b"reply"),), (Refused,)
    ),
    "node-objects": Reader(hear_objects, (objects_of(records.write(ANSWER, {"reply": b"reply"})),), (Refused,)),
    "node-request": Reader(
        ask,
        (
            ASKED,
            asking(records.JOIN, {}),
            asking(records.CHECK, {"accepted": None, "whole": True}),
            asking(records.SETTLE, {"accepted": None, "ordinal": 0}),
        ),
        (Refused,),
    ),
}
