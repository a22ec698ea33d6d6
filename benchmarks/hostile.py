"""What one hostile party in eight does to a run, with the bounds on updates and without; and how honest updates differ.

    python benchmarks/hostile.py                       # every method, attack and bound, seeds 0, 1 and 2
    python benchmarks/hostile.py --methods fedavg --attacks none '×1000' --bounds off 5 --seeds 0
    python benchmarks/hostile.py --honest              # how far honest updates are from their round's median

Synthetic faces of 32×32 pixels, `cnn-small`, one thread. An attack changes a party's reply on its way, x from what it
was sent, s: so its own training and private state are honest. `--honest` attacks nothing, and asks of every call which
bound would have refused nobody. `--out FILE` also writes the table.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coalface.core import codec
from coalface.engine.federation import ServerFederation
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.replies import ReplyAggregator
from coalface.engine.run_state import Call
from coalface.engine.transport import Member, Reply, RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.callbacks.progress import Progress
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe

ROUNDS = 20
MANY = 10**15
"""Images that a party says it has."""
FACES = {"size": 32, "hold_out": 60, "augment": {"flip": True}}
BASE: dict[str, Any] = {
    "name": "hostile",
    "rounds": ROUNDS,
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.2},
    "evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": 900}}},
    "engine": {"threads": 1, "checkpoint_every": ROUNDS, "max_abandoned_rounds": ROUNDS + 1, "on_error": "exclude"},
}
SILOS: dict[str, Any] = {
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.02},
    "data": FACES | {"faces": {"identities": 124, "images": 10}, "partition": {"kind": "equal", "parties": 8}},
}
"""Eight silos of eight people."""
PRETRAIN: dict[str, Any] = {
    "method": "centralized",
    "rounds": 12,
    "local": {"epochs": 1, "batch_size": 20, "lr": 0.003, "schedule": "cosine"},
    "loss": BASE["loss"],
}
PUBLIC: dict[str, Any] = {
    "faces": {"identities": 140, "images": 10},
    "scenario": "private-public",
    "private": {"identities": 16},
}
CLIENTS: dict[str, Any] = {
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
    "data": FACES | PUBLIC | {"scenario": "devices"},
    "pretrain": PRETRAIN,
}
"""Sixteen clients of one person each, that go on from a model of 64 other people."""
BOUNDS: dict[str, dict[str, Any]] = {
    "off": {"max_update_norm": 0.0},
    "5": {"max_update_norm": 5.0, "max_share": 0.5},
    "5, clip": {"max_update_norm": 5.0, "max_share": 0.5, "oversized": "clip"},
}
"""Settings of `engine`. The world of these runs is the recipe's, so that shares are bounded only where it says so."""
EIGHT = loader.merged(CLIENTS, {"data": {"scenario": "private-public", "private": {"identities": 8}}})
COMPARED = {"fedavg": SILOS, "scaffold": SILOS, "fedface": EIGHT}

Change = Callable[[Tensor, Tensor], Tensor]


def times(factor: float) -> Change:
    """An update so many times as large."""
    return lambda after, before: before + factor * (after - before)


def one_of(value: float) -> Change:
    """A tensor whose first number is another one."""

    def changed(after: Tensor, before: Tensor) -> Tensor:
        after = after.clone()
        after.view(-1)[0] = value
        return after

    return changed


def zeros(after: Tensor, before: Tensor) -> Tensor:
    """Nothing."""
    return torch.zeros_like(after)


ATTACKS: dict[str, Change | None] = {
    "none": None,
    "×10": times(10.0),
    "×1000": times(1000.0),
    "−10×": times(-10.0),
    "one number 3e38": one_of(3e38),
    "one number 1e6": one_of(1e6),
    "sign flip": times(-1.0),
    "zeros of 10¹⁵ images": zeros,
}
ONE_ONLY = ("one number 3e38", "one number 1e6")
"""Attacks on the first tensor of a field alone."""
LYING = "zeros of 10¹⁵ images"


def rewritten(message: Any, sent: Sequence[Any], attack: str) -> Any:
    """A reply after an attack on every field of tensors; the update is the difference to the field of the same name."""
    change, changes = ATTACKS[attack], dict[str, Any]()
    assert change is not None
    for name, form in codec.forms(type(message), sent).items():
        if (value := getattr(message, name)) is None:
            continue
        before = form.start
        alone = isinstance(value, Tensor)
        tensors, start = ({"": value}, {"": before}) if alone else (value, before or {})
        floats = [n for n, t in tensors.items() if t.is_floating_point()][: 1 if attack in ONE_ONLY else None]
        new = dict(tensors)
        for n in floats:
            was = start.get(n)
            new[n] = change(tensors[n], torch.zeros_like(tensors[n]) if was is None else was).to(tensors[n].dtype)
        changes[name] = new[""] if alone else new
    if attack == LYING and hasattr(message, "images"):
        changes["images"] = MANY
    return dataclasses.replace(message, **changes)


