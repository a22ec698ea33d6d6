"""The local engine over worker processes, with the same bits as in one process."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from coalface.core import codec
from coalface.core.disk import writing
from coalface.core.method import Ticket
from coalface.engine import processes
from coalface.engine.local import InProcess, answered
from coalface.engine.party.commits import read_span
from coalface.engine.party.executor import run_batch
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.party.sharding import ProcessGroups
from coalface.engine.transport import Reply, RunFailed

_WORKER_DIED = (
    "a worker process died (out of memory, killed, or crashed). What was checkpointed is safe: resume the run, with "
    "fewer workers if memory was short."
)
_NOT_BEGUN = (
    "a worker process ended before it could begin. What it printed says why; if it printed nothing it was killed, most "
    f"likely for lack of memory: use fewer workers. {processes.ADVICE}."
)


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
    for request, reply, head in answered(_here["context"], asked):
        if isinstance(reply, StepFailed):
            reply.add_note("".join(traceback.format_exception(reply)))  # a cause is not sent
            replies.append((reply, head))
        else:
            replies.append((_Parcel(mail / f"{request.party}-{request.id}", reply), head))
    return replies
