"""Processes that belong to a folder of kits: they carry a mark in their environment, and so do all that they start.

What runs is read from the system each time. So no file can be stale after a reboot, a process with a number that was
another's is never touched, and one that has left its parent or its session is found all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coalface.core.errors import RecipeError
from coalface.core.names import KITS

PART = "COALFACE_PART"
"""Which part of the federation a process is, in its environment."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process of a federation."""

    pid: int
    part: str
    """`superlink`, `run`, or a party's name."""
    command: str
    began: float
    """Seconds since the system was started."""


def environment(kits: Path, part: str) -> dict[str, str]:
    """The mark, for the environment of a process of `part`."""
    return {KITS: str(kits.resolve()), PART: part}


def found(kits: Path) -> list[Process]:
    """All processes that carry the mark of `kits`, the oldest first; those that have ended and are not reaped are none.

    Raises RecipeError where the system does not show the processes' environment as Linux does.
    """
    if not (_PROC / "self" / "environ").exists():
        raise RecipeError("this needs /proc, as Linux has it: on another system start the kits by their scripts")
    pids = sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    processes = [one for pid in pids if pid != os.getpid() and (one := _read(pid, str(kits.resolve()))) is not None]
    return sorted(processes, key=lambda one: (one.began, one.pid))


def end(kits: Path, *, part: str | None = None, grace: float = 10.0) -> list[Process]:
    """End the processes of `kits`, or of one part, and return them.

    SIGTERM, and SIGKILL for what is there after `grace` seconds.
    Raises RecipeError where one is left after another 10 s.
    """
    told: dict[int, Process] = {}
    begun = time.monotonic()
    while left := [one for one in found(kits) if part in (None, one.part)]:
        waited = time.monotonic() - begun
        if waited > grace + 10:
            pids = ", ".join(str(one.pid) for one in left)
            raise RecipeError(f"{kits}: processes {pids} cannot be ended: end them as the user who started them")
        for one in left:
            if waited > grace:
                _send(one, kits, signal.SIGKILL)
            elif one.pid not in told:
                _send(one, kits, signal.SIGTERM)
            told[one.pid] = one
        time.sleep(0.1)
    return list(told.values())


def _send(process: Process, kits: Path, what: signal.Signals) -> None:
    """To this process, and to none that has got its number since."""
    with contextlib.suppress(ProcessLookupError, PermissionError), _opened(process.pid) as handle:
        if _read(process.pid, str(kits.resolve())) == process:
            signal.pidfd_send_signal(handle, what)


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(pid: int, kits: str) -> Process | None:
    """A process, where it carries the mark of `kits`."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        if f"{KITS}={kits}".encode() not in variables:
            return None
        marks = dict(entry.decode(errors="replace").split("=", 1) for entry in variables if b"=" in entry)
        command = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        after = (_PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:  # it has ended, or is another user's
        return None
    state, began = after[0], int(after[19]) / os.sysconf("SC_CLK_TCK")
    return None if state in (b"Z", b"X") else Process(pid, marks.get(PART, ""), command.strip(), began)
