"""A party's part in secure sums: its reply becomes a vector that stays with it, and leaves under masks alone."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coalface.core import codec
from coalface.core.steps import StepDeclaration
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request, Withheld
from coalface.engine.sums.hidden import HiddenMeans
from coalface.privacy import noise
from coalface.privacy.accountant import concentrated_epsilon
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import NOISED, SecureSettings
from coalface.privacy.secure_sums import client, messages
from coalface.privacy.secure_sums.client import Sign, Verify
from coalface.privacy.secure_sums.context import SecureSumError, SumContext, joined
from coalface.privacy.secure_sums.guard import Answers
from coalface.privacy.secure_sums.keys import Member, derive
from coalface.privacy.secure_sums.masks import RINGS
from coalface.privacy.secure_sums.neighbours import read_roster

VECTOR, SUM = "(vector)", "(sum)"
"""In a commit: the party's vector, and which sum it is for."""


@dataclass(frozen=True)
class PartySums:
    """What a process needs to take part in secure sums for the parties that it plays."""

    settings: SecureSettings
    secret: Callable[[str], bytes]
    """Each party's 32 bytes that all its keys follow from."""
    folder: Path
    """Holds `NAME.jsonl`, what each party has answered in this run and must not answer otherwise."""
    seed: int
    """Of the run: what a step draws follows from it."""
    every_run: Path
    """Holds `NAME.jsonl`: over whom each party has helped to open sums, and the ρ of the vectors that have left it,
    whatever names the runs had."""
    sign: Sign | None = None
    verify: Verify | None = None
    known: frozenset[str] | None = None
    """The parties whose keys this one has, where it verifies: nobody else may take part."""
    flush: bool = False
    privacy: PartyPrivacy | None = None
    """With which each vector is clipped and has the party's share of noise in it."""

    def answers(self, party: str) -> Answers:
        return _answers(self.folder / f"{party}.jsonl", self.flush)

    def bind(self, hidden: HiddenReply, party: str, survivors: Sequence[str]) -> None:
        """Write down over whom the party helps to open a sum of this work.

        The server names the runs, and under another name the same work gives the same vector. Raises SecureSumError
        (`answered`) where its sum was opened over other parties, or with other noise: the mean of both would have less.
        """
        noised = [hidden.vector.data.cast("B").tobytes()] if hidden.rho is not None else []
        digest = hashlib.sha256(joined(*sorted(survivors), *noised)).digest()
        _answers(self.every_run / f"{party}.jsonl", self.flush).record(hidden.work, "parties", digest)

    def spend(self, hidden: HiddenReply, party: str) -> None:
        """Write down the ρ of a vector that is about to leave, in a round that is abandoned as well.

        Raises SecureSumError (`target`) where all runs together would pass the target of `privacy.dp`: so a party need
        not rely on the server to count. The same vector of the same work, with the same noise, counts once.
        """
        if hidden.rho:
            digest = hashlib.sha256(joined(hidden.context.layout, hidden.vector.data.cast("B").tobytes())).digest()
            answers = _answers(self.every_run / f"{party}.jsonl", self.flush)
            answers.spend(hidden.work, digest, hidden.rho, self._check_target)

    def check_target(self, request: Request, declaration: StepDeclaration, like: codec.Forms) -> None:
        """Raise SecureSumError (`target`) where the vector of a step that is about to run could not leave."""
        spent = _answers(self.every_run / f"{request.party}.jsonl", self.flush).spent(but=self._work(request))
        self._check_target(spent + self._hidden(request, declaration, like).rho)

    def _check_target(self, rho: float) -> None:
        target = None if self.privacy is None else self.privacy.target_epsilon
        if self.privacy is None or target is None:
            return
        if (epsilon := concentrated_epsilon(rho, self.privacy.delta)) > target:
            raise SecureSumError(
                "target",
                f"by what has left this party in all runs ε would be {epsilon:.4g} at δ = {self.privacy.delta:g}, and "
                f"privacy.dp.target_epsilon is {target:g}",
            )

    def _hidden(self, request: Request, declaration: StepDeclaration, like: codec.Forms) -> HiddenMeans:
        assert request.sum is not None
        return HiddenMeans.of(self.settings, declaration, request.sum.means, like, request.sum.asked, self.privacy)

    def _work(self, request: Request) -> str:
        return json.dumps([self.seed, *request.work])

    def hide(self, request: Request, declaration: StepDeclaration, reply: Any, like: codec.Forms) -> HiddenReply:
        """The reply of a step, hidden. Raises Refused or SecureSumError where it cannot be summed.

        With noise that is so of no reply, nor of the FloatingPointError that a step ended with: it counts as zero.

        Its noise follows from the party's secret, the work, and the vector without noise: the same vector of the same
        work has the same, any other one has noise that has nothing to do with it.
        """
        hidden = self._hidden(request, declaration, like)
        context = hidden.context(self.settings, request.run, request.stage, request.round, request.call)
        digest = hashlib.sha256(request.content.encode()).hexdigest()
        work = self._work(request)

        def stream(vector: memoryview) -> noise.KeyStream:
            secret = derive(self.secret(request.party), "shares of noise")
            return noise.KeyStream(secret, work, noise.digest(secret, hidden.layout.digest, vector))

        if self.privacy is None:
            fields = (*hidden.fields, *hidden.numbers)
            return HiddenReply(hidden.encode(reply), context, digest, work, fields, hidden.rows)
        vector, void = hidden.encode_noised(reply, stream)
        return HiddenReply(vector, context, digest, work, hidden.fields, hidden.rows, hidden.rho, void)


