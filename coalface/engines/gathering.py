"""Taking in the replies to one call: each is validated, counted and folded as it comes, in party order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coalface import wire
from coalface.core import Mean
from coalface.data.words import told
from coalface.declarations import StepDeclaration
from coalface.engines.cohorts import Apart, Cohort
from coalface.engines.desk import Request, StepFailed
from coalface.engines.folding import Fold
from coalface.engines.standing import Call, Tally


class Lost(wire.Refused):
    """A reply that was sent and did not arrive in time."""


class Gathering:
    """What has come back from a call so far; a reply that is refused leaves no trace in a sum.

    `failed` may hold parties that were not reached already; `everyone` are all parties of the step's role.
    """

    def __init__(
        self,
        call: Call,
        declaration: StepDeclaration,
        folds: Sequence[Mean],
        failed: dict[str, str],
        *,
        block: int,
        everyone: Iterable[str],
    ) -> None:
        self.call, self.failed = call, failed
        self.accepted: dict[str, str] = {}
        """Party -> its commit, of the replies that count; those of a cohort leave none."""
        self.arrived: list[str] = []
        """The parties whose replies count."""
        self.bytes = {"down": 0, "up": 0, "refused": 0, "lost": 0}
        """To the parties, and from them; of what they sent, what was refused, and what was lost or late."""
        reply: Any = declaration.reply
        self._class = reply
        sent = [cls for cls in (declaration.each, declaration.common) if cls is not None]
        keys = [mean.key for mean in folds]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(
                f"two folds are called {twice[0]!r}, so one would be lost: give each Mean a `name` of its own."
            )
        self._sums = [Fold(mean, block=block, everyone=everyone, reply=reply, sent=sent) for mean in folds]
        folded = {mean.field for mean in folds}
        self.each: dict[str, dict[str, Any]] = {name: {} for name in wire.hints(reply) if name not in folded}
        """Every field that is not folded: party -> value."""
        self._common = call.common.message(declaration.common) if call.common and declaration.common else None
        self._down = len(call.common.data) if call.common else 0
        self._places = {party: place for place, party in enumerate(call.to)}

    def count(self, request: Request, size: int | None, tally: Tally) -> None:
        """Count the bytes of a request and of its reply; neither where none came (None)."""
        if size is None:
            return
        sent = self._down + (len(request.each.data) if request.each else 0)
        tally.bytes_down += sent
        tally.bytes_up += size
        self.bytes["down"] += sent
        self.bytes["up"] += size

    def take(
        self, request: Request, size: int | None, read: Callable[[type, Sequence[Any]], Any], tally: Tally, most: int
    ) -> None:
        """Take in one reply of `size` bytes, None where none came; `most` is how many images the party can have.

        `read` gives the message, from its class and what was sent to the party.
        """
        party = request.party
        self.count(request, size, tally)
        try:
            own = self.call.each[party] if self.call.each is not None else None
            sent = [m for m in (own, self._common) if m is not None]
            message = read(self._class, sent)
            wire.validate(message, sent)
            if isinstance(images := getattr(message, "images", None), int) and not 0 < images <= most:
                raise wire.Refused(f"images is {images}; this party can have 1 to {most}")
            for fold in self._sums:
                fold.check(message, most)
        except (wire.Refused, wire.WireError, StepFailed) as error:
            self.failed[party] = str(error) if isinstance(error, StepFailed) else told(error)
            self.bytes["lost" if isinstance(error, Lost) else "refused"] += size or 0
            return
        for fold in self._sums:
            name = fold.mean.field
            before = getattr(own, name, None) if hasattr(own, name) else getattr(self._common, name, None)
            fold.add(party, self._places[party], getattr(message, name), before, message)
        self._keep(request, message, tally)
        self.accepted[party] = request.id

    def take_together(self, cohort: Cohort, tallies: Mapping[str, Tally], most: Callable[[str], int]) -> None:
        """Take in the replies of a cohort. Raises Apart where one cannot be taken, and so none of them is."""
        replies, shared, fields = cohort.replies, cohort.shared, {fold.mean.field for fold in self._sums}
        if alone := sorted(shared - fields):
            raise Apart(f"{alone[0]} is a mean over the parties, and is asked for singly")
        sizes = []
        for place, (request, message) in enumerate(zip(cohort.requests, replies, strict=True)):
            own = self.call.each[request.party] if self.call.each is not None else None
            try:
                sent = [m for m in (own, self._common) if m is not None]
                wire.validate(message, sent, but=shared if place else frozenset())
                if not 0 < (images := message.images) <= most(request.party):
                    raise wire.Refused(f"images is {images}; this party can have 1 to {most(request.party)}")
                for fold in self._sums:
                    fold.check(message, most(request.party))
            except wire.Refused as error:
                raise Apart(f"{request.party}: {error}") from error
            sizes.append(wire.size(message))
        weight = float(sum(message.images for message in replies))
        for fold in self._sums:
            name = fold.mean.field
            many = zip(cohort.requests, replies, [None] * len(replies), strict=True)
            for request, message, together in [(cohort.requests[0], replies[0], weight)] if name in shared else many:
                value = getattr(message, name)
                fold.add(request.party, self._places[request.party], value, None, message, together)
        for request, message, size in zip(cohort.requests, replies, sizes, strict=True):
            self.count(request, size, tallies[request.party])
            self._keep(request, message, tallies[request.party])

    def _keep(self, request: Request, message: Any, tally: Tally) -> None:
        for name, values in self.each.items():  # a copy, since a reply's bytes may be written over by the next one
            values[request.party] = wire.copied(getattr(message, name))
        if isinstance(loss := getattr(message, "loss", None), float):
            tally.last_loss = loss
        self.arrived.append(request.party)

    def folded(self) -> dict[str, Any]:
        """The result of every fold by its name. Raises ValueError where the weights add up to nothing."""
        return {fold.mean.key: fold.result() for fold in self._sums}
