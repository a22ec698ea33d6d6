"""What templates cost to evaluate: `python benchmarks/templates.py [templates|megaface] [SHARE]`, made-up embeddings.

`templates`, at IJB-C's size: the list of 15,658,489 pairs read from a text, and its pairs of 23,124 templates of 512
dimensions scored and turned into the TAR table, as ratios to the bare matrix product of all left by all right templates
and to the bare gathering of the pairs' vectors (from a hundredth of the pairs). Then the pooling of 469,375 images, and
the search of two galleries. `megaface`: a tenth of 100,000 probes against 1,000,000 distractors, as a ratio to the bare
products. SHARE cuts pairs and images, or is that of the probes. It uses as many threads as NumPy and PyTorch may.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import seconds
from numpy.typing import NDArray

from coalface.data.readers import ijb
from coalface.evaluation.metrics import megaface
from coalface.evaluation.metrics.open_set import mean_figures, search
from coalface.evaluation.metrics.templates import template_features, verify_pairs

D, GALLERY, PROBES, PAIRS, GENUINE, IMAGES = 512, 3531, 19593, 15_658_489, 19_557, 469_375


def unit(rng: np.random.Generator, centres: NDArray[np.float32], noise: float) -> NDArray[np.float32]:
    rows = centres + np.float32(noise) * rng.standard_normal(centres.shape, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def gigabytes() -> str:
    return f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"


def templates(share: float) -> None:
    rng = np.random.default_rng(0)
    subject = np.concatenate([np.arange(GALLERY), rng.integers(GALLERY, size=PROBES)])
    centres = rng.standard_normal((GALLERY, D), np.float32)
    features = unit(rng, centres[subject], 1.2)
    probe = rng.permutation(PROBES)[: int(share * GENUINE)]
    cells = rng.choice(GALLERY * PROBES, int(share * PAIRS) - len(probe), replace=False, shuffle=False)
    cells = rng.permutation(np.unique(np.append(cells, subject[GALLERY + probe] * PROBES + probe)))  # each pair once
    left, right = np.divmod(cells, PROBES)
    right, pairs = right + GALLERY, len(cells)
    same = subject[left] == subject[right]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.txt"
        with path.open("wb") as file:
            for start in range(0, pairs, 10**6):
                some = slice(start, start + 10**6)
                columns = zip(left[some].tolist(), right[some].tolist(), same[some].tolist(), strict=True)
                file.write(b"".join(b"%d %d %d\n" % line for line in columns))
        print(f"{pairs:,} lines of pairs read in {seconds(lambda: ijb.read_template_pairs(path)):.1f} s")

    product = seconds(lambda: [features[:GALLERY][i : i + 128] @ features[GALLERY:].T for i in range(0, GALLERY, 128)])
    few = slice(0, pairs // 100)

    def gather() -> None:
        for start in range(0, pairs // 100, 1024):
            some = slice(start, start + 1024)
            np.einsum("id,id->i", features[left[few][some]], features[right[few][some]])

    gathered = 100 * seconds(gather)
    elapsed = seconds(lambda: verify_pairs(features, left, right, same))
    print(
        f"bare product of {GALLERY:,} × {PROBES:,}: {product:.1f} s; gathered pairs, of a hundredth: {gathered:.1f} s"
    )
    print(
        f"{pairs:,} pairs to the TAR table: {elapsed:.1f} s, {elapsed / product:.1f} times the product, "
        f"{elapsed / gathered:.2f} times the gathered; {gigabytes()}"
    )
    half = GALLERY // 2
    galleries = (slice(0, half), slice(half, GALLERY))
    probes, probe_subjects = features[GALLERY:], subject[GALLERY:]
    elapsed = seconds(
        lambda: mean_figures(
            [search(probes, features[gallery], probe_subjects, subject[gallery]) for gallery in galleries]
        )
    )
    print(f"{PROBES:,} probes in two galleries of {half:,}: {elapsed:.1f} s, {elapsed / product:.1f} times the product")

    images = int(share * IMAGES)
    raw = rng.standard_normal((images, D), np.float32)
    of = np.sort(rng.integers(GALLERY + PROBES, size=images))
    media = rng.integers(6, size=images)
    copied = seconds(lambda: raw.astype(np.float64))
    elapsed = seconds(lambda: template_features(raw, of, media, norm=False))
    print(f"{images:,} images pooled: {elapsed:.1f} s, {elapsed / copied:.1f} times making them float64; {gigabytes()}")


def distractors(share: float) -> None:
    rng = np.random.default_rng(0)
    probes, crowd_size = int(100_000 * share), 1_000_000
    identity = np.repeat(np.arange(-(-probes // 100)), 100)[:probes]
    centres = rng.standard_normal((len(np.unique(identity)), D), np.float32)
    features = unit(rng, centres[identity], 1.2)
    crowd = np.empty((crowd_size, D), np.float32)
    for start in range(0, crowd_size, 50_000):
        crowd[start : start + 50_000] = unit(rng, np.zeros((50_000, D), np.float32), 1.0)
    block = np.empty((min(2048, probes), 8192), np.float32)
    times = [seconds(lambda: np.matmul(features[: len(block)], crowd[:8192].T, out=block)) for _ in range(4)]
    product = min(times) * (probes / len(block)) * (crowd_size / 8192)
    start = time.perf_counter()
    result = megaface.evaluate_probes(features, identity, crowd)
    elapsed = time.perf_counter() - start
    print(
        f"{probes:,} probes × {crowd_size:,} distractors: {elapsed:.0f} s, {elapsed / product:.2f} times the bare "
        f"products ({product:.0f} s, from one block); {gigabytes()}; {result.figures()}"
    )


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) > 1 else "templates"
    measures = {"templates": (templates, 1.0), "megaface": (distractors, 0.1)}
    if kind not in measures:
        raise SystemExit(f"there is no measure {kind!r}: give templates or megaface")
    measure, usual = measures[kind]
    measure(float(sys.argv[2]) if len(sys.argv) > 2 else usual)
