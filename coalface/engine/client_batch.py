"""Client batches: the batches of a round, what comes back of one, and the ledger of them all.

A client batch is a simulation of its parties: each would send its own reply, and what is computed is their mean of what
the server aggregates, and each one's own of the rest. So there is no single model whose hash a ledger could hold. The
lines of `cohorts.jsonl` say how many parties would have sent each piece, the bytes of them all, and the SHA-256 of what
was computed: of the mean once, and of the parties' own values one after the other.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from coalface.core import codec
from coalface.core.declarations import counterparts
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.engine.party.request import Request
from coalface.privacy import ledger

CLIENT_BATCHES = "cohorts"
"""What their ledger is called."""


class Apart(ValueError):
    """The parties of a client batch cannot be taken as one: each is asked by itself."""


@dataclass(frozen=True)
class ClientBatch:
    """The replies of some parties that were computed as one batch."""

    requests: Sequence[Request]
    replies: Sequence[Any]
    """In the order of the requests; a mean over them is the same object in each."""

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The bytes of each reply, as it would have been sent."""
        return [codec.size(reply) for reply in self.replies]

    @property
    def shared(self) -> frozenset[str]:
        """The fields that hold a mean over the parties."""
        if len(self.replies) == 1:
            return frozenset()
        names = [n for n, value in vars(self.replies[0]).items() if isinstance(value, Tensor | dict)]
        return frozenset(n for n in names if all(getattr(r, n) is getattr(self.replies[0], n) for r in self.replies))


def can_batch(declaration: StepDeclaration, aggregate: Sequence[Mean]) -> bool:
    """Whether a step has a batched form, and the server asks of its replies the means that such a form gives.

    These are by images, and of all that starts alike at the parties: the fields that look like one of `common`.
    """
    if declaration.batched is None or declaration.reply is None:
        return False
    plain = all(m.by == "images" and (m.over, m.of, m.once) == ("arrived", "values", False) for m in aggregate)
    common, single = (codec.hints(c) if c else {} for c in (declaration.common, declaration.each))
    shared = common.keys() - single.keys()
    alike = {name for name, source in counterparts(declaration.reply).items() if source in shared}
    return plain and alike <= {mean.field for mean in aggregate}


def cut(requests: Iterable[Request], images: Callable[[str], int], most: int) -> Iterator[list[Request]]:
    """Requests in a row whose parties have `most` images together at most, one party at least."""
    batch: list[Request] = []
    batch_images = 0
    for request in requests:
        party_images = images(request.party)
        if batch and batch_images + party_images > most:
            yield batch
            batch, batch_images = [], 0
        batch.append(request)
        batch_images += party_images
    if batch:
        yield batch


class ClientBatchLedger:
    """The hash chain of a run's client batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head: ledger.Head | None = None

    def check(self) -> dict[str, str]:
        """What is wrong with its chain, if anything, under its name."""
        try:
            if self.size:
                ledger.verify(self.path)
            if self._head is not None:
                ledger.check_holds(self.path, self._head)
        except (FileNotFoundError, ValueError) as error:
            return {CLIENT_BATCHES: str(error)}
        return {}

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where there is none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int) -> None:
        """Take back the lines of rounds that a resume repeats. ValueError where lines before them are missing."""
        if self.size < size:
            raise ValueError(
                f"{self.path} has {self.size} bytes, and had {size} at the last checkpoint: lines were removed. "
                "Restore the file, or start a new run."
            )
        if self.size > size:
            os.truncate(self.path, size)

    def write(self, batch: ClientBatch) -> None:
        """Append the lines of a client batch."""
        head = ledger.read_head(self.path) if self._head is None else self._head
        first, last = batch.requests[0], batch.requests[-1]
        about = first.about | {"parties": len(batch.requests), "first": first.party, "last": last.party}
        lines = ledger.lines_for(*_listed(batch), about, head)
        ledger.append(self.path, lines, head)
        self._head = head.after(lines)


def _listed(batch: ClientBatch) -> tuple[list[codec.Entry], list[str]]:
    """The pieces of a client batch as a ledger lists those of one message, and the SHA-256 of each."""
    count, shared = len(batch.replies), batch.shared
    some = codec.encode(batch.replies[0])
    entries, sums = [], []
    for entry, digest in zip(some.entries, some.sums, strict=True):
        field, _, name = entry.name.partition("/")
        if entry.kind == "header":
            tensors = sum(e.bytes for e in some.entries) - entry.bytes
            entries.append(replace(entry, bytes=sum(batch.sizes) - count * tensors))
            plain = [{n: v for n, v in vars(r).items() if isinstance(v, int | float | str)} for r in batch.replies]
            sums.append(hashlib.sha256(repr(plain).encode()).hexdigest())
            continue
        entries.append(replace(entry, bytes=count * entry.bytes))
        if field in shared:
            sums.append(digest)
            continue
        hasher = hashlib.sha256()
        for reply in batch.replies:
            value = getattr(reply, field)
            hasher.update(codec.raw(value[name] if name else value))
        sums.append(hasher.hexdigest())
    return entries, sums
