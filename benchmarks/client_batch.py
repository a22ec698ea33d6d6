"""What client batches save: a round of many clients against a bare loop, and memory over many clients.

    python benchmarks/client_batch.py               # 1,000 clients of 5 images: as client batches and client by client
    python benchmarks/client_batch.py --memory      # a round of 10,000 clients against one of 1,000
    python benchmarks/client_batch.py --device cuda --parties 10000
    python benchmarks/client_batch.py --steps 1 5   # 200 clients of FedAvg against the bare loop in batches of 5
    python benchmarks/client_batch.py --parts       # stacked weights and losses of 50 clients against one by one

Every ratio is taken within one run: a round of FedFace, then the bare loops over the same images, in turn; medians of
the ratios after the first turn. The bare loop is plain PyTorch in a process of its own: one model, one matrix of class
embeddings, the same squared hinge and flips, `torch.optim.SGD`, at the batch size at which it is fastest here; `tuned`
is the same loop with the engine's settings of a process (see engine.py).

With `--steps` the clients are FedAvg's, each of one identity with momentum and weight decay, and keep their class
embeddings. They take so many local steps on all of their images. The bare loop goes over everybody's images as often,
in batches as large as a client's, tuned, in one process. `--clock process` takes the processor time of both, for a busy
machine; that of `--workers` is not in it.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from engine import LOSS, above_mb, make_world, network, network_like, serving, set_process
from engine import bare_loop as plain_loop
from measuring import OwnProcess, cost

from coalface.core.text import several
from coalface.data.augment import Augment, to_tensor
from coalface.engine.party.setup import FederatedData
from coalface.engine.run_state import Numerics
from coalface.methods.fedavg import FedAvg
from coalface.methods.fedface import FedFace
from coalface.training.classifier import DenseClassifier
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining
from coalface.training.losses.hinge import PositiveHinge
from coalface.training.stacked_training import embed_stacked, head_gradients, stacked

BATCHES = (16, 30, 64, 128, 256, 512)
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}
SOME = 1024
"""Images of a turn by which the batch size is chosen."""
LR = 0.1


def placed(name: str, parties: int, images: int, device: str) -> FederatedData:
    """The world of `parties` clients of one identity, on a device."""
    world = make_world(name, parties, 1, images)
    world.backbone.module.to(device)
    return replace(world, compute=Compute(device=device))


def bare_loop(world: FederatedData, device: str) -> Callable[[int, int], float]:
    """Seconds of plain training in batches of a size, at each call: over everybody's images, or some of them."""
    backbone, loss = network_like(world), PositiveHinge(0.9)
    module, sets, rng = backbone.module.to(device), list(world.data.values()), np.random.default_rng(0)
    store, rows = sets[0].pixels, np.concatenate([s.rows for s in sets])
    owner = np.repeat(np.arange(len(sets)), [len(s) for s in sets])
    heads = torch.nn.functional.normalize(torch.randn(len(sets), backbone.embedding_size, device=device))
    heads.requires_grad_()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimiser, augment = torch.optim.SGD([*parameters, heads], lr=LR), Augment()

    def run(batch: int, images: int) -> float:
        began = time.perf_counter()
        order = rng.permutation(len(rows))[:images]
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            images = augment(to_tensor(store[rows[chosen]]), rng).to(device)
            optimiser.zero_grad()
            loss.each(module(images), heads, torch.from_numpy(owner[chosen]).to(device)).mean().backward()
            optimiser.step()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


def make_loop(
    build_world: Callable[[], FederatedData], device: str, threads: int, tuned: bool
) -> Callable[[int, int], float]:
    """The bare loop, as plain PyTorch starts or with the engine's settings of a process."""
    set_process(threads, tuned)
    return bare_loop(build_world(), device)


def fastest_batch(loop: OwnProcess) -> int:
    loop(BATCHES[0], SOME)
    return min(BATCHES, key=lambda batch: statistics.median(loop(batch, SOME) for _ in range(3)))


def method(count: int) -> FedFace:
    """FedFace with one full-batch step a client and round."""
    return FedFace(rounds=count, local=LocalTraining(epochs=1, batch_size=1024, lr=LR, momentum=0.0, weight_decay=0.0))


