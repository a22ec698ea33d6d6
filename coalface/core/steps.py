"""Steps at parties, whose typed signatures say what goes in, what comes out and what stays.

A step that no engine could carry out is an error when the class is defined, and says what to write instead. Methods
import these words from `coalface.core.method`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, overload

from coalface.core.checks import TypedSettings
from coalface.core.declarations import DeclarationError, Tensors, counterparts, kind_of, resolved, without_none


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


def plays(role: str, step_role: str) -> bool:
    """Whether a party of a role takes the steps of another: `trainer/source` is a trainer, of a kind of its own.

    Examples:
        >>> plays("trainer/source", "trainer"), plays("trainer", "trainer/source"), plays("trainers", "trainer")
        (True, False, False)
    """
    return role == step_role or role.startswith(f"{step_role}/")


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
        raise DeclarationError(f"@step(local={local!r}): give a LocalResult, such as `local=OWN_MODEL`.")

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_plain(function)
        function.__coalface_step__ = (role, local)  # type: ignore[attr-defined]
        return function

    return mark


def batched(step: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare what a step gives for many parties at once, in place of running it at each.

    `(self, parties: Sequence[Party], common: M, each: Sequence[M2], own: Sequence[Own | None]) -> list[Reply]`, or
    `-> list[tuple[Reply, Own]]` of a step that keeps something, in the order of the parties; what the step does not use
    is left out here too. Tensors that the server aggregates are, in every reply, the mean of those parties by their
    images: the same object in each.
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
        raise DeclarationError(
            f"{where}: @batched({name!r}) does not name a step. Known steps: {', '.join(steps) or 'none'}."
        )
    if declared.reply is None:
        raise DeclarationError(f"{where}: step {name} gives a local result, so parties cannot share a batch.")
    if typing.get_type_hints(declared.reply).get("images") is not int:
        raise DeclarationError(
            f"{where}: replies of parties that share a batch are weighted by their images. Give "
            f"{declared.reply.__name__} a field `images: int`."
        )
    inputs = {n for n in ("own", "common", "each") if getattr(declared, n) is not None}
    needed, params = {"self", "parties", *inputs}, set(inspect.signature(function).parameters)
    if params != needed:
        raise DeclarationError(f"{where}: it takes {sorted(params)}; for step {name} it must take {sorted(needed)}.")
    return dataclasses.replace(declared, batched=function)


def _with_own(declared: StepDeclaration, steps: Iterable[StepDeclaration]) -> StepDeclaration:
    """The declaration with the private state that the steps keep: a step that reads a `Learner` reads a subclass of it
    where that is what is kept in its place, so that an inherited step serves a method that keeps more.
    """
    kept = {step.keeps for step in steps if step.keeps is not None}
    more = [keeps for keeps in kept if declared.own in keeps.__mro__[1:]]
    return declared if declared.own in kept or len(more) != 1 else dataclasses.replace(declared, own=more[0])


def _check_plain(function: Any) -> None:
    if not inspect.isfunction(function):
        inner, kind = getattr(function, "__func__", None) or getattr(function, "fget", function), type(function)
        raise DeclarationError(
            f"step {getattr(inner, '__qualname__', inner)}: a step is a plain method. Take @{kind.__name__} off, and "
            "let its first parameter be `self`, which holds the hyper-parameters."
        )


def _declaration(owner: type, name: str, function: Callable[..., Any]) -> StepDeclaration:
    role, local = function.__coalface_step__  # type: ignore[attr-defined]
    where = f"step {owner.__name__}.{name}"
    parameters, hints = list(inspect.signature(function).parameters), resolved(function, where)
    if parameters[:2] != ["self", "party"]:
        raise DeclarationError(f"{where}: it begins with {parameters[:2]}; a step begins with `self, party: Party`.")
    if unknown := set(parameters) - {"self", "party", "own", "common", "each"}:
        raise DeclarationError(
            f"{where}: parameter {sorted(unknown)} is not one that an engine can fill. What is the same for all "
            "parties goes into `common`, what each gets by itself into `each`, what stays at the party into `own`, and "
            "hyper-parameters into fields of the method."
        )
    inputs: dict[str, type | None] = {}
    for parameter, kind in (("own", "private"), ("common", "message"), ("each", "message")):
        inner, optional = without_none(hints.get(parameter))
        if parameter in parameters and kind_of(inner) != kind:
            raise DeclarationError(
                f"{where}: `{parameter}` must be a class declared with @{kind}; it is {inner}. "
                f"Put @{kind} above the class, or pass the value another way."
            )
        if parameter == "own" in parameters and not optional:
            raise DeclarationError(
                f"{where}: a party that is asked for the first time has no private state. Write "
                f"`own: {inner.__name__} | None`, and make it there when it is None."
            )
        inputs[parameter] = inner if parameter in parameters else None
    result = hints.get("return")
    parts = typing.get_args(result) if typing.get_origin(result) is tuple else (result,)
    reply, keeps = parts[0], parts[1] if len(parts) == 2 else None
    if local is not None:
        takes = f"take `each: {local.each.__name__}`" if local.each is not None else "not take `each`"
        if result != Tensors or inputs["each"] is not local.each:
            raise DeclarationError(
                f"{where}: a step that gives a local result ({local.name}) must return tensors by name, `-> Tensors`, "
                f"and {takes}; it returns {result}."
            )
        reply = None
    elif kind_of(reply) != "message" or len(parts) > 2:
        raise DeclarationError(
            f"{where}: it must return `Reply` or `tuple[Reply, Own]`, where Reply is declared with @message "
            f"(what leaves the party) and Own with @private (what stays); it has {result}."
        )
    if keeps is not None and kind_of(keeps) != "private":
        raise DeclarationError(f"{where}: what stays at the party must be declared with @private; it is {keeps}.")
    if reply is not None:
        _check_counterparts(where, reply, [c for c in (inputs["each"], inputs["common"]) if c is not None])
    optionals = frozenset(name for name in ("common", "each") if without_none(hints.get(name))[1])
    return StepDeclaration(
        name, role, inputs["common"], inputs["each"], inputs["own"], reply, keeps, optionals, function, local=local
    )


def _check_counterparts(where: str, reply: type, sent: Sequence[type]) -> None:
    hints = typing.get_type_hints(reply)
    offered = {n: without_none(a)[0] for c in reversed(sent) for n, a in typing.get_type_hints(c).items()}
    for name, source in counterparts(reply).items():
        if source is not None and offered.get(source) != without_none(hints[name])[0]:
            raise DeclarationError(
                f"{where}: the reply's {name} could not be checked, since nothing sent to the party is called "
                f"{source!r} and of the same type. Name the field it must look like, `{name}: … = like('…')`, or say "
                f"that any shape will do, `{name}: … = free(…)`."
            )


class HasSteps(TypedSettings):
    """Frozen hyper-parameters with steps: a `Method`, or a `Component` that brings steps to several methods."""

    own_steps: ClassVar[dict[str, StepDeclaration]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        steps = dict(cls.own_steps)
        for name, value in vars(cls).items():
            inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if hasattr(inner, "__coalface_step__"):
                _check_plain(value)
                steps[name] = _declaration(cls, name, value)
            elif name in steps:
                _refuse_hidden(cls, name, "@step(role=…)")
        forms = {d.batched.__name__: name for name, d in steps.items() if d.batched is not None}
        batched_steps: set[str] = set()
        for name, value in list(vars(cls).items()):
            if hasattr(value, "__coalface_batched__"):
                of = value.__coalface_batched__
                if of in batched_steps:
                    raise DeclarationError(f"{cls.__name__}: step {of} has two batched forms: keep one.")
                batched_steps.add(of)
                steps[of] = _batched(cls, value, steps)
            elif name in forms:
                _refuse_hidden(cls, name, f'@batched("{forms[name]}")')
        cls.own_steps = steps

    @functools.cached_property
    def steps(self) -> dict[str, tuple[HasSteps, StepDeclaration]]:
        """All steps by name: its own (`train`), then those of its components (`validation.score`)."""
        self.check_frozen()
        steps: dict[str, tuple[HasSteps, StepDeclaration]] = {}
        for name, declaration in self.own_steps.items():
            steps[name] = self, _with_own(declaration, self.own_steps.values())
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            part = getattr(self, f.name)
            if isinstance(part, HasSteps):
                steps |= {f"{f.name}.{n}": entry for n, entry in part.steps.items()}
        gives: dict[LocalResult, str] = {}
        private_classes: dict[str, type] = {}
        for name, (_, declared) in steps.items():
            if declared.local is not None and gives.setdefault(declared.local, name) != name:
                raise DeclarationError(
                    f"{type(self).__name__}: the steps {gives[declared.local]} and {name} both give "
                    f"{declared.local.name}: keep one."
                )
            for private_class in (c for c in (declared.own, declared.keeps) if c is not None):
                if private_classes.setdefault(private_class.__name__, private_class) is not private_class:
                    raise DeclarationError(
                        f"{type(self).__name__}: {private_classes[private_class.__name__].__module__} and "
                        f"{private_class.__module__} both declare private state called {private_class.__name__}, and "
                        "each is kept under its name. Rename one of them."
                    )
        return steps

    def local_step(self, kind: LocalResult) -> Callable[..., Any] | None:
        """The step that gives a kind of local result; None where the method gives none of it."""
        for owner, declaration in self.steps.values():
            if declaration.local == kind:
                return typing.cast(Callable[..., Any], getattr(owner, declaration.function.__name__))
        return None

    def protection(self, reply: Any) -> str:
        """What a ledger says of the `sanitised` fields of a reply: the mechanism, and its ε and δ so far."""
        raise DeclarationError(
            f"{type(self).__name__}: {type(reply).__name__} has a field declared `sanitised`; nothing says by what. "
            "Give the method `def protection(self, reply) -> str`, with the mechanism, ε and δ."
        )

    @property
    def sanitises_with(self) -> Any:
        """z, δ and the target of the noise on those fields, as the `noise_multiplier`, `delta` and `target_epsilon` of
        some settings, to which a node may be held; None: it does not say.
        """
        return None

    @classmethod
    def check_frozen(cls) -> None:
        """Raise DeclarationError unless the class is a frozen dataclass, which can be known once it is decorated."""
        fields, annotations = getattr(cls, "__dataclass_fields__", {}), vars(cls).get("__annotations__", {})
        lost = [n for n, a in annotations.items() if n not in fields and "ClassVar" not in str(a)]
        if not hasattr(cls, "__dataclass_params__") or lost or not cls.__dataclass_params__.frozen:
            effect = f", so that {', '.join(lost)} would be no setting of it" if lost else ""
            raise DeclarationError(
                f"{cls.__name__} is not a frozen dataclass{effect}: put `@dataclass(frozen=True, kw_only=True)` above "
                "the class. Its fields are hyper-parameters, the same in every process; what changes goes into the "
                "state or into private state."
            )

    def find(self, bound: Callable[..., Any]) -> tuple[str, StepDeclaration]:
        """The name and the declaration of a step given as a bound method, as in `fed.ask(self.train, …)`."""
        for name, (owner, declaration) in self.steps.items():
            if getattr(bound, "__self__", None) is owner and bound.__name__ == declaration.function.__name__:
                return name, declaration
        raise DeclarationError(
            f"{getattr(bound, '__qualname__', bound)} is not a step of {type(self).__name__}. Put @step(role=…) above "
            f"it, or hold its component in a field of the method. Known steps: {', '.join(self.steps) or 'none'}."
        )


def _refuse_hidden(cls: type, name: str, decorator: str) -> NoReturn:
    raise DeclarationError(
        f"{cls.__name__}.{name} has the name of a step and is none, so that of the parent class would run. Put "
        f"{decorator} above it too, or rename it."
    )


class Component(HasSteps):
    """A part with steps of its own that several methods can hold in a field."""
