"""Images per second of a backbone on this machine."""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coalface.models import build


@dataclass(frozen=True)
class Speed:
    """Images per second, float32 on the CPU; the median over batches."""

    inference: float
    """Forward in eval mode, without gradients."""
    training: float
    """Forward, backward and one step of SGD with momentum; the class embeddings and the loading are not in it."""
    batch: int
    """Images a batch."""
    threads: int
    """Threads that torch computed with."""


def measure(name: str, *, size: int, channels: int, batch: int = 8, threads: int = 1, seconds: float = 1.0) -> Speed:
    """How fast a backbone is here: each way one batch to warm up, then batches for at least `seconds`.

    torch's number of threads is put back afterwards. Other work on the machine shows in the figures.

    Raises ValueError as `check_measure` and `build` do.
    """
    check_measure(batch, threads)
    module = build(name, size=size, channels=channels, generator=np.random.default_rng(0))
    images = torch.rand(batch, channels, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=1e-6, momentum=0.9)  # too small a step to move what is measured

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        module(images).mean().backward()
        optimiser.step()

    def infer() -> None:
        with torch.inference_mode():
            module(images)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        training = batch / _median_seconds(train, seconds)
        module.eval()
        inference = batch / _median_seconds(infer, seconds)
    finally:
        torch.set_num_threads(before)
    return Speed(inference=inference, training=training, batch=batch, threads=threads)


def check_measure(batch: int, threads: int) -> None:
    """Raise ValueError for a batch below 2 (BatchNorm cannot train on one image) or no thread."""
    if batch < 2:
        raise ValueError(f"a batch of {batch} cannot be trained through BatchNorm; give a batch of 2 or more")
    if threads < 1:
        raise ValueError(f"{threads} threads cannot compute anything; give 1 or more")


def processor() -> str:
    """The processor of this machine and torch, for the line beneath a table of speeds."""
    described = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*:\s*(.+)$", described.read_text(), re.M) if described.exists() else []
    named = models[0] if models else platform.machine()
    return f"{named} ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}"


def _median_seconds(work: Callable[[], None], seconds: float) -> float:
    work()
    taken: list[float] = []
    while sum(taken) < seconds:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
