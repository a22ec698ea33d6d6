"""What a method declares, and the checks of it: messages, private state, server state, and steps with typed signatures.

A declaration that no engine could carry out is an error when the class is defined, and says what to write instead.
Methods import these words from `coalface.core.method`.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, dataclass_transform, overload

from torch import Tensor

from coalface.core.annotations import DeclarationError as DeclarationError
from coalface.core.annotations import resolved as resolved

Tensors = dict[str, Tensor]
"""Tensors by name, for example the parameters of a backbone."""

Kind = Literal["message", "private", "state"]
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Ticket:
    """A receipt for posted work; keep it in the state and `collect` it in a later round."""

    stage: str
    round: int
    call: int


# --- what is kept and what crosses the wire ---------------------------------------------------------------------------


def _declare(cls: C, kind: Kind) -> C:
    made: Any = dataclass(frozen=True, kw_only=True, eq=False)(cls)
    made.__coalface_kind__ = kind
    for name, annotation in resolved(made, f"{kind} {cls.__name__}").items():
        _check_field(made, name, annotation, kind)
    return typing.cast(C, made)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def message(cls: C) -> C:
    """Declare what may cross the wire: a frozen, keyword-only dataclass of tensors and plain values.

    Fields are `Tensor`, `Tensors`, `int`, `float`, `bool`, `str`, or one of these `| None`. Nothing else ever leaves a
    party. A tensor field of a reply must look (names, shapes, dtypes) like the field of the same name that was sent to
    the party; `like("other")` names another field, `free()` lifts the rule.
    """
    return _declare(cls, "message")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def private(cls: C) -> C:
    """Declare what lives at one party, across rounds and restarts. The codec refuses to encode it for the wire."""
    return _declare(cls, "private")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def state(cls: C) -> C:
    """Declare what a method keeps at the server from round to round; it is what a checkpoint holds."""
    return _declare(cls, "state")


def like(other: str) -> Any:
    """A reply's tensor field that must look like the field `other` of what was sent to the party."""
    return field(metadata={"like": other})


def free() -> Any:
    """A reply's tensor field whose shape only the method knows: it must be finite, and comes singly."""
    return field(metadata={"like": None})


def kind_of(value: object) -> Kind | None:
    """`message`, `private` or `state`, of a declared class or of one of its instances; else None."""
    return getattr(value, "__coalface_kind__", None)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True); any other annotation as (itself, False)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(rest) == 1 and len(typing.get_args(annotation)) == 2:
            return rest[0], True
    return annotation, False


def _check_field(cls: type, name: str, annotation: Any, kind: Kind) -> None:
    inner, _ = without_none(annotation)
    if inner in (Tensor, Tensors, int, float, bool, str):
        return
    where = f"{cls.__name__}.{name}"
    if kind == "message":
        hint = "it is private state, which never leaves a party" if kind_of(inner) == "private" else "it is not plain"
        raise DeclarationError(
            f"message field {where}: {annotation} cannot cross the wire: {hint}. "
            "Use Tensor, Tensors, int, float, bool or str (each may be `| None`)."
        )
    if kind_of(inner) == kind or inner is Ticket:
        return
    origin, args = typing.get_origin(inner), typing.get_args(inner)
    if origin is dict and args[0] is str:
        return _check_field(cls, name, args[1], kind)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _check_field(cls, name, args[0], kind)
    raise DeclarationError(
        f"{kind} field {where}: {annotation} cannot be kept. Use Tensor, Tensors, int, float, bool, str, "
        f"dict[str, …] or tuple[…, ...] of these, or another class declared with @{kind}."
    )


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalResult:
    """A kind of what a party can tell the lab without sending it: see `coalface.core.local_results`."""

    name: str
    each: type | None = None
    """The message that the lab puts to each party, such as probes to verify; the step takes it as `each`."""


@dataclass(frozen=True)
class StepDeclaration:
    """What the signature of a step declares: what goes in, what comes out, what stays."""

    name: str
    role: str
    common: type | None
    each: type | None
    own: type | None
    """The private state it reads."""
    reply: type | None
    """None for a step that gives a local result."""
    keeps: type | None
    """The private state it writes."""
    optional: frozenset[str]
    """Which of `common` and `each` may be left out when it is asked for."""
    function: Callable[..., Any]
    batched: Callable[..., Sequence[Any]] | None = None
    """What the step is for many parties at once: see `batched`."""
    local: LocalResult | None = None
    """What the step tells the lab without sending it."""


