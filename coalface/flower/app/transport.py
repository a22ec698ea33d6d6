"""The server's side: a transport whose parties are nodes of a Flower grid, reached through a SuperLink.

A request is one message: plain values, and the encoded messages as they are, the one for all and the party's own. Nodes
have random numbers; a query asks each which party it is.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeVar

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from google.protobuf.message import DecodeError

from coalface.core import codec
from coalface.core.method import Tensors, Ticket
from coalface.core.parsing import LARGEST
from coalface.core.text import told
from coalface.engine.client_batch import ClientBatch
from coalface.engine.party.request import Request, StepFailed, Unanswered
from coalface.engine.transport import Member, Reply, RunFailed, late
from coalface.flower.app.records import CHECK, COUNTERSIGN, JOIN, SETTLE, STEP, read, write
from coalface.privacy.secure_sums.signatures import verifier

log = logging.getLogger(__name__)

T = TypeVar("T")

TRIES = 10
"""Tries of a call of the SuperLink before the run ends."""
COUNTERSIGN_SECONDS = 60.0
"""How long a round waits for its countersignature."""
MOST_IMAGES = 1 << 40
"""More than any party has."""
AGAIN = 30.0
"""Seconds after which a node is asked again that could not say who it is."""
Answer = tuple[dict[str, Any], dict[str, bytes]]
"""What a node says: plain values, and bytes by name."""
_NO_ANSWER: Answer = {"failed": "no reply will come"}, {}
"""For a node that will not answer."""
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, DecodeError)
"""What Flower raises for a message that it cannot read; where it does not reach the SuperLink it raises others."""
_PLAIN = tuple(f.name for f in fields(Request) if f.name not in ("common", "each"))


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds."""

    join: float = 300.0
    """For all expected parties to be there before the run begins."""
    step: float = 3600.0
    """For the reply to a request, from its sending: the round's deadline."""
    poll: float = 0.2
    """Between two looks for replies."""


