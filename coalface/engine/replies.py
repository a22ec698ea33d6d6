"""The replies to one call: validated, counted and aggregated as they come, in party order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coalface.core import codec, compression
from coalface.core.declarations import counterparts
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.core.text import told
from coalface.engine.client_batch import Apart, ClientBatch
from coalface.engine.party.request import Request, StepBroken, StepFailed, Unanswered, Withheld
from coalface.engine.receipts import receipt
from coalface.engine.robust.mean import RobustMean
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Call, Numerics, PartyStats
from coalface.engine.sums.private import ClippedSums
from coalface.engine.sums.running import RunningMean
from coalface.engine.transport import Reply, RunFailed
from coalface.engine.update_bounds import Limits, Norms, UpdateBounds


class Lost(codec.Refused):
    """A reply that was sent and did not arrive in time."""


@dataclass(eq=False, repr=False)
class Replies(ABC):
    """What is counted of the replies to a call."""

    call: Call
    declaration: StepDeclaration
    means: Sequence[Mean]
    failed: dict[str, str]
    """Party -> why its reply does not count; those that were not reached may be in it already."""
    policy: RoundPolicy
    party_stats: Mapping[str, PartyStats]
    everyone: Sequence[str]
    """All parties of the step's role."""

    def __post_init__(self) -> None:
        common, reply = self.call.common, self.declaration.reply
        sent = common.message(self.declaration.common) if common and self.declaration.common else None
        self._alike = codec.forms(reply, [sent]) if reply is not None else {}
        """What a reply must look like by the message to all."""
        self.accepted: dict[str, str] = {}
        """Party -> its commit, of the replies that count; in a client batch only where the step keeps something."""
        self.receipts: list[dict[str, Any]] = []
        """Of the replies that count, by `coalface.engine.receipts.receipt`."""
        self.arrived: list[str] = []
        """The parties whose replies count."""
        self.bytes = {"down": 0, "up": 0, "refused": 0, "lost": 0, "again": 0}
        """To the parties, and from them; of what they sent, what was refused, what was lost or late, and `again` what
        they had sent before."""

    def count(self, request: Request, size: int | None) -> None:
        """Count the bytes of a request and of its reply; neither where none came (None)."""
        if size is None:
            return
        sent = sum(len(message.data) for message in (request.common, request.each) if message is not None)
        stats = self.party_stats[request.party]
        stats.bytes_down += sent
        stats.bytes_up += size
        self.bytes["down"] += sent
        self.bytes["up"] += size

    @abstractmethod
    def take(self, request: Request, reply: Reply, attempt: int | None) -> Exception | None:
        """Take in one reply, and return why it does not count; by simulated faults it may be lost at an `attempt`.

        Raises RunFailed where its step failed and `on_error` is `stop`.
        """

    def note(self, request: Request, reply: codec.Encoded, head: tuple[int, str] | None) -> None:
        """List what was taken in; `head` is that of its party's ledger."""
        self.receipts.append(receipt(request, reply, head))

    def _arrived(self, request: Request, reply: Reply, *when: str, attempt: int | None) -> codec.Encoded:
        """A reply that came in time. Raises Lost or StepFailed where it did not, and RunFailed as `take`."""
        if isinstance(reply, StepFailed):
            if self.policy.on_error == "stop" and not isinstance(reply, Withheld):
                advice = ". Set engine.on_error=exclude to go on without such a party."
                alike = isinstance(reply, StepBroken)  # no party would be left
                raise RunFailed(f"{str(reply).rstrip('.')}{'' if alike else advice}") from reply
            raise reply
        faults = self.policy.faults
        when_sent: tuple[str | int, ...] = (request.stage, request.round, request.call, *when)
        if attempt is not None and (why := faults.after(self.policy.seed, request.party, when_sent, attempt)):
            raise Lost(why)
        return reply


