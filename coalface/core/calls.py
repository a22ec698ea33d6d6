"""Whether what a method says to its federation can be carried out: a call, a state, what the run leaves.

The plan and every engine's server check by these, so that a mistake has one answer, and before anybody trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coalface.core.aggregation import check_aggregate
from coalface.core.declarations import DeclarationError, StepDeclaration
from coalface.core.local_results import OWN_MODEL, OWN_SCORES
from coalface.core.method import Mean, Method, Models, Stage


def check_call(
    method: Method,
    step: Callable[..., Any],
    parties: Callable[[str], Sequence[str]],
    *,
    to: Iterable[str] | None,
    common: Any,
    each: Mapping[str, Any] | None,
    aggregate: Sequence[Mean] | None = None,
) -> tuple[str, StepDeclaration, tuple[str, ...]]:
    """The name and the declaration of a step, and who is asked, sorted.

    `parties` gives those of a role; `aggregate` is None where a model stays at the party and nothing comes back. Raises
    DeclarationError, TypeError or ValueError, which name the step and the fix.
    """
    name, declaration = method.find(step)
    where = f"{type(method).__name__}, step {name}"
    if aggregate is not None and declaration.reply is None:
        raise DeclarationError(
            f"{where}: it gives a local result, which only the lab sees, so there is no reply to ask for. Declare a "
            "step that returns a message."
        )
    if isinstance(to, str):
        raise TypeError(f"{where}: `to` is the text {to!r}; give the names of parties in a list, `to=[{to!r}]`.")
    if each is not None and not isinstance(each, Mapping):
        raise TypeError(f"{where}: `each` is a {type(each).__name__}; give a mapping from party to message.")
    known = parties(declaration.role)
    names = tuple(sorted(to if to is not None else each if each is not None else known))
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: a party is named twice in `to`; it would count twice. Name each once.")
    if not names and known:
        raise ValueError(
            f"{where}: `{'each' if to is None else 'to'}` is empty, so there are no parties with the role "
            f"{declaration.role!r} to ask. Name at least one, or leave it out to ask all of them."
        )
    if not names or (unknown := sorted(set(names) - set(known))[:5]):
        has = f"{unknown} are not" if names else "there are no"
        raise ValueError(f"{where}: {has} parties with the role {declaration.role!r}.")
    if each is not None and (missing := [p for p in names if p not in each][:5]):
        raise ValueError(f"{where}: `each` has nothing for {missing}; give every party in `to` a message.")
    _check_message(where, "common", common, declaration.common, declaration)
    for value in {type(each[p]): each[p] for p in names}.values() if each is not None else (None,):
        _check_message(where, "each", value, declaration.each, declaration)
    if aggregate is not None:
        try:
            check_aggregate(aggregate, declaration, known)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None
    return name, declaration, names


def _check_message(where: str, kind: str, value: Any, declared: type | None, declaration: StepDeclaration) -> None:
    if value is None and declared is not None and kind not in declaration.optional:
        raise TypeError(f"{where}: the step needs `{kind}`, a {declared.__name__}; give it, or declare it `| None`.")
    if value is not None and type(value) is not declared:
        fix = f"give `{kind}={declared.__name__}(…)`" if declared else f"leave it out, or declare `{kind}` in the step"
        raise TypeError(f"{where}: `{kind}` is a {type(value).__name__}, but the step declares {declared}: {fix}.")


def check_state(method: Method, stage: Stage, made: Any, *, beginning: bool = False) -> Any:
    """The state that a stage's `begin` or `round` returned. Raises TypeError unless it is of the declared class."""
    declared = stage.state
    if type(made) is declared:
        return made
    name = getattr(stage.begin if beginning else stage.round, "__name__", "<lambda>")
    name = "init" if name == "<lambda>" else name
    what = "nothing" if made is None else f"a {type(made).__name__}"
    raise TypeError(
        f"{type(method).__name__}.{name}: it returned {what}, but stage {stage.name} has a {declared.__name__} for its "
        f"state, which is what a checkpoint holds. End {name} with `return {declared.__name__}(…)`."
    )


def check_models(method: Method, models: Any, parties: Callable[[str], Sequence[str]]) -> None:
    """Raise TypeError or DeclarationError unless `models()` returned Models whose local results can be given."""
    where = f"{type(method).__name__}.models"
    if not isinstance(models, Models):
        what = "nothing" if models is None else f"a {type(models).__name__}"
        raise TypeError(
            f"{where}: it returned {what}. Write `return Models(shared=state.backbone)`, or `return "
            "Models(shared=None)` with a step that gives each party's own model (`local=OWN_MODEL`)."
        )
    if models.shared is None and method.local_step(OWN_MODEL) is None:
        raise DeclarationError(
            f"{where}: Models(shared=None) leaves no model. Write `Models(shared=state.backbone)` for one global "
            'model, or put `@step(role="trainer", local=OWN_MODEL)` above a step that makes one per party.'
        )
    for name, (_, declaration) in method.steps.items():
        step = f"{type(method).__name__}, step {name}"
        if declaration.local == OWN_SCORES and models.shared is None:
            raise DeclarationError(
                f"{step}: it verifies probes that the shared model embeds, and models() leaves none. Write "
                "`Models(shared=state.backbone)`."
            )
        if declaration.local is not None and not (declaration.local == OWN_MODEL and models.shared is not None):
            if not parties(declaration.role):
                raise ValueError(f"{step}: there are no parties with the role {declaration.role!r}.")
            common = models.common if declaration.common is not None else None
            _check_message(step, "common", common, declaration.common, declaration)