def measure(name: str, parties: int, images: int, client_batch: int, *, device: str, threads: int, count: int) -> str:
    """Ratios of a round to the bare loops, medians of `count` turns, with the seconds of each."""
    build_world = functools.partial(placed, name, parties, images, device)
    numerics = Numerics(threads=threads, client_batch=client_batch, device=device)
    loops = [OwnProcess(make_loop, build_world, device, threads, tuned) for tuned in (False, True)]
    batches = [fastest_batch(loop) for loop in loops]
    turns: list[list[float]] = []

    def report(record: dict[str, Any]) -> None:
        turns.append(
            [record["seconds"], *(loop(batch, sys.maxsize) for loop, batch in zip(loops, batches, strict=True))]
        )

    with serving(method(count + 1), build_world, numerics, report=report) as server:
        server.run()
    for loop in loops:
        loop.close()
    seconds = np.array(turns[1:])
    plain, tuned = np.median(seconds[:, :1] / seconds[:, 1:], axis=0)
    medians = " ".join(f"{s:8.2f}" for s in np.median(seconds, axis=0))
    return f"{plain:6.2f} {tuned:8.2f} {medians}   {batches[0]}, {batches[1]}"


def make_steps(
    build_world: Callable[[], FederatedData], batch: int, steps: int, threads: int, clock: str
) -> Callable[[], float]:
    """Seconds of going `steps` times over everybody's images in batches, with the engine's settings of a process."""
    set_process(threads, tuned=True)
    loop = plain_loop(build_world(), batch, per_party=False)

    def run() -> float:
        began = CLOCKS[clock]()
        for _ in range(steps):
            loop()
        return CLOCKS[clock]() - began

    return run


def measure_steps(
    name: str,
    parties: int,
    images: int,
    steps: int,
    client_batch: int,
    *,
    threads: int,
    workers: int,
    rounds: int,
    clock: str,
) -> tuple[float, float, float, float]:
    """(a round of FedAvg to the bare loop, seconds of a round, of the loop, milliseconds a client), medians.

    The milliseconds are what a round takes beyond a bare loop in batches as large as its own.
    """
    build_world = functools.partial(make_world, name, parties, 1, images)
    loops = [
        OwnProcess(make_steps, build_world, batch, steps, threads, clock) for batch in (images, client_batch or images)
    ]
    turns: list[list[float]] = []
    began = CLOCKS[clock]()

    def report(record: dict[str, Any]) -> None:
        nonlocal began
        turns.append([CLOCKS[clock]() - began, *(loop() for loop in loops)])
        began = CLOCKS[clock]()

    work = LocalTraining(steps_per_round=steps, batch_size=images, lr=0.01)
    fedavg, numerics = (
        FedAvg(rounds=rounds + 2, local=work, loss=LOSS),
        Numerics(threads=threads, client_batch=client_batch),
    )
    how: dict[str, Any] = {"workers": workers, "checkpoint_every": rounds + 2}
    with serving(fedavg, build_world, numerics, **how, report=report) as server:
        server.run()
    for loop in loops:
        loop.close()
    seconds = np.array(turns[1:-1])  # the first warms up, the last writes a checkpoint
    ratio, beyond = np.median(seconds[:, 0] / seconds[:, 1]), np.median(seconds[:, 0] - seconds[:, 2])
    medians = np.median(seconds, axis=0)
    return float(ratio), float(medians[0]), float(medians[1]), float(1e3 * beyond / parties)


def begins(case: str) -> None:
    """Say on stderr what is measured now: a case takes minutes on a busy machine."""
    print(f"measuring {case} …", file=sys.stderr, flush=True)


def compare_steps(options: argparse.Namespace) -> None:
    print(f"{'case':70} {'ratio':>6} {'round s':>8} {'bare s':>8} {'own ms':>7}")
    for name in options.networks:
        for steps in options.steps:
            for client_batch in options.client_batches:
                how = f"client batches of {client_batch}" if client_batch else "client by client"
                title = f"{name}: {options.parties:,} × {options.images} images, {several(steps, 'step')}, {how}"
                begins(title)
                ratio, *seconds = measure_steps(name, options.parties, options.images, steps, client_batch,
                                                threads=options.threads[0], workers=options.workers,
                                                rounds=options.rounds, clock=options.clock)  # fmt: skip
                round_s, bare_s, own_ms = seconds
                print(f"{title:70} {ratio:6.2f} {round_s:8.2f} {bare_s:8.2f} {own_ms:7.2f}", flush=True)