@dataclass(eq=False, repr=False)
class FlowerTransport:
    """A transport whose parties are nodes of a Flower grid: it is there once all of them are.

    Raises RunFailed where they are not there in time.
    """

    grid: Grid
    expected: Mapping[str, str]
    """Party -> role."""
    patience: Patience = Patience()
    _: KW_ONLY
    keys: Mapping[str, bytes] | None = None
    """The parties' public keys as the SuperLink knows them; without them a node may say any name."""
    public: str | None = None
    """`FaceSet.who` of the public images that every party must hold as the server does; None: there are none."""
    code: str | None = None
    """`provenance.code_digest` of the method at the server, which every node must have; None: any will do."""
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The images and identities of those parties of which the recipe says them."""
    untold: bool = False
    """Whether nothing that a party says of its images and identities is kept."""
    max_in_flight: int = 64

    def __post_init__(self) -> None:
        expected, patience = self.expected, self.patience
        self.verify = verifier(self.keys) if self.untold and self.keys is not None else None
        self._nodes: dict[str, int] = {}
        self._party_of: dict[int, str] = {}
        """Nodes that have said which party they play."""
        self._joining: dict[str, int] = {}
        """Message -> node, of those that have been asked and have not answered."""
        self._ask_again_at: dict[int, float] = {}
        """Nodes that could not say it, and when they are asked again."""
        self._refused: dict[str, str] = {}
        """Party -> why a node that says it is that one was left alone last; "" -> of nodes with no party's key."""
        self._strangers: set[int] = set()
        """Nodes whose keys are no party's: they are asked nothing, so nothing that they say is read."""
        self._late: dict[str, str] = {}
        """Message -> party, of requests that were given up."""
        self.heads: dict[str, tuple[int, str]] = {}
        """Party -> lines and last hash of its ledger, as it says them with a reply."""
        self.late: dict[str, int] = {}
        """Party -> replies that came after their deadline, and were discarded."""
        self._posted: dict[Ticket, list[tuple[Request, str | StepFailed, float]]] = {}
        self.members: dict[str, Member] = {}
        ends = time.monotonic() + patience.join
        self._look()
        while missing := sorted(expected.keys() - self.members.keys()):
            if time.monotonic() > ends:
                refusals = [self._refused[name] for name in [*missing, ""] if name in self._refused]
                why = "".join(f". Left alone: {refusal}" for refusal in refusals)
                raise RunFailed(
                    f"{', '.join(missing)} did not join within {patience.join:g} s: start their SuperNodes, see that "
                    f"they reach the SuperLink, or wait longer{why}"
                )
            time.sleep(patience.poll)
            self._look()
        self.members = {name: self.members[name] for name in sorted(expected)}

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Each request with its reply, in order; at most `max_in_flight` are under way."""
        self._look()
        ahead: list[tuple[Request, str | StepFailed, float]] = []
        for request in requests:
            ahead.append(self._send(request))
            if len(ahead) >= self.max_in_flight:
                yield self._reply(*ahead.pop(0))
        while ahead:
            yield self._reply(*ahead.pop(0))

    def batched(self, requests: Iterable[Request], images: int) -> Iterator[tuple[Request, Reply] | ClientBatch]:
        """Parties at nodes of their own share no batch."""
        return self.exchange(requests)

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        """Send the work; it runs beside the coming rounds."""
        self._look()
        self._posted[ticket] = [self._send(request) for request in requests]

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Wait for what was posted."""
        for sent in self._posted.pop(ticket, None) or [self._send(request) for request in requests]:
            yield self._reply(*sent)

    def local_results(self, requests: Iterable[Request]) -> Iterator[tuple[str, Tensors]]:
        """Nothing: a local result, such as a party's own model, stays with it."""
        return iter(())

    def finalize(self, accepted: Mapping[str, str | None], ordinal: int) -> None:
        """Tell every party which commit was accepted last; one that does not hear it keeps more files than it needs."""
        self._tell(SETTLE, {party: {"accepted": commit, "ordinal": ordinal} for party, commit in accepted.items()})

    def check(self, accepted: Mapping[str, str | None], whole: int) -> dict[str, str]:
        """What is wrong with parties' ledgers, as they say by themselves; those away are looked at when they return."""
        questions = {
            party: {"accepted": commit, "whole": place < whole}
            for place, (party, commit) in enumerate(accepted.items())
        }
        return {
            party: f"what {party} keeps does not hold, its ledger or its private state ({told(values['fault'])}); its "
            "own log says why"
            for party, values in self._tell(CHECK, questions).items()
            if "fault" in values
        }

    def countersign(self, party: str, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """A party's signature; the run waits `COUNTERSIGN_SECONDS` for it, since the next one covers this round too."""
        answers = self._tell(COUNTERSIGN, {party: statement}, seconds=COUNTERSIGN_SECONDS)
        return answers.get(party, {"failed": "it did not answer"})

    def close(self) -> None:
        """Nothing of it outlives the run."""

    # Sending and waiting

    def _look(self) -> None:
        """Ask nodes that are new which parties they play, and take in what those said that were asked before."""
        keys = {node.node_id: node.public_key for node in self._retry(self.grid.get_nodes)}
        self._nodes = {party: node for party, node in self._nodes.items() if node in keys}
        self._joining = {message: node for message, node in self._joining.items() if node in keys}
        for node in sorted(keys.keys() & self._party_of.keys()):  # one that was away has come back
            self._nodes.setdefault(self._party_of[node], node)
        for node in sorted(keys.keys() - self._party_of.keys() - set(self._joining.values())):
            if self.keys is not None and keys[node] not in self.keys.values():
                if node not in self._strangers:
                    self._strangers.add(node)
                    self._refused[""] = f"node {node} has the key of no party of this run"
                    log.warning("%s: it is left alone", self._refused[""])
            elif self._ask_again_at.get(node, 0.0) <= time.monotonic():
                self._joining[self._push(JOIN, node, write({}))] = node
        for message, (values, _) in self._pull(list(self._joining)).items():
            node = self._joining.pop(message)
            if why := self._admit(node, values, keys[node]):
                log.warning("%s: it is left alone", why)
                if (name := values.get("name")) in list(self.expected):
                    self._refused[name] = why
                self._ask_again_at[node] = time.monotonic() + AGAIN

    def _admit(self, node: int, values: Mapping[str, Any], key: bytes) -> str:
        """Take in what a node says of itself; why not, where it cannot be."""
        if "failed" in values:
            return f"node {node} does not say which party it plays ({told(values['failed'])}), its own log says why"
        try:
            name = told(values["name"])
            member = Member(told(values["role"]), _count(values["images"]), _count(values["identities"]))
        except (KeyError, ValueError) as error:
            return f"node {node} does not say what a party says when it joins ({type(error).__name__})"
        claim = f"node {node} says that it is {name}"
        if self.keys is not None and self.keys.get(name) != key:
            return f"{claim} and has not its key"
        if (role := self.expected.get(name)) != member.role:
            rule = f"is a {role} by the recipe" if role else "is not a party of this run"
            return f"{claim}, a {member.role}, who {rule}"
        if self.untold:
            member = member.untold
        elif why := self._doubt(name, member):
            return f"{claim}, with {member.images} images of {member.identities} identities{why}"
        if values.get("public") != self.public:
            return f"{claim} and has not the server's public images, of the same people"
        if self.code not in (None, values.get("code")):
            return f"{claim} and has other code of the method or a plug-in than the server: install the same at both"
        self._party_of[node] = name
        if self._nodes.setdefault(name, node) != node:
            return f"a second node says that it is {name}"
        self.members.setdefault(name, member)
        return ""

    def _doubt(self, name: str, member: Member) -> str:
        """What is wrong with the numbers that a party says it has, if anything."""
        counts = (member.images, member.identities)
        if (expected := self.counts.get(name, counts)) != counts:
            return f", and by the recipe these are {expected[0]} images of {expected[1]} identities"
        if not (1 <= member.images <= MOST_IMAGES and 0 <= member.identities <= member.images):
            return f"; a party has 1 to {MOST_IMAGES} images, and no more identities than images"
        return ""

    def _send(self, request: Request) -> tuple[Request, str | StepFailed, float]:
        ends = time.monotonic() + self.patience.step
        node = self._nodes.get(request.party)
        if node is None:
            return request, Unanswered(f"{request.party} is not there"), ends
        encoded = {"common": request.common, "each": request.each}
        data = {name: message.data for name, message in encoded.items() if message is not None}
        content = write({name: getattr(request, name) for name in _PLAIN}, data)
        return request, self._push(STEP, node, content), ends

    def _reply(self, request: Request, sent: str | StepFailed, ends: float) -> tuple[Request, Reply]:
        where = request.where
        if isinstance(sent, StepFailed):
            return request, sent
        answer = self._wait([sent], ends).get(sent)
        if answer is None:
            self._late[sent] = request.party
            return request, Unanswered(f"{where}: {late(self.patience.step)}")
        values, data = answer
        if answer is _NO_ANSWER:
            return request, Unanswered(f"{where}: {values['failed']}")
        if "failed" in values:
            return request, StepFailed(f"{where}: {told(values['failed'])}; the party's own log says why")
        reply = data.get("reply", b"")
        if values.get("id") != request.id:
            return request, StepFailed(f"{where}: a reply to another request")
        if values.get("sha256") != hashlib.sha256(reply).hexdigest():
            return request, StepFailed(f"{where}: a reply whose bytes have another SHA-256 than it says")
        match values.get("head"):
            case [int(lines), str(chain)] if lines > 0 and lines is not True and re.fullmatch("[0-9a-f]{64}", chain):
                self.heads[request.party] = lines, chain
            case _:
                return request, StepFailed(f"{where}: a reply without the head of the party's ledger")
        return request, codec.Encoded(bytearray(reply))

    def _tell(
        self, about: str, words: Mapping[str, Mapping[str, Any]], *, seconds: float = math.inf
    ) -> dict[str, dict[str, Any]]:
        self._look()
        sent = {
            self._push(about, self._nodes[party], write(values)): party
            for party, values in words.items()
            if party in self._nodes
        }
        answers = self._wait(list(sent), time.monotonic() + min(seconds, self.patience.step))
        return {sent[message]: values for message, (values, _) in answers.items()}

    def _push(self, about: str, node: int, content: RecordDict) -> str:
        message = Message(content, node, about, ttl=4 * self.patience.step)
        return next(iter(self._retry(lambda: self.grid.push_messages([message]))))

    def _retry(self, call: Callable[[], T]) -> T:
        """What the SuperLink says; where it fails it is asked again, as one that is busy does better in a moment.

        A message that is sent twice by this trains once. Raises RunFailed after `TRIES`.
        """
        tries = 0
        while True:
            try:
                return call()
            except Exception as error:  # of whatever Flower speaks by
                tries += 1
                if tries == TRIES:
                    raise RunFailed(
                        f"the SuperLink failed {TRIES} times ({type(error).__name__}: {error}); its log says why. The "
                        "run goes on from its last checkpoint when it is started again"
                    ) from error
                log.warning("the SuperLink failed (%s: %s): it is asked again", type(error).__name__, error)
                time.sleep(5 * self.patience.poll)

    def _wait(self, messages: Sequence[str], ends: float) -> dict[str, Answer]:
        """The replies that come before `ends`."""
        answers: dict[str, Answer] = {}
        while True:
            answers |= self._pull([message for message in messages if message not in answers])
            if len(answers) == len(messages) or time.monotonic() > ends:
                return answers
            time.sleep(self.patience.poll)

    def _pull(self, messages: Sequence[str]) -> dict[str, Answer]:
        """The replies that are there; those to what was given up are counted and thrown away.

        A node of somebody else's may say anything: what is no answer of ours is taken as a failure. Each is pulled by
        itself, since Flower reads a message as it pulls it, and one that it cannot read would take others along.
        """
        answers: dict[str, Answer] = {}
        for message in [*messages, *self._late]:
            for reply in self._retry(functools.partial(self._pull_one, message)):
                if message in self._late:
                    party = self._late.pop(message)
                    self.late[party] = self.late.get(party, 0) + 1
                    log.warning("a reply of %s came after its deadline, and is discarded", party)
                    continue
                try:
                    if isinstance(reply, Exception):
                        raise reply
                    answers[message] = read(reply.content) if reply.has_content() else _NO_ANSWER
                except Exception as error:  # whatever it is, it is the party's
                    answers[message] = {"failed": f"not a reply ({type(error).__name__})"}, {}
        return answers

    def _pull_one(self, message: str) -> Sequence[Message | Exception]:
        try:
            return list(self.grid.pull_messages([message]))
        except _UNREADABLE as error:
            return [error]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError("a count is a whole number")
    return value


def server_app(serve: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """The server's side: `serve` is given the grid and the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app
