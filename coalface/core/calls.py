"""Checks of what a method asks of its federation: a call, its means, its state, its final models.

The plan and every engine's server check by these, so that a mistake has one answer, and before anybody trains. Each
raises DeclarationError, TypeError or ValueError, which name the step and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coalface.core.declarations import DeclarationError, counterparts, resolved
from coalface.core.local_results import OWN_MODEL, OWN_SCORES
from coalface.core.method import Mean, Method, Models, Stage
from coalface.core.steps import StepDeclaration


def check_call(
    method: Method,
    step: Callable[..., Any],
    parties: Callable[[str], Sequence[str]],
    *,
    to: Iterable[str] | None,
    common: Any,
    each: Mapping[str, Any] | None,
    aggregate: Sequence[Mean] | None = None,
    allow_nobody: bool = False,
) -> tuple[str, StepDeclaration, tuple[str, ...]]:
    """The name and the declaration of a step, and who is asked, sorted; none only if `allow_nobody`.

    `parties` gives those of a role; `aggregate` is None where a model stays at the party and nothing comes back.
    """
    name, declaration = method.find(step)
    where = f"{type(method).__name__}, step {name}"
    if aggregate is not None and declaration.reply is None:
        raise DeclarationError(f"{where}: only the lab sees its local result. Ask for a step that returns a message.")
    if isinstance(to, str):
        raise TypeError(f"{where}: `to` is the text {to!r}; give a list of names, `to=[{to!r}]`.")
    if each is not None and not isinstance(each, Mapping):
        raise TypeError(f"{where}: `each` is a {type(each).__name__}; give a mapping from party to message.")
    members = parties(declaration.role)
    names = tuple(sorted(to if to is not None else each if each is not None else members))
    if not members:
        raise ValueError(f"{where}: no party has the role {declaration.role!r}.")
    if not names and not allow_nobody:
        empty = "each" if to is None else "to"
        raise ValueError(f"{where}: `{empty}` is empty. Name at least one party, or leave it out to ask all of them.")
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: `to` names a party twice, so it would count twice. Name each party once.")
    if unknown := sorted(set(names) - set(members))[:5]:
        raise ValueError(f"{where}: {unknown} do not have the role {declaration.role!r}.")
    if each is not None and (missing := [p for p in names if p not in each][:5]):
        raise ValueError(f"{where}: `each` has no message for {missing}; give every party in `to` one.")
    _check_message(where, "common", common, declaration)
    for value in {type(each[p]): each[p] for p in names}.values() if each is not None else (None,):
        _check_message(where, "each", value, declaration)
    if aggregate is not None:
        try:
            check_aggregate(aggregate, declaration, members)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None
    return name, declaration, names


def _check_message(where: str, kind: str, value: Any, declaration: StepDeclaration) -> None:
    declared: type | None = getattr(declaration, kind)
    if value is None and declared is not None and kind not in declaration.optional:
        raise TypeError(f"{where}: the step needs `{kind}`, a {declared.__name__}; give it, or declare it `| None`.")
    if value is not None and type(value) is not declared:
        fix = f"give `{kind}={declared.__name__}(…)`" if declared else f"leave it out, or declare `{kind}` in the step"
        raise TypeError(f"{where}: `{kind}` is a {type(value).__name__}, but the step declares {declared}: {fix}.")


def check_aggregate(aggregate: Any, declaration: StepDeclaration, everyone: Sequence[str]) -> None:
    """Raise TypeError or ValueError unless every mean can be taken of the replies to a step.

    `everyone` are all parties of the step's role.
    """
    if isinstance(aggregate, Mean | str | Mapping) or not isinstance(aggregate, Iterable):
        raise TypeError(f"aggregate is a {type(aggregate).__name__}; give a list, `aggregate=[Mean('backbone', …)]`.")
    for mean in aggregate:
        if not isinstance(mean, Mean):
            raise TypeError(f"aggregate holds {mean!r}; give a list of means, `aggregate=[Mean('backbone', …)]`.")
    keys = [mean.key for mean in aggregate]
    if len(set(keys)) < len(keys):
        raise ValueError(f"two of the means {keys} have the same name, so one would be lost. Give each Mean a `name`.")
    sent = [cls for cls in (declaration.each, declaration.common) if cls is not None]
    for mean in aggregate:
        if declaration.reply is not None:
            check_mean(mean, everyone=everyone, reply=declaration.reply, sent=sent)


def check_mean(mean: Mean, *, everyone: Sequence[str], reply: type, sent: Sequence[type]) -> None:
    """Raise ValueError where a mean names an unknown field, weight or party, or a field that is `free()`.

    `reply` and `sent` are the classes of the reply and of the messages that go to the parties.
    """
    fields, name = resolved(reply, reply.__name__), reply.__name__
    tensors = counterparts(reply)
    if mean.field not in tensors:
        raise ValueError(f"Mean({mean.field!r}): {name} has no such tensors; it can aggregate {list(tensors)}.")
    numbers = [n for n, a in fields.items() if a in (int, float)]
    if isinstance(mean.by, str) and mean.by not in numbers:
        raise ValueError(f"Mean({mean.field!r}, by={mean.by!r}): {name} has no such number; it has {numbers}.")
    source = tensors[mean.field]
    if source is None:
        raise ValueError(
            f"Mean({mean.field!r}): {name}.{mean.field} is free(), so replies need not have the same tensors. Declare "
            f"what it must look like, `{mean.field}: … = like('…')`, or read the replies one by one from answer.each."
        )
    if mean.of == "differences" and (source != mean.field or not any(mean.field in resolved(c, "") for c in sent)):
        raise ValueError(
            f"Mean({mean.field!r}, of='differences'): the party is sent nothing named {mean.field!r}. Send the "
            "values under that name, or average differences that the step computes."
        )
    if isinstance(mean.by, Mapping) and (unknown := sorted(set(mean.by) - set(everyone))[:5]):
        raise ValueError(
            f"Mean({mean.field!r}): `by` gives weights to {unknown}, which do not have the step's role. "
            f"The parties are {', '.join(everyone[:5])}{' …' if len(everyone) > 5 else ''}"
        )


def check_state(method: Method, stage: Stage, value: Any, *, beginning: bool = False) -> Any:
    """The state that a stage's `begin` or `round` returned. Raises DeclarationError unless it is of its class."""
    declared = stage.state
    if type(value) is declared:
        return value
    name = getattr(stage.begin if beginning else stage.round, "__name__", "<lambda>")
    name = "init" if name == "<lambda>" else name
    raise DeclarationError(
        f"{type(method).__name__}.{name} returned {_named(value)}; stage {stage.name} keeps a {declared.__name__}, "
        f"which a checkpoint holds. End {name} with `return {declared.__name__}(…)`."
    )


