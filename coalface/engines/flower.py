"""The Flower engine: parties behind SuperNodes, reached through a SuperLink. The only file that imports flwr.

A request is one Flower message: a header of plain values, and the encoded messages as they are, the one for all and the
party's own. A reply is encoded bytes, or the kind of the error for which a step failed: what an error says may name
images, so it stays in the party's log. Nodes have random numbers; a query asks each which party it is.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coalface import wire
from coalface.core import Tensors, Ticket
from coalface.engines.cohorts import Cohort
from coalface.engines.desk import Desk, Request, Site, StepFailed
from coalface.engines.transport import Member, Reply, RunFailed

log = logging.getLogger(__name__)

JOIN, STEP, KEEP, SETTLE, CHECK = "query.join", "train.step", "train.keep", "query.settle", "query.check"
"""What a node is asked: who it is, to run a step, to make its own model, to forget, to look at its ledger."""
AGAIN = 30.0
"""Seconds after which a node is asked again that could not say who it is."""
_PLAIN = tuple(f.name for f in fields(Request) if f.name not in ("common", "each"))


# --- at a party -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seat:
    """What a node plays: one party."""

    name: str
    member: Member
    site: Site
    keep: Callable[[Tensors], None] = lambda model: None
    """Takes the party's own model when a run ends; it stays at the party."""


def client_app(seat: Callable[[Context], Seat]) -> ClientApp:
    """The party's side. `seat` says from a node's configuration which party it plays; it is asked at every message."""
    app = ClientApp()

    def answered(about: str, work: Callable[[Seat, RecordDict], RecordDict]) -> None:
        category, _, action = about.partition(".")

        @getattr(app, category)(action)
        def handle(message: Message, context: Context) -> Message:
            try:
                return Message(work(seat(context), message.content), reply_to=message)
            except Exception as error:
                log.exception("%s failed", about)
                kind = type(error.__cause__ or error).__name__
                return Message(RecordDict({"failed": _plain(kind=kind)}), reply_to=message)

    answered(JOIN, _join)
    answered(STEP, _step)
    answered(KEEP, _keep)
    answered(SETTLE, _settle)
    answered(CHECK, _check)
    return app


def _join(seat: Seat, content: RecordDict) -> RecordDict:
    return RecordDict({"member": _plain(name=seat.name, **asdict(seat.member))})


def _step(seat: Seat, content: RecordDict) -> RecordDict:
    reply = Desk(seat.site, seat.name).answer(_request(seat, content))
    return RecordDict({"reply": _array(reply.data if isinstance(reply, wire.Encoded) else reply)})


def _keep(seat: Seat, content: RecordDict) -> RecordDict:
    seat.keep(Desk(seat.site, seat.name).own_model(_request(seat, content)))
    return RecordDict({})


def _settle(seat: Seat, content: RecordDict) -> RecordDict:
    said = _read(content, "settle")
    Desk(seat.site, seat.name).settle(said["accepted"], said["ordinal"])
    return RecordDict({})


def _check(seat: Seat, content: RecordDict) -> RecordDict:
    said = _read(content, "check")
    try:
        Desk(seat.site, seat.name).check(said["accepted"], whole=said["whole"])
    except (FileNotFoundError, ValueError) as error:
        log.error("the ledger does not hold: %s", error)
        return RecordDict({"fault": _plain(kind=type(error).__name__)})
    return RecordDict({})


def _request(seat: Seat, content: RecordDict) -> Request:
    said = _read(content, "request")
    if said["party"] != seat.name:
        raise ValueError(f"a request for {said['party']} came to {seat.name}: it is left alone")
    said["horizon"] = tuple(said["horizon"])
    common, each = (wire.Encoded(_bytes(content, n)) if n in content else None for n in ("common", "each"))
    return Request(**said, common=common, each=each)


# --- records ----------------------------------------------------------------------------------------------------------


def _plain(**values: Any) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(values)})


def _read(content: RecordDict, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(content.config_records[name]["json"]))
    return found


def _array(data: bytes | bytearray | memoryview) -> ArrayRecord:
    """Bytes as a record that Flower sends in pieces, and that lies at the SuperLink once for all to whom it goes."""
    return ArrayRecord({"bytes": Array(dtype="uint8", shape=(len(data),), stype="coalface", data=bytes(data))})


