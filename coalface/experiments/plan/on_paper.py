"""A method on paper: its server code over a federation that answers with empty numbers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalface.core import codec, compression
from coalface.core.calls import check_call, check_models, check_state
from coalface.core.compression import Updates
from coalface.core.declarations import Tensors, contents, counterparts, without_none
from coalface.core.errors import RecipeError
from coalface.core.method import Answer, Backbone, Federation, Mean, Method, Ticket, generator
from coalface.core.steps import plays
from coalface.data.faceset import FaceSet
from coalface.engine.sums import planned as planned_sums
from coalface.engine.sums.planned import PlannedSum
from coalface.experiments.plan.messages import Plan, PlannedStage, Sent, in_header, what_stays
from coalface.privacy import secure as secure_settings
from coalface.privacy.accountant import Drawn, Mechanism
from coalface.privacy.dp import COUNTS_REPLIES, POSTED, QUORUM, UNSHARED, Draws, PartyPrivacy, check_tensors
from coalface.privacy.dp import check_call as check_private
from coalface.privacy.secure import SecureSettings
from coalface.training.joint.public_images import PublicImages

IMAGES = 1_000
TYPICAL: dict[Any, int | float | str] = {int: IMAGES, float: 1 / 3, bool: False, str: ""}
"""Numbers of a reply that are not known before it comes: a plan counts as many digits as they commonly have."""
NO_BACKBONE = "its server's state has no `backbone`"
OWN_STEP = "its server makes the global backbone in a way of its own"


def plan(
    method: Method,
    parties: Mapping[str, Sequence[str]],
    backbone: Backbone,
    public: FaceSet | None = None,
    updates: Updates | None = None,
    privacy: PartyPrivacy | None = None,
    secure: SecureSettings | None = None,
) -> Plan:
    """Follow the first two rounds of each stage of a method over `parties` (role -> names), and what it would leave.

    What differs between the two, such as a field that is None at first, is planned as in the second.

    `public` are the images that all of them hold, `updates` the type that updates are sent in. Raises DeclarationError,
    TypeError or ValueError where the method says what no engine could carry out, or `privacy` or `secure` could not
    protect.
    """
    fed = _Paper(method, parties, backbone, public, updates, privacy, secure)
    stages, noised, state = [], [], None
    steps: list[str | None] = []
    for stage in method.stages():
        state = check_state(method, stage, stage.begin(fed, state), beginning=True)
        for fed.round in range(1, max(1, min(2, stage.rounds)) + 1):
            fed.begin_round()
            before, state = state, check_state(method, stage, stage.round(fed, state))
            steps.append(fed.server_step(before, state))
        stages.append(PlannedStage(stage.name, stage.rounds, fed.asked))
        noised.append(tuple(fed.noised(privacy, stage.name)) if privacy is not None else ())
        fed.asked = {}
    sent = tuple(_averaged(sent, method, {field for field, _ in fed.means}) for sent in fed.sent.values())
    models = method.models(fed, state)
    check_models(method, models, fed.parties)
    knows_class_embeddings = models.class_embeddings is not None
    if privacy is not None and not any(noised):
        raise RecipeError(UNSHARED, where="privacy.dp")
    leaves_shared = models.shared is not None
    means = tuple(fed.means)
    stays = what_stays(method)
    own_step = NO_BACKBONE if set(steps) == {None} else next(filter(None, steps), "")
    return Plan(
        sent, stays, tuple(stages), leaves_shared, knows_class_embeddings, means, tuple(noised), fed.sums, own_step
    )


class _Paper(Federation):
    """A federation on paper: it notes what is asked and answers as each reply is declared."""

    round = 1

    def __init__(
        self,
        method: Method,
        parties: Mapping[str, Sequence[str]],
        backbone: Backbone,
        public: FaceSet | None,
        updates: Updates | None,
        privacy: PartyPrivacy | None,
        secure: SecureSettings | None,
    ) -> None:
        self.method, self.initial, self.policy = method, backbone.shared(), backbone.policy
        self.extra_data = None if public is None else PublicImages(public)
        self.parameters = frozenset(self.initial) & frozenset(backbone.parameters)
        self.embedding_size = backbone.embedding_size
        self.updates, self.privacy, self.secure = updates, privacy, secure
        self.sums: dict[str, PlannedSum] = {}
        if privacy is not None:
            check_tensors(self.parameters, self.initial)
            if secure is not None:
                secure_settings.check_shares(privacy)
        self.begin_round()
        self.rng = generator(0, "plan")
        self.sent: dict[tuple[str, str, str], Sent] = {}
        self.asked: dict[str, int] = {}
        self.means: dict[tuple[str, str], None] = {}
        self._averaged: list[Any] = []
        self._parties = {role: tuple(sorted(names)) for role, names in parties.items()}
        self._posted: dict[Ticket, Callable[[Sequence[Mean]], Answer]] = {}
        self._tickets = itertools.count()

    def parties(self, role: str) -> tuple[str, ...]:
        return tuple(sorted(name for kind, names in self._parties.items() if plays(kind, role) for name in names))

    def images(self, party: str) -> int:
        """With `privacy` or `secure` another number for each party, so that weights by images show."""
        hides = self.privacy is not None or self.secure is not None
        return IMAGES + self.parties("trainer").index(party) if hides else IMAGES

    def weights(self, role: str) -> dict[str, float]:
        return {party: float(self.images(party)) for party in self.parties(role)}

    def stream(self, *names: str | int) -> np.random.Generator:
        return generator(0, "plan", *names)

    secret_stream = stream

    def server_step(self, before: Any, after: Any) -> str | None:
        """What the server does to its backbone in a round beside taking a mean; None where it leaves it alone."""
        backbone = getattr(after, "backbone", None)
        if backbone is None or backbone is getattr(before, "backbone", None):
            return None
        return "" if any(backbone is mean for mean in self._averaged) else OWN_STEP

    def embed(self, faces: Any, backbone: Tensors) -> Tensor:
        return torch.zeros(len(faces), self.embedding_size)

    def begin_round(self) -> None:
        """Forget the draws of the round before, and what was asked for of them."""
        self.draws, self._sums = Draws("fixed"), Counter[tuple[int, Drawn] | None]()
        self._rho = 0.0

    def sample(self, role: str, n: int | None) -> tuple[str, ...]:
        return self.draws.sample(lambda: Federation.sample(self, role, n), self.parties(role), n, self.rng)

    def noised(self, privacy: PartyPrivacy, stage: str) -> Iterator[Mechanism]:
        """The mechanisms of the round; sums over the parties of one draw are one."""
        draws = {draw: draw and replace(draw[1], drawing=privacy.sampling) for draw in self._sums}
        if self.secure is not None:
            if draws:
                z = math.inf if self._rho == 0 else (2 * self._rho) ** -0.5
                yield replace(privacy.stage_mechanism(stage, draws.values(), 1), noise_multiplier=z)
            return
        for drawn in draws.values():
            privacy.check_bands(drawn)
        if privacy.sampling == "cyclic" and draws:
            yield privacy.stage_mechanism(stage, draws.values(), self._sums.total())
            return
        for draw, drawn in draws.items():
            yield Mechanism(privacy.noise_multiplier / math.sqrt(self._sums[draw]), drawn)

    def log(self, **metrics: float) -> None:
        """Numbers of a plan mean nothing."""

    def log_losses(self, losses: Mapping[str, float]) -> None:
        """Nor do these."""

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
        name, declaration, names = check_call(
            self.method, step, self.parties, to=to, common=common, each=each, aggregate=aggregate
        )
        if self.privacy is not None:
            check_private(name, declaration, aggregate, self.parties(declaration.role))
            if self.draws.are_secret and self.privacy.sampling != "cyclic" and self.secure is None:
                if at_least:
                    raise RecipeError(QUORUM, where="privacy.dp")
                if self.method.counts_replies:
                    raise RecipeError(COUNTS_REPLIES, where="privacy.dp.sampling")
            self._sums.update([self.draws.of(names)] if aggregate else [])
        own_message = each[names[0]] if each is not None else None
        self.asked[name] = len(names)
        kinds = {kind for kind, members in self._parties.items() if not set(members).isdisjoint(names)}
        role = kinds.pop() if len(kinds) == 1 else declaration.role
        for message, how in ((common, "all alike"), (own_message, "each its own")):
            if message is not None:
                self._note(name, role, "down", message, codec.encode(message), how, ())
        reply_class: Any = declaration.reply
        forms = codec.forms(reply_class, [own_message, common])
        reply = self._blank(name, reply_class, forms)
        aggregated = {mean.field for mean in aggregate}
        self.means |= {(mean.field, mean.key): None for mean in aggregate}
        if self.secure is not None:
            everyone = self.parties(declaration.role)
            means, dp = aggregate, self.privacy
            self.sums[name] = planned_sums.plan(self.secure, name, declaration, means, forms, names, everyone, dp)
            self._rho += self.sums[name].hidden.rho if dp is not None else 0.0
            for way, what, kind, holds, size in self.sums[name].messages():
                to = "the server" if way == "up" else "each its own"
                self.sent[name, way, f"{kind} {what}"] = Sent(name, role, way, what, kind, 1, size, to, content=holds)
        else:
            encoded = codec.encode(reply, change=compression.narrowing(forms, self.updates))
            self._note(name, role, "up", reply, encoded, "the server", aggregated)
        values = {f: getattr(reply, f) for f in codec.hints(reply_class)}
        single = {f: dict.fromkeys(names, v) for f, v in values.items() if f not in aggregated}
        aggregated_values = {mean.key: values[mean.field] for mean in aggregate}
        self._averaged += aggregated_values.values()
        return Answer(aggregated_values, single, {}, names)

    def post(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
    ) -> Ticket:
        if self.privacy is not None:
            raise RecipeError(POSTED, where="privacy.dp")
        if self.secure is not None:
            raise RecipeError(secure_settings.POSTED, where=secure_settings.WHERE)
        ticket = Ticket("plan", self.round, next(self._tickets))
        self._posted[ticket] = lambda aggregate: self.ask(step, to=to, common=common, each=each, aggregate=aggregate)
        self._posted[ticket](())
        return ticket

    def collect(
        self, ticket: Ticket, *, aggregate: Sequence[Mean] = (), at_least: int | None = None, optional: bool = False
    ) -> Answer:
        return self._posted.pop(ticket)(aggregate)

    def _blank(self, step: str, cls: Any, forms: codec.Forms) -> Any:
        """A reply as it is declared. Raises ValueError where every such reply would be refused."""
        values: dict[str, Any] = {}
        for name, annotation in codec.hints(cls).items():
            bare, optional = without_none(annotation)
            form = forms.get(name)
            if (plain := TYPICAL.get(annotation)) is not None:
                values[name] = plain
            elif form is not None and form.model is None:  # only the method knows: commonly named as the backbone's
                values[name] = _zeros(self.initial if bare == Tensors else None)
            elif form is not None:
                values[name] = _zeros(form.model)
            elif optional:
                values[name] = None
            else:
                like = counterparts(cls)[name]
                raise ValueError(
                    f"{type(self.method).__name__}, step {step}: {cls.__name__}.{name} must look like `{like}`, which "
                    f"is sent as None in round {self.round}, so every reply would be refused. Send `{like}` then too, "
                    f"or declare `{name}: … = free(…)`."
                )
        return cls(**values)

    def _note(
        self,
        step: str,
        role: str,
        direction: str,
        message: Any,
        encoded: codec.Encoded,
        to: str,
        aggregated: Collection[str],
    ) -> None:
        """Note the fields of a message, and its header."""
        entries, hints = {e.name: e for e in encoded.entries}, codec.hints(message.__class__)
        holds = contents(message.__class__)
        up, narrow_type = direction == "up", codec.NAMES[compression.TYPES[self.updates]] if self.updates else None
        for name in hints:
            value = getattr(message, name)
            tensors = [e for key, e in entries.items() if key == name or key.startswith(f"{name}/")]
            scales = [scale for e in tensors if (scale := entries.get(f"{compression.SCALES}{e.name}")) is not None]
            is_known = (
                not up or not isinstance(value, Tensor | dict) or counterparts(message.__class__)[name] is not None
            )
            kind = "tensors" if isinstance(value, dict) else type(value).__name__.replace("Tensor", "tensor")
            kind += f" as {self.updates}" if up and any(e.dtype == narrow_type for e in tensors) else ""
            kind += ", aggregated" if name in aggregated else ""
            before = self.sent.get((step, direction, name))
            if value is not None and before is not None and before.kind.startswith("NoneType"):
                kind += ", none in round 1"
            size = sum(e.bytes for e in (*tensors, *scales)) if is_known else None
            numbers = sum(math.prod(e.shape) for e in tensors) if is_known else 0
            self.sent[step, direction, name] = Sent(
                step, role, direction, name, kind, len(tensors), size, to, values=numbers, content=holds[name]
            )
        plain = in_header(message.__class__, [n for n in hints if isinstance(getattr(message, n), Tensor | dict)])
        about = any(kind is not bool and kind in TYPICAL for kind in hints.values())
        header = entries["header"].bytes
        self.sent[step, direction, "header"] = Sent(
            step,
            role,
            direction,
            "header",
            "names, shapes, plain values",
            0,
            header,
            to,
            about=about,
            content=plain,
        )


def _zeros(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return {n: torch.zeros_like(t) for n, t in value.items()} if isinstance(value, dict) else torch.zeros(1)


def _averaged(sent: Sent, method: Method, means: Collection[str]) -> Sent:
    """What is sent, with `aggregate` for weights that go down and are asked for as a mean: where there are parties."""
    if method.pools:
        return replace(sent, content=sent.content.replace("aggregate", "weight"))
    is_mean = sent.direction == "down" and sent.content == "weight" and sent.field in means
    return replace(sent, content="aggregate") if is_mean else sent
