"""Time and memory of the personalised protocols for one client, at the size of FedFR's paper unless said otherwise.

    OMP_NUM_THREADS=2 python benchmarks/personalised.py                # 40 clients × 100 identities × 40 images, 512-d
    OMP_NUM_THREADS=1 python benchmarks/personalised.py --clients 4    # a tenth of the pairs
    python benchmarks/personalised.py --cases bar paper "far 0.1"

Identities are directions drawn alike; the embeddings of two images of one lie at a cosine of about 0.2. *bar*: the
float32 product of all impostor pairs in blocks, of which the largest alone is kept. *paper* and *official*: TAR at FAR
1e-6 and 1e-5 with TPIR at FPIR 1e-5 and 1e-4, `standard` and `legacy`. *far 0.1*: TAR at FAR 0.1 and 1e-3 beside these,
which takes three products. *close*: as *paper*, of a model whose cosines lie between 0.98 and 1. The last column is the
most that the process held in a case, all embeddings among it.
"""

from __future__ import annotations

import argparse

import numpy as np
from measuring import cost, resident
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import BLOCK
from coalface.evaluation.metrics.personalised import FARS, evaluate_client, gallery_of

CASES = ("bar", "paper", "official", "far 0.1", "close")


def measure(case: str, args: argparse.Namespace) -> str:
    rng = np.random.default_rng(0)
    count, d = args.clients * args.identities, args.dimensions
    centres = rng.standard_normal((count, d), dtype=np.float32)
    common = rng.standard_normal(d, dtype=np.float32) * (20 if case == "close" else 0)

    def embed(labels: NDArray[np.int64]) -> NDArray[np.float32]:
        rows = np.empty((len(labels), d), np.float32)
        for start in range(0, len(labels), BLOCK[0]):
            part = centres[labels[start : start + BLOCK[0]]] + common
            part += 2 * rng.standard_normal(part.shape, dtype=np.float32)
            rows[start : start + BLOCK[0]] = part / np.linalg.norm(part, axis=1, keepdims=True)
        return rows

    identities = np.repeat(np.arange(count), args.images)
    clients = identities // args.identities
    features = embed(identities)
    trained = np.repeat(np.arange(args.identities), 60)
    gallery, names = gallery_of(embed(trained), trained)
    own = int((clients == 0).sum())
    _ = features[:own] @ features[:own].T  # the first product starts the threads
    figures: dict[str, float] = {}

    def bar() -> None:
        for start in range(own, len(features), BLOCK[0]):
            (features[:own] @ features[start : start + BLOCK[0]].T).max()

    def evaluate() -> None:
        protocols = {"one_to_one": "official", "one_to_many": "legacy"} if case == "official" else {}
        fars = (*FARS, 1e-3, 0.1) if case == "far 0.1" else FARS
        result = evaluate_client(features, identities, clients, 0, gallery, names, fars=fars, **protocols)
        figures.update(result.figures())

    spent = cost(bar if case == "bar" else evaluate)
    results = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    return f"| {case} | {spent.seconds:.2f} | {spent.processor:.2f} | {resident(peak=True) / 2**20:,.0f} | {results} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--identities", type=int, default=100, help="of each client")
    parser.add_argument("--images", type=int, default=40, help="test images of each identity")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    args = parser.parse_args()
    print("| case | s | processor s | MiB | figures |\n|---|---:|---:|---:|---|")
    for case in args.cases:
        print(measure(case, args), flush=True)


if __name__ == "__main__":
    main()
