"""What registered methods need in the tiny federations of the conformance suite, and one that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coalface.core.method import Method
from coalface.experiments.conformance.tiny_federation import Tiny, run, tiny
from coalface.methods import METHODS
from coalface.privacy.local_clustering import LocalClustering
from coalface.training.local_work import LocalTraining

STILL = LocalTraining(epochs=2, batch_size=4, lr=0.005)
"""For methods whose momentum stands still while a party trains: (1 − β) times the rate of the others."""
OWN: dict[str, dict[str, Any]] = {
    "fedfv": {"sample": 4, "equivalents": 5},
    "feduv": {"sample": None, "length": 127},
    "privacyface": {
        "clustering": LocalClustering(angle=1.5, members=1.0, directions=9, noise_multiplier=0.1),
        "every": 1,
    },
    "mime": {"local": STILL},
    "mimelite": {"local": STILL},
}
"""What single methods need in tiny worlds, by name."""
ONE_OF_A_KIND = ("fedavg", "scaffold", "pfm-fv", "fedface", "fedfr-joint", "fedfr-uda", "solo", "centralized")
"""Methods with state at the server alone and at the parties too, with validators, one identity a party, public images,
two domains, a model for each party, and one party."""


def recipe(name: str, **changes: Any) -> tuple[Method, Tiny]:
    """A registered method with tiny settings, and the world it is run in."""
    return tiny(METHODS[name], **(OWN.get(name, {}) | changes))


def killed_in(folder: Path, delays: Iterable[float]) -> None:
    """In a fresh process: for each delay, begin a run in a folder of its own, and kill -9 it after so many seconds."""
    for place, delay in enumerate(delays):
        child = os.fork()
        if child == 0:
            method, build = killed()
            run(method, folder / str(place), build, checkpoint_every=2)
            os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def killed() -> tuple[Method, Tiny]:
    """What `killed_in` runs: long enough for the kills to come in its midst."""
    return recipe("fedavg", rounds=8, momentum="keep")
