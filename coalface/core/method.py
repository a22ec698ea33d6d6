"""The words in which every method is written: messages, private state, steps, means, stages, and the federation.

A method is plain server code that calls typed steps at parties. Engines carry the messages, keep the private state and
write the checkpoints; nothing in a method says which engine runs it.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch

from coalface.core.declarations import (
    DeclarationError,
    Mean,
    Tensors,
    Ticket,
    content,
    free,
    like,
    message,
    private,
    returned_state,
    state,
)
from coalface.core.steps import Component, HasSteps, batched, plays, step

__all__ = [
    "Abandoned", "Answer", "Backbone", "Component", "DeclarationError", "Federation", "HasSteps", "Mean", "Method",
    "Models", "Party", "Pools", "Scenario", "Stage", "Tensors", "Ticket", "batched", "content", "free", "generator",
    "like", "message", "plays", "private", "state", "step",
]  # fmt: skip


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A random stream of its own for every name: the key is SHA-256(seed / name / name …).

    Streams are independent of the order in which they are asked for, of the number of parties and of the engine.

    Examples:
        >>> generator(1, "silo-00", 3).integers(100) == generator(1, "silo-00", 3).integers(100)
        np.True_
    """
    key = hashlib.sha256("/".join([str(seed), *map(str, names)]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))


@dataclass(frozen=True)
class Answer:
    """What came back from an `ask` or a `collect`."""

    aggregated: dict[str, Any]
    """Every mean by its name."""
    each: dict[str, dict[str, Any]]
    """Every field that was not aggregated: party -> value, in party order."""
    failed: dict[str, str]
    """The parties whose reply does not count, with the reason."""
    arrived: tuple[str, ...]
    """The parties whose replies count, in party order."""
    hidden: Mapping[tuple[str, str | None], float] = field(default_factory=dict)
    """Where secure sums hide the replies, or `privacy.dp` single numbers: (number, weight) -> the mean that `mean`
    gives."""

    def mean(self, name: str, *, by: str | None = None) -> float:
        """The mean over parties of a number in the replies, Σ w_p x_p / Σ w_p; NaN of no replies."""
        if (name, by) in self.hidden:
            return self.hidden[name, by]
        weights = self.each[by] if by else dict.fromkeys(self.each[name], 1)
        return sum(self.each[name][p] * w for p, w in weights.items()) / sum(weights.values()) if weights else math.nan

    def without_singles(self, names: Iterable[str]) -> Answer:
        """The same without the numbers of single parties that are so named, of which their means are left."""
        single = [name for name in names if name in self.each]
        weights = (None, *({"images"} & {*single}))
        means = {(name, by): self.mean(name, by=by) for name in single for by in weights}
        return replace(self, each={n: v for n, v in self.each.items() if n not in single}, hidden=means)


class Abandoned(Exception):
    """Too few replies: the round is given up and the state stays as it was before it."""


class Backbone(Protocol):
    """A network whose tensors are told apart by what may be sent; `coalface.models.groups.Backbone` is the one."""

    module: torch.nn.Module
    """f_θ: images (n, channels, size, size) in [−1, 1] → embeddings (n, d)."""

    @property
    def embedding_size(self) -> int:
        """d, the numbers of an embedding."""

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """θ: the trained parameters by name, the module's own tensors and no copies."""

    @property
    def policy(self) -> str:
        """The run's BatchNorm policy: `average`, `local` or `parameters-only`."""

    def load(self, shared: Tensors, kept: Tensors | None = None) -> None:
        """Copy what is sent, and what the party keeps, into the module; `kept` None: it has kept nothing yet."""

    def shared(self) -> Tensors:
        """What is sent, by name: copies of the parameters and, with `average`, of BatchNorm's running statistics."""

    def kept(self) -> Tensors:
        """What the BatchNorm policy keeps at the party, by name: copies; with `average` nothing."""


