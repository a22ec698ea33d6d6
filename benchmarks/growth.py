"""How time and memory grow with the work: clients, identities at the classifier, points clustered, pairs evaluated.

    python benchmarks/growth.py docs/results/growth      # the points that are missing, then the tables and the picture
    python benchmarks/growth.py FOLDER --curves pairs --up-to 10000000

FOLDER keeps the points in `points.json`, which are not measured again, and gets the picture `curves.svg`
(pip install matplotlib).

Every point is measured in a process of its own, with one thread: a first time, which prepares more than those after it
(class embeddings are drawn, momentum begins), then again, twice where that took under a minute. The least counts. Time
is the processor's, which a busy machine changes less; `system` is the kernel's part of it, which is page faults. Memory
is the last time's peak above what the process held before the first. The exponent b of seconds ∝ count^b is fitted by
least squares over the logarithms of the last three points. A hundred times the largest count, on paper, has
100^max(1, b) times its seconds (small counts hide in what every point costs) and the memory of a straight line through
the last two points.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cluster
import engine
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import sharding
import torch
from measuring import cost, resident

from coalface.core.method import generator
from coalface.engine.party.setup import keep_freed_memory
from coalface.engine.run_state import Numerics
from coalface.evaluation.metrics.templates import verify_pairs
from coalface.methods.fedavg import FedAvg
from coalface.training.clustering.finch import cfinch
from coalface.training.local_training import learn
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

Run = Callable[[], object]
Point = dict[str, float]


def clients(count: int) -> Run:
    """A round of FedAvg over clients of one image, `cnn-small` at 64×64."""
    world = engine.make_world("cnn-small", count, 1, 1)
    method = FedAvg(rounds=1, local=LocalTraining(batch_size=5, lr=0.01), loss=engine.LOSS)

    def run() -> None:
        with engine.serving(method, lambda: world, Numerics(threads=1), checkpoint_every=1) as server:
            server.run()

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
              (1000, 10_000, 100_000, 300_000, 500_000, 1_000_000)),
    "sampled": ("identities, a tenth of them trained in a step", functools.partial(identities, sample_rate=0.1),
                (1000, 10_000, 100_000, 300_000, 1_000_000)),
    "points": ("points clustered", points, (10_000, 30_000, 100_000, 300_000, 1_000_000)),
    "pairs": ("pairs evaluated", pairs, (1_000_000, 10_000_000, 100_000_000)),
}  # fmt: skip


def measure(curve: str, count: int) -> Point:
    """Processor seconds and MB of one point, in this process."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    run = CURVES[curve][1](count)
    before, costs = resident(), [cost(run), cost(run)]
    if costs[0].processor < 60:
        costs.append(cost(run))
    above, least = (resident(peak=True) - before) / 1e6, min(costs, key=lambda one: one.processor)
    seconds, system = (float(f"{part:.3g}") for part in (least.processor, least.system))
    return {"count": count, "seconds": seconds, "system": system, "mb": round(above)}


def exponent(points: list[Point]) -> float:
    """b of the least squares of log(seconds) = a + b log(count) over the last three points."""
    counts, seconds = np.log([[point["count"], point["seconds"]] for point in points[-3:]]).T
    return float(np.polyfit(counts, seconds, 1)[0])


def table(curve: str, measured: list[Point]) -> str:
    """The points, the exponent, and a hundred times the largest."""
    lines = [f"| {CURVES[curve][0]} | processor s | MB |", "|---:|---:|---:|"]
    lines += [f"| {point['count']:,} | {point['seconds']:,g} | {point['mb']:,} |" for point in measured]
    if len(measured) >= 2:
        b, (near, far) = exponent(measured), measured[-2:]
        count = 100 * far["count"]
        slope = (far["mb"] - near["mb"]) / (far["count"] - near["count"])
        lines.append(f"| exponent | {b:.2f} | |")
        more = far["seconds"] * 100 ** max(1, b), far["mb"] + slope * (count - far["count"])
        lines.append(f"| {count:,}, on paper | {more[0]:,.0f} | {more[1]:,.0f} |")
    return "\n".join(lines) + "\n"


def draw(points: dict[str, list[Point]], path: Path) -> None:
    """Both figures of every curve over the count, on logarithmic axes."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth", "font.family": "sans-serif"})
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for place, (curve, measured) in enumerate(points.items()):
        name = f"{CURVES[curve][0]}: exponent {exponent(measured):.2f}"
        for axis, key in zip(axes, ("seconds", "mb"), strict=True):
            axis.loglog([p["count"] for p in measured], [p[key] for p in measured], "osD^v"[place] + "-", label=name)
    for axis, label in zip(axes, ("processor seconds, one thread", "MB above what the process held"), strict=True):
        axis.set(xlabel="count", ylabel=label)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--curves", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--up-to", type=int, default=10**9, help="The largest count.")
    options = parser.parse_args()
    for curve in options.curves:
        if options.up_to < (least := CURVES[curve][2][0]):
            parser.error(f"argument --up-to: {options.up_to:,} is below the smallest count of {curve}, {least:,}")
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "points.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    for curve in options.curves:
        measured = {point["count"]: point for point in kept.get(curve, [])}
        for count in CURVES[curve][2]:
            if count not in measured and count <= options.up_to:
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    measured[count] = process.submit(measure, curve, count).result()
                print(curve, json.dumps(measured[count]), file=sys.stderr, flush=True)
                kept[curve] = [measured[n] for n in sorted(measured)]
                file.write_text(json.dumps(kept, indent=1) + "\n")
        print(table(curve, kept.get(curve, [])), flush=True)
    draw({curve: kept[curve] for curve in CURVES if len(kept.get(curve, [])) > 1}, options.folder / "curves.svg")


if __name__ == "__main__":
    main()
