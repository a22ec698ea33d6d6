"""The local engine: all parties on this machine, one after the other or in worker processes, with the same bits."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from coalface.core import codec
from coalface.core.disk import writing
from coalface.core.method import Tensors, Ticket
from coalface.engine import processes
from coalface.engine.client_batch import Apart, ClientBatch, cut
from coalface.engine.party.commits import read_span
from coalface.engine.party.executor import ExecutorContext, PartyExecutor, run_batch
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.party.sharding import ProcessGroups
from coalface.engine.transport import Reply, RunFailed
from coalface.privacy.countersign import countersign

_WORKER_DIED = (
    "a worker process died (out of memory, killed, or crashed). What was checkpointed is safe: resume the run, with "
    "fewer workers if memory was short."
)
_NOT_BEGUN = (
    "a worker process ended before it could begin. What it printed says why; if it printed nothing it was killed, most "
    f"likely for lack of memory: use fewer workers. {processes.ADVICE}."
)


def _answered(
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

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply, head in _answered(self._context, requests):
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


_UnderWay = tuple[list[Request], concurrent.futures.Future[Any]]
"""Requests that went to a worker together, and what will give their replies."""


class Workers(InProcess):
    """Runs steps in worker processes; at most `max_in_flight` requests are under way or wait to be aggregated.

    A party that has shards has a worker of its own, beside the others, whose helpers share its work. Posted work has
    workers of its own, as many and begun when first needed, so that nobody who is asked waits for it.
    """

    children = True

    def __init__(self, setup: Setup, world: FederatedData, workers: int, max_in_flight: int) -> None:
        super().__init__(setup, world)
        self._workers, self._max_in_flight = workers, max_in_flight
        self._mail = setup.folder / "mail"
        shutil.rmtree(self._mail, ignore_errors=True)  # of a run that was killed
        self._mail.mkdir(parents=True)
        self._posted: dict[Ticket, list[_UnderWay]] = {}
        self._under_way: dict[concurrent.futures.Future[Any], Path | None] = {}
        context = processes.spawn_context()
        self._begun = context.Event()
        self._told, self._tell = context.Pipe(duplex=False)
        arguments = (processes.packed(setup), setup.folder, self._begun, self._told)

        def pool(size: int) -> concurrent.futures.ProcessPoolExecutor:
            return concurrent.futures.ProcessPoolExecutor(size, context, _start_worker, arguments)

        self._pool, self._beside = pool(workers), pool(workers)  # a pool's processes begin as they are needed
        self._own = {party: pool(1) for party, size in setup.numerics.processes_per_party.items() if size > 1}

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        ahead: collections.deque[_UnderWay] = collections.deque()
        last = None
        for block in self._blocks(requests):
            last = block[0]
            while sum(len(some) for some, _ in ahead) + len(block) > self._max_in_flight:
                yield from self._results(*ahead.popleft())
            ahead.append((block, self._submit(block)))
        while ahead:
            yield from self._results(*ahead.popleft())
        self._end_call(last)

    def _computed(self, batches: Iterator[list[Request]]) -> Iterator[tuple[list[Request], Callable[[], list[Any]]]]:
        """One batch is under way in each worker, and one waits behind it."""
        ahead: collections.deque[tuple[list[Request], Callable[[], list[Any]]]] = collections.deque()
        for some in batches:
            if len(ahead) == 2 * self._workers:
                yield ahead.popleft()
            ahead.append((some, functools.partial(self._batch_replies, self._submit(some, serve=_serve_batch))))
        last = ahead[-1][0][0] if ahead else None
        yield from ahead
        self._end_call(last)

    def _batch_replies(self, future: concurrent.futures.Future[Any]) -> list[Any]:
        path: Path = self._result(future)
        replies: list[Any] = torch.load(path, weights_only=False)  # as one of our own processes wrote it
        path.unlink()
        return replies

    def _blocks(self, requests: Iterable[Request]) -> Iterator[list[Request]]:
        """Requests that go to a worker together, which spares their sending: more of them the longer the call is.

        The last worker is never busy for longer than a sixteenth of what it has done by then.
        """
        block: list[Request] = []
        for place, request in enumerate(requests):
            alone = request.party in self._own
            if block and alone:
                yield block
                block = []
            block.append(request)
            if alone or len(block) >= min(self._max_in_flight // 2, place // 16) // self._workers:
                yield block
                block = []
        if block:
            yield block

    def post(self, ticket: Ticket, requests: Sequence[Request]) -> None:
        self._posted[ticket] = [([request], self._submit([request], self._beside)) for request in requests]

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        if ticket not in self._posted:
            self.post(ticket, requests)
        for under_way in self._posted.pop(ticket):
            yield from self._results(*under_way)
        self._end_call(requests[0] if requests else None)

    def close(self) -> None:
        super().close()
        with processes.ending():
            if self._under_way:
                self._tell.send(None)
            for pool in (self._pool, self._beside, *self._own.values()):
                pool.shutdown(cancel_futures=True)
        self._tell.close()
        self._told.close()
        shutil.rmtree(self._mail, ignore_errors=True)

    def _letter(self, request: Request) -> Path:
        """Where the message for all parties of a call lies, so that each worker reads it once."""
        stage = "" if request.sum is None else f"-{request.sum.stage}"
        return self._mail / f"{request.ordinal}-{request.call}{stage}"

    def _end_call(self, last: Request | None) -> None:
        """Remove the message for all parties of a call, but not while one that was asked again may be without it."""
        unread = [letter for future, letter in [*self._under_way.items()] if not future.done()]
        if last is not None and (letter := self._letter(last)) not in unread:
            letter.unlink(missing_ok=True)

    def _submit(
        self,
        block: list[Request],
        pool: concurrent.futures.ProcessPoolExecutor | None = None,
        serve: Callable[..., Any] | None = None,
    ) -> concurrent.futures.Future[Any]:
        """Requests of one call, of several parties if these have no worker of their own."""
        letter = None
        if (common := block[0].common) is not None:
            letter = self._letter(block[0])
            if not letter.exists():
                with writing(letter):
                    letter.write_bytes(common.data)
        bare = [dataclasses.replace(request, common=None) for request in block]
        try:
            with processes.starting():
                future = self._own.get(block[0].party, pool or self._pool).submit(
                    serve or _serve, bare, letter, self._mail
                )
        except concurrent.futures.BrokenExecutor as error:
            raise self._died() from error
        self._under_way[future] = letter
        future.add_done_callback(self._under_way.pop)
        return future

    def _result(self, future: concurrent.futures.Future[Any]) -> Any:
        try:
            return future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise self._died() from error

    def _results(self, block: list[Request], future: concurrent.futures.Future[Any]) -> Iterator[tuple[Request, Reply]]:
        for request, (reply, head) in zip(block, self._result(future), strict=True):
            if head is not None:
                self.heads[request.party] = head
            yield request, reply

    def _died(self) -> RunFailed:
        return RunFailed(_WORKER_DIED if self._begun.is_set() else _NOT_BEGUN)


_here: dict[str, Any] = {}  # what a worker process holds: its site and the last message for all


def _start_worker(pickled_setup: bytes, folder: Path, any_begun: Event, orders: Connection) -> None:
    """Raises nothing, which would end the process without a word: its first reply says what went wrong."""
    try:
        processes.join_run(folder, orders)
        any_begun.set()
        setup: Setup = processes.unpacked(pickled_setup)
        setup.prepare()
        _here["context"] = dataclasses.replace(setup.context(setup.build()), group=ProcessGroups(setup).of)
    except Exception as error:
        _here["failed"] = error


class _Parcel:
    """A reply on its way from a worker: a file, which is read and removed where the parcel is unpickled.

    A model goes through a file in a fraction of the processor time that the pool's pipe takes for it.
    """

    def __init__(self, path: Path, reply: codec.Encoded) -> None:
        with writing(path):
            path.write_bytes(reply.data)
        self._path, self._sums = path, reply.sums

    def __reduce__(self) -> tuple[Callable[..., codec.Encoded], tuple[Path, tuple[str, ...]]]:
        return _unpack_parcel, (self._path, self._sums)


def _unpack_parcel(path: Path, sums: tuple[str, ...]) -> codec.Encoded:
    data = read_span(path, 0, path.stat().st_size)
    path.unlink()
    return codec.Encoded(data, hashes=sums)


def _whole(requests: list[Request], letter: Path | None) -> list[Request]:
    """Requests with the message for all, once this process has it."""
    if (error := _here.get("failed")) is not None:
        raise processes.not_begun(error, "a worker process") from error
    if letter is not None:
        if _here.get("letter") != letter:
            _here.update(letter=letter, common=codec.Encoded(bytearray(letter.read_bytes())))
        requests = [dataclasses.replace(request, common=_here["common"]) for request in requests]
    return requests


def _serve_batch(requests: list[Request], letter: Path | None, mail: Path) -> Path:
    """Where the replies lie, in which a mean over the parties stays one object."""
    asked = _whole(requests, letter)
    replies = run_batch(_here["context"], asked)
    path = mail / f"{requests[0].party}-{requests[0].id}"
    with writing(path):
        torch.save(replies, path, pickle_module=cloudpickle)
    return path


def _serve(requests: list[Request], letter: Path | None, mail: Path) -> list[tuple[Any, tuple[int, str] | None]]:
    asked = _whole(requests, letter)
    replies: list[tuple[Any, tuple[int, str] | None]] = []
    for request, reply, head in _answered(_here["context"], asked):
        if isinstance(reply, StepFailed):
            reply.add_note("".join(traceback.format_exception(reply)))  # a cause is not sent
            replies.append((reply, head))
        else:
            replies.append((_Parcel(mail / f"{request.party}-{request.id}", reply), head))
    return replies
