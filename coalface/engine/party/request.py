"""What the server asks of a party, and how a party fails to answer."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coalface.core import codec


class SumStage(NamedTuple):
    """A stage of a secure sum; the first one runs the step, the later ones go on with what it left."""

    stage: Literal["advertise", "share", "mask", "confirm", "unmask"]
    asked: int
    """How many parties are."""
    means: tuple[tuple[str, str], ...]
    """(field, weight) of each mean, by `coalface.engine.sums.hidden.asked_for`."""
    request: str = ""
    """The `Request.id` of the first stage, which later ones go on with."""


@dataclass(frozen=True)
class Request:
    """What the server sends to one party: which step, the encoded messages, and where the party stands."""

    run: str
    party: str
    stage: str
    round: int
    rounds: int
    ordinal: int
    """Rounds begun since the start of the run, over all stages; work that was posted keeps that of its posting."""
    call: int
    step: str
    common: codec.Encoded | None
    each: codec.Encoded | None
    base: str | None
    """The party's last accepted commit: the private state that the step starts from."""
    horizon: tuple[int, str | None]
    """(ordinal, accepted commit) at the server's last checkpoint: the party keeps what a resume from there needs."""
    receipts: tuple[int, str] | None = None
    """Lines and last hash of the server's chain of accepted replies, which the party keeps with its commit; None with
    `privacy.dp`, since it tells of the replies of others."""
    sum: SumStage | None = None
    """What of a secure sum is asked for; None where the reply comes by itself."""

    @property
    def work(self) -> tuple[str, int, int, str, str | None, str | None]:
        """What a step at a party computes, whatever name the run has: (stage, round, call, step, the digests of the
        messages). Without `base`, since commits have other names in another run.
        """
        common, each = (m.digest if m else None for m in (self.common, self.each))
        return self.stage, self.round, self.call, self.step, common, each

    @functools.cached_property
    def content(self) -> str:
        """What is asked, as text: (run, stage, round, call, step, the digests of the messages)."""
        *when, common, each = self.work
        about = [common, each, *([] if self.sum is None else [list(self.sum)])]
        return json.dumps([self.run, *when, about])

    @functools.cached_property
    def id(self) -> str:
        """Names the request by (run, stage, round, call, step, content): the same request again has the same id."""
        return f"{self.ordinal:07d}.{self.call:03d}-{hashlib.sha256(self.content.encode()).hexdigest()[:24]}"

    @property
    def about(self) -> dict[str, str | int]:
        """What the lines of a ledger say of the request that they answer."""
        about: dict[str, str | int] = {"run": self.run, "stage": self.stage, "round": self.round}
        about |= {"call": self.call, "step": self.step, "to": "server", "protection": "none"}
        return about if self.sum is None else about | {"protection": "secure sum", "sum": self.sum.stage}

    @property
    def where(self) -> str:
        """Party, step and round, for errors."""
        return f"{self.party}, step {self.step}, {self.stage} round {self.round}"


class StepFailed(RuntimeError):
    """A step could not be run at its party; the message names party, step and round."""


class StepBroken(StepFailed):
    """The code of a step fails as it would at any party, by its kind of error."""


class Unanswered(StepFailed):
    """A party did not answer: nobody knows whether the request ever came to it."""


class Withheld(StepFailed):
    """A party holds its reply back: it cannot be summed, or the party must not answer. The run goes on without it."""
