"""How hard the synthetic faces are: a small network trained for a minute in each domain, evaluated in every domain.

    python benchmarks/synthetic_difficulty.py                     # every domain: about five minutes on two cores
    python benchmarks/synthetic_difficulty.py studio night        # two of them

Each network sees 45,000 images (a minute's work for two free cores) of 400 identities × 20, under CosFace (scale 30,
margin 0.35) and SGD with momentum. It is evaluated on identities 400 to 599, whom no network has seen, by the ten-fold
accuracy (percent) of 4,000 genuine and 4,000 impostor pairs. The rows "pixels" (cosine of the images less their mean)
and "untrained" say what is to be had for nothing.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from numpy.typing import NDArray

from coalface.data.augment import Augment, to_tensor
from coalface.data.faceset import FaceSet
from coalface.data.synthetic.appearance import DOMAINS
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.evaluation.metrics.verification import ten_fold_accuracy
from coalface.models import build
from coalface.models.embedding import embed
from coalface.training.losses.margins import CosFace

IDENTITIES, UNSEEN, IMAGES = 400, 200, 20
BATCH = 30


def balanced(faces: FaceSet, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`count` genuine and `count` impostor pairs, drawn evenly over identities: (2·count, 2) and whether same."""
    people = rng.integers(UNSEEN, size=(2 * count, 2))
    people[:count, 1] = people[:count, 0]
    people[count:, 1] = (people[count:, 0] + rng.integers(1, UNSEEN, size=count)) % UNSEEN
    image = rng.integers(IMAGES, size=(2 * count, 2))
    image[:count, 1] = (image[:count, 0] + rng.integers(1, IMAGES, size=count)) % IMAGES
    return people * IMAGES + image, np.arange(2 * count) < count


def accuracy(features: NDArray[np.float32], pairs: NDArray[np.int64], is_genuine: NDArray[np.bool_]) -> float:
    scores = (features[pairs[:, 0]] * features[pairs[:, 1]]).sum(axis=1).astype(np.float64)
    return 100 * ten_fold_accuracy(scores, is_genuine).mean


def pixel_features(faces: FaceSet) -> NDArray[np.float32]:
    flat = faces.take(np.arange(len(faces))).reshape(len(faces), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True).clip(1e-6)


def train(faces: FaceSet, images: int, rate: float, seed: int) -> torch.nn.Module:
    rng = np.random.default_rng(seed)
    module = build("cnn-small", size=faces.shape[0], channels=faces.shape[2], generator=rng)
    classes = torch.from_numpy(rng.standard_normal((len(faces.names), 128)).astype(np.float32) * 0.1).requires_grad_()
    loss, augment = CosFace(scale=30.0, margin=0.35), Augment()
    parameters = [*module.parameters(), classes]
    optimiser = torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=5e-4)
    steps = images // BATCH
    order = np.concatenate([rng.permutation(len(faces)) for _ in range(images // len(faces) + 1)])
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        index = order[step * BATCH : (step + 1) * BATCH]
        batch = augment(to_tensor(faces.take(index)), rng)
        optimiser.zero_grad()
        loss(module(batch), classes, torch.from_numpy(faces.labels[index])).backward()
        optimiser.step()
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", default=list(DOMAINS), help=f"some of {', '.join(DOMAINS)}")
    parser.add_argument("--train", nargs="*", choices=list(DOMAINS), help="train in these alone; evaluate in all named")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=45_000, help="images that each network sees")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate at the start; it falls as a cosine")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tests = {}
    for domain in options.domains:
        start = time.perf_counter()
        tests[domain] = SyntheticFaces(UNSEEN, IMAGES, options.seed, domains=(domain,), first=IDENTITIES).generate()
        print(f"# {domain}: {len(tests[domain]) / (time.perf_counter() - start):.0f} images/s made", flush=True)
    pairs, is_genuine = balanced(next(iter(tests.values())), 4000, np.random.default_rng(options.seed))
    print(f"{'trained in':>12}", *(f"{domain:>9}" for domain in tests))

    def row(name: str, figures: list[float], note: str = "") -> None:
        print(f"{name:>12}", *(f"{figure:9.1f}" for figure in figures), note, flush=True)

    row("pixels", [accuracy(pixel_features(t), pairs, is_genuine) for t in tests.values()])
    fresh = build("cnn-small", size=64, channels=1, generator=np.random.default_rng(options.seed))
    row("untrained", [accuracy(embed(fresh, t), pairs, is_genuine) for t in tests.values()])
    for domain in options.domains if options.train is None else options.train:
        faces = SyntheticFaces(IDENTITIES, IMAGES, options.seed, domains=(domain,)).generate()
        start = time.perf_counter()
        module = train(faces, options.images, options.rate, options.seed)
        note = f"  # {options.images / (time.perf_counter() - start):.0f} images/s trained"
        row(domain, [accuracy(embed(module, t), pairs, is_genuine) for t in tests.values()], note)


if __name__ == "__main__":
    main()
