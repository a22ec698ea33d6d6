"""The local engine: all parties on this machine, one after the other in this process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from coalface.core.method import Tensors, Ticket
from coalface.engine import processes
from coalface.engine.client_batch import Apart, ClientBatch, cut
from coalface.engine.party.context import ExecutorContext
from coalface.engine.party.executor import PartyExecutor, run_batch
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.party.sharding import ProcessGroups
from coalface.engine.transport import Reply
from coalface.privacy.countersign import countersign


def answered(
    context: ExecutorContext, requests: Iterable[Request]
) -> Iterator[tuple[Request, Reply, tuple[int, str] | None]]:
    """Each request with its reply and the head of its party's ledger, in order.

    One party's reply is hashed while the next one trains, and is then committed and given out.
    """
    waiting: Callable[[], tuple[Request, Reply, tuple[int, str] | None]] | None = None
    for request in requests:
        begun = _begin(PartyExecutor(context, request.party), request)
        if waiting is not None:
            yield waiting()
        waiting = begun
    if waiting is not None:
        yield waiting()


def _begin(executor: PartyExecutor, request: Request) -> Callable[[], tuple[Request, Reply, tuple[int, str] | None]]:
    """Run the step; what is returned commits it."""
    try:
        reply, commit = executor.begin(request)
    except StepFailed as error:
        failed = request, error, executor.head
        return lambda: failed

    def end() -> tuple[Request, Reply, tuple[int, str] | None]:
        commit()
        return request, reply, executor.head

    return end


class InProcess:
    """Runs every step in this process, one party after the other; helpers share the work of a party that has shards."""

    late: Mapping[str, int] = {}
    """Nothing is given up here."""
    children = False
    """Whether there are processes beside this one even if no party has shards."""

    def __init__(self, setup: Setup, world: FederatedData) -> None:
        setup.prepare()
        members = world.members()
        self.members = {n: m if setup.secure is None else m.untold for n, m in members.items()}
        if self.children or setup.numerics.processes_per_party:
            processes.wait_for_workers(setup.folder)
        self.heads: dict[str, tuple[int, str]] = {}
        self._groups = ProcessGroups(setup)
        self._context = dataclasses.replace(setup.context(world), group=self._groups.of)
        self.verify = self._context.sums.verify if self._context.sums is not None else None

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply, head in answered(self._context, requests):
            if head is not None:
                self.heads[request.party] = head
            yield request, reply

    def batched(
        self, requests: Iterable[Request], images: int
    ) -> Iterator[tuple[Request, Reply] | ClientBatch | Apart]:
        """Where a batch fails, its parties are asked singly."""
        for some, replies in self._computed(cut(requests, lambda party: self.members[party].images, images)):
            try:
                batch = ClientBatch(some, replies())
            except Exception as error:  # whatever it is, the party that it is about will say it by itself
                yield Apart(f"{type(error).__name__}: {error}".splitlines()[0])
                yield from self.exchange(some)
                continue
            yield batch

    def _computed(self, batches: Iterator[list[Request]]) -> Iterator[tuple[list[Request], Callable[[], list[Any]]]]:
        """Each batch with what gives its replies."""
        for some in batches:
            yield some, functools.partial(run_batch, self._context, some)

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        """Nothing: in one process the work is done when it is collected, with the same bits."""

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        return self.exchange(requests)

    def local_results(self, requests: Iterable[Request]) -> Iterator[tuple[str, Tensors]]:
        for request in requests:
            yield request.party, PartyExecutor(self._context, request.party).local_result(request)

    def finalize(self, accepted: Mapping[str, str | None], ordinal: int) -> None:
        for party, commit in accepted.items():
            PartyExecutor(self._context, party).commits.finalize(commit, ordinal)

    def check(self, accepted: Mapping[str, str | None], whole: int) -> dict[str, str]:
        faults = {}
        for place, (party, commit) in enumerate(accepted.items()):
            try:
                PartyExecutor(self._context, party).commits.check(commit, whole=place < whole)
            except (FileNotFoundError, ValueError) as error:
                faults[party] = str(error)
        return faults

    def countersign(self, party: str, statement: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return countersign(self._context.folder, party, statement)
        except ValueError as error:
            return {"failed": str(error)}

    def close(self) -> None:
        self._groups.close()
