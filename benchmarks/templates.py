"""What templates cost to evaluate, beside the field's public script, on made-up embeddings of 512 dimensions.

    OMP_NUM_THREADS=1 python benchmarks/templates.py            # IJB-C's size; 6 GB, some minutes
    OMP_NUM_THREADS=1 python benchmarks/templates.py megaface   # 10,000 probes against 1,000,000 distractors

IJB-C's size: a list of 15,658,489 pairs, 23,124 templates, 469,375 images. *The public way* does what insightface's
`ijb_11.py` does, written anew: the list by pandas; a template's images looked up among all, its media one by one;
100,000 pairs at a time multiplied in float64; scikit-learn's ROC. It needs pandas and scikit-learn: pip install
'coalface[dev]'. Both ways have the same input in turn, and their templates and TARs are compared. A last number cuts
pairs and images, or is the share of MegaFace's 100,000 probes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import cost
from numpy.typing import NDArray

from coalface.data.readers import ijb
from coalface.evaluation.metrics import megaface
from coalface.evaluation.metrics.open_set import mean_figures, search
from coalface.evaluation.metrics.templates import FARS, template_features, verify_pairs

D, GALLERY, PROBES, PAIRS, GENUINE, IMAGES = 512, 3531, 19593, 15_658_489, 19_557, 469_375


def unit(rng: np.random.Generator, centres: NDArray[np.float32], noise: float) -> NDArray[np.float32]:
    rows = centres + np.float32(noise) * rng.standard_normal(centres.shape, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def measured(step: str, run: Callable[[], Any]) -> Any:
    """What `run` returns; its line of the table is printed."""
    results: list[Any] = []
    spent = cost(lambda: results.append(run()))
    print(f"| {step} | {spent.seconds:.1f} | {spent.processor:.1f} | {spent.mb:,.0f} |", flush=True)
    return results[0]


def public_list(path: Path) -> list[NDArray[np.int64]]:
    import pandas

    table = pandas.read_csv(path, sep=" ", header=None).values
    return [table[:, column].astype(int) for column in range(3)]


def public_templates(
    images: NDArray[np.float32], template: NDArray[np.int64], media: NDArray[np.int64]
) -> NDArray[np.float64]:
    names = np.unique(template)
    pooled = np.zeros((len(names), images.shape[1]))
    for row, name in enumerate(names):
        own = np.flatnonzero(template == name)
        rows, parts = images[own], media[own]
        pooled[row] = np.sum([rows[parts == part].mean(axis=0) for part in np.unique(parts)], axis=0)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def public_tars(
    features: NDArray[np.float64], left: NDArray[np.int64], right: NDArray[np.int64], same: NDArray[np.bool_]
) -> list[float]:
    """TAR at the place of the ROC whose FAR is nearest to each that is asked for."""
    from sklearn.metrics import roc_curve

    scores = np.zeros(len(left))
    for start in range(0, len(left), 100_000):
        some = slice(start, start + 100_000)
        scores[some] = np.sum(features[left[some]] * features[right[some]], axis=1)
    far, tar, _ = roc_curve(same, scores)
    return [float(tar[::-1][np.argmin(np.abs(far[::-1] - asked))]) for asked in FARS]


def templates(share: float) -> None:
    rng = np.random.default_rng(0)
    subject = np.concatenate([np.arange(GALLERY), rng.integers(GALLERY, size=PROBES)])
    centres = rng.standard_normal((GALLERY, D), np.float32)
    features = unit(rng, centres[subject], 2.2)  # TARs from a third to all
    probe = rng.permutation(PROBES)[: int(share * GENUINE)]
    cells = rng.choice(GALLERY * PROBES, int(share * PAIRS) - len(probe), replace=False, shuffle=False)
    cells = rng.permutation(np.unique(np.append(cells, subject[GALLERY + probe] * PROBES + probe)))  # each pair once
    left, right = np.divmod(cells, PROBES)
    right, pairs = right + GALLERY, len(cells)
    same = subject[left] == subject[right]
    print("| | s | processor s | MB above the input |\n|---|---:|---:|---:|")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.txt"
        with path.open("wb") as file:
            for start in range(0, pairs, 10**6):
                some = slice(start, start + 10**6)
                columns = zip(left[some].tolist(), right[some].tolist(), same[some].tolist(), strict=True)
                file.write(b"".join(b"%d %d %d\n" % line for line in columns))
        read = measured(f"{pairs:,} lines of pairs read", lambda: ijb.read_template_pairs(path))
        columns = measured("the public way", lambda: public_list(path))
        assert all(map(np.array_equal, columns, (read.left, read.right, read.same)))
        del read, columns

    tars = measured("pairs to the TAR table", lambda: verify_pairs(features, left, right, same))
    public = measured("the public way", lambda: public_tars(features.astype(np.float64), left, right, same))
    half = GALLERY // 2
    galleries = (slice(0, half), slice(half, GALLERY))
    probes, probe_subjects = features[GALLERY:], subject[GALLERY:]
    measured(
        f"{PROBES:,} probes in two galleries of {half:,}",
        lambda: mean_figures([search(probes, features[g], probe_subjects, subject[g]) for g in galleries]),
    )
    measured(f"bare product of {GALLERY:,} × {PROBES:,}",
             lambda: [features[:GALLERY][i : i + 128] @ probes.T for i in range(0, GALLERY, 128)])  # fmt: skip

    images = int(share * IMAGES)
    raw = rng.standard_normal((images, D), np.float32)
    of = np.sort(rng.integers(GALLERY + PROBES, size=images))
    media = rng.integers(6, size=images)
    pooled = measured(f"{images:,} images pooled", lambda: template_features(raw, of, media))
    loops = measured("the public way", lambda: public_templates(raw, of, media))
    print(f"\nTAR in percent: {', '.join(f'{100 * tar.tar:.3f}' for tar in tars)}")
    print(f"the public way: {', '.join(f'{100 * tar:.3f}' for tar in public)}")
    print(f"templates differ by {np.abs(pooled.features - loops).max():.1e} at most")


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
    times = [cost(lambda: np.matmul(features[: len(block)], crowd[:8192].T, out=block)).processor for _ in range(4)]
    product = min(times) * (probes / len(block)) * (crowd_size / 8192)
    print("| | s | processor s | MB above the input |\n|---|---:|---:|---:|")
    result = measured(
        f"{probes:,} probes × {crowd_size:,} distractors", lambda: megaface.evaluate_probes(features, identity, crowd)
    )
    print(f"| bare products, from one block | | {product:.1f} | |\n\n{result.figures()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="[megaface] [SHARE]")
    words = parser.parse_args().words
    measure, share = (distractors, 0.1) if words[:1] == ["megaface"] else (templates, 1.0)
    shares = [float(word) for word in words if word != "megaface"]
    measure(*(shares or [share]))
