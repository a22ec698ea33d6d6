"""Tiny federations, and runs of methods over them; builders stand at module level for worker processes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coalface.core import codec
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import Method, Models, Tensors, generator
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.data.held_back import hide_identities
from coalface.data.pairs import PairList, balanced_pairs
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.engine.client_batch import Apart, ClientBatch
from coalface.engine.local import InProcess
from coalface.engine.party.commits import REPLY, Commit
from coalface.engine.party.request import Request
from coalface.engine.party.setup import FederatedData, Setup
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.engine.server import Server
from coalface.engine.transport import Reply
from coalface.engine.workers import Workers
from coalface.experiments.setup.domains import unlabelled
from coalface.models.groups import Backbone, BatchNormPolicy
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings
from coalface.training.compute import Compute
from coalface.training.local_work import LocalTraining
from coalface.training.losses.margins import CosFace

NUMERICS = Numerics(threads=1, sum_block=2)
LOSS = CosFace(scale=16.0, margin=0.1)
WORK = LocalTraining(epochs=1, batch_size=4, lr=0.05)

MANY = 7
"""Parties of a tiny world of one identity each."""


class Net(nn.Module):
    """16×16 grey images -> 8 numbers, by two linear layers with or without BatchNorm between them."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.embedding_size = 8
        self.down = nn.Linear(256, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.up = nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        return self.up(torch.relu(self.norm(self.down(images.flatten(1)))))


@functools.cache
def faces(identities: int, each: int) -> FaceSet:
    """Synthetic faces of 16×16 grey pixels."""
    return SyntheticFaces(identities, each, seed=3, size=16).generate()


@dataclass(frozen=True)
class Tiny:
    """Builds a world: parties of two or three identities and unequal numbers of images; the same every time."""

    parties: int = 3
    norm: bool = False
    policy: BatchNormPolicy = "average"
    pooled: bool = False
    """One party, `all`, holds everybody's images."""
    reverse: bool = False
    """Register the parties in the opposite order."""
    roles: tuple[tuple[str, str], ...] = ()
    each: int = 6
    """Images of an identity, at most."""
    flip: bool = True
    double: bool = False
    """All arithmetic in float64, for exact comparisons."""
    one_identity: bool = False
    """Each party has one identity."""
    validators: int = 0
    """Parties that hold four identities and 20 pairs of them each."""
    domains: frozenset[str] = frozenset()
    """Of a method for two domains, those it trains on: the first party is the source, the others are targets."""
    uses_target_labels: bool = False
    """The targets know who is in their images."""
    taught: bool = False
    """A teacher embeds the images: each at a direction of its identity's."""
    public: int = 0
    """Identities whose images the server and every party hold."""
    unlabelled: float = 0.0
    """The share of each identity's images whose identity their party does not know."""
    public_at_server: bool = False
    """Of these, the server alone holds the images."""

    def validating(self) -> dict[str, tuple[FaceSet, PairList]]:
        """Each validator's images and pairs."""
        whole, parties = faces(2 * self.parties + 4 * self.validators, self.each), {}
        for i in range(self.validators):
            first = 2 * self.parties + 4 * i
            view = whole.only(list(range(first, first + 4)))
            parties[f"judge-{i}"] = view, balanced_pairs(view, pairs=20, rng=np.random.default_rng(i))
        return parties

    def data(self) -> dict[str, FaceSet]:
        """Each party's images."""
        whole = faces(2 * self.parties, self.each)
        if self.pooled:
            return {"all": self.hidden(whole) if self.domains else whole}
        parties = {}
        for i in range(self.parties):
            view = whole.only([2 * i] if self.one_identity else [2 * i, 2 * i + 1])
            parties[f"silo-{i}"] = view.select(np.arange(len(view) - i % 3))
        if self.domains:
            known = {name: name == "silo-0" for name in parties if (name == "silo-0") in self.sides()}
            tells = {name: source or self.uses_target_labels for name, source in known.items()}
            parties = {name: parties[name] if told else unlabelled(parties[name], None) for name, told in tells.items()}
        return dict(reversed(parties.items())) if self.reverse else parties

    def sides(self) -> set[bool]:
        """Whether the source takes part, and whether the targets do."""
        return {side == "source" for side in self.domains}

    def hidden(self, whole: FaceSet) -> FaceSet:
        """All images of the domains at one party: the first two identities are the source's."""
        images = whole.only([i for i in range(len(whole.names)) if (i < 2) in self.sides()])
        if self.uses_target_labels:
            return images
        both_sides = len(self.sides()) == 2
        return replace(
            images,
            labels=np.where(images.labels < 2 * both_sides, images.labels, -1),
            names=images.names[: 2 * both_sides],
            files=None,
        )

    def trained(self) -> FaceSet:
        """The images, of as many as there are, of the first identity of every party."""
        return faces(2 * self.parties, self.each).only(list(range(0, 2 * self.parties, 2)))

    def public_faces(self) -> FaceSet | None:
        """The public images, of identities that no party holds."""
        first = 2 * self.parties + 4 * self.validators
        return faces(first + self.public, self.each).only(range(first, first + self.public)) if self.public else None

    def __call__(self) -> FederatedData:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(5)  # `torch.manual_seed` notes the stack for each device
            net = Net(norm=self.norm)
        backbone = Backbone(net.double() if self.double else net, self.policy)
        dtype = torch.float64 if self.double else torch.float32
        validators, trainers, unknown = self.validating(), self.data(), dict[str, FaceSet]()
        for name in trainers if self.unlabelled else ():
            rng_of = functools.partial(generator, 0, "unlabelled", name)
            trainers[name], unknown[name] = hide_identities(trainers[name], self.unlabelled, rng_of)
        kinds = {n: f"trainer/{'source' if n == 'silo-0' else 'target'}" for n in trainers} if self.domains else {}
        return FederatedData(
            trainers | {name: faces for name, (faces, _) in validators.items()},
            backbone,
            Compute(augment=Augment(flip=self.flip), dtype=dtype),
            public=None if self.public_at_server else self.public_faces(),
            server_public=self.public_faces() if self.public_at_server else None,
            unlabelled=unknown,
            roles=dict(self.roles) | dict.fromkeys(validators, "validator") | ({} if self.pooled else kinds),
            pairs={name: pairs for name, (_, pairs) in validators.items()},
            taught={name: np.eye(8, dtype=np.float32)[images.labels] for name, images in trainers.items()}
            if self.taught
            else {},
        )


@dataclass(frozen=True, eq=False)
class Ran:
    """A run that came to its end."""

    server: Server
    state: Any
    models: Models
    folder: Path

    def own_models(self) -> dict[str, Tensors]:
        """Every party's own model."""
        return dict(self.server.local_results(OWN_MODEL, self.models))

    def bytes(self) -> dict[str, bytes]:
        """Everything whose bits are promised: the state, the metrics, the parties' private state and ledgers."""
        parts = {"state": bytes(codec.pack(self.state).data), "metrics": (self.folder / "metrics.jsonl").read_bytes()}
        if (cohorts := self.folder / "cohorts.jsonl").exists():
            parts["cohorts"] = cohorts.read_bytes()
        for path in sorted((self.folder / "ledger").glob("*.jsonl")):
            parts[f"ledger {path.stem}"] = path.read_bytes()
        for path in sorted((self.folder / "parties").rglob("*.commit")):
            size = len(Commit.open(path).shards) + 1
            for rank in range(size):
                commit = Commit.open(path).part(rank, size)
                for name in commit.spans:
                    data = commit.read(name)
                    assert data is not None
                    if name != REPLY:  # replies may be saved or not
                        parts[f"{path.parent.name} {path.stem} {name}{f' of shard {rank}' * (rank > 0)}"] = bytes(data)
        return parts


def setup(method: Method, folder: Path, build: Callable[[], FederatedData], *, seed: int = 0, **changes: Any) -> Setup:
    """What a process needs to play the parties of a tiny run."""
    return Setup(method, build, changes.pop("numerics", NUMERICS), seed, folder, **changes)


def run(
    method: Method,
    folder: Path,
    build: Callable[[], FederatedData] = Tiny(),  # noqa: B008 - frozen
    *,
    transport: Callable[[Setup, FederatedData], Any] = InProcess,
    observers: Iterable[Any] = (),
    report: Callable[[dict[str, Any]], None] = lambda record: None,
    numerics: Numerics = NUMERICS,
    save_replies: bool = True,
    privacy: PartyPrivacy | None = None,
    secret: bytes | None = None,
    secure: SecureSettings | None = None,
    **rules: Any,
) -> Ran:
    """Run, or resume, a method over a tiny world to its end."""
    world = build()
    conduct = RoundPolicy("test", **rules)
    settings: dict[str, Any] = {"numerics": numerics, "save_replies": save_replies, "templates": conduct.templates}
    party_setup = setup(method, folder, build, seed=conduct.seed, secure=secure, privacy=privacy, **settings)
    carrier = transport(party_setup, world)
    try:
        server = Server(
            method,
            conduct,
            numerics,
            carrier,
            folder,
            backbone=build().backbone,
            public=world.at_server,
            privacy=privacy,
            secret=None if secret is None else lambda: secret,
            secure=secure,
            observers=tuple(observers),
            report=report,
        )
        state, models = server.run()
        return Ran(server, state, models, folder)
    finally:
        carrier.close()


def workers(n: int, window: int = 4) -> Callable[[Setup, FederatedData], Workers]:
    """A transport of n worker processes."""
    return lambda setup, world: Workers(setup, world, n, window)


def raw(tensors: Tensors) -> dict[str, bytes]:
    """Tensors as bytes, to compare bits."""
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


class Stop(Exception):
    """The process is stopped here."""


def stopping(after: int) -> type[InProcess]:
    """A transport that stops when the parties have answered so many requests: their work is done, and nobody hears.

    A client batch counts as one.
    """
    remaining = [after]

    class Stopping(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for answered in super().exchange(requests):
                if remaining[0] == 0:
                    raise Stop
                remaining[0] -= 1
                yield answered

        def batched(
            self, requests: Iterable[Request], images: int
        ) -> Iterator[tuple[Request, Reply] | ClientBatch | Apart]:
            for item in super().batched(requests, images):
                if isinstance(item, ClientBatch):
                    if remaining[0] == 0:
                        raise Stop
                    remaining[0] -= 1
                yield item

    return Stopping


def tiny(cls: type[Method], **settings: Any) -> tuple[Method, Tiny]:
    """A method with settings for a tiny run, and the federation that it is for."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    common = {"rounds": 3, "local": WORK, "loss": LOSS}
    method = cls(**({name: value for name, value in common.items() if name in names} | settings))
    validated = any(declared.role == "validator" for _, declared in method.steps.values())
    build = Tiny(
        parties=MANY if cls.scenario == "devices" else 3,
        pooled=bool(cls.pools),
        one_identity=cls.scenario == "devices",
        validators=2 if validated else 0,
        domains=cls.sides if cls.scenario == "domains" else frozenset(),
        uses_target_labels=cls.pools == "images and labels",
        taught=cls.taught,
        public=3 if cls.scenario == "private-public" else 0,
        unlabelled=0.5 if method.uses_unlabelled else 0.0,
        public_at_server=cls.public_at_server,
    )
    return method, build
