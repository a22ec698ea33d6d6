"""Taking in the replies to one call: each is validated, counted and aggregated as it comes, in party order."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.declarations import counterpart
from coalface.core.method import Mean, Tensors
from coalface.core.steps import StepDeclaration
from coalface.core.text import told
from coalface.engine.client_batch import Apart, ClientBatch
from coalface.engine.party.executor import Request, StepFailed
from coalface.engine.run_state import Call, PartyStats
from coalface.engine.running_sums import RunningMean

FEW = 3
"""Replies from which on one can be told to be larger than the others."""
SMALL, REST = 0.01, 1e-4
"""Of the norm of what was sent: an update up to the first is never too large, and a party that moved it by less than
the second is at rest, as one whose single class has no gradient, and no measure for others."""
STATISTICS = "running statistics of "
GRADIENTS = 2.0
"""What a bound on changes is multiplied by for gradients, which differ more among honest parties of few images."""
WIDER = 20.0
"""What it is multiplied by for running statistics, which differ fifty times among honest parties of small batches."""
VARIANCE = "running_var"
"""How the names of running variances end."""
LARGEST = math.sqrt(torch.finfo(torch.float32).max)
"""A norm beyond which float32 cannot hold the square: no model that a party can compute with."""

Limits = dict[str, dict[str, float]]
"""Part of a reply -> party -> how large its norm may be."""


class Lost(codec.Refused):
    """A reply that was sent and did not arrive in time."""


class ReplyAggregator:
    """What has come back from a call so far; a reply that is refused leaves no trace in a sum.

    `failed` may hold parties that were not reached already; `everyone` are all parties of the step's role. Where a call
    is gathered a second time, `first` are the norms of the first time, and `limits` those to which updates are brought.
    `statistics` are the names of tensors that are no parameters, such as running variances. `lengths` say how far each
    party may be expected to go, in any unit: those of an update of parameters are compared by it.
    """

    def __init__(
        self,
        call: Call,
        declaration: StepDeclaration,
        aggregate: Sequence[Mean],
        failed: dict[str, str],
        *,
        block: int,
        everyone: Iterable[str],
        lengths: Mapping[str, float],
        first: Mapping[str, Mapping[str, float]] | None = None,
        limits: Limits | None = None,
        heaviest: float = math.inf,
        statistics: frozenset[str] = frozenset(),
    ) -> None:
        self.call, self.failed = call, failed
        self._first, self._limits, self._statistics, self._lengths = first, limits or {}, statistics, lengths
        self.accepted: dict[str, str] = {}
        """Party -> its commit, of the replies that count; those of a client batch leave none."""
        self.receipts: list[dict[str, Any]] = []
        """Of the replies that count, by `coalface.engine.receipts.receipt`."""
        self.arrived: list[str] = []
        """The parties whose replies count."""
        self.bytes = {"down": 0, "up": 0, "refused": 0, "lost": 0, "again": 0}
        """To the parties, and from them; of what they sent, what was refused, what was lost or late, and `again` what
        they had sent before."""
        reply: Any = declaration.reply
        self._class = reply
        sent = [cls for cls in (declaration.each, declaration.common) if cls is not None]
        keys = [mean.key for mean in aggregate]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(
                f"two means are called {twice[0]!r}, so one would be lost: give each Mean a `name` of its own."
            )
        self._sums = [
            RunningMean(mean, block=block, everyone=everyone, reply=reply, sent=sent, heaviest=heaviest)
            for mean in aggregate
        ]
        aggregated = {mean.field for mean in aggregate}
        self.each: dict[str, dict[str, Any]] = {name: {} for name in codec.hints(reply) if name not in aggregated}
        """Every field that is not aggregated: party -> value."""
        self.norms: dict[str, dict[str, float]] = {}
        """Party -> part -> the norm of its floats, as a difference to the field of that name that was sent, if any."""
        self.sizes: dict[str, int] = {}
        """Party -> the bytes of its reply that counts."""
        alike = codec.hints(declaration.common).keys() if declaration.common else set()
        self._compared = aggregated | {name for name in self.each if counterpart(reply, name) == name and name in alike}
        self._common = call.common.message(declaration.common) if call.common and declaration.common else None
        self._down = len(call.common.data) if call.common else 0
        self._places = {party: place for place, party in enumerate(call.to)}

    def count(self, request: Request, size: int | None, stats: PartyStats) -> None:
        """Count the bytes of a request and of its reply; neither where none came (None)."""
        if size is None:
            return
        sent = self._down + (len(request.each.data) if request.each else 0)
        stats.bytes_down += sent
        stats.bytes_up += size
        self.bytes["down"] += sent
        self.bytes["up"] += size

    def take(
        self,
        request: Request,
        size: int | None,
        read: Callable[[type, Sequence[Any]], Any],
        stats: PartyStats,
        most: int,
    ) -> Exception | None:
        """Take in one reply of `size` bytes, None where none came; `most` is how many images the party can have.

        `read` gives the message, from its class and what was sent to the party. Returns why it does not count.
        """
        party = request.party
        self.count(request, size, stats)
        try:
            own = self.call.each[party] if self.call.each is not None else None
            sent = [m for m in (own, self._common) if m is not None]
            message = read(self._class, sent)
            codec.validate(message, sent)
            if isinstance(images := getattr(message, "images", None), int) and not 0 < images <= most:
                raise codec.Refused(f"images is {images}; this party can have 1 to {most}")
            for running_mean in self._sums:
                running_mean.check(message, most)
            norms = self._measured(message, own)
            message = self._clipped(message, own, self._checked(party, norms))
        except (codec.Refused, codec.WireError, StepFailed) as error:
            self.failed[party] = str(error) if isinstance(error, StepFailed) else told(error)
            self.bytes["lost" if isinstance(error, Lost) else "refused"] += size or 0
            return error
        self.failed.pop(party, None)  # of a try before
        self.norms[party], self.sizes[party] = norms, size or 0
        for running_mean in self._sums:
            name = running_mean.mean.field
            before = getattr(own, name, None) if hasattr(own, name) else getattr(self._common, name, None)
            running_mean.add(party, self._places[party], getattr(message, name), before, message)
        self._keep(request, message, stats)
        self.accepted[party] = request.id
        return None

    def _start(self, own: Any, name: str) -> Any:
        """What a field of a reply is a changed form of; None of one that is only `like` another, such as a gradient."""
        same = counterpart(self._class, name) == name
        return codec.model_of(self._class, name, [m for m in (own, self._common) if m is not None]) if same else None

    def _parts(self, name: str, value: Any) -> dict[str, Tensors]:
        """What is measured of a field by itself: its parameters, and its running statistics, in other units."""
        tensors = {"": value} if isinstance(value, Tensor) else value or {}
        floats = {n: tensor for n, tensor in tensors.items() if tensor.is_floating_point()}
        parts = {
            name: {n: tensor for n, tensor in floats.items() if n not in self._statistics},
            STATISTICS + name: {n: tensor for n, tensor in floats.items() if n in self._statistics},
        }
        return {part: tensors for part, tensors in parts.items() if tensors}

    def _measured(self, message: Any, own: Any) -> dict[str, float]:
        """Part -> the norm of what a reply has in it. Raises Refused where float32 could not compute with it."""
        norms = {}
        for name in codec.hints(self._class):
            if not isinstance(value := getattr(message, name), Tensor | dict):
                continue
            start = self._parts(name, self._start(own, name))
            for part, tensors in self._parts(name, value).items():
                norms[part] = _norm(tensors, start.get(part, {}))
                if not norms[part] < LARGEST:
                    raise codec.Refused(f"{part} has numbers so large that float32 cannot compute with them")
                if negative := [
                    n for n, t in tensors.items() if n in self._statistics and n.endswith(VARIANCE) and (t < 0).any()
                ]:
                    raise codec.Refused(f"{negative[0]} is a variance and has numbers below 0")
        return norms

    def limits(self, ratio: float) -> Limits:
        """Part -> party -> how large its norm may be, of the parts in which a reply is beyond that.

        It is `ratio` times the median over the parties of norm by length, times the party's own length; a gradient,
        which is a mean, does not grow with the steps, and is compared as it is. The median is the lower one, of the
        parties that are not at `REST`. Where these are fewer than `FEW` nobody is a measure for them, and the limit is
        the norm of what was sent; it is `SMALL` times that at least. Running statistics do not go with the
        steps either. The replies of a client batch are this machine's own work and have no norms.
        """
        found: Limits = {}
        if len(self.norms) < max(len(self.arrived), FEW):
            return found
        for name in sorted(self._compared):
            start = self._parts(name, self._start(None, name))
            change = counterpart(self._class, name) == name
            bounds = {name: ratio if change else GRADIENTS * ratio, STATISTICS + name: WIDER * ratio}
            for part, bound in bounds.items():
                sent = _norm(start.get(part, {}), {})
                norms = {party: norms[part] for party, norms in self.norms.items() if part in norms}
                lengths = self._lengths if part == name and change else dict.fromkeys(norms, 1.0)
                by_length = [norm / lengths[party] for party, norm in norms.items() if norm > REST * sent]
                most = bound * statistics.median_low(by_length) if len(by_length) >= FEW else None
                limits = {p: max(sent if most is None else most * lengths[p], SMALL * sent) for p in norms}
                if any(norm > limits[party] > 0 for party, norm in norms.items()):
                    found[part] = limits
        return found

    def beyond(self, limits: Limits) -> dict[str, str]:
        """Party -> what is larger than its limit."""
        return {
            party: f"the norm of its {part} is {norm:.3g}; engine.max_update_norm allows {of[party]:.3g} in this round"
            for part, of in limits.items()
            for party, norms in self.norms.items()
            if (norm := norms.get(part, 0.0)) > of.get(party, math.inf)
        }

    def _checked(self, party: str, norms: dict[str, float]) -> dict[str, float]:
        """The factors that bring its fields within their limits. Raises Refused for another reply than before.

        A party that could send one reply to be measured and another one to be summed would pass any bound.
        """
        if self._first is not None and self._first.get(party, norms) != norms:  # a client batch's parties have none
            raise codec.Refused("asked for the same again, it sent something else")
        return {
            part: of[party] / norms[part]
            for part, of in self._limits.items()
            if norms.get(part, 0.0) > of.get(party, math.inf)
        }

    def _clipped(self, message: Any, own: Any, factors: Mapping[str, float]) -> Any:
        changes: dict[str, Any] = {}
        for name in codec.hints(self._class) if factors else ():
            value = getattr(message, name)
            parts = self._parts(name, value) if isinstance(value, Tensor | dict) else {}
            start = self._parts(name, self._start(own, name)) if parts else {}
            scaled = {
                n: _scaled(tensor, start.get(part, {}).get(n), factors[part])
                for part in parts.keys() & factors.keys()
                for n, tensor in parts[part].items()
            }
            if scaled:
                changes[name] = {**value, **scaled} if isinstance(value, dict) else scaled[""]
        return dataclasses.replace(message, **changes) if changes else message

    def take_batch(self, batch: ClientBatch, party_stats: Mapping[str, PartyStats], most: Callable[[str], int]) -> None:
        """Take in the replies of a client batch. Raises Apart where one cannot be taken, and so none of them is."""
        replies, shared, fields = batch.replies, batch.shared, {running_mean.mean.field for running_mean in self._sums}
        if alone := sorted(shared - fields):
            raise Apart(f"{alone[0]} is a mean over the parties, and is asked for singly")
        sizes = []
        for place, (request, message) in enumerate(zip(batch.requests, replies, strict=True)):
            own = self.call.each[request.party] if self.call.each is not None else None
            try:
                sent = [m for m in (own, self._common) if m is not None]
                codec.validate(message, sent, but=shared if place else frozenset())
                if not 0 < (images := message.images) <= most(request.party):
                    raise codec.Refused(f"images is {images}; this party can have 1 to {most(request.party)}")
                for running_mean in self._sums:
                    running_mean.check(message, most(request.party))
            except codec.Refused as error:
                raise Apart(f"{request.party}: {error}") from error
            sizes.append(codec.size(message))
        weight = float(sum(message.images for message in replies))
        for running_mean in self._sums:
            name = running_mean.mean.field
            many = zip(batch.requests, replies, [None] * len(replies), strict=True)
            for request, message, together in [(batch.requests[0], replies[0], weight)] if name in shared else many:
                value = getattr(message, name)
                running_mean.add(request.party, self._places[request.party], value, None, message, together)
        for request, message, size in zip(batch.requests, replies, sizes, strict=True):
            self.count(request, size, party_stats[request.party])
            self._keep(request, message, party_stats[request.party])

    def _keep(self, request: Request, message: Any, stats: PartyStats) -> None:
        for name, values in self.each.items():  # a copy, since a reply's bytes may be written over by the next one
            values[request.party] = codec.copied(getattr(message, name))
        if isinstance(loss := getattr(message, "loss", None), float):
            stats.last_loss = loss
        self.arrived.append(request.party)

    def aggregated(self) -> dict[str, Any]:
        """Every mean by its name. Raises ValueError where the weights add up to nothing."""
        return {running_mean.mean.key: running_mean.result() for running_mean in self._sums}


def _norm(tensors: Tensors, before: Tensors) -> float:
    """The Euclidean norm of tensors, or of their differences to what was sent: squares in float64."""
    changes = (t - before[n].to(t.device) if n in before else t for n, t in tensors.items())
    return math.hypot(*(torch.linalg.vector_norm(change, dtype=torch.float64).item() for change in changes))


def _scaled(tensor: Tensor, before: Tensor | None, factor: float) -> Tensor:
    """A tensor whose difference to what was sent, or itself, has become so many times as large."""
    start = torch.zeros((), dtype=torch.float64) if before is None else before.double()
    start = start.to(tensor.device)
    return (start + factor * (tensor.double() - start)).to(tensor.dtype)
