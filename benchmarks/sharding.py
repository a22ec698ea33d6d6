"""Memory and time of a classifier over several processes: peak of each, for 1, 2 and 4, and for a million identities.

python benchmarks/sharding.py                              # 200,000 × 512 over 1, 2 and 4 processes
python benchmarks/sharding.py --identities 1000000 --shards 2 --limit-gib 24
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import resident

from coalface.core.method import Party, generator
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import keep_freed_memory
from coalface.models import Backbone, build
from coalface.training.compute import Compute
from coalface.training.distributed.shards import Shards
from coalface.training.local_training import learn
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

STEPS = 2
"""The first draws the class embeddings, the second starts from what the first kept, as every later round does."""


def party(args: argparse.Namespace, shards: Shards | None) -> Party:
    size, images = args.size, args.batch * (STEPS + 1)
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size, 3), dtype=np.uint8)
    labels = np.random.default_rng(1).integers(0, args.identities, images)
    data = FaceSet(pixels, np.arange(images), labels, tuple(map(str, range(args.identities))))
    module = build(args.backbone, size=size, channels=3, embedding_size=512, generator=generator(0, "backbone"))
    network = Backbone(module)
    about = {"name": "silo", "role": "trainer", "stage": "train", "round": 1, "rounds": 1, "seed": 0}
    data_of_party = {"data": data, "device": torch.device("cpu"), "backbone": network}
    rng, compute = generator(0, "party"), Compute(augment=Augment())
    return Party(**about, **data_of_party, rng=rng, initial=network.shared(), compute=compute, shards=shards)  # type: ignore[arg-type]


def measure(rank: int, size: int, split: bool, args: argparse.Namespace, meeting: Path, pipe: Any) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    shards = Shards.join(meeting, rank, size) if split else None
    silo = party(args, shards)
    work = LocalTraining(steps_per_round=1, batch_size=args.batch, lr=0.1, sample_rate=args.sample_rate)
    before, learner, seconds, peaks, losses = resident(peak=True) / 2**30, None, [], [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss, learner = learn(silo, silo.initial, learner, work, CosFace(), momentum="keep")
        seconds.append(time.perf_counter() - start)
        peaks.append(resident(peak=True) / 2**30)
        losses.append(loss)
    assert learner is not None
    pipe.send((before, peaks, seconds, losses, len(learner.head)))


def run(size: int, split: bool, args: argparse.Namespace) -> float:
    """One line of the table; returns the peak of all processes together in GiB."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for rank in range(size):
            near_end, far_end = context.Pipe()
            about = (rank, size, split, args, Path(folder) / "meeting", far_end)
            context.Process(target=measure, args=about, daemon=True).start()
            far_end.close()
            pipes.append(near_end)
        results = [pipe.recv() for pipe in pipes]
    for rank, (before, peaks, seconds, losses, rows) in enumerate(results):
        print(
            f"| {size if split else 'plain'} | {rank} | {rows:,} | {before:.2f} | {peaks[0] - before:.2f} | "
            f"{peaks[1] - before:.2f} | {peaks[1]:.2f} | {seconds[0]:.1f} | {seconds[1]:.1f} | {losses[1]:.6f} |",
            flush=True,
        )
    return sum(peaks[-1] for _, peaks, *_ in results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--identities", type=int, default=200_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[0, 1, 2, 4], help="0: as any party, by one process")
    parser.add_argument("--backbone", default="cnn-small")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sample-rate", type=float)
    parser.add_argument("--limit-gib", type=float, help="fail where the processes together have more")
    args = parser.parse_args()
    print(
        f"{args.identities:,} × 512, {args.backbone} at {args.size}×{args.size}, batches of {args.batch}; GiB, seconds"
    )
    print("| processes | rank | rows | before | first step | second step | peak | seconds | second | loss |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for size in args.shards:
        together = run(max(1, size), size > 0, args)
        print(f"together {together:.2f} GiB", flush=True)
        if args.limit_gib is not None and together > args.limit_gib:
            raise SystemExit(f"{together:.2f} GiB is above the limit of {args.limit_gib:g}")


if __name__ == "__main__":
    main()
