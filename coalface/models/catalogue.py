"""The backbones side by side: parameters, arithmetic, bytes of a message, and speed on this machine where asked."""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coalface.models import BACKBONES, Backbone, build, sketch
from coalface.models.embedding import eval_mode


def catalogue(
    names: Sequence[str] = (),
    *,
    size: int,
    channels: int,
    measured: bool = False,
    batch: int = 8,
    threads: int = 1,
    begins: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One entry a backbone, at its own embedding size; all of them where `names` is empty.

    Keys: `name`, `embedding_size`, `parameters` (fixed ones included), `multiply_adds` (of one image forward),
    `message_bytes` (the tensors of one message under `batchnorm: average`), `batchnorm` (whether it has any), and where
    `measured`, `speed` (as `Speed`; `begins` is told each name before it is measured). A backbone that cannot take the
    size has `name` and `cannot`, the reason.

    Raises ValueError for an unknown name, for channels that no backbone takes, and before all else where a batch or
    threads cannot be measured.
    """
    if measured:
        check_measure(batch, threads)
    entries: list[dict[str, Any]] = []
    for name in names or BACKBONES:
        try:
            module = sketch(name, size=size, channels=channels)
        except ValueError as error:
            if name not in BACKBONES or channels not in (1, 3):
                raise
            entries.append({"name": name, "cannot": str(error)})
            continue
        backbone = Backbone(module)
        message = backbone.shared().values()
        entry: dict[str, Any] = {
            "name": name,
            "embedding_size": backbone.embedding_size,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "multiply_adds": multiply_adds(module, size=size, channels=channels),
            "message_bytes": sum(tensor.numel() * tensor.element_size() for tensor in message),
            "batchnorm": bool(Backbone(module, "local").kept()),
        }
        if measured:
            if begins is not None:
                begins(name)
            entry["speed"] = asdict(measure(name, size=size, channels=channels, batch=batch, threads=threads))
        entries.append(entry)
    return entries


def multiply_adds(module: nn.Module, *, size: int, channels: int) -> int:
    """Multiply-adds of the forward pass of one image in eval mode.

    One multiply-add (MAC) is a product and its addition to a sum: two floating-point operations. Papers of the field
    mostly print multiply-adds, often under the name of FLOPs. Counted are convolutions, linear layers and the two
    matrix products of attention; not counted are biases, normalisation, activations, pools and sums (a few per cent).
    A convolution of k×k from c channels (in g groups) to c′ at h×w positions has h · w · c′ · k² · c / g of them, a
    linear layer inputs · outputs. The module is left in the mode it was in; on the meta device nothing is computed.

    >>> multiply_adds(sketch("cnn-small", size=64, channels=1), size=64, channels=1)
    4341760
    """
    device = next(module.parameters()).device
    with eval_mode(module), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.empty(1, channels, size, size, device=device))
    return int(counter.get_total_flops()) // 2


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
    model = models[0] if models else platform.machine()
    return f"{model} ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}"


def _median_seconds(work: Callable[[], None], seconds: float) -> float:
    work()
    durations: list[float] = []
    while sum(durations) < seconds:
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)
