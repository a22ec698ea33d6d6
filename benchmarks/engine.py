"""What the engine costs: time against a bare training loop, and memory over many parties.

    python benchmarks/engine.py                  # all but the 10,000 parties: a few minutes on two free cores
    python benchmarks/engine.py --memory         # a round of means of 10,000 parties against one window
    python benchmarks/engine.py --memory --single   # the same with single replies: it must fail

Every ratio is taken within one run: a round of the engine, then the bare loop over the same images, in turn; medians of
the rounds after the first. The bare loop is plain PyTorch in a process of its own: one model, `torch.optim.SGD`, the
same flips, no parties; `tuned` is the same loop with the settings that the engine makes for a process (glibc keeps
freed memory, denormals are flushed), so that what is left is what the parties cost.
`pooled` is a network of the same size with full-size convolutions and max-pooling (about a third as fast): the form for
which other simulators' ratios are known, since the faster the network, the more everything else weighs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import OwnProcess, cost
from torch import nn

from coalface.core.method import Federation, Method, Party, generator, step
from coalface.data import partition
from coalface.data.augment import Augment, to_tensor
from coalface.data.faceset import FaceSet
from coalface.engine.local import InProcess
from coalface.engine.party.setup import FederatedData, Setup, keep_freed_memory
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.engine.server import Server
from coalface.engine.workers import Workers
from coalface.methods.fedavg import FedAvg, Global, State, Update
from coalface.models import Backbone, build
from coalface.training.compute import Compute
from coalface.training.local_training import Learner
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

LOSS = CosFace(scale=30.0, margin=0.35)


@contextlib.contextmanager
def serving(
    method: Method,
    build_world: Callable[[], FederatedData],
    numerics: Numerics,
    *,
    world: FederatedData | None = None,
    workers: int = 1,
    in_flight: int | None = None,
    save_replies: bool = False,
    checkpoint_every: int = 5,
    report: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Iterator[Server]:
    """The server of a run over a world, in a temporary folder."""
    world = world or build_world()
    with tempfile.TemporaryDirectory() as place:
        setup = Setup(method, build_world, numerics, 0, Path(place), save_replies)
        transport = (
            InProcess(setup, world) if workers == 1 else Workers(setup, world, workers, in_flight or 4 * workers)
        )
        policy = RoundPolicy(run="benchmark", checkpoint_every=checkpoint_every)
        yield Server(method, policy, numerics, transport, Path(place), backbone=world.backbone, report=report)
        transport.close()


class Pooled(nn.Module):
    """Five blocks of 3×3 convolution, GroupNorm, ReLU and 2×2 max-pool, and a linear layer: 0.31 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        width = 1
        for wider in (16, 32, 64, 128, 128):
            blocks += [nn.Conv2d(width, wider, 3, padding=1, bias=False), nn.GroupNorm(wider // 8, wider)]
            blocks += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            width = wider
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(width * 4, 128)
        self.embedding_size = 128

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(images).flatten(1))


def network(name: str) -> Backbone:
    if name == "pooled":
        torch.manual_seed(0)
        return Backbone(Pooled())
    return Backbone(build(name, size=64, channels=1, generator=generator(0, "benchmark")))


def make_world(name: str, parties: int, identities: int, images: int) -> FederatedData:
    """`parties` parties of `identities` identities with `images` images each, of noise: the time is that of faces."""
    people = parties * identities
    count = people * images
    pixels = generator(0, "pixels").integers(0, 256, (count, 64, 64, 1), dtype=np.uint8)
    labels = np.repeat(np.arange(people), images)
    faces = FaceSet(pixels, np.arange(count), labels, tuple(f"person-{i}" for i in range(people)))
    deal = partition.one_identity(faces) if identities == 1 else partition.equal(faces, parties, generator(0, "deal"))
    return FederatedData(data=deal, backbone=network(name), compute=Compute())


def bare_loop(world: FederatedData, batch: int, *, per_party: bool) -> Callable[[], float]:
    """Seconds of plain training over everybody's images, at each call: by party as the engine does it, or pooled."""
    backbone = network_like(world)
    sets = list(world.data.values())
    augment, rng = Augment(), np.random.default_rng(0)
    people = sum(len(s.names) for s in sets)
    heads = [torch.randn(len(s.names), backbone.embedding_size) * 0.01 for s in sets]
    whole = torch.randn(people, backbone.embedding_size) * 0.01
    store, rows = sets[0].pixels, np.concatenate([s.rows for s in sets])
    offsets = np.cumsum([0, *[len(s.names) for s in sets]])
    labels = np.concatenate([s.labels + o for s, o in zip(sets, offsets, strict=False)])

    def steps(pixels: Any, index: Any, targets: Any, head: torch.Tensor) -> None:
        head = head.clone().requires_grad_()
        parameters = [p for p in backbone.module.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD([*parameters, head], lr=0.01, momentum=0.9, weight_decay=5e-4)
        order = rng.permutation(len(index))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            images = augment(to_tensor(pixels[index[chosen]]), rng)
            optimiser.zero_grad()
            LOSS(backbone.module(images), head, torch.from_numpy(targets[chosen])).backward()
            optimiser.step()

    def run() -> float:
        start = time.perf_counter()
        if per_party:
            first, total = backbone.shared(), None
            for faces, head in zip(sets, heads, strict=True):
                backbone.load(first)
                steps(faces.pixels, faces.rows, faces.labels, head)
                trained = backbone.shared()
                if total is None:
                    total = {n: t * len(faces) for n, t in trained.items()}
                else:
                    for name, tensor in trained.items():
                        total[name] += tensor * len(faces)
        else:
            steps(store, rows, labels, whole)
        return time.perf_counter() - start

    return run


def set_process(threads: int, tuned: bool) -> None:
    """`tuned`: with the engine's settings of a process, else as plain PyTorch starts."""
    if tuned:
        keep_freed_memory()
        torch.set_flush_denormal(True)
    torch.set_num_threads(threads)


def make_loop(
    build_world: Callable[[], FederatedData], batch: int, per_party: bool, threads: int, tuned: bool
) -> Callable[[], float]:
    set_process(threads, tuned)
    return bare_loop(build_world(), batch, per_party=per_party)


def network_like(world: FederatedData) -> Backbone:
    return network("pooled" if isinstance(world.backbone.module, Pooled) else "cnn-small")


@dataclass
class Measured:
    ratio: float
    """Engine to the plain bare loop."""
    tuned_ratio: float
    """Engine to the bare loop with the engine's own settings of the process (allocator, denormals)."""
    engine: float
    bare: float
    tuned: float


def measure(name: str, parties: int, identities: int, images: int, *, workers: int, threads: int, rounds: int,
            batch: int = 30, bare_batch: int | None = None, per_party: bool = False) -> Measured:  # fmt: skip
    """Rounds of the engine and of the bare loops in turn.

    A bare loop has as many threads as the engine in all; in batches of `bare_batch`, if given, it has one.
    """
    bare_threads = workers * threads if bare_batch is None else 1
    build_world = functools.partial(make_world, name, parties, identities, images)
    method = FedAvg(rounds=rounds + 1, local=LocalTraining(batch_size=batch, lr=0.01), loss=LOSS)
    loop = functools.partial(OwnProcess, make_loop, build_world, bare_batch or batch, per_party, bare_threads)
    bare, tuned = loop(False), loop(True)
    turns: list[tuple[float, float, float]] = []

    def report(record: dict[str, Any]) -> None:
        turns.append((record["seconds"], bare(), tuned()))

    how: dict[str, Any] = {"workers": workers, "save_replies": per_party, "checkpoint_every": 1 if per_party else 5}
    with serving(method, build_world, Numerics(threads=threads), **how, report=report) as server:
        server.run()
    bare.close()
    tuned.close()
    seconds = np.array(turns[1:])
    ratios = np.median(seconds[:, :1] / seconds[:, 1:], axis=0)
    return Measured(*map(float, ratios), *map(float, np.median(seconds, axis=0)))


def small_batches(name: str, threads: int) -> tuple[float, float]:
    """What batches of 5 alone cost: the bare loop in batches of 5 against the same in batches of 30; and images/s."""
    world = make_world(name, 200, 1, 5)
    torch.set_num_threads(threads)
    five, thirty = bare_loop(world, 5, per_party=False), bare_loop(world, 30, per_party=False)
    five(), thirty()
    pairs = [(five(), thirty()) for _ in range(5)]
    return statistics.median(a / b for a, b in pairs), 1000 / statistics.median(a for a, _ in pairs)


@dataclass(frozen=True, kw_only=True)
class Slow(FedAvg):
    """FedAvg in which the first party of every sixteenth window is slow, so that the window behind it fills up."""

    window: int = 1

    @step(role="trainer")
    def train(self, party: Party, own: Learner | None, common: Global) -> tuple[Update, Learner]:
        if int(party.name.rpartition("-")[2]) % (16 * self.window) == 0:
            time.sleep(0.02 * self.window)
        return super().train(party, own, common)


class SingleReplies(Slow):
    """The same, but it asks for every model and averages by itself: what memory looks like without folds."""

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.train, common=Global(backbone=state.backbone))
        models, images = answer.each["backbone"], answer.each["images"]
        total = sum(images.values())
        return State(backbone={n: sum(models[p][n] * images[p] for p in models) / total for n in state.backbone})


def memory(parties: int, window: int, single: bool) -> dict[str, float]:
    """Peak anonymous memory of the server's process over one round, above what it held before the round, in MB."""
    build_world = functools.partial(make_world, "cnn-small", parties, 1, 1)
    method = (SingleReplies if single else Slow)(
        window=window, rounds=1, local=LocalTraining(batch_size=5, lr=0.01), loss=LOSS
    )
    with serving(method, build_world, Numerics(threads=1), workers=2, in_flight=window, checkpoint_every=1) as server:
        above = cost(server.run).mb
    return {"parties": parties, "window": window, "above_mb": above}


def above_mb(script: str, few: int, many: int, *options: str) -> list[float]:
    """What a script measures of few and of many parties by its `--memory-of`, each in a process of its own."""
    results = []
    for count in (few, many):
        command = [sys.executable, script, "--memory-of", str(count), *options]
        results.append(json.loads(subprocess.check_output(command, text=True).splitlines()[-1]))
        print(json.dumps(results[-1]), flush=True)
    return [result["above_mb"] for result in results]


def compare_memory(parties: int, window: int, single: bool) -> int:
    """One window of parties, then all of them. Returns the exit status."""
    below, above = above_mb(__file__, window, parties, "--window", str(window), *(["--single"] if single else []))
    ratio = above / below
    print(f"{parties:,} parties against one window of {window}: {ratio:.3f} of the memory (limit 1.05)")
    return 0 if ratio <= 1.05 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--parties", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--networks", nargs="+", default=["cnn-small", "pooled"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(memory(options.memory_of, options.window, options.single)))
        return 0
    if options.memory:
        return compare_memory(options.parties, options.window, options.single)
    print(f"{'case':58} {'ratio':>6} {'to tuned':>9} {'engine s':>9} {'bare s':>8} {'tuned s':>8}")

    def row(title: str, m: Measured) -> None:
        seconds = f"{m.engine:9.2f} {m.bare:8.2f} {m.tuned:8.2f}"
        print(f"{title:58} {m.ratio:6.2f} {m.tuned_ratio:9.2f} {seconds}", flush=True)

    for name in options.networks:
        silos = functools.partial(measure, name, 8, 30, 20, per_party=True, rounds=options.rounds)
        row(f"{name}: 8 silos × 600 images, 1 process, 1 thread", silos(workers=1, threads=1))
        many = functools.partial(measure, name, 200, 1, 5, rounds=options.rounds)
        ratio, rate = small_batches(name, 1)
        print(
            f"{name}: bare loop, batches of 5 against batches of 30: {ratio:.2f} ({rate:.0f} images/s in batches of 5)"
        )
        row(f"{name}: 200 clients × 5 images, 1 process, 1 thread", many(workers=1, threads=1))
        row(f"{name}: 200 clients × 5 images, 1 process, 2 threads", many(workers=1, threads=2))
        row(f"{name}: 200 clients × 5 images, 2 workers, 1 thread each", many(workers=2, threads=1))
        fives = functools.partial(many, bare_batch=5, threads=1)
        row(f"{name}: 200 × 5 against batches of 5, 1 thread", fives(workers=1))
        row(f"{name}: 2 workers against batches of 5, 1 thread", fives(workers=2))
        thirty = functools.partial(measure, name, 100, 1, 30, rounds=options.rounds)
        row(f"{name}: 100 clients × 30 images, 1 process, 1 thread", thirty(workers=1, threads=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
