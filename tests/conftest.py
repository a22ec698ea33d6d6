from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs set the process's arithmetic; a test leaves it as it found it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.fixture
def toy_steps() -> Iterator[None]:
    """Toy steps note their calls anew, and hooks end with the test."""
    import toys

    toys.CALLS.clear()
    toys.HOOKS.clear()
    yield
    toys.CALLS.clear()
    toys.HOOKS.clear()
    assert not multiprocessing.active_children(), "a worker process was left running"
