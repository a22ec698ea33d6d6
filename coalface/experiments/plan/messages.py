"""What a method sends, in a round of every stage, and what it tells; what stays at the parties."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coalface.core import codec
from coalface.core.declarations import CONTENTS, contents, counterparts, kind_of, without_none
from coalface.core.method import HasSteps, Method
from coalface.core.text import several
from coalface.engine.sums.planned import PlannedSum
from coalface.privacy.accountant import Mechanism
from coalface.privacy.templates import TemplateNoise
from coalface.training.local_work import LocalTraining


@dataclass(frozen=True)
class Sent:
    """One field of one message in one round, for one party."""

    step: str
    role: str
    direction: str
    """`down` to a party, `up` to the server."""
    field: str
    kind: str
    """`tensors`, `tensor` or a plain type; `as int8` where it is narrowed, `aggregated` where a mean is asked for."""
    tensors: int
    bytes: int | None
    """None where only the method knows the shape."""
    to: str
    """`all alike` or `each its own`."""
    about: bool = False
    """True for a header that holds numbers or text: their length is not known before; it may be some 8 bytes off."""
    values: int = 0
    """Numbers in its tensors, where their shape is known."""
    content: str = ""
    """What it holds, a `Content`; of a header those of its plain values."""


@dataclass(frozen=True)
class PlannedStage:
    """One stage: its rounds, and how many parties each of its steps asks in one of them."""

    name: str
    rounds: int
    parties: dict[str, int]


@dataclass(frozen=True)
class Plan:
    """A round of every stage, as messages, and what stays at the parties."""

    sent: tuple[Sent, ...]
    stays: tuple[str, ...]
    stages: tuple[PlannedStage, ...]
    leaves_shared: bool
    """Whether a run leaves a global model, and not only one at each party."""
    class_embeddings: bool = False
    """Whether the server comes to have class embeddings of the parties' people."""
    means: tuple[tuple[str, str], ...] = ()
    """(field, name of the mean) of every mean that the server asks for."""
    noised: tuple[tuple[Mechanism, ...], ...] = ()
    """The mechanisms of differential privacy in a round of each stage, if there are any."""
    sums: Mapping[str, PlannedSum] = field(default_factory=dict)
    """The secure sum of each step, if there are any."""
    own_server_step: str = ""
    """Why the global backbone is not just a mean over the parties; empty where it is."""

    @property
    def parties(self) -> dict[str, int]:
        """How many parties are asked in a round, by step."""
        return {step: count for stage in self.stages for step, count in stage.parties.items()}

    @property
    def rounds(self) -> int:
        """Rounds of all stages."""
        return sum(stage.rounds for stage in self.stages)

    def bytes(self, direction: str, stage: PlannedStage) -> int:
        """Bytes of a direction, to or from all parties, in one round of a stage."""
        fields = [s for s in self.sent if s.direction == direction and s.step in stage.parties]
        return sum((s.bytes or 0) * stage.parties[s.step] for s in fields)

    def in_all(self, direction: str) -> int:
        """Bytes of a direction in all rounds of all stages."""
        return sum(stage.rounds * self.bytes(direction, stage) for stage in self.stages)

    def about(self, direction: str) -> bool:
        """True where the bytes of a direction depend on digits that are not known before."""
        return any(s.about or s.bytes is None for s in self.sent if s.direction == direction)


def what_stays(method: HasSteps | type[HasSteps]) -> tuple[str, ...]:
    """The private fields of every step, as `Class.field`."""
    steps = method.own_steps if isinstance(method, type) else {n: d for n, (_, d) in method.steps.items()}
    classes = {c for d in steps.values() for c in (d.own, d.keeps) if c is not None}
    return tuple(f for c in sorted(classes, key=lambda c: c.__name__) for f in _fields(c, c.__name__))


FEW = 8
"""Images of a round up to which single ones are said to be readable from an update: see `what_can_be_read`."""


