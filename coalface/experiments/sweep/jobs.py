"""Cells of a sweep in processes of their own, several at a time."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
from collections.abc import Callable, Generator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from coalface.engine import processes
from coalface.engine.transport import RunFailed

Job = Callable[[], dict[str, Any]]


def run_jobs(
    jobs: Mapping[int, Job], at_once: int, begins: Callable[[int], None]
) -> Generator[tuple[int, Any], None, None]:
    """(number, what a job returns, or the exception that it raised), in the order in which they end.

    Every job has a fresh process. When the iterator is closed, or Ctrl-C comes, those under way are ended.
    """
    left, under_way = list(jobs), dict[Connection, tuple[int, BaseProcess]]()
    try:
        while left or under_way:
            while left and len(under_way) < at_once:
                number = left.pop(0)
                begins(number)
                receiver, process = _start(jobs[number])
                under_way[receiver] = number, process
            for ready in multiprocessing.connection.wait(list(under_way)):
                receiver = cast(Connection, ready)
                number, process = under_way[receiver]
                try:
                    result = receiver.recv()
                except EOFError:
                    process.join()
                    result = RunFailed(f"its process ended with status {process.exitcode}; it may be out of memory")
                process.join()
                del under_way[receiver]
                yield number, result
    finally:
        with processes.ending():
            for _, process in under_way.values():
                process.terminate()
            for _, process in under_way.values():
                process.join()


def _start(job: Job) -> tuple[Connection, BaseProcess]:
    context = processes.spawn_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(processes.packed(job), sender))
    with processes.starting():
        process.start()
    sender.close()
    return receiver, process


def _run(packed: bytes, sender: Connection) -> None:
    processes.end_with_parent()
    try:
        result: Any = processes.unpacked(packed)()
    except Exception as error:
        result = error
    with contextlib.suppress(BrokenPipeError):
        try:
            sender.send(result)
        except Exception:  # an error that cannot be sent
            sender.send(RunFailed(str(result)))
