"""Whether training waits for data: the share of its time that goes into making batches, and what packing costs.

    python benchmarks/loading.py                              # synthetic faces
    python benchmarks/loading.py --folder $COALFACE_DATA/lfw/images

Images are packed once, in one pass with progress, and training reads the pack through a memory map. A batch is taken
from the map at random places, turned to floats in [−1, 1] and augmented (flip, or flip, crop and colour); there is no
loader process, since making a batch costs a few hundredths of a step. The share is of the wall clock of whole steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from coalface.core.method import generator
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.data.readers.folders import read_folder
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.source import Source
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.engine.party.setup import keep_freed_memory
from coalface.models import build
from coalface.training.compute import Compute
from coalface.training.losses.margins import CosFace
from coalface.training.sgd import SGD


def packed(source: Source, place: Path, size: int, grey: bool) -> FaceSet:
    start = time.perf_counter()
    packed_count = [0]
    write_pack(source, place, size=size, grey=grey, progress=lambda count, total: packed_count.__setitem__(0, count))
    seconds = time.perf_counter() - start
    faces = read_pack(place)
    rate, size_mb = packed_count[0] / seconds, faces.pixels.nbytes / 1e6
    print(f"packing: {packed_count[0]:,} images in one pass, {rate:,.0f} images/s, {size_mb:.0f} MB", flush=True)
    return faces


def share(name: str, faces: FaceSet, augment: Augment, batch: int, steps: int) -> tuple[float, float]:
    """(share of the time in making batches, images/s) of `steps` training steps after three."""
    size, _, channels = faces.shape
    module = build(name, size=size, channels=channels, generator=generator(0, "benchmark")).train()
    compute, rng = Compute(augment=augment), np.random.default_rng(0)
    parameters = [p for p in module.parameters() if p.requires_grad]
    head = torch.randn(len(faces.names), module.embedding_size).mul_(0.01).requires_grad_()
    velocity = [torch.zeros_like(p) for p in (*parameters, head)]
    loss, loading, began = CosFace(scale=16.0, margin=0.2), 0.0, 0.0
    sgd = SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)
    for step in range(steps + 3):
        if step == 3:
            loading, began = 0.0, time.perf_counter()
        start = time.perf_counter()
        images, labels = compute.batch(faces, rng.integers(len(faces), size=batch), rng)
        loading += time.perf_counter() - start
        gradients = torch.autograd.grad(loss(module(images), head, labels), [*parameters, head])
        sgd.step([*parameters, head], gradients, velocity)
    elapsed = time.perf_counter() - began
    return loading / elapsed, batch * steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Identity folders to pack instead of synthetic faces.")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as place:
        for name, size, grey, batch, steps in (("cnn-small", 64, True, 30, 60), ("ir18", 112, False, 16, 4)):
            source = read_folder(options.folder) if options.folder else SyntheticFaces(200, 10, 0, size=size, grey=grey)
            faces = packed(source, Path(place) / f"{size}", size, grey)
            for title, augment in (("flip", Augment()), ("flip, crop, colour", Augment(crop=4, colour=0.2))):
                part, rate = share(name, faces, augment, batch, steps)
                title_line = f"{name}, {size}×{size}, batch {batch}, {options.threads} threads, {title}"
                print(f"{title_line}: {100 * part:.1f} % of the time makes batches, {rate:,.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
