"""What bfloat16 autocast, channels_last and denormal flushing gain in a training step of each backbone on this CPU.

    python benchmarks/numerics.py [--threads 2] [--seconds 12] [--only cnn-small]
    python benchmarks/numerics.py --auto    # what `engine.threads`, `autocast` and `channels_last: auto` choose here
    python benchmarks/numerics.py --compiled --threads 1 --only mobilefacenet --batch 64 [--forward]    # torch.compile

A step is forward, CosFace over 650 identities, backward and SGD with momentum. The settings take turns step by step
(A B C A B C …), so that whatever else the machine does falls on all alike. Each figure is a median over the turns, in
images/s and as a ratio to float32 with contiguous tensors in the same turn. Denormal flushing is switched per step and
acts on the main thread alone: measure it with `--threads 1`. `--compiled` adds float32 and bfloat16 by `torch.compile`,
which needs g++. With `--forward` a step only embeds, as in evaluation. `--processor` takes the processor's time of the
one thread, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from coalface.engine.party.setup import keep_freed_memory
from coalface.experiments.recipe import loader
from coalface.experiments.setup.tuning import tuned
from coalface.models import build
from coalface.training.losses.margins import CosFace

IDENTITIES = 650


@dataclass(frozen=True)
class Case:
    backbone: str
    batch: int
    size: int
    channels: int


@dataclass(frozen=True)
class Setting:
    name: str
    bfloat16: bool = False
    channels_last: bool = False
    flush_denormal: bool = False
    compiled: bool = False


CASES = [
    Case("cnn-small", 30, 64, 1),
    Case("cnn-small", 5, 64, 1),
    Case("feduv-cnn", 30, 64, 1),
    Case("ir18", 16, 112, 1),
    Case("mobilefacenet", 16, 112, 3),
    Case("mobilefacenet-relu", 32, 112, 3),
]
SETTINGS = [
    Setting("float32"),
    Setting("channels_last", channels_last=True),
    Setting("bfloat16", bfloat16=True),
    Setting("bfloat16 channels_last", bfloat16=True, channels_last=True),
    Setting("flush_denormal", flush_denormal=True),
]
COMPILED = [Setting("compiled", compiled=True), Setting("bfloat16 compiled", bfloat16=True, compiled=True)]


@dataclass(frozen=True)
class Timing:
    backbone: str
    batch: int
    setting: str
    turns: int
    images_per_second: float
    speed_to_float32: float
    """Above 1 is faster than float32 with contiguous tensors."""
    speed_to_uncompiled: float
    first_step: float
    """Seconds by the clock; most of it is compiling, where that is done."""


def stepper(case: Case, setting: Setting, module: torch.nn.Module, forward: bool) -> Callable[[], None]:
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    module = copy.deepcopy(module).to(memory_format=layout)
    g = torch.Generator().manual_seed(0)
    images = torch.rand(case.batch, case.channels, case.size, case.size, generator=g) * 2 - 1
    images = images.contiguous(memory_format=layout)
    labels = torch.randint(IDENTITIES, (case.batch,), generator=g)
    with torch.no_grad():
        embedding_size = module.eval()(images[:1]).shape[1]
    module.train(not forward)
    classes = torch.randn(IDENTITIES, embedding_size, generator=g).requires_grad_()
    trained = [p for p in module.parameters() if p.requires_grad] + [classes]
    optimiser = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    loss = CosFace(scale=30.0)
    embed = torch.compile(module) if setting.compiled else module

    def step() -> None:
        torch.set_flush_denormal(setting.flush_denormal)
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=setting.bfloat16)
        with autocast, torch.set_grad_enabled(not forward):
            embeddings = embed(images)
        if not forward:
            loss(embeddings.float(), classes, labels).backward()
            optimiser.step()
            optimiser.zero_grad()
        torch.set_flush_denormal(False)

    return step


def measure(
    case: Case, seconds: float, settings: list[Setting], clock: Callable[[], float], *, forward: bool = False
) -> list[Timing]:
    module = build(case.backbone, size=case.size, channels=case.channels, generator=np.random.default_rng(0))
    steps = [stepper(case, setting, module, forward) for setting in settings]
    times: list[list[float]] = [[] for _ in settings]
    first = []
    for step in steps:  # the first step allocates, chooses kernels, and compiles
        start = time.perf_counter()
        step()
        first.append(time.perf_counter() - start)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for step, seconds_taken in zip(steps, times, strict=True):
            start = clock()
            step()
            seconds_taken.append(clock() - start)

    def speed_to(place: int, mine: list[float]) -> float:
        return statistics.median(theirs / ours for theirs, ours in zip(times[place], mine, strict=True))

    numbers = [(s.bfloat16, s.channels_last, s.flush_denormal) for s in settings]

    return [
        Timing(
            case.backbone,
            case.batch,
            setting.name,
            len(mine),
            case.batch / statistics.median(mine),
            speed_to(0, mine),
            speed_to(numbers.index(like), mine),  # those that are not compiled come first
            first_step,
        )
        for setting, like, mine, first_step in zip(settings, numbers, times, first, strict=True)
    ]


def choose(case: Case) -> None:
    """What a run of one process would compute by, with how long the choice took by the clock."""
    changes = [f"model.name={case.backbone}", f"local.batch_size={case.batch}", f"data.size={case.size}"]
    changes += [f"data.grey={'true' if case.channels == 1 else 'false'}", "engine.workers=1"]
    changes += [f"engine.{key}=auto" for key in ("threads", "autocast", "channels_last")]
    notes: list[str] = []
    began = time.perf_counter()
    tuned(loader.load("synthetic/silos", changes), notes.append)
    print(
        f"{case.backbone}, batches of {case.batch}, {time.perf_counter() - began:.1f} s:",
        *notes,
        sep="\n  ",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0, help="for each case; all settings together")
    parser.add_argument("--only", choices=sorted({case.backbone for case in CASES}), help="one backbone")
    parser.add_argument("--compiled", action="store_true", help="also by torch.compile")
    parser.add_argument("--batch", type=int, help="images, in place of each case's own")
    parser.add_argument("--forward", action="store_true", help="embed alone, without gradients")
    parser.add_argument("--processor", action="store_true", help="processor's time, with --threads 1")
    parser.add_argument("--auto", action="store_true", help="what a run chooses, and how long it takes to")
    arguments = parser.parse_args()
    if arguments.auto:
        for case in CASES:
            if arguments.only in (None, case.backbone):
                choose(case)
        return
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as the engine does
    settings = [*SETTINGS, *(COMPILED if arguments.compiled else [])]
    clock = time.thread_time if arguments.processor else time.perf_counter
    cases = [
        replace(case, batch=arguments.batch or case.batch) for case in CASES if arguments.only in (None, case.backbone)
    ]
    timings = (
        t for case in cases for t in measure(case, arguments.seconds, settings, clock, forward=arguments.forward)
    )
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {arguments.threads} threads")
    print(f"{'backbone':<18}{'batch':>5}  {'setting':<22}{'turns':>6}{'images/s':>10}{'to float32':>12}"
          f"{'to uncompiled':>15}{'first step, s':>15}")  # fmt: skip
    for t in timings:
        ratios = f"{t.speed_to_float32:>11.2f}×{t.speed_to_uncompiled:>14.2f}×"
        print(f"{t.backbone:<18}{t.batch:>5}  {t.setting:<22}{t.turns:>6}{t.images_per_second:>10.0f}{ratios}"
              f"{t.first_step:>15.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
