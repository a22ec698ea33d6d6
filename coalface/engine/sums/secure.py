"""The replies to a call as one secure sum at the server: stage after stage, and what is opened in the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Abandoned
from coalface.core.text import told
from coalface.engine.party.request import Request, StepFailed, SumStage
from coalface.engine.replies import Lost, Replies, reply_size
from coalface.engine.sums.hidden import HiddenMeans, asked_for
from coalface.engine.transport import Reply
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import WHERE, SecureSettings, check_call, too_few
from coalface.privacy.secure_sums import messages
from coalface.privacy.secure_sums.client import Verify
from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.keys import ADVERT, SIGNATURE
from coalface.privacy.secure_sums.server import SecureSum

_ROW = 256
"""Bytes of a row of shares, at most."""
_REPLIES: dict[str, tuple[Any, str]] = {
    "advertise": (messages.Advert, "keys"),
    "share": (messages.Rows, "shares"),
    "mask": (messages.Masked, "vector"),
    "confirm": (messages.Confirmation, "signature"),
    "unmask": (messages.Rows, "shares"),
}


@dataclass(eq=False, repr=False, kw_only=True)
class SecureReplies(Replies):
    """The replies to a call of which the server learns the sum alone.

    Raises RecipeError where a sum would not hide the replies, and Abandoned where too few parties are asked.
    """

    settings: SecureSettings
    verify: Verify | None
    privacy: PartyPrivacy | None

    def __post_init__(self) -> None:
        super().__post_init__()
        call, declaration = self.call, self.declaration
        check_call(call.step, declaration, self.means, self.everyone)
        if why := too_few(self.settings, len(call.to)):
            raise Abandoned(why)
        asked = asked_for(self.means)
        try:
            self._hidden = HiddenMeans.of(self.settings, declaration, asked, self._alike, len(call.to), self.privacy)
        except ValueError as error:
            raise RecipeError(f"step {call.step}: {error}", where=WHERE) from error
        self._context = self._hidden.context(self.settings, self.policy.run, call.stage, call.round, call.call)
        self._sum = SecureSum(self._context, call.to, self.verify)
        self._asked = SumStage("advertise", len(call.to), asked)
        self._stage, self._first = "advertise", dict[str, Request]()

    def stages(
        self, requests: Iterable[Request], spend: Callable[[], None], settle: Callable[[], None]
    ) -> Iterator[Iterable[Request]]:
        """The requests of each stage, whose replies are to be taken in before the next stage is asked for.

        `spend` is called before any vector is asked for, `settle` once it is known whose count, before anything is
        opened. Raises Abandoned.
        """
        yield self._begin(requests)
        names, adverts = self._sum.share_requests()
        packed_names = messages.pack_names(names)
        packed_adverts = {name: messages.pack_rows(sorted(adverts[name]), adverts[name]) for name in names}
        yield self._requests(
            "share", messages.Parties(names=packed_names), names, lambda n: {"adverts": packed_adverts[n]}
        )
        sharers = self._sum.mask_requests()
        packed_sharers = messages.pack_names(sharers)
        parties = messages.Parties(names=packed_names, sharers=packed_sharers)
        spend()
        yield self._requests("mask", parties, sharers, lambda n: {"adverts": packed_adverts[n]})
        survivors = self._sum.survivors()
        self.arrived = survivors
        self.accepted = {name: self._first[name].id for name in survivors}
        settle()
        parties = dataclasses.replace(parties, survivors=messages.pack_names(survivors))
        if self.verify is not None:
            yield self._requests("confirm", parties, survivors, lambda n: {"adverts": packed_adverts[n]})
        requested = self._sum.unmask_requests()

        def opening(name: str) -> dict[str, Tensor]:
            sealed, confirmed = (messages.pack_rows(sorted(adverts[name]), rows) for rows in requested[name])
            return {"adverts": packed_adverts[name], "sealed": sealed, "confirmed": confirmed}

        yield self._requests("unmask", parties, list(requested), opening)
        try:
            self.opened = self._hidden.decode(self._sum.result())
        except SecureSumError as error:
            raise Abandoned(str(error)) from error

    def _begin(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            first = dataclasses.replace(request, sum=self._asked)
            self._first[request.party] = first
            yield first

    def _requests(
        self, stage: Any, parties: Any, to: Sequence[str], own: Callable[[str], dict[str, Tensor]]
    ) -> Iterator[Request]:
        self._stage = stage
        common, policy = codec.encode(parties), self.policy
        when = (self.call.stage, self.call.round, self.call.call)
        for party in to:
            if policy.faults.at_stage(policy.seed, party, when, stage):
                self._fail(party, f"dropped out before stage {stage} of a secure sum")
                continue
            first = self._first[party]
            each = codec.encode(messages.Neighbours(**own(party)))
            yield dataclasses.replace(
                first, common=common, each=each, sum=self._asked._replace(stage=stage, request=first.id)
            )

    def take(self, request: Request, reply: Reply, attempt: int | None) -> Exception | None:
        party, size, stage = request.party, reply_size(reply), self._stage
        self.count(request, size)
        try:
            data = self._arrived(request, reply, *([] if stage == "advertise" else [stage]), attempt=attempt).data
            self._take(party, self._read(data))
        except (codec.Refused, codec.WireError, SecureSumError, StepFailed) as error:
            self._fail(party, str(error) if isinstance(error, StepFailed) else told(error))
            self.bytes["lost" if isinstance(error, Lost) else "refused"] += size or 0
            return error
        self.failed.pop(party, None)  # of a try before
        return None

    def _fail(self, party: str, why: str) -> None:
        if party not in self.arrived:  # else its vector counts, and others help to open the sum
            self.failed[party] = why

    def note(self, request: Request, reply: codec.Encoded, head: tuple[int, str] | None) -> None:
        if self._stage == "mask":
            super().note(request, reply, head)

    def _read(self, data: bytearray | memoryview) -> Tensor:
        cls, field = _REPLIES[self._stage]
        if self._stage == "mask":
            kind = torch.int32 if self._context.bits == 32 else torch.int64
            model = torch.empty(self._context.length, dtype=kind, device="meta")
        else:
            rows = len(self.call.to) * _ROW if self._stage in ("share", "unmask") else ADVERT + SIGNATURE
            model = torch.empty(rows, dtype=torch.uint8, device="meta")
        like = {field: codec.Form(field, Tensor, False, model)}
        message = codec.decode(data, cls, like=like)
        if self._stage == "mask":  # the others' lengths are looked at piece by piece
            codec.validate(message, like)
        tensor: Tensor = getattr(message, field)
        return tensor

    def _take(self, party: str, tensor: Tensor) -> None:
        match self._stage:
            case "advertise":
                self._sum.advertised(party, messages.as_bytes(tensor))
            case "share":
                self._sum.shared(party, messages.unpack_rows(self._sum.holders(party), tensor))
            case "mask":
                self._sum.masked(party, tensor.numpy())
            case "confirm":
                self._sum.confirmed(party, messages.as_bytes(tensor))
            case _:
                self._sum.unmasked(party, messages.unpack_rows(self._sum.holders(party), tensor))

    @property
    def rho(self) -> float:
        """See `HiddenMeans.rho`."""
        return self._hidden.rho

    def aggregated(self) -> dict[str, Any]:
        """Every mean by its name, once the sum is opened."""
        return {mean.key: self.opened.mean(mean, len(self.everyone)) for mean in self.means}

    def hidden(self) -> dict[tuple[str, str | None], float]:
        """The numbers of the replies of which only means are known: see `Answer.hidden`."""
        return {("loss", by): value for by, value in self.opened.loss().items()}
