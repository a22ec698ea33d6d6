"""Tiny runs of which one party is played by several processes; importable by these processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from one_party import PARTY
from server_runs import metrics
from torch import Tensor
from worlds import recipe

from coalface.core import codec
from coalface.core.method import Federation, Method, Models, Party, message, state, step
from coalface.data.faceset import FaceSet
from coalface.engine.party.commits import Commit
from coalface.engine.party.setup import FederatedData
from coalface.engine.run_state import Numerics
from coalface.experiments.conformance.tiny_federation import LOSS, WORK, Ran, Tiny, run
from coalface.privacy import ledger
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
        world = super().__call__()
        trapped = Trapped(**vars(world.data["silo-1"]))
        object.__setattr__(trapped, "trap", self)
        return FederatedData({**world.data, "silo-1": trapped}, world.backbone, world.compute)


class Trapped(FaceSet):
    """The images of such a world."""

    trap: ClassVar[Any] = None
    taken = 0

    def take(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        Trapped.taken += 1
        traps_here = multiprocessing.parent_process() is not None and not Path(self.trap.marker).exists()
        if traps_here and Trapped.taken > self.trap.after:
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


def private_parts(ran: Ran, party: str = PARTY, size: int = 2) -> list[Learner]:
    """A party's last private state, by process."""
    (path,) = (ran.folder / "parties" / party).glob("*.commit")
    commit = Commit.open(path)
    return [
        codec.decode(stored, Learner)
        for r in range(size)
        if (stored := commit.part(r, size).read("Learner")) is not None
    ]


def apart(first_value: Any, second_value: Any) -> float:
    """The largest difference between two values with the same tensors."""
    first, second = (
        {path: t for field, part in vars(value).items() for path, t in codec.by_path(field, part).items()}
        for value in (first_value, second_value)
    )
    assert first.keys() == second.keys()
    return max(((first[path] - second[path]).abs().max().item() for path in first), default=0.0)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "parties" / PARTY).iterdir())


def check_same(many: Ran, one: Ran, bound: float = 1e-9) -> None:
    """Both have the same state, metrics and ledgers, but for how sums over processes round, and hashes of that.

    A number that rounds otherwise may have another digit, and so its header of JSON be 8 bytes longer or shorter.
    """
    assert apart(many.state, one.state) < bound
    for ours, theirs in zip(metrics(many.folder), metrics(one.folder), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if key == "bytes_up":
                value = pytest.approx(value, abs=100)
            elif isinstance(value, float) or (isinstance(value, dict) and key != "failed"):
                value = pytest.approx(value, abs=bound)
            assert ours[key] == value
    for party in many.server.at.party_stats:
        assert lines(many, party) == lines(one, party)
        assert ledger.verify(many.folder / "ledger" / f"{party}.jsonl").lines > 0


def lines(ran: Ran, party: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (ran.folder / "ledger" / f"{party}.jsonl").read_text().splitlines()]
    hashes = ("sha256", "chain")
    return [
        {k: v for k, v in line.items() if k not in hashes + ("bytes",) * (line["kind"] == "header")} for line in entries
    ]


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
        _, learner = learn(party, party.initial, own, WORK, LOSS, momentum="keep")
        return Told(size=float(size_of(learner.head)), images=len(party.data)), learner

    def models(self, fed: Federation, state: Nothing) -> Models:
        return Models(shared=fed.initial)


def size_of(head: Tensor) -> Tensor:
    return torch.linalg.vector_norm(head)
