"""What it saves that parties of one process compute the features of the public images together, once a round.

    python benchmarks/public.py                                        # 10 clients of 600 images, 3,000 public ones
    python benchmarks/public.py --recipe joint/synthetic               # 10 clients of 300 images, 15,000 public ones

Rounds of `fedfr-joint` by a recipe, from its pre-trained model: as they are, and with every client computing the
features by itself. Both run in this process and take turns; a run's first round is left out. The ratio is of the
processor time of a client's round, without evaluation and checkpoints. The model is the same in both, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coalface.experiments import run as experiment
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader, schema
from coalface.training.joint import public_images

NUMBERS = itertools.count()
MEMORY = {"each alone": lambda tensors: str(next(NUMBERS)), "once": public_images.digest}
"""What tells models apart whose features of the public images may be shared."""


class Clock(Callback):
    """A view that shows nothing and takes the processor time of every round."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self._before = 0.0

    def start(self, name: str, rounds: int, already: int = 0, sent: tuple[int, int] = (0, 0), before: Any = ()) -> None:
        self._before = time.process_time()

    def round(self, record: dict[str, Any]) -> None:
        processor = time.process_time()
        self.rounds.append(processor - self._before)
        self._before = processor


def measure(recipe: schema.Recipe, case: str, out: Path) -> tuple[list[float], str]:
    """(processor seconds of every round but the first, the hash of the model that the run leaves)."""
    vars(public_images)["digest"] = MEMORY[case]
    clock = Clock()
    experiment.run(recipe, out, clock, report=False)
    model = (out / "model" / "backbone.safetensors").read_bytes()
    return clock.rounds[-(recipe.rounds or 0) + 1 :], hashlib.sha256(model).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("joint/rehearsal"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    changes = [f"rounds={options.rounds}", "evaluation={pairs: {}}", f"engine.checkpoint_every={10**6}"]
    recipe = loader.load(options.recipe, changes)
    seconds: dict[str, list[float]] = {"each alone": [], "once": []}
    ratios, models = [], set()
    with tempfile.TemporaryDirectory() as place:
        for turn in range(options.turns):
            for case in seconds:
                shared, model = measure(recipe, case, Path(place) / f"{case} {turn}")
                seconds[case] += shared
                models.add(model)
            ratios.append(statistics.median(seconds["each alone"][-len(shared) :]) / statistics.median(shared))
    if len(models) > 1:
        sys.exit("the models differ: what is shared is not what each would have computed")
    for case, shared in seconds.items():
        print(f"{case:10}  {statistics.median(shared):7.2f} s of processor time a round")
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} over {options.turns} turns"
    print(f"ratio       {statistics.median(ratios):7.2f}, {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
