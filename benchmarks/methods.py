"""What a round of each method costs against one of FedAvg, over the same silos.

    python benchmarks/methods.py                      # three silos of 640 images, 20 steps of 32 images a round
    python benchmarks/methods.py --steps 5 --rounds 40

Every method runs in a process of its own, of one thread, and they take turns: a round of each, in an order that is
drawn anew, then the next round of each. A ratio is the median over rounds of (this method's round / FedAvg's round of
the same turn); the first rounds, in which files are made, are left out. CPU time is that of the method's process, and
hangs less on what else the machine does. Checkpoints are not counted. SGD's arithmetic is the same for all; `mime` pays
a second gradient at each step and the full gradient beside, `mimelite` the full gradient, the others only tensors
that are added, sent or kept.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any

import engine

from coalface.core.method import generator
from coalface.engine.run_state import Numerics
from coalface.methods import METHODS
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

SILOS, IDENTITIES, EACH = 3, 32, 20
CHOSEN = ("fedavg", "pfm", "slowmo", "scaffold", "mimelite", "mime")
WARM = 2
"""Rounds that are not counted."""


make_world = functools.partial(engine.make_world, "cnn-small", SILOS, IDENTITIES, EACH)


def serve(pipe: Any, name: str, steps: int, rounds: int, whole: int | None) -> None:
    """Play a method's run, a round for each word from the other end, each answered by its seconds and CPU seconds."""
    started_at = [0.0]

    def wait() -> None:
        pipe.recv()
        started_at[0] = time.process_time()

    def report(record: dict[str, Any]) -> None:
        pipe.send((record["seconds"] - record["checkpoint_seconds"], time.process_time() - started_at[0]))
        if record["round"] < rounds:
            wait()

    extras = {"gradient_batches": whole} if "mime" in name else {}
    work = LocalTraining(steps_per_round=steps, batch_size=32, lr=0.001)
    method = METHODS[name](rounds=rounds, local=work, loss=CosFace(scale=30.0, margin=0.35), **extras)  # type: ignore
    how: dict[str, Any] = {"save_replies": True, "checkpoint_every": 10**9}
    with engine.serving(method, make_world, Numerics(threads=1), **how, report=report) as server:
        wait()
        server.run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(CHOSEN), choices=CHOSEN)
    parser.add_argument("--steps", type=int, default=20, help="K, local steps a round")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are counted")
    parser.add_argument("--gradient-batches", type=int, help="of Mime's full gradients; all images if left out")
    options = parser.parse_args()
    names = list(dict.fromkeys(["fedavg", *options.methods]))
    context, pipes, processes = multiprocessing.get_context("spawn"), {}, []
    for name in names:
        pipes[name], far_end = context.Pipe()
        about = (far_end, name, options.steps, WARM + options.rounds, options.gradient_batches)
        processes.append(context.Process(target=serve, args=about, daemon=True))
        processes[-1].start()
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    order = generator(0, "turns")
    for _ in range(WARM + options.rounds):
        for place in order.permutation(len(names)):
            pipes[names[place]].send(True)
            turns[names[place]].append(pipes[names[place]].recv())
    for process in processes:
        process.join()
    print(f"{SILOS} silos × {IDENTITIES * EACH} images, cnn-small at 64×64, {options.steps} steps of 32 a round, "
          f"1 thread; {options.rounds} rounds, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    print(f"{'method':10} {'to fedavg':>9} {'CPU to fedavg':>14} {'s a round':>10} {'CPU s':>7}")
    for name in names:
        pairs = list(zip(turns[name][WARM:], turns["fedavg"][WARM:], strict=True))
        wall, cpu = (statistics.median(ours[i] / base[i] for ours, base in pairs) for i in (0, 1))
        seconds, busy = (statistics.median(ours[i] for ours, _ in pairs) for i in (0, 1))
        print(f"{name:10} {wall:9.3f} {cpu:14.3f} {seconds:10.2f} {busy:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
