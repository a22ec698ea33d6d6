"""What the server asks of an engine: who takes part, and carrying requests to parties and replies back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coalface.core import codec
from coalface.core.method import Tensors, Ticket
from coalface.engine.client_batch import ClientBatch
from coalface.engine.party.executor import Request, StepFailed


@dataclass(frozen=True)
class Member:
    """What a party says of itself when it joins."""

    role: str
    images: int
    identities: int


Reply = bytearray | memoryview | codec.Encoded | StepFailed


class Transport(Protocol):
    """How an engine reaches the parties. Replies come in the order of the requests, a bounded window ahead."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def late(self) -> Mapping[str, int]:
        """Party -> its replies that came after they had been given up, and were thrown away; where any can."""

    @property
    def heads(self) -> Mapping[str, tuple[int, str]]:
        """Party -> lines and last hash of its ledger with the reply that it gave last."""

    def batched(self, requests: Iterable[Request], images: int) -> Iterator[tuple[Request, Reply] | ClientBatch]: ...
    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]: ...
    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None: ...
    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]: ...
    def local_results(self, requests: Iterable[Request]) -> Iterator[tuple[str, Tensors]]: ...
    def finalize(self, accepted: Mapping[str, str | None], ordinal: int) -> None: ...
    def check(self, accepted: Mapping[str, str | None], whole: int) -> dict[str, str]: ...
    def close(self) -> None: ...


class RunFailed(RuntimeError):
    """The run cannot go on."""
