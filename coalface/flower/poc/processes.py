"""Processes that belong to a folder of kits: they carry a mark in their environment, and so do all that they start.

What runs is read from the system each time. So no file can be stale after a reboot, a process with a number that was
another's is never touched, and one that has left its parent or its session is found all the same.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from coalface.core.errors import RecipeError
from coalface.core.names import KITS
from coalface.flower.party.daemon import is_alive

PART = "COALFACE_PART"
"""Which part of the federation a process is, in its environment."""


@dataclass(frozen=True)
class Process:
    """One process of a federation."""

    handle: psutil.Process
    """Known by its number and by when it began."""
    part: str
    """`superlink`, `run`, or a party's name."""
    command: str

    @property
    def pid(self) -> int:
        return int(self.handle.pid)


def environment(kits: Path, part: str) -> dict[str, str]:
    """The mark, for the environment of a process of `part`."""
    return {KITS: str(kits.resolve()), PART: part}


def find_processes(kits: Path) -> list[Process]:
    """All processes that carry the mark of `kits`, the oldest first; none that has ended and is not reaped."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            variables = process.environ()
            if process.pid != os.getpid() and variables.get(KITS) == str(kits.resolve()) and is_alive(process):
                processes.append(Process(process, variables.get(PART, ""), " ".join(process.cmdline()).strip()))
    return sorted(processes, key=lambda process: (process.handle.create_time(), process.pid))


def end(kits: Path, *, part: str | None = None, grace: float = 10.0) -> list[Process]:
    """End the processes of `kits`, or of one part, and return them.

    Sends SIGTERM, and after `grace` seconds SIGKILL. Raises RecipeError where one is left after another 10 s.
    """
    ended: dict[int, Process] = {}
    began = time.monotonic()
    while left := [process for process in find_processes(kits) if part in (None, process.part)]:
        waited = time.monotonic() - began
        if waited > grace + 10:
            pids = ", ".join(str(process.pid) for process in left)
            raise RecipeError(f"processes {pids} do not end; end them as the user who started them", where=kits)
        for process in left:
            with contextlib.suppress(psutil.Error):
                if waited > grace:
                    process.handle.kill()
                elif process.pid not in ended:
                    process.handle.terminate()
            ended[process.pid] = process
        time.sleep(0.1)
    return list(ended.values())