def plays(role: str, wanted: str) -> bool:
    """Whether a party of a role takes the steps of another: `trainer/source` is a trainer, of a kind of its own.

    >>> plays("trainer/source", "trainer"), plays("trainer", "trainer/source"), plays("trainers", "trainer")
    (True, False, False)
    """
    return role == wanted or role.startswith(f"{wanted}/")


@overload
def step(function: Callable[..., Any], /) -> NoReturn: ...
@overload
def step(*, role: str, local: LocalResult | None = None) -> Callable[[Callable[..., Any]], Any]: ...
def step(*bare: Any, role: str = "", local: LocalResult | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Declare a step at a party. The signature says what goes in, out and stays; see `docs/spec/messages.md`.

    `(self, party: Party, own: Own | None, common: M, each: M2 | None) -> Reply | tuple[Reply, Own]`; `own`, `common`
    and `each` may be left out where the step does not use them. With `local=OWN_MODEL`, or another `LocalResult`, the
    step returns tensors by name (`Tensors`), which only the lab sees and which are never sent. A step for `trainer` is
    every trainer's; one for `trainer/source` is that of this kind of trainers alone.
    """
    if bare or not (isinstance(role, str) and role):
        above = f" above {getattr(bare[0], '__qualname__', bare[0])}" if bare else ""
        raise DeclarationError(f'@step{above} must say who runs it: write `@step(role="trainer")`.')
    if local is not None and not isinstance(local, LocalResult):
        raise DeclarationError(
            f"@step(local={local!r}) must say what the step tells the lab: write `local=OWN_MODEL`, or another kind of "
            "`coalface.core.local_results`."
        )

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_plain(function)
        function.__coalface_step__ = (role, local)  # type: ignore[attr-defined]
        return function

    return mark


def batched(step: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare what a step that keeps nothing gives for many parties at once, in place of running it at each.

    `(self, parties: Sequence[Party], common: M, each: Sequence[M2], own: Sequence[Own | None]) -> list[Reply]`, the
    replies in the order of the parties; what the step does not use is left out here too. Tensors that the server
    aggregates are, in every reply, the mean of those parties by their images: the same object in each.
    """
    if not isinstance(step, str):
        above = getattr(step, "__qualname__", step)
        raise DeclarationError(f'@batched above {above} must name a step: write `@batched("train")`.')

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_plain(function)
        function.__coalface_batched__ = step  # type: ignore[attr-defined]
        return function

    return mark


def _batched(owner: type, function: Callable[..., Any], steps: Mapping[str, StepDeclaration]) -> StepDeclaration:
    name = function.__coalface_batched__  # type: ignore[attr-defined]
    where, declared = f"{owner.__name__}.{function.__name__}", steps.get(name)
    if declared is None:
        known = ", ".join(steps) or "none"
        raise DeclarationError(f"{where}: @batched({name!r}) names no step; known steps: {known}.")
    if declared.keeps is not None or declared.reply is None:
        raise DeclarationError(
            f"{where}: step {name} keeps private state or a model at its party, so parties cannot share a batch there."
        )
    if typing.get_type_hints(declared.reply).get("images") is not int:
        raise DeclarationError(
            f"{where}: the replies of parties that share a batch are weighted by their images: give "
            f"{declared.reply.__name__} a field `images: int`."
        )
    inputs = {n for n in ("own", "common", "each") if getattr(declared, n) is not None}
    wanted, given = {"self", "parties", *inputs}, set(inspect.signature(function).parameters)
    if given != wanted:
        raise DeclarationError(f"{where}: it takes {sorted(given)}, and for step {name} it must take {sorted(wanted)}.")
    return dataclasses.replace(declared, batched=function)


def _check_plain(function: Any) -> None:
    if not inspect.isfunction(function):
        inner = getattr(function, "__func__", None) or getattr(function, "fget", function)
        raise DeclarationError(
            f"step {getattr(inner, '__qualname__', inner)}: a step is a plain method, and this is a "
            f"{type(function).__name__}. Take @{type(function).__name__} off, and let its first parameter be `self`, "
            "which holds the hyper-parameters."
        )


def _declaration(owner: type, name: str, function: Callable[..., Any]) -> StepDeclaration:
    role, local = function.__coalface_step__  # type: ignore[attr-defined]
    where = f"step {owner.__name__}.{name}"
    first, *parameters = [*inspect.signature(function).parameters, ""][:-1] or [""]
    hints = resolved(function, where)
    if first != "self":
        raise DeclarationError(f"{where}: a step is a method: its first parameter must be `self`; it is {first!r}.")
    if parameters[:1] != ["party"]:
        raise DeclarationError(f"{where}: the first parameter must be `party: Party`; it has {parameters[:1]}.")
    if unknown := set(parameters) - {"party", "own", "common", "each"}:
        raise DeclarationError(
            f"{where}: parameter {sorted(unknown)} is not one that an engine can fill. What is the same for all "
            "parties goes into `common`, what each gets by itself into `each`, what stays at the party into `own`, and "
            "hyper-parameters into fields of the method."
        )
    found: dict[str, type | None] = {}
    for parameter, kind in (("own", "private"), ("common", "message"), ("each", "message")):
        inner, _ = without_none(hints.get(parameter))
        if parameter in parameters and kind_of(inner) != kind:
            raise DeclarationError(
                f"{where}: `{parameter}` must be a class declared with @{kind}; it is {inner}. "
                f"Put @{kind} above the class, or pass the value another way."
            )
        found[parameter] = inner if parameter in parameters else None
    if "own" in parameters and not without_none(hints["own"])[1]:
        raise DeclarationError(
            f"{where}: a party asked for the first time has no private state: write `own: {found['own'].__name__} "  # type: ignore[union-attr]
            "| None` and make it there when it is None."
        )
    result = hints.get("return")
    parts = typing.get_args(result) if typing.get_origin(result) is tuple else (result,)
    reply, keeps = parts[0], parts[1] if len(parts) == 2 else None
    if local is not None:
        if result != Tensors:
            raise DeclarationError(
                f"{where}: a step that gives a local result ({local.name}) returns tensors by name, `-> Tensors`; it "
                f"has {result}."
            )
        if found["each"] is not local.each:
            takes = f"take `each: {local.each.__name__}`" if local.each is not None else "not take `each`"
            raise DeclarationError(f"{where}: a step that gives {local.name} must {takes}: the lab alone asks for it.")
        reply = None
    elif kind_of(reply) != "message" or len(parts) > 2:
        raise DeclarationError(
            f"{where}: it must return `Reply` or `tuple[Reply, Own]`, where Reply is declared with @message "
            f"(what leaves the party) and Own with @private (what stays); it has {result}."
        )
    if keeps is not None and kind_of(keeps) != "private":
        raise DeclarationError(f"{where}: what stays at the party must be declared with @private; it is {keeps}.")
    if reply is not None:
        _check_counterparts(where, reply, [c for c in (found["each"], found["common"]) if c is not None])
    optional = frozenset(name for name in ("common", "each") if without_none(hints.get(name))[1])
    inputs = found["common"], found["each"], found["own"]
    return StepDeclaration(name, role, *inputs, reply, keeps, optional, function, local=local)


def counterpart(reply: type, name: str) -> str | None:
    """The field of what was sent that a reply's tensor field must look like; None where it is `free()`."""
    declared = {f.name: f for f in dataclasses.fields(reply)}[name]
    return declared.metadata.get("like", name)


def _check_counterparts(where: str, reply: type, sent: Sequence[type]) -> None:
    hints = {n: without_none(a)[0] for n, a in typing.get_type_hints(reply).items()}
    offered = {n: without_none(a)[0] for c in reversed(sent) for n, a in typing.get_type_hints(c).items()}
    for name, annotation in hints.items():
        other = counterpart(reply, name)
        if annotation in (Tensor, Tensors) and other is not None and offered.get(other) != annotation:
            raise DeclarationError(
                f"{where}: the reply's {name} could not be checked, since nothing sent to the party is called "
                f"{other!r} and of the same type. Name the field it must look like, `{name}: … = like('…')`, or say "
                f"that any shape will do, `{name}: … = free()`."
            )


_FROZEN = (
    "put `@dataclass(frozen=True, kw_only=True)` above the class. Its fields are hyper-parameters, the same in every "
    "process; what changes goes into the state or into private state."
)


class HasSteps:
    """Frozen hyper-parameters with steps: a `Method`, or a `Component` that brings steps to several methods."""

    own_steps: ClassVar[dict[str, StepDeclaration]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        found = dict(cls.own_steps)
        for name, value in vars(cls).items():
            inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if hasattr(inner, "__coalface_step__"):
                _check_plain(value)
                found[name] = _declaration(cls, name, value)
            elif name in found:
                raise DeclarationError(
                    f"{cls.__name__}.{name} takes the place of a step but is none, so the step of the parent class "
                    "would go on being run. Put @step(role=…) above it too, or give it another name."
                )
        forms = {d.batched.__name__: name for name, d in found.items() if d.batched is not None}
        batched: dict[str, str] = {}
        for name, value in list(vars(cls).items()):
            if hasattr(value, "__coalface_batched__"):
                of = value.__coalface_batched__
                if of in batched:
                    raise DeclarationError(
                        f"{cls.__name__}: {batched[of]} and {name} are both the batched form of step {of}: keep one."
                    )
                batched[of] = name
                found[of] = _batched(cls, value, found)
            elif name in forms:
                raise DeclarationError(
                    f"{cls.__name__}.{name} takes the place of the batched form of step {forms[name]} but is none, so "
                    f'that of the parent class would go on being run. Put @batched("{forms[name]}") above it too, or '
                    "give it another name."
                )
        cls.own_steps = found

    @property
    def steps(self) -> dict[str, tuple[HasSteps, StepDeclaration]]:
        """All steps by name: its own (`train`), then those of its components (`validation.score`)."""
        self.check_frozen()
        found: dict[str, tuple[HasSteps, StepDeclaration]] = {n: (self, d) for n, d in self.own_steps.items()}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            part = getattr(self, f.name)
            if isinstance(part, HasSteps):
                found |= {f"{f.name}.{n}": entry for n, entry in part.steps.items()}
        gives: dict[LocalResult, str] = {}
        for name, (_, declared) in found.items():
            if declared.local is not None and gives.setdefault(declared.local, name) != name:
                raise DeclarationError(
                    f"{type(self).__name__}: the steps {gives[declared.local]} and {name} both give "
                    f"{declared.local.name}: keep one."
                )
        kept: dict[str, type] = {}
        for cls in (c for _, declared in found.values() for c in (declared.own, declared.keeps) if c is not None):
            if kept.setdefault(cls.__name__, cls) is not cls:
                raise DeclarationError(
                    f"{type(self).__name__}: two classes of private state are called {cls.__name__} "
                    f"({kept[cls.__name__].__module__} and {cls.__module__}), and each is kept under its name, so "
                    "one would take the other's place. Rename one of them."
                )
        return found

    def local_step(self, kind: LocalResult) -> Callable[..., Any] | None:
        """The step that gives a kind of local result; None where the method gives none of it."""
        for owner, declaration in self.steps.values():
            if declaration.local == kind:
                return typing.cast(Callable[..., Any], getattr(owner, declaration.function.__name__))
        return None

    @classmethod
    def check_frozen(cls) -> None:
        """Raise DeclarationError unless the class is a frozen dataclass, which can be known once it is decorated."""
        fields = getattr(cls, "__dataclass_fields__", {})
        lost = [
            n for n, a in vars(cls).get("__annotations__", {}).items() if n not in fields and "ClassVar" not in str(a)
        ]
        if not hasattr(cls, "__dataclass_params__") or lost:
            what = f", so that {', '.join(lost)} would be no setting of it" if lost else ""
            raise DeclarationError(f"{cls.__name__} is not declared a dataclass{what}: {_FROZEN}")
        if not cls.__dataclass_params__.frozen:
            raise DeclarationError(f"{cls.__name__} is a dataclass that is not frozen: {_FROZEN}")

    def find(self, bound: Callable[..., Any]) -> tuple[str, StepDeclaration]:
        """The name and the declaration of a step given as a bound method, as in `fed.ask(self.train, …)`."""
        for name, (owner, declaration) in self.steps.items():
            if getattr(bound, "__self__", None) is owner and bound.__name__ == declaration.function.__name__:
                return name, declaration
        raise DeclarationError(
            f"{getattr(bound, '__qualname__', bound)} is not a step of {type(self).__name__}. Put @step(role=…) above "
            f"it, or hold its component in a field of the method. Known steps: {', '.join(self.steps) or 'none'}."
        )


class Component(HasSteps):
    """A part with steps of its own that several methods can hold in a field."""
