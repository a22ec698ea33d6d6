"""Bounds on the size of updates in the replies to one call, against their median."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.declarations import counterparts
from coalface.core.method import Tensors

FEW = 3
"""Replies from which on one can be told to be larger than the others."""
SMALL, REST = 0.01, 1e-4
"""Of the norm of what was sent: an update up to the first is never too large, and a party that moved it by less than
the second is at rest, as one whose single class has no gradient, and no measure for others."""
STATISTICS = "running statistics of "
GRADIENTS = 2.0
"""What a bound on changes is multiplied by for gradients, which differ more among honest parties of few images."""
LARGE = 15.0
"""How many times the median an update may be before the round's line of the metrics names it, although it counts: more
than honest parties needed in any world that was tried, and half of the usual bound."""
WIDER = 20.0
"""What it is multiplied by for running statistics, which differ fifty times among honest parties of small batches."""
VARIANCE = "running_var"
"""How the names of running variances end."""
LARGEST = math.sqrt(torch.finfo(torch.float32).max)
"""A norm beyond which float32 cannot hold the square: no model that a party can compute with."""

_BLOCK = 1 << 16

Norms = dict[str, dict[str, float]]
"""Party -> part of its reply -> the norm of its floats, as a difference to what was sent under that name, if any."""
Limits = dict[str, dict[str, float]]
"""Part of a reply -> party -> how large its norm may be."""


@dataclasses.dataclass
class UpdateBounds:
    """The norms of the replies to one call."""

    reply: type
    common: codec.Forms
    """What a reply must look like by the message to all parties."""
    compared: Collection[str]
    """The fields whose norms are compared."""
    running_statistics: frozenset[str]
    """Tensors that are no parameters, such as running variances."""
    lengths: Mapping[str, float]
    """How far each party may be expected to go, in any unit: updates of parameters are compared by it."""
    first: Norms | None = None
    """Where a call is gathered a second time, the norms of the first time."""
    allowed: Limits = dataclasses.field(default_factory=dict)
    """And those to which updates are brought."""
    norms: Norms = dataclasses.field(default_factory=dict)

    def admit(self, party: str, message: Any, like: codec.Forms) -> Any:
        """Measure a reply that looks `like` what it must, and bring it within its limits.

        Raises Refused where its numbers are not finite, or float32 could not compute with them, or where it is another
        reply than the first time: a party that could send one reply to be measured and another one to be summed would
        pass any bound.
        """
        norms: dict[str, float] = {}
        changes: dict[str, Any] = {}
        for name, form in like.items():
            value = getattr(message, name)
            start = self._parts(name, form.start)
            scaled: Tensors = {}
            for part, tensors in self._parts(name, value).items():
                before = start.get(part, {})
                norms[part] = norm = _norm(tensors, before)
                if not norm < LARGEST:
                    codec.check_finite(codec.by_path(name, value))
                    raise codec.Refused(f"{part} has numbers so large that float32 cannot compute with them")
                for n, tensor in tensors.items() if part != name else ():
                    if n.endswith(VARIANCE) and (tensor < 0).any():
                        raise codec.Refused(f"{n} is a variance and has numbers below 0")
                if norm > (limit := self.allowed.get(part, {}).get(party, math.inf)):
                    scaled |= {n: _scaled(tensor, before.get(n), limit / norm) for n, tensor in tensors.items()}
            if scaled:
                changes[name] = {**value, **scaled} if isinstance(value, dict) else scaled[""]
        if self.first is not None and self.first.get(party, norms) != norms:  # a client batch's parties have none
            raise codec.Refused("asked for the same again, it sent something else")
        self.norms[party] = norms
        return dataclasses.replace(message, **changes) if changes else message

    def limits(self, ratio: float, replies: int) -> Limits:
        """The norms that are allowed, of the parts in which one of so many replies is beyond that.

        It is `ratio` times the median over the parties of norm by length, times the party's own length; a gradient,
        which is a mean, does not grow with the steps, and is compared as it is. The median is the lower one, of the
        parties that are not at `REST`. Where these are fewer than `FEW` nobody is a measure for them, and the limit is
        the norm of what was sent; it is `SMALL` times that at least. Running statistics do not go with the
        steps either. The replies of a client batch are this machine's own work and have no norms.
        """
        beyond: Limits = {}
        if len(self.norms) < max(replies, FEW):
            return beyond
        for name in sorted(self.compared):
            start = self._parts(name, self.common[name].start if name in self.common else None)
            change = counterparts(self.reply)[name] == name
            bounds = {name: ratio if change else GRADIENTS * ratio, STATISTICS + name: WIDER * ratio}
            for part, bound in bounds.items():
                sent = _norm(start.get(part, {}), {})
                norms = {party: norms[part] for party, norms in self.norms.items() if part in norms}
                lengths = self.lengths if part == name and change else dict.fromkeys(norms, 1.0)
                by_length = [norm / lengths[party] for party, norm in norms.items() if norm > REST * sent]
                most = bound * statistics.median_low(by_length) if len(by_length) >= FEW else None
                limits = {p: max(sent if most is None else most * lengths[p], SMALL * sent) for p in norms}
                if any(norm > limits[party] > 0 for party, norm in norms.items()):
                    beyond[part] = limits
        return beyond

    def beyond(self, limits: Limits, by: str = "engine.max_update_norm allows") -> dict[str, str]:
        """Party -> what is larger than its limit, which is there `by` some rule."""
        return {
            party: f"the norm of its {part} is {norm:.3g}; {by} {of[party]:.3g} in this round"
            for part, of in limits.items()
            for party, norms in self.norms.items()
            if (norm := norms.get(part, 0.0)) > of.get(party, math.inf)
        }

    def _parts(self, name: str, value: Any) -> dict[str, Tensors]:
        """What is measured of a field by itself: its parameters, and its running statistics, in other units."""
        parts: dict[str, Tensors] = {}
        for n, tensor in ({"": value} if isinstance(value, Tensor) else value or {}).items():
            if tensor.is_floating_point():
                parts.setdefault(STATISTICS + name if n in self.running_statistics else name, {})[n] = tensor
        return parts


def _norm(tensors: Tensors, before: Tensors) -> float:
    """The Euclidean norm of tensors, or of their differences to what was sent.

    Squares are summed in float32, up to `_BLOCK` at a time, where they fit it, else in float64.
    """
    starts = [before[name] for name in tensors if name in before]
    if {t.dtype for t in tensors.values()} == {torch.float32} and len(starts) in (0, len(tensors)):
        change = codec.joined(list(tensors.values()))
        blocks: Iterable[Tensor] = change.split(_BLOCK)
        if starts:
            sent = codec.joined(starts).to(change).split(_BLOCK)
            blocks = (block - start for block, start in zip(blocks, sent, strict=True))
        norm = math.hypot(*(torch.linalg.vector_norm(block).item() for block in blocks))
        if 1e-9 < norm < 1e15:
            return norm
    changes = (t - before[n].to(t.device) if n in before else t for n, t in tensors.items())
    return math.hypot(*(torch.linalg.vector_norm(change, dtype=torch.float64).item() for change in changes))


def _scaled(tensor: Tensor, before: Tensor | None, factor: float) -> Tensor:
    """A tensor whose difference to what was sent, or itself, has become so many times as large."""
    start = torch.zeros((), dtype=torch.float64) if before is None else before.double()
    start = start.to(tensor.device)
    return (start + factor * (tensor.double() - start)).to(tensor.dtype)
