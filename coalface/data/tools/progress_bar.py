"""A bar for work that is counted in images, on the standard error; where that is no terminal, nothing is shown."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def counting(description: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many are done; it is drawn ten times a second at most."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, last = bar.add_task(description, total=total), 0.0

        def count(done: int) -> None:
            nonlocal last
            if (now := time.monotonic()) - last > 0.1 or done == total:
                bar.update(task, completed=done)
                last = now

        yield count
