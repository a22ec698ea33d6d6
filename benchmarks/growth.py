"""How time and memory grow with the work: clients, identities at the classifier, points clustered, pairs evaluated.

    python benchmarks/growth.py --out FILE                          # all curves; an hour on a free core, 12 GB at most
    python benchmarks/growth.py --out FILE --curves pairs --up-to 10000000

Every point is measured in a process of its own, with one thread, twice where it takes under a minute: the first warms
up and the second counts. `--out` keeps the points, and a run that is repeated goes on from it. Time is the processor's,
which says the same on a busy machine. Memory is the peak above what the process held before. The exponent b of
seconds ∝ count^b is fitted by least squares over the logarithms of the last three points. A hundred times the largest
count, on paper, has 100^max(1, b) times its seconds (small counts hide in what every point costs) and the memory of a
straight line through the last two points.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cluster
import engine
import numpy as np
import sharding
import torch
from measuring import resident

from coalface.core.method import generator
from coalface.engine.local import InProcess
from coalface.engine.party.setup import Setup, keep_freed_memory
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.engine.server import Server
from coalface.evaluation.metrics.templates import verify_pairs
from coalface.methods.fedavg import FedAvg
from coalface.training.clustering.finch import cfinch
from coalface.training.local_training import learn
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

Run = Callable[[], object]


def clients(count: int) -> Run:
    """A round of FedAvg over clients of one image, `cnn-small` at 64×64."""
    world = engine.make_world("cnn-small", count, 1, 1)
    method = FedAvg(rounds=1, local=LocalTraining(batch_size=5, lr=0.01), loss=engine.LOSS)

    def run() -> None:
        with tempfile.TemporaryDirectory() as place:
            setup = Setup(method, lambda: world, Numerics(threads=1), 0, Path(place), save_replies=False)
            Server(method, RoundPolicy(run="growth"), setup.numerics, InProcess(setup, world), Path(place),
                   backbone=world.backbone).run()  # fmt: skip

    return run


def identities(count: int, sample_rate: float | None) -> Run:
    """A step of 64 images through `cnn-small` and class embeddings of 512 dimensions, which keep their momentum."""
    options = argparse.Namespace(identities=count, size=64, batch=64, backbone="cnn-small")
    silo = sharding.party(options, None)
    work = LocalTraining(steps_per_round=1, batch_size=64, lr=0.1, sample_rate=sample_rate)
    kept = []

    def run() -> None:
        kept[:] = [learn(silo, silo.initial, kept[0] if kept else None, work, CosFace(), momentum="keep")[1]]

    return run


def points(count: int) -> Run:
    """All levels of FINCH over features of 256 dimensions."""
    return functools.partial(cfinch, torch.from_numpy(cluster.features("identities", count, 256)))


def pairs(count: int) -> Run:
    """The TAR table of all pairs of as many templates on the left as on the right, of 512 dimensions."""
    side, rng = round(count**0.5), generator(0, "growth")
    features = rng.standard_normal((2 * side, 512), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    left, right = np.divmod(np.arange(side * side), side)
    return functools.partial(verify_pairs, features, left, right + side, left % 1000 == right % 1000)


CURVES: dict[str, tuple[str, Callable[[int], Run], tuple[int, ...]]] = {
    "clients": ("clients in a round", clients, (10, 100, 1000, 10_000)),
    "dense": ("identities, all class embeddings trained", functools.partial(identities, sample_rate=None),
              (1000, 10_000, 100_000, 300_000)),
    "sampled": ("identities, a tenth of them trained in a step", functools.partial(identities, sample_rate=0.1),
                (1000, 10_000, 100_000, 300_000, 1_000_000)),
    "points": ("points clustered", points, (10_000, 30_000, 100_000, 300_000, 1_000_000)),
    "pairs": ("pairs evaluated", pairs, (1_000_000, 10_000_000, 100_000_000)),
}  # fmt: skip


def measure(curve: str, count: int) -> dict[str, float]:
    """Processor seconds and MB of one point, in this process."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    run = CURVES[curve][1](count)
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    for _ in range(2):
        began = time.process_time()
        run()
        if (seconds := time.process_time() - began) > 60:
            break
    return {"count": count, "seconds": seconds, "mb": (resident(peak=True) - before) / 1e6}


def exponent(counts: list[float], values: list[float]) -> float:
    """b of the least squares of log(value) = a + b log(count).

    >>> round(exponent([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(counts), np.log(values), 1)[0])


def table(curve: str, measured: list[dict[str, float]]) -> str:
    """The points, the exponents, and a hundred times the largest."""
    lines = [f"| {CURVES[curve][0]} | processor s | MB |", "|---:|---:|---:|"]
    lines += [f"| {p['count']:,} | {p['seconds']:.3g} | {p['mb']:,.0f} |" for p in measured]
    if len(measured) >= 2:
        last = measured[-3:]
        b = exponent([p["count"] for p in last], [p["seconds"] for p in last])
        (near, far), count = last[-2:], 100 * last[-1]["count"]
        slope = (far["mb"] - near["mb"]) / (far["count"] - near["count"])
        lines.append(f"| exponent | {b:.2f} | |")
        more = far["seconds"] * 100 ** max(1, b), far["mb"] + slope * (count - far["count"])
        lines.append(f"| {count:,}, on paper | {more[0]:,.0f} | {more[1]:,.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the points; those that it has are not measured again.")
    parser.add_argument("--curves", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--up-to", type=int, default=10**9, help="The largest count.")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(options.point[0], int(options.point[1]))))
        return
    kept = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for curve in options.curves:
        measured = {point["count"]: point for point in kept.get(curve, [])}
        for count in CURVES[curve][2]:
            if count not in measured and count <= options.up_to:
                command = [sys.executable, __file__, "--point", curve, str(count)]
                measured[count] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
                print(curve, json.dumps(measured[count]), file=sys.stderr, flush=True)
                kept[curve] = [measured[n] for n in sorted(measured)]
                if options.out:
                    options.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(table(curve, kept.get(curve, [])), flush=True)


if __name__ == "__main__":
    main()
