"""Processes that a run starts on this machine: they end with what started them, and a resume waits until they have."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import IO, Any

import cloudpickle
from filelock import Timeout

from coalface.core import disk, registry
from coalface.engine.transport import RunFailed

_AT_WORK = "workers.lock"
_held: list[IO[str]] = []  # as long as this process lives
ADVICE = (
    "A process that a run starts imports modules anew, so those that the run needs must lie where Python finds them. "
    "Or let one process play all parties: engine.workers=1, and no engine.processes_per_party"
)
"""What to do where a process does not come to begin."""


class NotBegun(RunFailed):
    """A process that plays parties could not begin: no fault of a party, so no run goes on without one."""


def not_begun(error: Exception, process: str) -> NotBegun:
    """What such a process says of itself: its own error, and what to do unless the machine is at fault."""
    why = f"{process} could not begin: {type(error).__name__}: {error}".rstrip(".")
    # the run's own process has built the same world: but for the machine, what differs is what each has imported
    return NotBegun(why if isinstance(error, OSError | MemoryError) else f"{why}. {ADVICE}.")


def packed(setup: Any) -> bytes:
    """What a process is started with; what only this program has, such as a method in a notebook, goes by value.

    Raises RunFailed where it cannot be sent.
    """
    try:
        return cloudpickle.dumps((registry.held(), setup))
    except Exception as error:  # whatever the objects of somebody else raise
        raise RunFailed(f"the run cannot be handed to another process ({error}). {ADVICE}.") from error


def unpacked(given: bytes) -> Any:
    """In a process that was started: the setup that it was started with."""
    held, setup = pickle.loads(given)
    registry.hold(held)
    return setup


def spawn_context() -> SpawnContext:
    """What makes processes that import anew, and what they share."""
    _start_tracker()
    return multiprocessing.get_context("spawn")


def _start_tracker() -> None:
    """Start Python's tracker of semaphores so that it removes those of a killed run without a warning."""
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        multiprocessing.resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Within, processes are started that do not hear Ctrl-C, from their first moment on: the run ends them.

    They do not carry out the program again that starts them, which has its own run to begin.
    """
    _start_tracker()  # the first process starts it otherwise, and that unblocks Ctrl-C
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    program, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Within, Ctrl-C is not heard: what it asks for is under way, and a process that is starting needs this one."""
    if threading.current_thread() is not threading.main_thread():  # where no signal is handled
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def join_run(folder: Path, orders: Connection | None = None) -> None:
    """In a process that was started: hold the run's folder, and end as `end_with_parent` does, whatever it is at."""
    end_with_parent(orders)
    _held.append(open(folder / _AT_WORK, "a"))
    disk.lock_shared(_held[-1])


def wait_for_workers(folder: Path, patience: float = 30.0) -> None:
    """Wait until no process of a killed run is at the folder any more. Raises RunFailed where one stays."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        disk.lock(folder / _AT_WORK).acquire(timeout=patience).lock.release()
    except Timeout:
        raise RunFailed(f"{folder}: workers still write here; end their run.") from None


def end_with_parent(orders: Connection | None = None) -> None:
    """In a process that was started: end when the one that started it does, or says something to `orders`."""

    def wait() -> None:
        """A process whose run was killed must not go on: a resume may be at the same folder."""
        if (parent := multiprocessing.parent_process()) is not None:
            multiprocessing.connection.wait([parent.sentinel, *([] if orders is None else [orders])])
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