def what_can_be_read(
    method: Method, planned: Plan, parties: Iterable[tuple[int, int]] = (), noise: TemplateNoise | None = None
) -> str:
    """What settings leave to be read of single people from what the trainers send, in a line; empty: nothing is known.

    `parties` are the (images, identities) of trainers; without them the settings alone speak. Templates leave with
    `noise`, if there is some. A linear layer's update
    is Σ g_i h_iᵀ and Σ g_i over the images, so from one image it gives h, and the embedding, as it is. Measured from
    one step of `cnn-small` on strangers, whose embeddings have a mean cosine of 0.70 to each other: the nearest row
    has cosine 1.00 to an image's embedding at 1 image, 0.99 at 4, 0.95 at 8, 0.91 at 16, 0.89 at 32. `FEW` is where
    the rows are still nearly embeddings, and no bound on what others can read. Where all images are one person's, the
    mean feature comes back however many they are, and after 50 steps too (0.98).
    """
    if method.pools or not any(s.direction == "up" and s.tensors for s in planned.sent):
        return ""
    trainers, work, statements = list(parties), getattr(method, "local", None), []
    alone = sum(identities == 1 for _, identities in trainers) if trainers else int(method.scenario == "devices")
    if alone:
        of = "" if alone == len(trainers) or not trainers else f" of {several(alone, 'party', 'parties')}"
        statements.append(
            f"each update{of} is made of one person's images (one identity a party), "
            "and tells that person's mean feature"
        )
    if isinstance(work, LocalTraining):
        steps = work.steps_per_round
        drawn = None if steps is None else steps * work.batch_size
        used = [min(images, drawn or images) for images, _ in trainers if images] or ([drawn] if drawn else [])
        if used and min(used) <= FEW:
            how = "a party's all" if steps is None else f"local.steps_per_round={steps}"
            statements.append(
                f"embeddings of single images, since as few as {min(used)} make an update "
                f"(local.batch_size={work.batch_size}, {how}): exactly from one, nearly from {FEW}"
            )
        elif work.batch_size <= FEW:
            statements.append(f"something of single images, since each step is on {work.batch_size} (local.batch_size)")
    if planned.class_embeddings:
        noised = "" if noise is None else f" but for its noise (z = {noise.noise_multiplier:g}, privacy.templates)"
        statements.append(f"class embeddings are sent, and a trained one is close to its person's mean feature{noised}")
    return f"can be read from what leaves: {'; '.join(statements)}" if statements else ""


def _fields(cls: type, path: str) -> list[str]:
    inner = {f"{path}.{name}": annotation for name, annotation in codec.hints(cls).items()}
    bare = {name: without_none(annotation)[0] for name, annotation in inner.items()}
    return [f for name, a in bare.items() for f in (_fields(a, name) if kind_of(a) == "private" else [name])]


def what_leaves(method: type[HasSteps]) -> dict[tuple[str, str], str]:
    """(step, field) -> its `Content`, of all that parties send by a method class, from its declarations alone.

    A step's `header` has those of its plain values, as in a ledger.
    """
    steps = dict(method.own_steps)
    for part, annotation in typing.get_type_hints(method).items():
        if isinstance(annotation, type) and issubclass(annotation, HasSteps):
            steps |= {f"{part}.{name}": declaration for name, declaration in annotation.own_steps.items()}
    leaves: dict[tuple[str, str], str] = {}
    for step, reply in {name: declaration.reply for name, declaration in steps.items()}.items():
        if reply is not None:
            leaves |= {(step, field): holds for field, holds in contents(reply).items()}
            leaves[step, "header"] = in_header(reply, counterparts(reply))
    return leaves


def in_header(cls: type, tensors: Collection[str]) -> str:
    """What the plain values of a message hold: those that are not among its `tensors`."""
    return ", ".join(sorted({c for name, c in contents(cls).items() if name not in tensors}, key=CONTENTS.index))


def as_dicts(sent: Iterable[Sent]) -> list[dict[str, Any]]:
    """For JSON, where `aggregated` is called `folded` as it always was: summaries are compared."""
    return [vars(s) | {"kind": s.kind.replace("aggregated", "folded")} for s in sent]
