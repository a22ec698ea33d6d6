"""What a client costs beside its training, by stage, in microseconds: everything but forward, backward and SGD's step.

    python benchmarks/overhead.py                    # 200 clients of 5 images, cnn-small, one thread: three cases
    python benchmarks/overhead.py --clock wall       # by the clock, for a quiet machine
    python benchmarks/overhead.py --client-batch 256 # the same clients in client batches of 256 images
    python benchmarks/overhead.py --floor            # one plain pass over a client's data for each thing done with it

Without `--clock wall` it is the processor time of the engine's thread, which others on the machine move less; hashes
that another thread makes meanwhile are in `whole process` alone. Medians of the rounds after the second: the first
write files that later ones write over. A stage is what its functions take themselves, without those that they call.
Client batches send no single replies, so their third case is not measured.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from engine import LOSS, make_world, network, serving

from coalface.core import codec
from coalface.core.method import Party, batched, step
from coalface.engine import client_batch, local, replies
from coalface.engine.party import executor
from coalface.engine.party.commit_folder import CommitFolder
from coalface.engine.replies import ReplyAggregator
from coalface.engine.run_state import Numerics
from coalface.engine.server import Server
from coalface.engine.sums.running import RunningMean
from coalface.engine.update_bounds import UpdateBounds
from coalface.methods import fedavg
from coalface.methods.fedavg import FedAvg, Global, Update
from coalface.models import Backbone
from coalface.privacy import ledger
from coalface.training import local_training, stacked_training
from coalface.training.classifier import DenseClassifier
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining
from coalface.training.sgd import SGD

TRAINING = "forward, backward, step"
STAGES: list[tuple[Any, str, str]] = [
    (Compute, "embed", TRAINING),
    (DenseClassifier, "gradients", TRAINING),
    (SGD, "step", TRAINING),
    (stacked_training, "head_gradients", TRAINING),
    (torch.autograd, "grad", TRAINING),
    (executor.Request, "id", "request"),
    (CommitFolder, "begin", "commits looked through"),
    (CommitFolder, "look", "commits looked through"),
    (executor.PartyExecutor, "arguments", "private state read"),
    (executor.PartyExecutor, "base_of", "private state read"),
    (executor.PartyExecutor, "_parts", "private state encoded"),
    (executor, "data_identity", "whose images"),
    (executor.PartyExecutor, "begin", "executor, the rest"),
    (executor.PartyExecutor, "_run", "executor, the rest"),
    (executor.PartyExecutor, "keep", "executor, the rest"),
    (local, "run_batch", "executor, the rest"),
    (Backbone, "load", "weights in"),
    (Backbone, "shared", "weights out"),
    (Backbone, "kept", "weights out"),
    (LocalTraining, "batches", "images"),
    (Compute, "batch", "images"),
    (Compute, "many", "images"),
    (SGD, "start", "momentum of zeros"),
    (local_training, "fresh_head", "class embeddings drawn"),
    (local_training, "learn", "local training, the rest"),
    (fedavg, "learn", "local training, the rest"),
    (fedavg, "learn_together", "local training, the rest"),
    (codec, "encode", "encoding"),
    (codec, "size", "sizes"),
    (codec.Encoded, "sums", "hashes"),
    (ledger, "lines_for", "ledger"),
    (ledger, "append", "ledger"),
    (client_batch.ClientBatchLedger, "write", "ledger"),
    (executor, "write_commit", "commit"),
    (ReplyAggregator, "_read", "decoding"),
    (codec, "validate", "validation"),
    (UpdateBounds, "admit", "bounds"),
    (RunningMean, "add", "sums"),
    (ReplyAggregator, "take", "server, the rest"),
    (ReplyAggregator, "take_batch", "server, the rest"),
    (replies, "receipt", "server, the rest"),
    (Server, "_one_round", "server, the rest"),
    (Server, "_checkpoint", "checkpoint"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stateless(FedAvg):
    """FedAvg whose clients keep nothing: their class embeddings are drawn anew in every round."""

    @step(role="trainer")
    def train(self, party: Party, common: Global) -> Update:
        loss, _ = local_training.learn(party, common.backbone, None, self.local, self.loss, momentum=self.momentum)
        return Update(backbone=party.backbone.shared(), images=len(party.data), loss=loss)

    @batched("train")
    def train_batched(self, parties: Sequence[Party], common: Global) -> list[Update]:
        return [reply for reply, _ in super().train_batched(parties, [None] * len(parties), common)]


class Stopwatch:
    """Nanoseconds by stage; the innermost stage that is under way has them."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.spent: collections.Counter[str] = collections.Counter()
        self._clock, self._under_way, self._since = clock, [""], clock()

    def _turn(self) -> None:
        now = self._clock()
        self.spent[self._under_way[-1]] += now - self._since
        self._since = now

    def watched(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._turn()
            self._under_way.append(stage)
            try:
                return function(*arguments, **keywords)
            finally:
                self._turn()
                self._under_way.pop()

        return call

    def watch(self, owner: Any, name: str, stage: str) -> None:
        function = vars(owner)[name]
        if isinstance(function, functools.cached_property):
            replaced: Any = functools.cached_property(self.watched(function.func, stage))
            replaced.__set_name__(owner, name)
        elif isinstance(function, property):
            assert function.fget is not None
            replaced = property(self.watched(function.fget, stage))
        else:
            replaced = self.watched(function, stage)
        setattr(owner, name, replaced)


def measure(
    watch: Stopwatch, clients: int, images: int, rounds: int, client_batch: int, *, save: bool, private: bool
) -> dict[str, float]:
    """Microseconds a client by stage, with those of the whole process and of the round."""
    world = make_world("cnn-small", clients, 1, images)
    method = (FedAvg if private else Stateless)(
        rounds=rounds, local=LocalTraining(batch_size=images, lr=0.01), loss=LOSS
    )
    turns: list[dict[str, float]] = []
    before = time.process_time()

    def report(record: dict[str, Any]) -> None:
        nonlocal before
        now = time.process_time()
        spent = {stage: ns / 1e3 for stage, ns in watch.spent.items() if stage}
        turns.append({**spent, "whole process": 1e6 * (now - before), "round": 1e6 * record["seconds"]})
        before = now
        watch.spent.clear()

    numerics = Numerics(threads=1, client_batch=client_batch)
    with serving(method, lambda: world, numerics, save_replies=save, report=report) as server:
        server.run()
    stages = {stage for turn in turns for stage in turn}
    return {s: statistics.median(turn.get(s, 0.0) for turn in turns[2:]) / clients for s in stages}


def floor(turns: int = 50) -> dict[str, float]:
    """Microseconds of processor time of plain passes over a model, medians, with caches as training leaves them.

    What is promised for each client singly takes these at least.
    """
    torch.set_num_threads(1)
    backbone = network("cnn-small")
    module, sent = list(backbone.parameters.values()), list(backbone.shared().values())
    row, start = (torch.cat([t.reshape(-1) for t in sent]) for _ in range(2))
    sums, other = torch.zeros(len(row), dtype=torch.float64), torch.ones(1 << 22)
    passes: dict[str, Callable[[], Any]] = {
        "into the module": lambda: torch._foreach_copy_(module, sent),
        "into the encoding": lambda: torch.cat([t.reshape(-1) for t in sent], out=row),
        "norm of the change": lambda: torch.linalg.vector_norm(row - start),
        "into sums of float64": lambda: sums.add_(row, alpha=5.0),
        "SHA-256, on another thread": lambda: hashlib.sha256(row.numpy().data).digest(),
    }
    spent: dict[str, list[float]] = {name: [] for name in passes}
    with torch.no_grad():
        for _ in range(turns):
            for name, once in passes.items():
                other.add_(1)  # 16 MiB, as a step goes through
                began = time.thread_time_ns()
                once()
                spent[name].append((time.thread_time_ns() - began) / 1e3)
    return {f"{name}, {row.nbytes / 1e6:.2f} MB": statistics.median(times) for name, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("thread", "wall"), default="thread")
    parser.add_argument(
        "--client-batch", type=int, default=0, help="images of a client batch (default: client by client)"
    )
    parser.add_argument("--floor", action="store_true")
    options = parser.parse_args()
    if options.floor:
        print("\n".join(f"{name:40}{microseconds:8.0f} µs" for name, microseconds in floor().items()))
        return
    watch = Stopwatch(time.thread_time_ns if options.clock == "thread" else time.perf_counter_ns)
    for owner, name, stage in STAGES:
        watch.watch(owner, name, stage)
    cases = {
        "nothing kept or saved": (False, False),
        "private state kept": (False, True),
        "and replies saved": (True, True),
    }
    if options.client_batch:
        del cases["and replies saved"]
    run = functools.partial(measure, watch, options.clients, options.images, options.rounds, options.client_batch)
    columns = {title: run(save=save, private=private) for title, (save, private) in cases.items()}
    print(f"{'µs a client':26}" + "".join(f"{title:>24}" for title in columns))
    overhead = [s for s in dict.fromkeys(stage for _, _, stage in STAGES) if s != TRAINING]
    for column in columns.values():
        column["overhead"] = sum(column.get(stage, 0.0) for stage in overhead)
    for stage in [*overhead, "overhead", TRAINING, "whole process", "round"]:
        print(f"{stage:26}" + "".join(f"{column.get(stage, 0.0):24.0f}" for column in columns.values()))


if __name__ == "__main__":
    main()
