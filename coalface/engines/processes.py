"""Processes that a run starts on this machine: they end with what started them, and a resume waits until they have."""

from __future__ import annotations

import fcntl
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from pathlib import Path
from typing import IO

from coalface.engines.transport import RunFailed

_AT_WORK = "workers.lock"
_held: list[IO[str]] = []  # as long as this process lives


def join_run(folder: Path) -> None:
    """In a process that was started: hold the run's folder, and end when the process that started this one does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _held.append(open(folder / _AT_WORK, "a"))
    fcntl.flock(_held[-1], fcntl.LOCK_SH)


def wait_for_workers(folder: Path, patience: float = 30.0) -> None:
    """Wait until no process of a killed run is at the folder any more. Raises RunFailed where one stays."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    with open(folder / _AT_WORK, "a") as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RunFailed(
                        f"{folder}: workers are still writing here; end the run that they belong to."
                    ) from None
                time.sleep(0.05)


def _end_with_parent() -> None:
    """A process whose run was killed must not go on: a resume may be at the same folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