def hostile_among(trainers: Iterable[str]) -> set[str]:
    """One in eight."""
    return set(sorted(trainers)[::8])


class Hostile(InProcess):
    """The parties of a run in this process, some of whom send something else than they came to."""

    def __init__(self, setup: Setup, world: FederatedData, attack: str) -> None:
        super().__init__(setup, world)
        self._attack = attack
        self._liars = hostile_among(self.members) if ATTACKS[attack] is not None else set[str]()
        if attack == LYING:
            members = self.members.items()
            self.members = {n: Member(m.role, MANY, m.identities) if n in self._liars else m for n, m in members}

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            declared = self._context.method.steps[request.step][1]
            if request.party in self._liars and not isinstance(reply, StepFailed) and declared.reply is not None:
                pairs = ((request.each, declared.each), (request.common, declared.common))
                sent = [m.message(cls) for m, cls in pairs if m is not None and cls is not None]
                message = codec.decode(bytearray(reply.data), declared.reply)
                reply = codec.encode(rewritten(message, sent, self._attack))
            yield request, reply


@dataclasses.dataclass
class Carrier:
    """Makes the transport of a run of which some parties are hostile."""

    attack: str
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, setup: Setup, here: FederatedData) -> Hostile:
        return Hostile(setup, here, self.attack)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    accuracy: float
    eer: float
    abandoned: int
    hostile: int
    """Replies of hostile parties that did not count."""
    honest: int
    """Replies of others that did not count."""
    ended: bool = False
    """It could not be evaluated, and the figures are those of chance."""


def outcome(recipe: Recipe, attack: str) -> Outcome:
    """Run a recipe under an attack."""

    with tempfile.TemporaryDirectory() as place:
        folder, ended = Path(place) / "run", False
        try:
            experiment.run(recipe, folder, Progress(quiet=True), carrier=Carrier(attack), report=False)
            figures = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["figures"]["unseen"]
        except (RunFailed, ValueError):
            figures, ended = {"accuracy": 50.0, "eer": 50.0}, True
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names = {party for line in lines for party in (*line["failed"], *line["losses"])}
    liars = hostile_among(names)
    failed = [party for line in lines for party in line["failed"]]
    bad = sum(party in liars for party in failed)
    abandoned = sum(line["abandoned"] for line in lines)
    return Outcome(figures["accuracy"], figures["eer"], abandoned, bad, len(failed) - bad, ended)


def recipe_of(world: dict[str, Any], *changes: dict[str, Any]) -> Recipe:
    """The recipe of a world, changed."""
    tree = loader.merged(BASE, world)
    for change in changes:
        tree = loader.merged(tree, change)
    return loader.parse(tree)


# --- what honest updates are ------------------------------------------------------------------------------------------

FEW = {"rounds": 10}
"""Of the runs that are only measured: the ratios of the rounds after are those of the last ones."""
SIZES = {f"silo-{i:02d}": share for i, share in enumerate((1.0, 1.5, 2.4, 3.6, 5.5, 8.5, 13.0, 20.0))}
JOINT: dict[str, Any] = {
    "rounds": 4,  # each has every party train on the public people too
    "local": {"epochs": 1, "batch_size": 10, "lr": 0.003},
    "data": FACES | PUBLIC | {"partition": {"kind": "equal", "parties": 8}},
    "pretrain": PRETRAIN,
}
DOMAINS: dict[str, Any] = {
    "local": {"steps_per_round": 8, "batch_size": 20, "lr": 0.02},
    "data": {
        "size": 32,
        "faces": {
            "kind": "joined",
            "parts": {
                "studio": {"identities": 60, "images": 8, "domains": ["studio"]},
                "street": {"identities": 130, "images": 8, "domains": ["street"], "first": 2000},
            },
        },
        "scenario": "domains",
        "source": "studio",
        "target": "street",
        "clients": 7,
        "hold_out": 60,
        "calibrate": 10,
    },
    "evaluation": {"pairs": {"unseen": {"domain": "target", "part": "street"}}},
    "pretrain": PRETRAIN,
}
VALIDATED: dict[str, Any] = {
    "data": {"faces": {"identities": 134}},
    "validators": {f"judge-{i}": {"identities": 5, "pairs": 50} for i in range(2)},
}
DIRICHLET: dict[str, Any] = {"data": {"partition": {"kind": "dirichlet", "parties": 8, "alpha": 0.3}}}
STEPS: dict[str, Any] = SILOS | {"local": {"steps_per_round": 4, "batch_size": 20, "lr": 0.02}}
BATCHNORM: dict[str, Any] = {"model": {"name": "mobilefacenet"}}
UNEVEN: dict[str, Any] = {"data": {"partition": {"kind": "shares", "shares": SIZES}}}
HONEST: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("silos", SILOS, ("fedavg", "fedprox", "scaffold", "mime", "mimelite", "slowmo", "pfm")),
    ("silos, validators", loader.merged(SILOS, VALIDATED), ("fedavg-fv", "pfm-fv")),
    ("dirichlet 0.3", loader.merged(SILOS, DIRICHLET), ("fedavg", "scaffold", "mime", "slowmo", "pfm")),
    ("dirichlet 0.3, equal steps", loader.merged(STEPS, DIRICHLET), ("fedavg", "mime")),
    ("dirichlet 0.3, BatchNorm", loader.merged(loader.merged(SILOS, DIRICHLET), BATCHNORM), ("fedavg", "scaffold")),
    ("sizes 1 to 20", loader.merged(SILOS, UNEVEN), ("fedavg", "scaffold", "mime", "slowmo", "pfm")),
    ("clients", CLIENTS, ("fedface", "fedaws", "fedfv", "feduv", "positive-only", "random-init", "fedavg")),
    ("joint", JOINT, ("fedfr-joint", "finetune", "kd", "fedface-multi")),
    ("two domains", DOMAINS, ("fedfr-uda", "finetune-pseudo", "merge")),
]
"""Every method of whom several parties send a model in one call."""


