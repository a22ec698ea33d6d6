"""What evaluation costs: `python benchmarks/evaluation.py`, on made-up embeddings, two threads.

Prints the median milliseconds of evaluating 6,000 pairs and a list of 200,000 impostor pairs, and the seconds of the
paired bootstrap (2,000 draws, two methods, three seeds) with the size of what a run leaves for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics import paired
from coalface.evaluation.metrics.bootstrap import PairIdentities, draw_identities
from coalface.evaluation.metrics.evidence import accuracy_evidence, tar_evidence
from coalface.evaluation.metrics.verification import evaluate_pairs, score_pairs

PEOPLE, IMAGES, IMPOSTORS, D = 963, 2741, 200_000, 512


def median_ms(run: Callable[[], object], times: int = 15) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return 1000 * float(np.median(taken))


def embeddings(rng: np.random.Generator, identity: NDArray[np.int64], noise: float) -> NDArray[np.float32]:
    raw = rng.normal(size=(PEOPLE, D))[identity] + noise * rng.normal(size=(len(identity), D))
    # A few directions that all faces share make the impostor scores as uneven over identities as real ones.
    raw[:, :8] += 10 * rng.normal(size=(PEOPLE, 8))[identity]
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    rng = np.random.default_rng(0)
    identity = np.sort(np.concatenate([np.arange(PEOPLE), rng.integers(PEOPLE, size=IMAGES - PEOPLE)]))
    features = embeddings(rng, identity, 1.0)

    left = rng.integers(IMAGES, size=6000)
    right = rng.integers(IMAGES, size=6000)
    same = np.arange(6000) % 600 < 300  # timed as a list of the field, whoever is in the images
    fold = np.arange(6000) // 600
    taken = median_ms(lambda: evaluate_pairs(score_pairs(features, left, right), same, fold))
    print(f"6,000 pairs, d = {D}, ten folds, two TARs, EER: {taken:.1f} ms")

    genuine = np.array([(a, b) for a in range(IMAGES) for b in range(a + 1, IMAGES) if identity[a] == identity[b]])
    impostor = rng.integers(IMAGES, size=(IMPOSTORS * 2, 2))
    impostor = impostor[identity[impostor[:, 0]] != identity[impostor[:, 1]]][:IMPOSTORS]
    left, right = np.concatenate([genuine, impostor]).T
    same = np.arange(len(left)) < len(genuine)
    count = f"{len(genuine):,} genuine and {len(impostor):,} impostor pairs"
    taken = median_ms(lambda: evaluate_pairs(score_pairs(features, left, right), same, headline=same), 5)
    print(f"{count}, two TARs, EER: {taken:.0f} ms")

    pairs = PairIdentities(identity[left], identity[right], sha256="0" * 64, headline=same)
    scores = [score_pairs(embeddings(rng, identity, noise), left, right) for noise in (3.0, 3.0, 3.0, 3.2, 3.2, 3.2)]
    kept = [tar_evidence(one, pairs) for one in scores]
    print(f"evidence of one run: {len(json.dumps(kept[0])) / 1000:.1f} KB")
    start = time.perf_counter()
    bootstrap = draw_identities(pairs, np.random.default_rng(1))
    runs = [paired.resample(one, bootstrap) for one in kept]
    for figure in runs[0]:
        result = paired.compare([run[figure] for run in runs[:3]], [run[figure] for run in runs[3:]])
        shown = f"{100 * result.difference:+.2f} [{100 * result.low:+.2f}, {100 * result.high:+.2f}]"
        print(f"{figure}: {shown} points, {result.verdict}, {result.short} draws short")
    print(f"2,000 draws of 2 methods × 3 seeds, TAR: {time.perf_counter() - start:.1f} s")

    half = np.concatenate([rng.permutation(len(genuine))[:500], len(genuine) + np.arange(500)])
    small = PairIdentities(pairs.left[half], pairs.right[half], sha256="1" * 64)
    kept = [accuracy_evidence(one[half], small) for one in scores]
    print(f"evidence of one run on 1,000 pairs: {len(json.dumps(kept[0])) / 1000:.1f} KB")
    start = time.perf_counter()
    bootstrap = draw_identities(small, np.random.default_rng(1))
    runs = [paired.resample(one, bootstrap) for one in kept]
    paired.compare([run["accuracy"] for run in runs[:3]], [run["accuracy"] for run in runs[3:]])
    print(f"2,000 draws of 2 methods × 3 seeds, accuracy on 1,000 pairs: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
