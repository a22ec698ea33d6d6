"""Embedding images on a CPU in parts that stay in cache, beside all at once: `python benchmarks/embedding.py`.

Processor time of one thread for 256 images that are made up, the lower of two turns, and whether both give the same
bits. With `--steps`, of forward and backward of MobileFaceNet at 112×112 in batches of several sizes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray

from coalface.engine.party.setup import keep_freed_memory
from coalface.models import build, embedding

SIZES = {"cnn-small": (32, 64, 112), "mobilefacenet": (64, 112)}


def timed(network: torch.nn.Module, images: NDArray[np.uint8], pixels: int) -> tuple[float, NDArray[np.float32]]:
    embedding.PIXELS = pixels
    start = time.process_time()
    features = embedding.unit_features(network, images)
    return time.process_time() - start, features


def compare_embedding() -> None:
    parts = embedding.PIXELS
    print("| network, size | all at once, ms an image | in parts | ratio | same bits |\n|---|---:|---:|---:|---|")
    for name, sizes in SIZES.items():
        for size in sizes:
            network = build(name, size=size, channels=3, generator=np.random.default_rng(0))
            images = np.random.default_rng(0).integers(0, 256, (256, size, size, 3), dtype=np.uint8)
            turns = [(timed(network, images, 2**62), timed(network, images, parts)) for _ in range(2)]
            whole, small = (min(turn[k][0] for turn in turns) / len(images) * 1000 for k in (0, 1))
            same = "yes" if np.array_equal(turns[0][0][1], turns[0][1][1]) else "no"
            print(f"| `{name}`, {size}×{size} | {whole:.2f} | {small:.2f} | {whole / small:.1f} | {same} |", flush=True)


def compare_steps() -> None:
    network = build("mobilefacenet", size=112, channels=3, generator=np.random.default_rng(0)).eval()
    for count in (14, 28, 56, 112, 252):
        images, turns = torch.zeros(count, 3, 112, 112), []
        for _ in range(3):
            start = time.process_time()
            network(images).sum().backward()
            turns.append(time.process_time() - start)
        print(f"{count} images: {min(turns) / count * 1000:.1f} ms an image", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true", help="time training steps in batches of several sizes")
    torch.set_num_threads(1)
    keep_freed_memory()
    (compare_steps if parser.parse_args().steps else compare_embedding)()