@dataclass(frozen=True)
class HiddenReply:
    """A vector as its party keeps it."""

    vector: np.ndarray[Any, Any]
    context: SumContext
    request: str
    """SHA-256 of what the party was asked."""
    work: str
    """What the vector follows from beside the party's data and private state: the seed, and `Request.work`."""
    fields: tuple[str, ...]
    """Of the reply, those that are in the vector."""
    rows: tuple[str, ...]
    rho: float | None = None
    """Of the sum, where the vector has noise in it: `HiddenMeans.rho`."""
    void: str = ""
    """Why the vector is noise alone; the party then keeps what it kept before."""

    @property
    def parts(self) -> dict[str, bytes | memoryview]:
        """As a commit holds it."""
        context = asdict(self.context) | {"layout": self.context.layout.hex()}
        about = {
            "context": context,
            "request": self.request,
            "work": self.work,
            "fields": self.fields,
            "rows": self.rows,
        } | ({} if self.rho is None else {"rho": self.rho})
        return {VECTOR: self.vector.data.cast("B"), SUM: json.dumps(about).encode()}

    @classmethod
    def read(cls, commit: Commit) -> HiddenReply:
        """What a commit holds. Raises ValueError where it holds none."""
        about, vector = commit.read(SUM), commit.read(VECTOR)
        if about is None or vector is None:
            raise ValueError("the commit is of no secure sum")
        try:
            read = json.loads(bytes(about))
            context = SumContext(**read["context"] | {"layout": bytes.fromhex(read["context"]["layout"])})
            numbers = np.frombuffer(vector, RINGS[context.bits])
            fields, rows = tuple(read["fields"]), tuple(read["rows"])
            return cls(numbers, context, read["request"], read["work"], fields, rows, read.get("rho"))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"the commit does not say what its vector is ({error!r})") from None

    def member(self, party: str, secret: bytes, base: str | None) -> Member:
        """The party, for this sum."""
        return Member(party, secret, self.context, bytes.fromhex(self.request), (base or "").encode())


def advertise(sums: PartySums, member: Member) -> codec.Encoded:
    """Stage 1: the reply to the request that ran the step."""
    return codec.encode(messages.Advert(keys=messages.as_tensor(client.advertise(member, sums.sign))), hashed=True)


def answer(sums: PartySums, hidden: HiddenReply, member: Member, request: Request) -> codec.Encoded:
    """The reply to a later stage. Raises SecureSumError where the party must not answer."""
    assert request.sum is not None and request.common is not None and request.each is not None
    sets, own = request.common.message(messages.Parties), request.each.message(messages.Neighbours)
    names = messages.unpack_names(sets.names)
    if sums.known is not None and (strangers := set(names) - sums.known):
        raise SecureSumError("unknown", "this party has no key of it, so nobody knows who it is", min(strangers))
    roster = read_roster(member.context, names)
    neighbours = roster.neighbours(member.name) if member.name in roster.points else []
    adverts = messages.unpack_rows(neighbours, own.adverts)
    message: Any
    match request.sum.stage:
        case "share":
            shares = client.share_keys(member, names, adverts, sums.verify)
            message = messages.Rows(shares=messages.pack_rows(roster.holders(member.name), shares))
        case "mask":
            sharers = messages.unpack_names(sets.sharers)
            answers = sums.answers(member.name)
            masked = client.mask(member, names, adverts, sharers, hidden.vector, answers, sums.verify)
            sums.spend(hidden, member.name)
            message = messages.Masked(vector=torch.from_numpy(masked))
        case "confirm" if sums.sign is not None:
            sharers, survivors = messages.unpack_names(sets.sharers), messages.unpack_names(sets.survivors)
            signature = client.confirm(member, names, sharers, survivors, sums.sign, sums.answers(member.name))
            sums.bind(hidden, member.name, survivors)
            message = messages.Confirmation(signature=messages.as_tensor(signature))
        case "unmask":
            sharers, survivors = messages.unpack_names(sets.sharers), messages.unpack_names(sets.survivors)
            sealed, confirmed = (messages.unpack_rows(neighbours, rows) for rows in (own.sealed, own.confirmed))
            answers = sums.answers(member.name)
            shares = client.unmask(member, names, adverts, sharers, survivors, sealed, answers, sums.verify, confirmed)
            sums.bind(hidden, member.name, survivors)
            message = messages.Rows(shares=messages.pack_rows(roster.holders(member.name), shares))
        case stage:
            raise Withheld(f"{request.where}: this party has no stage {stage!r} of a secure sum")
    return codec.encode(message, hashed=True)


def contained(hidden: HiddenReply, stage: str) -> dict[str, Any]:
    """What the lines of a stage say beside those of any message: of the vector, which fields are in it.

    `rows` names those with rows that one party alone may change, `rho` says what the sum of noised vectors costs.
    """
    if stage != "mask":
        return {}
    rows = {"rows": ", ".join(hidden.rows)} if hidden.rows else {}
    noised = {"protection": NOISED, "rho": hidden.rho} if hidden.rho and math.isfinite(hidden.rho) else {}
    return {"of": ", ".join(hidden.fields)} | rows | noised


@functools.lru_cache(maxsize=2)  # both files of the party that a node plays; a simulation has many parties
def _answers(path: Path, flush: bool) -> Answers:
    return Answers(path, flush=flush)


def seeded_secret(seed: int) -> Callable[[str], bytes]:
    """The parties' secrets in a simulation: whoever has the seed can take the masks off."""
    return lambda party: derive(str(seed).encode(), "simulated party", party)
