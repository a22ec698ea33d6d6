"""Real processes that are joined as the shards of a party, and run what a test gives them."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from forked import forkserver

from coalface.training.distributed.shards import Shards


class Together:
    """S processes over gloo; each runs functions (shards, …) -> result, all of them the same one at a time."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = forkserver()
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            about = (Path(self._folder.name) / "meeting", rank, size, there)
            process = context.Process(target=_serve, args=about, daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returns at each of them, by rank. Raises AssertionError with the trace of what failed."""
        for pipe in self._pipes:
            pipe.send((function, args))
        answers = [pipe.recv() for pipe in self._pipes]
        assert all(fine for fine, _ in answers), "\n".join(answer for fine, answer in answers if not fine)
        return [answer for _, answer in answers]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(meeting: Path, rank: int, size: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    shards = Shards.join(meeting, rank, size, patience=timedelta(seconds=30))  # where another one fails in a test
    while True:
        function, args = pipe.recv()
        try:
            pipe.send((True, function(shards, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