def check_models(method: Method, models: Any, parties: Callable[[str], Sequence[str]]) -> None:
    """Raise DeclarationError, TypeError or ValueError unless `models()` gave Models, and local results can be given."""
    where = f"{type(method).__name__}.models"
    if not isinstance(models, Models):
        raise DeclarationError(
            f"{where} returned {_named(models)}. Write `return Models(shared=state.backbone)`, or `return "
            "Models(shared=None)` with a step that gives each party's own model (`local=OWN_MODEL`)."
        )
    if models.shared is None and method.local_step(OWN_MODEL) is None:
        raise DeclarationError(
            f"{where}: Models(shared=None) leaves no model. Write `Models(shared=state.backbone)` for one global "
            'model, or put `@step(role="trainer", local=OWN_MODEL)` above a step that makes one per party.'
        )
    for name, (_, declaration) in method.steps.items():
        where = f"{type(method).__name__}, step {name}"
        if declaration.local == OWN_SCORES and models.shared is None:
            raise DeclarationError(
                f"{where}: the shared model embeds its probes, and models() leaves none. Write "
                "`Models(shared=state.backbone)`."
            )
        if declaration.local is not None and not (declaration.local == OWN_MODEL and models.shared is not None):
            if not parties(declaration.role):
                raise ValueError(f"{where}: no party has the role {declaration.role!r}.")
            _check_message(where, "common", models.common if declaration.common is not None else None, declaration)


def _named(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
