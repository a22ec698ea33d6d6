"""Time and memory of exact first neighbours and of C-FINCH, against a plain pass over all pairs and `finch-clust`.

    python benchmarks/cluster.py                                        # 20,000 × 256
    python benchmarks/cluster.py --points 100000 --turns 1 --python …   # above 20,000 points the package approximates

The bar is a plain blocked float32 pass: every block of cosines in full, the largest of each row, self excluded. Every
case runs in a process of its own, all have loaded and warmed up before the first turn, and take turns; a ratio is the
median over turns of (this case / the bar of the same turn). *Random*: directions drawn alike. *Identities*: 5 to 50
points around a centre, at a cosine of about 0.67 to each other, shuffled.

`finch-clust` runs as it comes, early exit off. Above 20,000 points it needs `pynndescent`, which is none of this
project's dependencies: `--python` names an interpreter that has both, and the warming up compiles what it compiles.
On a busy machine the processor time `cpu` says more, at one thread: two wait for each other, and may spin. Memory is
the most that a process held above what it did before the features were there, as a multiple of them: 1 is the features
themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import resident

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

        FINCH(features("random", 500, 32), ensure_early_exit=False, ann_threshold=100)

        def package(rows: np.ndarray) -> Any:
            return FINCH(rows, ensure_early_exit=False)[1]

        return package
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


def serve(case: str, path: str) -> None:
    """One case: a line in, a line of JSON out."""
    run = work(case)
    run(features("random", 2 * BLOCK + 5, 256))
    before = resident()
    rows = np.load(path)
    print("ready", flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        counts = run(rows)
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        multiple = (resident(peak=True) - before) / rows.nbytes
        counts = None if counts is None else [int(count) for count in counts]
        print(json.dumps({"seconds": seconds, "cpu": cpu, "memory": multiple, "counts": counts}), flush=True)


def measure(kind: str, args: argparse.Namespace) -> None:
    environment = os.environ | {name: str(args.threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": str(args.threads), "PYTHONWARNINGS": "ignore"}
    processes = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features(kind, args.points, args.d))
        for case in args.cases:
            python = args.python if case == "finch-clust" else sys.executable
            processes[case] = subprocess.Popen(
                [python, __file__, "--serve", case, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            answer(processes[case])
        if args.wait:
            print("ready", flush=True)
            input()
        turns_of: dict[str, list[dict[str, Any]]] = {case: [] for case in args.cases}
        for _ in range(args.turns):
            for case, process in processes.items():
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                turns_of[case].append(json.loads(answer(process)))
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
    for case, turns in turns_of.items():
        row = {
            "set": kind,
            "case": case,
            "points": args.points,
            "d": args.d,
            "threads": args.threads,
            "turns": args.turns,
        }
        row["seconds"] = round(statistics.median(turn["seconds"] for turn in turns), 2)
        row["each"] = [round(turn["seconds"], 2) for turn in turns]
        row["cpu"] = round(statistics.median(turn["cpu"] for turn in turns), 2)
        if "bar" in turns_of:
            ratios = [turn["seconds"] / bar["seconds"] for turn, bar in zip(turns, turns_of["bar"], strict=True)]
            row["to_bar"] = round(statistics.median(ratios), 3)
        row["memory"] = round(max(turn["memory"] for turn in turns), 2)
        row["counts"] = turns[-1]["counts"]
        row["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(row), flush=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a case ended before its answer: see above")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--d", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs finch-clust")
    parser.add_argument("--wait", action="store_true", help="wait for a line before the first turn of each set")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return
    for kind in args.sets:
        measure(kind, args)


if __name__ == "__main__":
    main()
