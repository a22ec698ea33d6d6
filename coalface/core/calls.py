"""Whether what a method says to its federation can be carried out: a call, a state, what the run leaves.

The plan and every engine's server check by these, so that a mistake has one answer, and before anybody trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from coalface.core.aggregation import check_aggregate
from coalface.core.declarations import DeclarationError, StepDeclaration
from coalface.core.method import Mean, Method, Models, Probes, Stage


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
            f"{where}: it has local=True, so its model is written at the party and there is no reply to ask for. Name "
            f"it in models(), `Models(at_party=self.{name})`, or declare a step that returns a message."
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
    """Raise TypeError or DeclarationError unless `models()` returned Models whose steps, if any, can be run."""
    if not isinstance(models, Models):
        what = "nothing" if models is None else f"a {type(models).__name__}"
        raise TypeError(
            f"{type(method).__name__}.models: it returned {what}. Write `return Models(shared=state.backbone)`, or "
            "`return Models(at_party=self.own_model)` with a step that has local=True."
        )
    if models.at_party is not None:
        name, declaration, _ = check_call(method, models.at_party, parties, to=None, common=models.common, each=None)
        if declaration.reply is not None:
            raise DeclarationError(
                f"{type(method).__name__}.models: at_party names the step {name}, which sends a reply. Name a step "
                "with local=True, which returns a model (`-> Tensors`) that is written at the party."
            )
    looked_at = {
        "labels": (models.labels, None, "who is in an image"),
        "classifier": (models.classifier, None, "a class embedding of its own"),
        "public_used": (models.public_used, None, "which public images are near its people"),
        "personal": (models.personal, models.common, "its model for its own people"),
    }
    for what, (step, common, stays) in looked_at.items():
        if step is None:
            continue
        name, declaration = method.find(step)
        if declaration.reply is not None:
            takes = "" if what == "personal" else " that takes neither `common` nor `each`"
            raise DeclarationError(
                f"{type(method).__name__}.models: {what} names the step {name}, which sends a reply. Name a step with "
                f"local=True{takes}: {stays} never leaves the party."
            )
        check_call(method, step, parties, to=None, common=common, each=None)
    if models.verify is not None:
        name, declaration = method.find(models.verify)
        if declaration.reply is not None or declaration.each is not Probes:
            what = "does not take `each: Probes`" if declaration.reply is None else "sends a reply"
            raise DeclarationError(
                f"{type(method).__name__}.models: verify names the step {name}, which {what}. Name a step with "
                "local=True that takes `each: Probes` and returns its scores (`-> Tensors`): the private state that it "
                "verifies by never leaves the party."
            )
        probes = dict.fromkeys(parties(declaration.role), Probes(embeddings=torch.empty(0, 0)))
        check_call(method, models.verify, parties, to=None, common=models.common, each=probes)
