"""What benchmarks measure by: seconds, memory, and a function that waits for its turns in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def resident(*, peak: bool = False) -> int:
    """Bytes that this process holds, or held at most (`ru_maxrss` would begin with its parent's)."""
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


@dataclass(frozen=True)
class Cost:
    """What a call took."""

    seconds: float
    processor: float
    """Seconds of processor time over all threads, which a busy machine changes less."""
    system: float
    """Those of it that the kernel took."""
    mb: float
    """The most memory above what the process held before, in 10^6 bytes."""


def cost(run: Callable[[], object]) -> Cost:
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    start, used, system = time.perf_counter(), time.process_time(), os.times().system
    run()
    elapsed, processor = time.perf_counter() - start, time.process_time() - used
    return Cost(elapsed, processor, os.times().system - system, (resident(peak=True) - before) / 1e6)


class OwnProcess:
    """A function in a process of its own, where `make(*arguments)` gives it; it waits between its calls."""

    def __init__(self, make: Callable[..., Callable[..., Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(far_end, make, arguments), daemon=True)
        self._process.start()
        far_end.close()

    def __call__(self, *arguments: Any) -> Any:
        self._pipe.send(arguments)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def take_turns(cases: Mapping[str, OwnProcess], turns: int) -> list[dict[str, Any]]:
    """What each case gives, turn by turn; then they end."""
    results = [{name: case() for name, case in cases.items()} for _ in range(turns)]
    for case in cases.values():
        case.close()
    return results


def _serve(pipe: Connection, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    function = make(*arguments)
    while (turn := pipe.recv()) is not None:
        pipe.send(function(*turn))
