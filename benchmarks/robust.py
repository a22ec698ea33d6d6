"""What robust means cost, and what they survive: rule × attack × share of the parties that lie, and the server's time.

    python benchmarks/robust.py --out docs/results/robust          # what cells.jsonl there lacks; 22 minutes in all
    python benchmarks/robust.py --out docs/results/robust --seeds 0 --worlds fedavg
    python benchmarks/robust.py --speed                            # seconds of one aggregation, by rule

The recipe is `attacks/poisoned`, in which updates are not bounded by their size, so that what holds is the rule. A line
of cells.jsonl is a run; table.md has the means over seeds of all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from coalface.engine.robust.aggregators import AGGREGATORS
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.progress import Progress
from coalface.experiments.recipe import loader
from coalface.models.speed import processor

SILOS = 10
BASE = loader.read("attacks/poisoned")
"""Ten silos of eight people, 48 images each; 80 others are evaluated."""
AT_MOST = 2.0
"""Points that the right rule was expected to lose at the most, before the runs."""
SHARE = 0.2
"""What rules that count liars are told, whatever the attack."""
RULES: dict[str, dict[str, Any] | None] = {
    "mean": None,
    "median": {"name": "median"},
    "trimmed-mean": {"name": "trimmed-mean", "byzantine": SHARE},
    "geometric-median": {"name": "geometric-median"},
    "krum": {"name": "krum", "byzantine": SHARE},
    "multi-krum": {"name": "multi-krum", "byzantine": SHARE},
    "centred-clipping": {"name": "centred-clipping"},
    "norm-bound": {"name": "norm-bound"},
    "mixing, trimmed-mean": {"name": "trimmed-mean", "byzantine": SHARE, "mixing": True},
    "mixing, krum": {"name": "krum", "byzantine": SHARE, "mixing": True},
    "bucket 2, median": {"name": "median", "bucket": 2},
    "equal weights": {"name": "trimmed-mean", "byzantine": 0},
}
"""The last is a mean of equal weights, as a control where silos differ in size."""
LIES = ("scaled", "flipped", "shifted", "pushed")
"""Of `faults.corrupt`."""
ATTACKS: dict[str, dict[str, str]] = {"none": {}} | {
    f"{lie} {10 * liars} %": {f"silo-{5 * i:02d}": lie for i in range(liars)} for lie in LIES for liars in (1, 2)
}
DIRICHLET = {"kind": "dirichlet", "parties": SILOS, "alpha": 0.3}
WORLDS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "fedavg": (
        {"method": "fedavg"},
        tuple(RULES)[:9],
        tuple(ATTACKS),
    ),
    "scaffold": (
        {"method": "scaffold"},
        ("mean", "median", "trimmed-mean", "multi-krum"),
        ("none", "scaled 20 %", "pushed 20 %"),
    ),
    "fedavg, dirichlet 0.3": (
        {"method": "fedavg", "data": {"partition": DIRICHLET}},
        tuple(name for name in RULES if name not in ("trimmed-mean", "centred-clipping")),
        ("none", "pushed 20 %"),
    ),
}
"""Changes of the recipe, rules and attacks."""
Cell = tuple[str, str, str, int]
"""World, rule, attack and seed."""


def cells(worlds: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """Seed by seed, so that what is there after a stop is whole."""
    for seed in seeds:
        for world in worlds:
            _, rules, attacks = WORLDS[world]
            yield from ((world, rule, attack, seed) for attack in attacks for rule in rules)


def outcome(cell: Cell) -> dict[str, Any]:
    """The figures of a run, and what it was computed with; why it failed where it could not be evaluated."""
    world, rule, attack, seed = cell
    changes = {"seed": seed, "engine": {"aggregator": RULES[rule]}, "faults": {"corrupt": ATTACKS[attack]}}
    recipe = loader.parse(loader.merged(loader.merged(BASE, WORLDS[world][0]), changes))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        try:
            experiment.run(recipe, Path(place) / "run", Progress(quiet=True), report=False)
            summary = json.loads((Path(place) / "run" / "summary.json").read_text(encoding="utf-8"))
            kept = {name: summary["figures"]["unseen"][name] for name in ("accuracy", "eer")}
        except (RunFailed, ValueError) as error:
            kept = {"failed": str(error)}
    about = dict(zip(("world", "rule", "attack", "seed"), cell, strict=True))
    machine = {"processor": processor(), "torch": torch.__version__}
    return about | kept | {"seconds": round(time.process_time() - began, 2)} | machine


Accuracies = dict[tuple[str, str], dict[int, float | None]]
"""(rule, attack) -> seed -> accuracy in percent; None of a run that failed."""


def table(done: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For every world a table of rules by attacks: accuracy in percent, means over seeds, and the worst losses."""
    for world, (_, rules, attacks) in WORLDS.items():
        accuracies: Accuracies = {}
        for run in done:
            if run["world"] == world:
                accuracies.setdefault((run["rule"], run["attack"]), {})[run["seed"]] = run.get("accuracy")
        if not accuracies:
            continue
        seeds = sorted({seed for by_seed in accuracies.values() for seed in by_seed})
        deviation, freedom = spread([accuracies.get((rule, attack), {}) for rule in rules for attack in attacks])
        yield f"\n## {world}\n\nAccuracy in percent, means over seeds {', '.join(map(str, seeds))}.\n"
        yield f"| rule | {' | '.join(attacks)} | worst loss to its own | to the mean's |"
        yield f"|---|{'---:|' * (len(attacks) + 2)}"
        for rule in rules:
            row = [mean_text(accuracies.get((rule, attack), {})) for attack in attacks]
            for honest in (rule, rules[0]):
                losses = [
                    paired(accuracies.get((honest, "none"), {}), accuracies.get((rule, attack), {}))
                    for attack in attacks[1:]
                ]
                row.append(loss_text(losses, deviation, freedom))
            yield f"| {rule} | {' | '.join(row)} |"
        yield (
            f"\nStandard deviation of one run, beside what all runs of its seed have in common: {deviation:.1f}. Worst "
            "loss: the largest over the attacks, to the rule's own runs without a liar, and to the mean's, in points, "
            f"with a 95 % interval; whether it is at most {AT_MOST:g} is shown where all attacks' intervals are below "
            "that, and refuted where one lies above."
        )


