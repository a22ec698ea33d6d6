"""Time and memory of a step of the spreadout regulariser, against the bare product of the class embeddings.

    python benchmarks/spreadout.py                    # 20,000 × 512
    python benchmarks/spreadout.py --classes 100000   # a few minutes for each row

The limit is W Wᵀ in the same blocks and nothing done with it: C² inner products. Every case and the limit run in a
process of their own, and take turns; a ratio is the median over turns of (this case / the limit of the same turn). Each
unordered pair is computed once, half of the limit's work; where all pairs are nearer than the margin the gradient costs
two more such halves. *Sparse*: a hundred rows at a time lie around a centre of their own, near to each other and
to few others. *Dense*: all lie around one centre, at cosines of about 0.5, and are near to each other.
Memory is the most that a process had above what it held with the class embeddings made.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import measuring
import torch

from coalface.training.losses.spreadout import BLOCK, cosine_histogram, spread_out

CASES: dict[str, tuple[int, dict[str, Any] | None]] = {
    "limit": (100, None),
    "full, sparse": (100, {}),
    "full, dense": (0, {}),
    "top-k, sparse": (100, {"top_k": 10}),
    "top-k, dense": (0, {"top_k": 10}),
    "histogram": (100, {}),
}
"""How many rows have a centre in common (0: all), and the settings."""


def class_embeddings(count: int, d: int, together: int) -> torch.Tensor:
    """(count, d) unit rows, made in place: what making them takes must not hide what a step takes."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(count, d, generator=g)
    for start in range(0, count, together or count):
        rows[start : start + (together or count)] += torch.randn(d, generator=g)
    for part in rows.split(BLOCK):
        part /= part.norm(dim=1, keepdim=True)
    return rows


def bare(rows: torch.Tensor) -> None:
    out = torch.empty(BLOCK, BLOCK)
    for left in rows.split(BLOCK):
        for right in rows.split(BLOCK):
            torch.mm(left, right.T, out=out.view(-1)[: len(left) * len(right)].view(len(left), len(right)))


def make_case(name: str, args: argparse.Namespace) -> Callable[[], tuple[float, float]]:
    """A turn of a case: its seconds, and MiB above the class embeddings."""
    torch.set_num_threads(args.threads)
    together, settings = CASES[name]
    rows = class_embeddings(args.classes, args.embedding_size, together)
    spread_out(rows[:64], step=0.01)
    bare(rows[: BLOCK // 8])
    before = measuring.resident()

    def step() -> None:
        if settings is None:
            bare(rows)
        elif name == "histogram":
            cosine_histogram(rows)
        else:
            spread_out(rows, step=1e-6, **settings)

    return lambda: (measuring.seconds(step), (measuring.resident(peak=True) - before) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=20_000)
    parser.add_argument("--embedding-size", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[name for name in CASES if name != "limit"], help="these cases")
    args = parser.parse_args()
    names = ["limit", *(name for name in CASES if name != "limit" and name in (args.only or CASES))]
    cases = {name: measuring.OwnProcess(make_case, name, args) for name in names}
    turns = measuring.take_turns(cases, args.turns)
    pairs = f"{args.classes:,} × {args.embedding_size}, float32, {args.threads} threads, {args.turns} turns"
    print(f"{pairs}; a matrix of class embeddings is {args.classes * args.embedding_size / 2**18:.0f} MiB")
    for name in names:
        ratio = statistics.median(turn[name][0] / turn["limit"][0] for turn in turns)
        spent = f"{statistics.median(turn[name][0] for turn in turns):8.2f} s, {ratio:.3f} of the limit's"
        print(f"{name:14}{spent}, {turns[-1][name][1]:.0f} MiB above the class embeddings", flush=True)


if __name__ == "__main__":
    main()