@dataclass(frozen=True)
class Party:
    """What a step may see at its party."""

    name: str
    role: str
    stage: str
    round: int
    """1 in the first round of a stage, 0 while the stage begins."""
    rounds: int
    """How many rounds the stage has."""
    seed: int
    rng: np.random.Generator
    """A stream of its own for (run seed, party, stage, round, call)."""
    data: Any
    """The party's own images, a `coalface.data.faceset.FaceSet`."""
    device: torch.device
    backbone: Backbone
    """Built once a process and shared by the parties that it simulates: a step loads weights into it first."""
    initial: Tensors
    """The shared part of the backbone's first weights, which every party makes from the run's seed."""
    compute: Any
    """How images become embeddings here: `coalface.training.compute.Compute` (augmentation, autocast, memory
    layout)."""
    extra_data: Any = None
    """What the scenario gives it beside its own images: with `private-public` the
    `coalface.training.joint.public_images.PublicImages` that all parties of a process share, unless the method keeps
    them at the server; a validator the `PairList` of its images; a source client, with `domains`, a `FaceSet` of
    identities that nobody trains on, if the recipe keeps some."""
    unlabelled: Any = None
    """Images of its own whose identities it does not know, a `FaceSet`; None where it has none."""
    class_embeddings: torch.Tensor | None = None
    """(k, d) those of its identities that the recipe's `pretrain` left; None where it left none."""
    releases: Any = None
    """Where the step's reply has a `sanitised` field, the secret that its noise is drawn from, and what counts it:
    `coalface.privacy.sanitised.Releases`."""
    call: int = 0
    """Which of the round's calls the step answers."""
    secret: Callable[[], bytes] | None = None
    """At a node of the party's own: what `secret_rng` follows from."""
    shards: Any = None
    """Where several processes play the party, this one's place among them:
    `coalface.training.distributed.shards.Shards`, which local training alone looks at. All of them run a step with
    the same messages and the same `rng`."""

    def stream(self, *names: str | int) -> np.random.Generator:
        """A stream of this party's that does not change from round to round, for example for the order of an epoch."""
        return generator(self.seed, "party", self.name, *names)

    @cached_property
    def secret_rng(self) -> np.random.Generator:
        """As `rng`, for what nobody else may tell, such as a codeword: at a node of its own it follows from a secret
        that stays there. In a simulation, which is run to be repeated, whoever has the run's seed has it.
        """
        seed = self.seed if self.secret is None else int.from_bytes(self.secret(), "little")
        return generator(seed, "party", self.name, self.stage, self.round, self.call)


@dataclass(frozen=True)
class Models:
    """What a run leaves: a model for everybody, or one per party, which its step `local=OWN_MODEL` makes there."""

    shared: Tensors | None
    """The backbone for everybody by name; None where each party has a model of its own."""
    _: KW_ONLY
    common: Any = None
    """The message that the steps with a local result are given, those that take `common`."""
    class_embeddings: Tensors | None = None
    """Those that the server knows, by party, (k, d) each; for the report."""

    def __post_init__(self) -> None:
        if self.shared is not None and not (
            isinstance(self.shared, dict) and all(isinstance(t, torch.Tensor) for t in self.shared.values())
        ):
            raise DeclarationError(
                f"Models(shared=…) is a {type(self.shared).__name__}; give the tensors of the backbone by name (a "
                "dict), for example `state.backbone`, or None where each party has a model of its own."
            )

    @classmethod
    def by_policy(cls, fed: Federation, common: Any) -> Models:
        """The backbone in the message `common` for everybody; where BatchNorm keeps a part of it at the parties, the
        model that each makes of this message (`local=OWN_MODEL`).
        """
        return cls(shared=common.backbone) if fed.policy == "average" else cls(shared=None, common=common)