def needed(aggregator: ReplyAggregator) -> tuple[float, str]:
    """The smallest bound at which no reply of a call is too large, to 1 %, and the field that says so."""
    low, high, replies = 1.0, 1e6, len(aggregator.arrived)
    if not (fields := aggregator.bounds.limits(low, replies)):
        return low, ""
    if too_large := aggregator.bounds.limits(high, replies):
        return float("inf"), min(too_large)
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        if too_large := aggregator.bounds.limits(middle, replies):
            low, fields = middle, too_large
        else:
            high = middle
    return high, min(fields)


def honest(recipe: Recipe) -> list[tuple[float, str, str]]:
    """Of each call of a run that compares updates: the bound it needs, the field, and the step."""
    calls: list[tuple[float, str, str]] = []

    def measured(fed: ServerFederation, aggregator: ReplyAggregator, call: Call, *rest: Any) -> ReplyAggregator:
        if len(aggregator.bounds.norms) >= 3:
            calls.append((*needed(aggregator), call.step))
        return aggregator

    bounded = ServerFederation._bounded
    ServerFederation._bounded = measured  # type: ignore[method-assign, assignment]
    try:
        with tempfile.TemporaryDirectory() as place, contextlib.suppress(RunFailed):
            experiment.run(recipe, Path(place) / "run", Progress(quiet=True), report=False)
    finally:
        ServerFederation._bounded = bounded  # type: ignore[method-assign]
    return calls


def tell_honest(seeds: Sequence[int], chosen: Sequence[str], tell: Callable[[str], None]) -> None:
    """The table of the bounds that honest runs need."""
    tell("| world | method | step | calls | bound that the median call needs | that all need | by the field |")
    tell("|---|---|---|---:|---:|---:|---|")
    for where, world, methods in HONEST:
        for name in (n for n in methods if not chosen or n in chosen):
            steps: dict[str, list[tuple[float, str]]] = {}
            for seed in seeds:
                for bound, field, step in honest(recipe_of(loader.merged(FEW, world), {"method": name, "seed": seed})):
                    steps.setdefault(step, []).append((bound, field))
            for step, calls in steps.items():
                most, field = max(calls)
                middle = statistics.median(bound for bound, _ in calls)
                tell(f"| {where} | `{name}` | {step} | {len(calls)} | {middle:.2f} | {most:.2f} | {field} |")


def tell_attacked(options: argparse.Namespace, tell: Callable[[str], None]) -> None:
    """The table of what attacks do: means over seeds; replies and rounds are those of all of them."""
    tell("| method | attack | bound | accuracy | EER | refused: hostile | honest | rounds abandoned |")
    tell("|---|---|---|---:|---:|---:|---:|---:|")
    for name in options.methods or COMPARED:
        for attack in options.attacks or ATTACKS:
            for bound in options.bounds or BOUNDS:
                changes_by_seed = [{"method": name, "seed": seed, "engine": BOUNDS[bound]} for seed in options.seeds]
                runs = [outcome(recipe_of(COMPARED[name], changes), attack) for changes in changes_by_seed]
                accuracy, eer = (statistics.mean(getattr(r, f) for r in runs) for f in ("accuracy", "eer"))
                sums = [sum(getattr(r, f) for r in runs) for f in ("hostile", "honest", "abandoned")]
                ended = " (not to be evaluated)" * any(run.ended for run in runs)
                counts = " | ".join(map(str, sums))
                tell(f"| `{name}` | {attack} | {bound} | {accuracy:.1f}{ended} | {eer:.1f} | {counts} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS)
    parser.add_argument("--bounds", nargs="+", choices=BOUNDS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(options.out, "w", encoding="utf-8") if options.out else contextlib.nullcontext() as file:

        def tell(line: str) -> None:
            for place in (sys.stdout, file):
                if place is not None:
                    print(line, file=place, flush=True)

        if options.honest:
            tell_honest(options.seeds, options.methods or (), tell)
        else:
            tell_attacked(options, tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
