"""The transport interface: members, requests to parties, and replies back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from coalface.core import codec
from coalface.core.errors import RunError
from coalface.core.method import Tensors, Ticket
from coalface.engine.client_batch import Apart, ClientBatch
from coalface.engine.party.request import Request, StepFailed

if TYPE_CHECKING:
    from coalface.privacy.secure_sums.client import Verify


@dataclass(frozen=True)
class Member:
    """What a party says of itself when it joins."""

    role: str
    images: int
    """0 where it does not tell, as under secure sums."""
    identities: int

    @property
    def untold(self) -> Member:
        """The member, without its numbers."""
        return replace(self, images=0, identities=0)


Reply = codec.Encoded | StepFailed


class Transport(Protocol):
    """How an engine reaches the parties. Replies come in the order of the requests, a bounded number in flight."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def late(self) -> Mapping[str, int]:
        """Party -> its replies that came after they had been given up, and were thrown away; where any can."""

    @property
    def heads(self) -> Mapping[str, tuple[int, str]]:
        """Party -> lines and last hash of its ledger with the reply that it gave last."""

    @property
    def verify(self) -> Verify | None:
        """Whether a party, by its name, has signed some bytes; None where parties of secure sums sign nothing."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Each request with its reply, in order."""

    def batched(
        self, requests: Iterable[Request], images: int
    ) -> Iterator[tuple[Request, Reply] | ClientBatch | Apart]:
        """The same, in client batches of so many images at most where this engine computes them.

        Before the replies of parties that it could not compute as one it says why.
        """

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        """Start work that runs beside the coming rounds."""

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Wait for what was posted; a resumed run posts it again."""

    def local_results(self, requests: Iterable[Request]) -> Iterator[tuple[str, Tensors]]:
        """What a step with a local result gives at each party of this machine, such as its own model."""

    def finalize(self, accepted: Mapping[str, str | None], ordinal: int) -> None:
        """Tell every party which commit was accepted last, up to the round `ordinal`."""

    def check(self, accepted: Mapping[str, str | None], whole: int) -> dict[str, str]:
        """What is wrong at parties, held against their accepted commits; the first `whole` ledgers are read whole.

        What a crash left unfinished is mended first.
        """

    def countersign(self, party: str, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        """A party's `key` and `signature` under what the server has signed, or why it has `failed`."""

    def close(self) -> None:
        """End what runs beside this process, at once: it holds nothing that a commit does not."""


class RunFailed(RunError):
    """The run cannot go on."""


def late(deadline: float, seconds: float | None = None) -> str:
    """Why a late reply is refused: it took so many seconds, which a simulation knows, or has not come yet."""
    if seconds is None:
        return f"no reply within {deadline:g} s"
    return f"late: {seconds:.1f} s, the deadline is {deadline:g} s"