class Federation(ABC):
    """What a method may ask of the engine that runs it."""

    extra_data: Any
    """With `private-public` the server's `coalface.training.joint.public_images.PublicImages`; else None."""
    initial: Tensors
    """The backbone's first weights, made from the run's seed."""
    parameters: frozenset[str]
    """Which of them are trained; the others are BatchNorm's running statistics, which take no momentum and no noise."""
    policy: str
    """The run's BatchNorm policy: `average`, `local` or `parameters-only`."""
    embedding_size: int
    """d, the numbers of an embedding."""
    rng: np.random.Generator
    """A stream of its own for (run seed, server, stage, round)."""

    @property
    @abstractmethod
    def round(self) -> int:
        """The round under way, 1 for the first of a stage."""

    @abstractmethod
    def parties(self, role: str) -> tuple[str, ...]:
        """The names of the parties with a role, sorted: `trainer` is every kind of trainers, `trainer/source` one."""

    @abstractmethod
    def images(self, party: str) -> int:
        """How many images a party said it has when it joined."""

    @abstractmethod
    def weights(self, role: str) -> dict[str, float]:
        """Party -> its images as they count in a mean over the role: one party's up to `engine.max_share` of all."""

    @abstractmethod
    def ask(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
        aggregate: Sequence[Mean] = (),
        at_least: int | None = None,
    ) -> Answer:
        """Run a step at parties and wait for the replies. Raises `Abandoned` where too few replies count.

        It goes to the parties named in `to`, else to those of `each`, else to every party of the step's role.
        `at_least` raises the run's quorum for this call.
        """

    @abstractmethod
    def post(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
    ) -> Ticket:
        """Start a step beside the coming rounds; time is counted in rounds, so collecting is what waits."""

    @abstractmethod
    def collect(
        self, ticket: Ticket, *, aggregate: Sequence[Mean] = (), at_least: int | None = None, optional: bool = False
    ) -> Answer:
        """Wait for what was posted. With `optional` the round does without: the answer may be of no party at all."""

    @abstractmethod
    def stream(self, *names: str | int) -> np.random.Generator:
        """A stream of its own for (run seed, server, stage, round, names), which leaves `rng` as it is."""

    @abstractmethod
    def secret_stream(self, *names: str | int) -> np.random.Generator:
        """As `stream`, for what no party may tell: in a federation it follows from a secret of the server's."""

    @abstractmethod
    def log(self, **metrics: float) -> None:
        """Write numbers into this round's line of the metrics."""

    @abstractmethod
    def log_losses(self, losses: Mapping[str, float]) -> None:
        """Write training losses by party into that line, in the place of those that the replies say."""

    def sample(self, role: str, n: int | None) -> tuple[str, ...]:
        """N parties of a role, drawn without replacement by `rng`, sorted; with None all of them.

        Raises ValueError if there are fewer.
        """
        names = self.parties(role)
        if n is None:
            return names
        if not 0 < n <= len(names):
            raise ValueError(
                f"cannot sample {n} of {len(names)} parties with role {role!r}: ask for 1 to {len(names)}."
            )
        return tuple(names[i] for i in sorted(self.rng.choice(len(names), size=n, replace=False)))

    @abstractmethod
    def embed(self, faces: Any, backbone: Tensors) -> torch.Tensor:
        """(n, d) unit features, made at the server, of the images of a `FaceSet`, by a model that was sent or averaged.

        Under another BatchNorm policy than `average` with the BatchNorm that the run began with. Raises ValueError
        where a feature is zero or not finite.
        """

    def zeros(self) -> Tensors:
        """A zero for each number of the backbone that is trained, such as a momentum before the first round."""
        return {name: torch.zeros_like(w) for name, w in self.initial.items() if name in self.parameters}


@dataclass(frozen=True)
class Stage:
    """A part of a method with rounds of its own; it receives the state of the stage before it."""

    name: str
    rounds: int
    begin: Callable[[Federation, Any], Any]
    """(federation, the state that the stage before left, None in the first) -> the first state."""
    round: Callable[[Federation, Any], Any]
    """(federation, state) -> state; its return annotation names the class that a checkpoint restores."""

    @property
    def state(self) -> type:
        """The class of the state, from the annotation of `round`."""
        return returned_state(self.round, f"stage {self.name}: its round")


