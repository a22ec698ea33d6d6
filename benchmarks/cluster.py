"""Time and memory of exact first neighbours and of C-FINCH, against a plain pass over all pairs and `finch-clust`.

    python benchmarks/cluster.py                             # 20,000 × 256
    python benchmarks/cluster.py --points 100000 --turns 1

The bar is a plain blocked float32 pass: every block of cosines in full, the largest of each row, self excluded. Every
case runs in a process of its own, all have loaded and warmed up before the first turn, and take turns; a ratio is the
median over turns of (this case / the bar of the same turn). *Random*: directions drawn alike. *Identities*: 5 to 50
points around a centre, at a cosine of about 0.67 to each other, shuffled.

`finch-clust` runs as it comes, early exit off. Above 20,000 points it approximates, and needs more: pip install
pynndescent. On a busy machine the processor time says more, at one thread: two wait for each other, and may spin.
Memory is the most that a process held above what it did before the features were there, as a multiple of them: 1 is the
features themselves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Cost, OwnProcess, cost, resident, take_turns

CASES = ["bar", "neighbours", "finch", "c-finch 0.4", "finch-clust"]
SETS = ["random", "identities"]
BLOCK = 2048


def features(kind: str, count: int, d: int) -> np.ndarray:
    """(count, d) float32 unit features."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count, d), dtype=np.float32)
    if kind == "identities":
        labels = np.repeat(np.arange(count), rng.integers(5, 51, count))[:count]
        centres = rng.standard_normal((labels[-1] + 1, d), dtype=np.float32)
        labels = rng.permutation(labels)
        for start in range(0, count, BLOCK):
            rows[start : start + BLOCK] *= 0.7
            rows[start : start + BLOCK] += centres[labels[start : start + BLOCK]]
    for start in range(0, count, BLOCK):
        rows[start : start + BLOCK] /= np.linalg.norm(rows[start : start + BLOCK], axis=1, keepdims=True)
    return rows


def work(case: str) -> Callable[[np.ndarray], Any]:
    """What a case does; imports what it needs and nothing else."""
    if case == "finch-clust":
        from finch import FINCH

        if find_spec("pynndescent"):  # it compiles what it compiles
            FINCH(features("random", 500, 32), ensure_early_exit=False, ann_threshold=100)
        return lambda rows: [int(count) for count in FINCH(rows, ensure_early_exit=False)[1]]
    import torch

    from coalface.training.clustering.finch import cfinch
    from coalface.training.clustering.neighbours import first_neighbours

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def bar(rows: np.ndarray) -> None:
        whole = torch.from_numpy(rows)
        for start in range(0, len(whole), BLOCK):
            block = whole[start : start + BLOCK]
            best, place = torch.full((len(block),), -2.0), torch.zeros(len(block), dtype=torch.int64)
            for begin in range(0, len(whole), BLOCK):
                cosines = block @ whole[begin : begin + BLOCK].T
                if start == begin:
                    cosines.fill_diagonal_(-2)
                most, at = cosines.max(dim=1)
                place = torch.where(most > best, at + begin, place)
                best = torch.maximum(most, best)

    def neighbours(rows: np.ndarray) -> None:
        first_neighbours(torch.from_numpy(rows))

    def clusters(rows: np.ndarray) -> list[int]:
        return list(cfinch(torch.from_numpy(rows), float(case.split()[1]) if " " in case else np.inf).counts)

    return {"bar": bar, "neighbours": neighbours}.get(case, clusters)


def make_case(case: str, path: Path) -> Callable[[], tuple[Cost, float, Any]]:
    """A turn of a case: what it took, memory in features, and the clusters of each level."""
    run = work(case)
    run(features("random", 2 * BLOCK + 5, 256))
    before = resident()
    rows = np.load(path)

    def turn() -> tuple[Cost, float, Any]:
        counts: list[Any] = []
        spent = cost(lambda: counts.append(run(rows)))
        return spent, (resident(peak=True) - before) / rows.nbytes, counts[0]

    return turn


def measure(kind: str, args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features(kind, args.points, args.d))
        cases = {case: OwnProcess(make_case, case, path) for case in args.cases}
        turns = take_turns(cases, args.turns)
    for case in args.cases:
        costs, memory, counts = zip(*(turn[case] for turn in turns), strict=True)
        ratio = ""
        if "bar" in cases:
            ratio = f"{statistics.median(turn[case][0].seconds / turn['bar'][0].seconds for turn in turns):.2f}"
        seconds, processor = (statistics.median(getattr(c, key) for c in costs) for key in ("seconds", "processor"))
        print(
            f"| {kind}, {case} | {seconds:.2f} | {ratio} | {processor:.2f} | {max(memory):.2f} | {counts[-1]} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--d", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    args = parser.parse_args()
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    os.environ.update(dict.fromkeys(names, str(args.threads)), PYTHONWARNINGS="ignore")  # read by the cases' processes
    print(f"{args.points:,} × {args.d}, {args.threads} thread(s), medians of {args.turns} turns")
    print("| | s | to the bar | processor s | memory in features | clusters |\n|---|---:|---:|---:|---:|---|")
    for kind in args.sets:
        measure(kind, args)


if __name__ == "__main__":
    main()