def mean_text(by_seed: dict[int, float | None]) -> str:
    """The mean of the runs of a setting that came to their end, and how many did not."""
    ended = [accuracy for accuracy in by_seed.values() if accuracy is not None]
    if len(ended) == len(by_seed):
        return f"{statistics.mean(ended):.1f}" if ended else ""
    return f"{statistics.mean(ended):.1f}, {len(by_seed) - len(ended)} of {len(by_seed)} fail" if ended else "fails"


def paired(honest: dict[int, float | None], attacked: dict[int, float | None]) -> list[float | None]:
    """Seed by seed how much an attack costs; None where the run failed."""
    return [
        None if (after := attacked[seed]) is None else before - after
        for seed, before in sorted(honest.items())
        if before is not None and seed in attacked
    ]


def spread(settings: Sequence[dict[int, float | None]]) -> tuple[float, int]:
    """(standard deviation, degrees of freedom) of what is left of accuracies, of settings whole over all their seeds.

    What all runs of a setting, or of a seed, have in common is taken off: the residuals of a two-way layout.
    """
    most = max(len(by_seed) for by_seed in settings)
    whole = [s for s in settings if len(s) == most and None not in s.values()]
    values = np.array([[by_seed[seed] for seed in sorted(by_seed)] for by_seed in whole], dtype=np.float64)
    left = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    freedom = (len(values) - 1) * (most - 1)
    return math.sqrt(float((left**2).sum()) / freedom), freedom


def loss_text(losses: Sequence[list[float | None]], deviation: float, freedom: int) -> str:
    """The largest mean of some attacks' losses with its interval, and whether all are at most `AT_MOST`."""
    if any(None in by_seed for by_seed in losses):
        return "fails"
    bounds = []
    for by_seed in losses:
        mean = statistics.mean(loss for loss in by_seed if loss is not None)
        half = float(student.ppf(0.975, freedom)) * deviation * math.sqrt(2 / len(by_seed))
        bounds.append((mean, half))
    verdict = "undecided"
    if all(mean + half <= AT_MOST for mean, half in bounds):
        verdict = "shown"
    elif any(mean - half > AT_MOST for mean, half in bounds):
        verdict = "refuted"
    worst, half = max(bounds)
    return f"{worst:.1f} ± {half:.1f}, {verdict}".replace("-", "−")


def tell_speed() -> None:
    """Seconds of one aggregation at the server, one thread, float32 replies."""
    sizes = ((10, 500_000), (20, 500_000), (10, 5_000_000))
    print(f"| rule | {' | '.join(f'{n} × {d / 1e6:g} M' for n, d in sizes)} |\n|---|{'---:|' * len(sizes)}")
    for rule, settings in RULES.items():
        seconds = []
        for n, d in sizes:
            vectors = torch.from_numpy(np.random.default_rng(0).standard_normal((n, d), dtype=np.float32))
            seconds.append(min(_timed(vectors, settings) for _ in range(3)))
        print(f"| {rule} | {' | '.join(f'{s:.2f}' for s in seconds)} |", flush=True)


def _timed(vectors: torch.Tensor, settings: dict[str, Any] | None) -> float:
    def mean() -> torch.Tensor:
        total = torch.zeros(vectors.shape[1], dtype=torch.float64)
        for vector in vectors:
            total.add_(vector)
        return total / len(vectors)

    combine: Callable[[], torch.Tensor] = mean
    if settings is not None:
        given = dict(settings)
        aggregator = AGGREGATORS[given.pop("name")](**given)
        combine = lambda: aggregator.combine(vectors, np.random.default_rng(0))  # noqa: E731
    began = time.process_time()
    combine()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("robust"))
    parser.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.speed:
        tell_speed()
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "cells.jsonl"
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    there = {(run["world"], run["rule"], run["attack"], run["seed"]) for run in done}
    for cell in cells(options.worlds, options.seeds):
        if cell not in there:
            done.append(run := outcome(cell))
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(run, ensure_ascii=False) + "\n")
            print(
                f"{run.get('accuracy', math.nan):5.1f} {run['seconds']:5.1f} s  {' · '.join(map(str, cell))}",
                flush=True,
            )
    lines = [
        "# Robust means: all runs",
        "",
        "By `python benchmarks/robust.py`; what it says is in [robust means](../../robust-means.md).",
    ]
    text = "\n".join([*lines, *table(done)]) + "\n"
    (options.out / "table.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