Scenario = Literal["any", "devices", "domains", "private-public"]
Pools = Literal["", "images", "images and labels"]


class Method(HasSteps, ABC):
    """A federated method: frozen hyper-parameters, server code, and steps at parties. State goes in and comes out."""

    title: ClassVar[str]
    """One line: what it is."""
    paper: ClassVar[str]
    setting: ClassVar[str]
    """`cross-silo`, `cross-device` or `any`."""
    scenario: ClassVar[Scenario] = "any"
    """The `data.scenario` that the method is for: `devices`, where each trainer has one identity; `domains`, with the
    roles `trainer/source` and `trainer/target`; `private-public`, where all hold public images too; or `any` but
    `domains`."""
    sides: ClassVar[frozenset[str]] = frozenset({"source", "target"})
    """With `domains`, whose images it trains on."""
    pools: ClassVar[Pools] = ""
    """What of all parties one party holds: then the method is a bound to compare with, not a federation. The labels of
    the targets are among it or not."""
    public_at_server: ClassVar[bool] = False
    """With `private-public`, whether the public images stay at the server; else every party holds them too."""
    learns: ClassVar[bool] = True
    """False for a baseline whose model must not come to recognise people."""
    counts_replies: ClassVar[bool] = False
    """Whether the state depends on how many replies count, beside their means; see `privacy.dp`."""
    taught: ClassVar[bool] = False
    """Whether a trainer is given a teacher's embeddings of its images, in their order, as its `extra_data`: (n, d),
    of length 1."""
    takes_public: ClassVar[bool] = False
    """Whether it is given public images where a recipe has some, though its scenario needs none."""
    rounds: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("title", "paper", "setting"):
            if not inspect.isabstract(cls) and not hasattr(cls, name):
                raise DeclarationError(f"method {cls.__name__}: give it a class variable `{name}: ClassVar[str]`.")
        for name in {"init", "round"} & set(vars(cls)):
            returned_state(getattr(cls, name), f"method {cls.__name__}: {name}", getattr(super(cls, cls), name))

    @abstractmethod
    def init(self, fed: Federation) -> Any:
        """The state before the first round."""

    @abstractmethod
    def round(self, fed: Federation, state: Any) -> Any:
        """One round: the algorithm box."""

    @abstractmethod
    def models(self, fed: Federation, state: Any) -> Models:
        """What the run leaves, from the last state; also what an observer evaluates during the run."""

    def untrained(self) -> str:
        """What is wrong with starting from a model that nobody has trained; empty where the method can."""
        return ""

    @property
    def needs_silos(self) -> bool:
        """Whether the images that it pools are marked with the silos that they would be dealt to."""
        return False

    @property
    def uses_unlabelled(self) -> bool:
        """Whether it trains on images whose identity its party does not know; else they are left out."""
        return False

    @property
    def keeps_classifier(self) -> bool:
        """Whether the source client goes on with the class embeddings that the recipe's `pretrain` left."""
        return False

    def unbatchable_reason(self, backbone: Backbone) -> str:
        """Why parties with this backbone cannot be trained as one batch; empty where they can (see `batched`)."""
        has_form = any(declaration.batched for _, declaration in self.steps.values())
        return "" if has_form else "the method has no batched form"

    def stages(self) -> tuple[Stage, ...]:
        """The method's parts in order; one stage called `train` unless the method says otherwise."""
        if not isinstance(getattr(self, "rounds", None), int):
            raise DeclarationError(
                f"method {type(self).__name__} has no number of rounds; give it a field `rounds: int = 20`."
            )
        return (Stage("train", self.rounds, begin=lambda fed, _: self.init(fed), round=self.round),)