@dataclass(eq=False, repr=False, kw_only=True)
class ReplyAggregator(Replies):
    """What has come back from a call so far; a reply that is refused leaves no trace in a sum."""

    numerics: Numerics
    images: Mapping[str, int]
    """Party -> the most images that it can have."""
    heaviest: float
    """The most that a number of images may weigh."""
    buckets: Callable[[], np.random.Generator]
    """What the buckets of a robust mean are drawn from: a liar who knows who shares its bucket spoils more of them."""
    clipped: ClippedSums | None = None
    """With them the sums are noised."""
    lengths: Mapping[str, float]
    """This and what follows: as for `UpdateBounds`."""
    running_statistics: frozenset[str]
    first: Norms | None = None
    limits: Limits = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        call, declaration = self.call, self.declaration
        self.sizes: dict[str, int] = {}
        """Party -> the bytes of its reply that counts."""
        reply: Any = declaration.reply
        self._class, self._keeps = reply, declaration.keeps is not None
        self._places = {party: place for place, party in enumerate(call.to)}
        self._sums = [self._begun(mean) for mean in (self.means if self.clipped is None else self.clipped.means)]
        self._weights = dict.fromkeys(["images", *(mean.by for mean in self.means if isinstance(mean.by, str))])
        aggregated = {mean.field for mean in self.means}
        self.each: dict[str, dict[str, Any]] = {name: {} for name in codec.hints(reply) if name not in aggregated}
        """Every field that is not aggregated: party -> value."""
        alike = codec.hints(declaration.common).keys() if declaration.common else set()
        compared = aggregated | {name for name, source in counterparts(reply).items() if source == name in alike}
        statistics, lengths = self.running_statistics, self.lengths
        self.bounds = UpdateBounds(reply, self._alike, compared, statistics, lengths, self.first, self.limits)

    def _begun(self, mean: Mean) -> RunningMean | RobustMean:
        policy, everyone = self.policy, self.everyone
        if policy.aggregator is None:
            return RunningMean(mean, block=self.numerics.sum_block, everyone=everyone, heaviest=self.heaviest)
        rng = self.buckets()  # alike for all means of the call
        return RobustMean(mean, policy.aggregator, everyone, self.running_statistics, rng)

    def take(self, request: Request, reply: Reply, attempt: int | None) -> Exception | None:
        party, size = request.party, reply_size(reply)
        self.count(request, size)
        like = self._like(party)
        try:
            message = self._read(request, reply, attempt, like)
            self._check(party, message, like, finite=False)
            message = self.bounds.admit(party, message, like)
        except (codec.Refused, codec.WireError, StepFailed) as error:
            self.failed[party] = str(error) if isinstance(error, StepFailed) else told(error)
            self.bytes["lost" if isinstance(error, Lost) else "refused"] += size or 0
            return error
        self.failed.pop(party, None)  # of a try before
        self.sizes[party] = size or 0
        weight = None if self.clipped is None else self.clipped.weight(message)
        for running_mean in self._sums:
            name = running_mean.mean.field
            running_mean.add(party, self._places[party], getattr(message, name), like[name].start, message, weight)
        self._keep(party, message)
        self.accepted[party] = request.id
        return None

    def _like(self, party: str) -> codec.Forms:
        """What a party's reply must look like: its own message goes before the one to all."""
        each = self.call.each[party] if self.call.each is not None else None
        return self._alike if each is None else self._alike | codec.forms(self._class, [each])

    def _read(self, request: Request, reply: Reply, attempt: int | None, like: codec.Forms) -> Any:
        data, faults = self._arrived(request, reply, attempt=attempt).data, self.policy.faults
        change = compression.widening(like, self.numerics.update_dtype)
        message = codec.decode(data, self._class, change=change, like=like)
        return faults.corrupted(message, fault, like) if (fault := faults.corrupt.get(request.party)) else message

    def _check(
        self, party: str, message: Any, like: codec.Forms, but: frozenset[str] = frozenset(), *, finite: bool = True
    ) -> None:
        """Raise Refused unless a reply may be summed; `but` and `finite` as for `codec.validate`."""
        codec.validate(message, like, but, finite=finite)
        most = self.images[party]
        for name in self._weights:
            if isinstance(weight := getattr(message, name, None), int | float) and not 0 < weight <= most:
                raise codec.Refused(f"{name} is {weight}; this party can have 1 to {most}")
        for running_mean in self._sums:
            if getattr(message, running_mean.mean.field) is None:
                raise codec.Refused(f"{running_mean.mean.field} is empty")

    def take_batch(self, batch: ClientBatch) -> None:
        """Take in the replies of a client batch. Raises Apart where one cannot be taken, and so none of them is."""
        replies, shared = batch.replies, batch.shared
        if alone := sorted(shared - {running_mean.mean.field for running_mean in self._sums}):
            raise Apart(f"{alone[0]} is a mean over the parties, and is asked for singly")
        for place, (request, message) in enumerate(zip(batch.requests, replies, strict=True)):
            try:
                self._check(request.party, message, self._like(request.party), shared if place else frozenset())
            except codec.Refused as error:
                raise Apart(f"{request.party}: {error}") from error
        weight = float(sum(message.images for message in replies))
        for running_mean in self._sums:
            name = running_mean.mean.field
            many = zip(batch.requests, replies, [None] * len(replies), strict=True)
            for request, message, together in [(batch.requests[0], replies[0], weight)] if name in shared else many:
                value = getattr(message, name)
                running_mean.add(request.party, self._places[request.party], value, None, message, together)
        for request, message, size in zip(batch.requests, replies, batch.sizes, strict=True):
            self.count(request, size)
            self._keep(request.party, message)
            if self._keeps:
                self.accepted[request.party] = request.id

    def _keep(self, party: str, message: Any) -> None:
        for name, values in self.each.items():  # a copy, since a reply's bytes may be written over by the next one
            values[party] = codec.copied(getattr(message, name))
        if isinstance(loss := getattr(message, "loss", None), float):
            self.party_stats[party].last_loss = loss
        self.arrived.append(party)

    def aggregated(self) -> dict[str, Any]:
        """Every mean by its name. Raises ValueError where the weights add up to nothing."""
        if self.clipped is not None:
            return self.clipped.noised([s for s in self._sums if isinstance(s, RunningMean)], self.arrived)
        return {running_mean.mean.key: running_mean.result() for running_mean in self._sums}


def reply_size(reply: Reply) -> int | None:
    """The bytes of a reply; None of one that never came."""
    if isinstance(reply, StepFailed):
        return None if isinstance(reply, Unanswered) else 0
    return len(reply.data)
