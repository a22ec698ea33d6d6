"""The speed of a backbone on this machine: images and floating-point operations per second."""

from __future__ import annotations

import contextlib
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from coalface.models import build

SIDE = 1024
"""Of the square matrices whose product is the machine's peak."""


@dataclass(frozen=True)
class Arithmetic:
    """How a step computes, as `engine` of a recipe says it."""

    threads: int = 1
    autocast: str | None = None
    """None for float32, or `bfloat16`."""
    channels_last: bool = False
    device: str = "cpu"

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return ", ".join([self.autocast or "float32", *(["channels_last"] if self.channels_last else []), threads])


USUAL = Arithmetic()


@dataclass(frozen=True)
class Speed:
    """Rates per second, the median over batches. Of operations a multiply-add is two."""

    inference: float
    """Images, forward in eval mode, without gradients."""
    training: float
    """Images, forward, backward and one step of SGD with momentum; the class embeddings and the loading are not in it.
    """
    inference_flops: float
    """Floating-point operations, those of convolutions and matrix products, as torch counts them."""
    training_flops: float
    peak_flops: float
    """Of the product of two matrices of 1024×1024 in the same type, with as many threads."""
    batch: int
    """Images a batch."""
    threads: int
    autocast: str | None
    channels_last: bool


def measure(
    name: str, *, size: int, channels: int, batch: int = 8, arithmetic: Arithmetic = USUAL, seconds: float = 1.0
) -> Speed:
    """How fast a backbone is here: each way one batch to warm up, then batches for at least `seconds`.

    torch's number of threads is put back afterwards. Other work on the machine shows in the figures.

    Raises ValueError for a batch below 2 (BatchNorm cannot train on one image), no thread, and as `build` does.
    """
    if batch < 2:
        raise ValueError(f"a batch of {batch} cannot be trained through BatchNorm; give a batch of 2 or more")
    if arithmetic.threads < 1:
        raise ValueError(f"{arithmetic.threads} threads cannot compute anything; give 1 or more")
    module = build(name, size=size, channels=channels, generator=np.random.default_rng(0))
    images = random_images(batch, channels, size, arithmetic)
    train = training_step(module, images, arithmetic)

    def infer() -> None:
        with torch.inference_mode(), autocasting(arithmetic):
            module(images)

    with threads(arithmetic.threads):
        training_flops, training = _flops(train), batch / _median_seconds(train, seconds)
        module.eval()
        inference_flops, inference = _flops(infer), batch / _median_seconds(infer, seconds)
        peak = _peak(arithmetic, seconds)
    return Speed(
        inference=inference,
        training=training,
        inference_flops=inference_flops / batch * inference,
        training_flops=training_flops / batch * training,
        peak_flops=peak,
        batch=batch,
        threads=arithmetic.threads,
        autocast=arithmetic.autocast,
        channels_last=arithmetic.channels_last,
    )


def random_images(batch: int, channels: int, size: int, arithmetic: Arithmetic) -> Tensor:
    """(batch, channels, size, size) made-up images in [−1, 1], where and as the arithmetic has them."""
    images = torch.rand(batch, channels, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return images.contiguous(memory_format=_layout(arithmetic)).to(arithmetic.device)


def training_step(module: nn.Module, images: Tensor, arithmetic: Arithmetic) -> Callable[[], None]:
    """A training step of a module, which is put where the arithmetic has it; its weights stay all but the same."""
    module.to(arithmetic.device, memory_format=_layout(arithmetic)).train()  # type: ignore[call-overload]
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=1e-6, momentum=0.9)  # too small a step to move what is measured

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with autocasting(arithmetic):
            embeddings = module(images)
        embeddings.float().mean().backward()
        optimiser.step()

    return step


def autocasting(arithmetic: Arithmetic) -> contextlib.AbstractContextManager[object]:
    """Within, matrix products and convolutions are computed in the arithmetic's type."""
    if arithmetic.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(torch.device(arithmetic.device).type, dtype=getattr(torch, arithmetic.autocast))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Within, torch and OpenCV compute with so many threads."""
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(count)
    cv2.setNumThreads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])


def processor() -> str:
    """The processor of this machine, and which of its instructions torch uses."""
    described = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*:\s*(.+)$", described.read_text(), re.M) if described.exists() else []
    model = models[0] if models else platform.machine()
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"


def _layout(arithmetic: Arithmetic) -> torch.memory_format:
    return torch.channels_last if arithmetic.channels_last else torch.contiguous_format


def _peak(arithmetic: Arithmetic, seconds: float) -> float:
    dtype = torch.float32 if arithmetic.autocast is None else getattr(torch, arithmetic.autocast)
    left, right = torch.rand(2, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).to(dtype)
    return 2 * SIDE**3 / _median_seconds(lambda: torch.mm(left, right), seconds)


def _flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward_flops}
    ) as counter:
        work()
    return int(counter.get_total_flops())


def _backward_flops(gradient: torch.Size, images: torch.Size, weight: torch.Size, *arguments: Any, **_: Any) -> int:
    """Of a convolution's backward pass: those of its forward pass for each gradient. torch's own count forgets groups.

    `arguments` are those of `aten::convolution_backward`, tensors by their shapes; the last says which gradients.
    """
    by_images, by_weight, _ = arguments[-1]
    return 2 * gradient.numel() * weight[1:].numel() * (by_images + by_weight)


def _median_seconds(work: Callable[[], object], seconds: float) -> float:
    work()
    durations: list[float] = []
    while sum(durations) < seconds:
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)
