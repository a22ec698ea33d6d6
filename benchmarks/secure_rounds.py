"""What secure sums cost a party in the engine: seconds and bytes of a round, by stage, beside a round without them.

    python benchmarks/secure_rounds.py --parties 10 100

FedAvg with `cnn-small` (310,768 numbers, 1.24 MB) on synthetic faces, one local step of four images, all parties in
this process; medians over parties and rounds of the processor's seconds, commits and ledgers included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request
from coalface.experiments import run
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader

Costs = dict[str, list[tuple[float, int, int]]]
"""Stage -> (seconds, bytes up, bytes down) of each answer."""


@contextmanager
def measured() -> Iterator[Costs]:
    """Within, what each answer of a party costs."""
    costs: Costs = defaultdict(list)
    begin = PartyExecutor.begin

    def timed(executor: PartyExecutor, request: Request) -> tuple[codec.Encoded, Callable[[], None]]:
        start = time.process_time()
        reply, commit = begin(executor, request)
        seconds = time.process_time() - start

        def write() -> None:
            start = time.process_time()
            commit()
            down = sum(len(m.data) for m in (request.common, request.each) if m is not None)
            stage = "without" if request.sum is None else request.sum.stage
            costs[stage].append((seconds + time.process_time() - start, len(reply.data), down))

        return reply, write

    PartyExecutor.begin = timed  # type: ignore[method-assign]
    try:
        yield costs
    finally:
        PartyExecutor.begin = begin  # type: ignore[method-assign]


def measure(parties: int, rounds: int, secure: bool) -> Costs:
    changes = ["method=fedavg", f"rounds={rounds}", f"privacy.secure={str(secure).lower()}", "evaluation.pairs={}"]
    faces = f"{{kind: synthetic, identities: {2 * parties}, images: 4}}"
    changes += [f"data={{size: 64, faces: {faces}, hold_out: 0, partition: {{parties: {parties}}}}}"]
    changes += ["local.steps_per_round=1", "local.batch_size=4", "engine.save_replies=true"]
    with tempfile.TemporaryDirectory() as folder, measured() as costs:
        run.run(loader.load(None, changes), Path(folder) / "run", Callback(), report=False)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for parties in options.parties:
        costs: dict[str, Any] = measure(parties, options.rounds, secure=False) | measure(
            parties, options.rounds, secure=True
        )
        for stage, answers in costs.items():
            seconds, up, down = (statistics.median(column) for column in zip(*answers, strict=True))
            print(f"{parties:5} parties  {stage:10} {1000 * seconds:8.1f} ms  up {up:9,.0f} B  down {down:9,.0f} B")


if __name__ == "__main__":
    main()