def compare_parts(name: str, parties: int = 50, images: int = 5, turns: int = 9) -> None:
    """Processor milliseconds a client of a network forward and backward, and of losses, one by one and at once."""
    set_process(1, tuned=True)
    module, rng = network(name).module, torch.Generator().manual_seed(0)
    theta, pixels = stacked(module, parties), torch.randn(parties, images, 1, 64, 64, generator=rng)
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = list(torch.randn(parties, images, module.embedding_size, generator=rng))  # type: ignore[call-overload]
    heads = [DenseClassifier(torch.randn(1, len(r[0]), generator=rng).requires_grad_(), LOSS) for r in rows]
    labels = [torch.zeros(images, dtype=torch.int64)] * parties
    cases: dict[str, Callable[[], Any]] = {
        "network, one by one": lambda: [torch.autograd.grad(module(some).mean(), parameters) for some in pixels],
        "network, at once": lambda: torch.autograd.grad(
            embed_stacked(module, theta, pixels).mean(), list(theta.values())
        ),
        "losses, one by one": lambda: [
            head_gradients([h], [r.detach()], [y]) for h, r, y in zip(heads, rows, labels, strict=True)
        ],
        "losses, at once": lambda: head_gradients(heads, [r.detach() for r in rows], labels),
    }
    spent = [[cost(run).processor for run in cases.values()] for _ in range(turns + 1)][1:]
    for case, times in zip(cases, zip(*spent, strict=True), strict=True):
        print(f"{name}: {case:24} {1e3 * statistics.median(times) / parties:8.3f} ms", flush=True)


def memory(parties: int, client_batch: int) -> dict[str, float]:
    """Peak anonymous memory of a round of so many clients above what the process held before it, in MB.

    Without the server's spreadout, whose blocks spreadout.py measures.
    """
    build_world = functools.partial(make_world, "cnn-small", parties, 1, 5)
    numerics = Numerics(threads=1, client_batch=client_batch)
    with serving(replace(method(1), spreadout=False), build_world, numerics, checkpoint_every=1) as server:
        above = cost(server.run).mb
    return {"parties": parties, "above_mb": above}


def compare_memory(few: int, many: int, client_batch: int) -> int:
    """A round of few clients and one of many, each in a process of its own. Returns the exit status."""
    below, above = above_mb(__file__, few, many, "--client-batch", str(client_batch))
    growth = 1e3 * (above - below) / (many - few)
    print(f"{above / below:.3f} of the memory for {many / few:g} times the clients: {growth:.1f} kB a client (a class "
          "embedding is 0.5 kB, a model 1,240 kB; limit 10 kB)")  # fmt: skip
    return 0 if growth <= 10 else 1


def unusable(options: argparse.Namespace) -> str:
    """Why nothing can be measured on the device of the options, or nothing."""
    if options.device != "cpu" and (options.steps or options.memory or options.parts):
        return "--steps, --memory and --parts measure on the processor alone; leave --device out."
    try:
        torch.zeros(1, device=options.device)
    except (RuntimeError, AssertionError):  # of a torch for processors alone it is an AssertionError
        places = " or ".join(["cpu", *(f"cuda:{place}" for place in range(torch.cuda.device_count()))])
        return f"--device {options.device} is not available on this machine; use {places}."
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parties", type=int, help="default 1,000, and 200 with --steps")
    parser.add_argument("--steps", type=int, nargs="+", help="local steps of a client of FedAvg")
    parser.add_argument(
        "--client-batches",
        type=int,
        nargs="+",
        default=[256, 50, 0],
        help="images of a client batch, with --steps; 0 is client by client (default 256 50 0)",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that compute clients, with --steps")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument(
        "--client-batch", type=int, default=256, help="images of a client batch (default 256, as `auto`)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--networks", nargs="+", default=["cnn-small", "pooled"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if why := unusable(options):
        parser.exit(2, f"{why}\n")
    if options.memory_of:
        print(json.dumps(memory(options.memory_of, options.client_batch)))
        return 0
    options.parties = options.parties or (200 if options.steps else 1000)
    if options.steps:
        compare_steps(options)
        return 0
    if options.parts:
        for name in options.networks:
            compare_parts(name)
        return 0
    if options.memory:
        return compare_memory(1000, 10_000, options.client_batch)
    print(f"{'case':58} {'ratio':>6} {'to tuned':>8} {'engine s':>8} {'bare s':>8} {'tuned s':>8}   batches")
    for name in options.networks:
        for threads in options.threads:
            for client_batch in (options.client_batch, 0):
                how = f"client batches of {client_batch}" if client_batch else "client by client"
                title = f"{name}: {options.parties:,} × {options.images} images, {how}, {threads} thread"
                begins(title)
                figures = measure(name, options.parties, options.images, client_batch, device=options.device,
                                threads=threads, count=options.rounds)  # fmt: skip
                print(f"{title:58} {figures}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