def _bytes(content: RecordDict, name: str) -> bytearray:
    return bytearray(content.array_records[name]["bytes"].data)


# --- at the server ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    join: float = 300.0
    """For all expected parties to be there before the run begins."""
    step: float = 3600.0
    """For the reply to a request, from its sending: the round's deadline."""
    poll: float = 0.2
    """Between two looks for replies."""


class Link:
    """A transport whose parties are nodes of a Flower grid."""

    def __init__(
        self,
        grid: Grid,
        expected: Sequence[str],
        patience: Patience = Patience(),
        *,
        keys: Mapping[str, bytes] | None = None,
        window: int = 64,
    ) -> None:
        """`keys` are the parties' public keys as the SuperLink knows them; without them a node may say any name."""
        self._grid, self._patience, self._keys, self._window = grid, patience, keys, window
        self._nodes: dict[str, int] = {}
        self._asked: dict[int, str] = {}
        """Nodes that have said which party they play."""
        self._joining: dict[str, int] = {}
        """Message -> node, of those that have been asked and have not answered."""
        self._again: dict[int, float] = {}
        """Nodes that could not say it, and when they are asked again."""
        self._late: dict[str, str] = {}
        """Message -> party, of requests that were given up."""
        self.late: dict[str, int] = {}
        """Party -> replies that came after their deadline, and were discarded."""
        self._posted: dict[Ticket, list[tuple[Request, str | StepFailed, float]]] = {}
        self.members: dict[str, Member] = {}
        ends = time.monotonic() + patience.join
        self._look()
        while missing := sorted(set(expected) - self.members.keys()):
            if time.monotonic() > ends:
                raise RunFailed(
                    f"{', '.join(missing)} did not join within {patience.join:g} s: start their SuperNodes, see that "
                    "they reach the SuperLink, or wait longer"
                )
            time.sleep(patience.poll)
            self._look()
        self.members = {name: self.members[name] for name in sorted(expected)}

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Each request with its reply, in order; at most `window` are under way."""
        self._look()
        ahead: list[tuple[Request, str | StepFailed, float]] = []
        for request in requests:
            ahead.append(self._sent(STEP, request))
            if len(ahead) >= self._window:
                yield self._reply(*ahead.pop(0))
        while ahead:
            yield self._reply(*ahead.pop(0))

    def together(self, requests: Iterable[Request], images: int) -> Iterator[tuple[Request, Reply] | Cohort]:
        """Parties at nodes of their own share no batch."""
        return self.exchange(requests)

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        """Send the work; it runs beside the coming rounds."""
        self._look()
        self._posted[ticket] = [self._sent(STEP, request) for request in requests]

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Wait for what was posted."""
        for sent in self._posted.pop(ticket, None) or [self._sent(STEP, request) for request in requests]:
            yield self._reply(*sent)

    def own_models(self, requests: Iterable[Request]) -> Iterator[tuple[str, Tensors]]:
        """Have every party make its own model and keep it; nothing of it comes here."""
        for sent in [self._sent(KEEP, request) for request in requests]:
            _, reply = self._reply(*sent)
            if isinstance(reply, StepFailed):
                log.warning("%s", reply)
        return iter(())

    def settle(self, accepted: Mapping[str, str | None], ordinal: int) -> None:
        """Tell every party which commit was accepted last; one that does not hear it keeps more files than it needs."""
        told = {party: _plain(accepted=commit, ordinal=ordinal) for party, commit in accepted.items()}
        self._tell(SETTLE, "settle", told)

    def check(self, accepted: Mapping[str, str | None], whole: int) -> dict[str, str]:
        """What is wrong with parties' ledgers, as they say by themselves; those away are looked at when they return."""
        asked = {
            party: _plain(accepted=commit, whole=place < whole)
            for place, (party, commit) in enumerate(accepted.items())
        }
        found = self._tell(CHECK, "check", asked)
        faults = {party: _read(content, "fault")["kind"] for party, content in found.items() if "fault" in content}
        return {p: f"the ledger of {p} does not hold ({kind}); its own log says why" for p, kind in faults.items()}

    def close(self) -> None:
        """Nothing of it outlives the run."""

    # Sending and waiting

    def _look(self) -> None:
        """Ask nodes that are new which parties they play, and take in what those said that were asked before."""
        keys = {node.node_id: node.public_key for node in self._grid.get_nodes()}
        now = time.monotonic()
        self._nodes = {party: node for party, node in self._nodes.items() if node in keys}
        self._joining = {message: node for message, node in self._joining.items() if node in keys}
        for node in sorted(keys.keys() & self._asked.keys()):  # one that was away has come back
            self._nodes.setdefault(self._asked[node], node)
        known = self._asked.keys() | set(self._joining.values())
        for node in sorted(keys.keys() - known):
            if self._again.get(node, now) <= now:
                self._joining[self._push(JOIN, node, RecordDict({}))] = node
        for message, content in self._pull(list(self._joining)).items():
            node = self._joining.pop(message)
            if why := self._joined(node, content, keys[node]):
                log.warning("%s: it is left alone", why)
                self._again[node] = time.monotonic() + AGAIN

    def _joined(self, node: int, content: RecordDict | None, key: bytes) -> str:
        """Take in what a node says of itself; why not, where it cannot be."""
        if content is None or "member" not in content:
            kind = _read(content, "failed")["kind"] if content is not None and "failed" in content else "no answer"
            return f"node {node} does not say which party it plays ({kind}), its own log says why"
        said = _read(content, "member")
        name = said.pop("name")
        if self._keys is not None and self._keys.get(name) != key:
            return f"node {node} says that it is {name} and has not its key"
        self._asked[node] = name
        if self._nodes.setdefault(name, node) != node:
            return f"a second node says that it is {name}"
        self.members.setdefault(name, Member(**said))
        return ""

    def _sent(self, about: str, request: Request) -> tuple[Request, str | StepFailed, float]:
        ends = time.monotonic() + self._patience.step
        node = self._nodes.get(request.party)
        if node is None:
            return request, StepFailed(f"{request.party} is not there"), ends
        content = RecordDict({"request": _plain(**{name: getattr(request, name) for name in _PLAIN})})
        for name in ("common", "each"):
            if (encoded := getattr(request, name)) is not None:
                content[name] = _array(encoded.data)
        return request, self._push(about, node, content), ends

    def _reply(self, request: Request, sent: str | StepFailed, ends: float) -> tuple[Request, Reply]:
        where = f"{request.party}, step {request.step}, {request.stage} round {request.round}"
        if isinstance(sent, StepFailed):
            return request, sent
        content = self._wait([sent], ends).get(sent)
        if content is None:
            self._late[sent] = request.party
            return request, StepFailed(f"{where}: no reply within {self._patience.step:g} s")
        if "failed" in content:
            kind = _read(content, "failed")["kind"]
            return request, StepFailed(f"{where}: {kind}; the party's own log says why")
        return request, _bytes(content, "reply") if "reply" in content else bytearray()

    def _tell(self, about: str, name: str, records: Mapping[str, ConfigRecord]) -> dict[str, RecordDict]:
        self._look()
        there = {party: record for party, record in records.items() if party in self._nodes}
        sent = {self._push(about, self._nodes[p], RecordDict({name: record})): p for p, record in there.items()}
        found = self._wait(list(sent), time.monotonic() + self._patience.step)
        return {sent[message]: content for message, content in found.items() if content is not None}

    def _push(self, about: str, node: int, content: RecordDict) -> str:
        message = Message(content, node, about, ttl=4 * self._patience.step)
        return next(iter(self._grid.push_messages([message])))

    def _wait(self, messages: Sequence[str], ends: float) -> dict[str, RecordDict | None]:
        """The replies that come before `ends`; None for one that the SuperLink says will not come."""
        found: dict[str, RecordDict | None] = {}
        while True:
            found |= self._pull([message for message in messages if message not in found])
            if len(found) == len(messages) or time.monotonic() > ends:
                return found
            time.sleep(self._patience.poll)

    def _pull(self, messages: Sequence[str]) -> dict[str, RecordDict | None]:
        """The replies that are there; those to what was given up are counted and thrown away."""
        found: dict[str, RecordDict | None] = {}
        for reply in self._grid.pull_messages([*messages, *self._late]) if messages or self._late else ():
            answered = reply.metadata.reply_to_message_id
            if answered in self._late:
                party = self._late.pop(answered)
                self.late[party] = self.late.get(party, 0) + 1
                log.warning("a reply of %s came after its deadline, and is discarded", party)
            else:
                found[answered] = reply.content if reply.has_content() else None
        return found


def server_app(serve: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """The server's side: `serve` is given the grid and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app
