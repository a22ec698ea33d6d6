"""Tiny runs of which one party is played by several processes; importable by these processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from worlds import LOSS, WORK, Tiny, recipe, run

from coalface.core.method import Federation, Method, Models, Party, message, state, step
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.run_state import Numerics
from coalface.training.local_training import Learner, learn

SHARDS = Numerics(threads=1, sum_block=2, processes_per_party={"silo-1": 2})
ONE = Numerics(threads=1, sum_block=2)
EXACT = Tiny(double=True, norm=True)


@dataclass(frozen=True)
class Trap(Tiny):
    """A world in which a helper process dies, fails or stops while it takes its images, once."""

    how: str = "die"
    after: int = 4
    """Batches that it takes before."""
    marker: str = ""
    """A file that says that it happened."""

    def __call__(self) -> FederatedData:
        made = super().__call__()
        trapped = Trapped(**vars(made.data["silo-1"]))
        object.__setattr__(trapped, "trap", self)
        return FederatedData({**made.data, "silo-1": trapped}, made.backbone, made.compute)


class Trapped(FaceSet):
    """The images of such a world."""

    trap: ClassVar[Any] = None
    taken = 0

    def take(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        Trapped.taken += 1
        here = multiprocessing.parent_process() is not None and not Path(self.trap.marker).exists()
        if here and Trapped.taken > self.trap.after:
            Path(self.trap.marker).touch()
            if self.trap.how == "fail":
                raise OSError("the disk is gone")
            os.kill(os.getpid(), signal.SIGKILL if self.trap.how == "die" else signal.SIGSTOP)
        return super().take(index)


def begin(folder: Path) -> None:
    """What is killed from outside: a run in a process group of its own."""
    os.setsid()
    run(long(), folder, EXACT, numerics=SHARDS, checkpoint_every=2)


def long() -> Method:
    """Long enough for a kill to come in its midst."""
    return recipe("pfm", rounds=12)[0]


@message
class Asked:
    """Down."""

    about: int


@message
class Told:
    """Up."""

    size: float
    images: int


@state
class Nothing:
    """At the server."""

    total: float


@dataclass(frozen=True, kw_only=True)
class Tells(Method):
    """Tells how large a party's class embeddings are: of a part of them, every process would tell another number."""

    title: ClassVar[str] = "tells"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    rounds: int = 1

    def init(self, fed: Federation) -> Nothing:
        return Nothing(total=0.0)

    def round(self, fed: Federation, state: Nothing) -> Nothing:
        answer = fed.ask(self.tell, common=Asked(about=1))
        return Nothing(total=sum(answer.each["size"].values()))

    @step(role="trainer")
    def tell(self, party: Party, own: Learner | None, common: Asked) -> tuple[Told, Learner]:
        _, kept = learn(party, party.initial, own, WORK, LOSS, momentum="keep")
        return Told(size=float(size_of(kept.head)), images=len(party.data)), kept

    def models(self, fed: Federation, state: Nothing) -> Models:
        return Models(shared=fed.initial)


def size_of(head: Tensor) -> Tensor:
    return torch.linalg.vector_norm(head)
