"""Time and memory of the personalised protocols for one client, at the size of FedFR's paper unless said otherwise.

    python benchmarks/personalised.py                             # 40 clients × 100 identities × 40 images, 512-d
    python benchmarks/personalised.py --clients 4 --threads 1     # a tenth of the pairs
    python benchmarks/personalised.py --cases bar paper "far 0.1"

Identities are directions drawn alike; the embeddings of two images of one lie at a cosine of about 0.2. *bar*: the
float32 product of all impostor pairs in blocks, of which the largest alone is kept. *paper* and *official*: TAR at FAR
1e-6 and 1e-5 with TPIR at FPIR 1e-5 and 1e-4, `standard` and `legacy`. *far 0.1*: TAR at FAR 0.1 and 1e-3 beside these,
which takes three products. *close*: as *paper*, of a model whose cosines lie between 0.98 and 1.

Every case runs in a process of its own. `cpu` is processor time over all threads: on a busy machine it says more than
`seconds`, at one thread. `most` is the most that the process ever held, `before` what it held before it evaluated, the
embeddings among it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from measuring import resident

CASES = ("bar", "paper", "official", "far 0.1", "close")


def work(args: argparse.Namespace) -> dict[str, Any]:
    """One case, in this process."""
    import numpy as np

    from coalface.evaluation.metrics.exact import BLOCK
    from coalface.evaluation.metrics.personalised import FARS, evaluate_client, gallery_of

    rng = np.random.default_rng(0)
    count, d = args.clients * args.identities, args.dimensions
    centres = rng.standard_normal((count, d), dtype=np.float32)
    common = rng.standard_normal(d, dtype=np.float32) * (20 if args.case == "close" else 0)

    def embed(labels: np.ndarray) -> np.ndarray:
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
    is_own = clients == 0
    own_features, other_features = features[is_own], features[~is_own]
    _ = own_features @ own_features.T  # the first product starts the threads
    before = resident()
    began, used = time.perf_counter(), time.process_time()
    figures: dict[str, float] = {}
    if args.case == "bar":
        figures["largest"] = max(
            float((own_features @ other_features[start : start + BLOCK[0]].T).max())
            for start in range(0, len(other_features), BLOCK[0])
        )
    else:
        result = evaluate_client(
            features,
            identities,
            clients,
            0,
            gallery,
            names,
            fars=(*FARS, 1e-3, 0.1) if args.case == "far 0.1" else FARS,
            one_to_one="official" if args.case == "official" else "paper",
            one_to_many="legacy" if args.case == "official" else "standard",
        )
        figures = {name: round(value, 3) for name, value in result.figures().items()}
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu": round(time.process_time() - used, 2),
        "before": f"{before / 2**20:,.0f} MiB",
        "most": f"{resident(peak=True) / 2**20:,.0f} MiB",
        "figures": figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--identities", type=int, default=100, help="of each client")
    parser.add_argument("--images", type=int, default=40, help="test images of each identity")
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(work(args)))
        return
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | {name: str(args.threads) for name in names}
    for case in args.cases:
        command = [sys.executable, __file__, *sys.argv[1:], "--case", case]
        result = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
        print(case.ljust(10), json.dumps(result, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
