"""`Mean`, what a method asks for in place of replies, and whether a step's declaration has what it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from coalface.core.declarations import DeclarationError, StepDeclaration, Tensors, counterpart, resolved, without_none


@dataclass(frozen=True)
class Mean:
    """Ask for Σ w_p x_p / Σ w_p over the replies instead of for the replies themselves.

    `by` gives the weights w: the name of a number in the reply (`"images"`), a mapping from party to weight that the
    server chose (a party of the role that it leaves out weighs nothing), or None for equal weights. The field must
    have a counterpart in what was sent, so that all replies have the same tensors; `free()` ones come singly. Several
    means of one field are several `Mean`s with a `name` each. `over="arrived"` divides by the weights of the replies
    that arrived; `over="all"` by those of every party of the role, asked or not, so that a missing party counts as
    zero (SCAFFOLD's control variates). `of="differences"` averages x_p − s_p, where s is the field of the same name
    that was sent to p. `once=True` is for sums that shall hide single replies: where a resumed run repeats the call,
    and other parties answer or the weights are others, the round is abandoned before a sum is opened.
    """

    field: str
    by: str | Mapping[str, float] | None = None
    over: Literal["arrived", "all"] = "arrived"
    of: Literal["values", "differences"] = "values"
    name: str = ""
    once: bool = False

    def __post_init__(self) -> None:
        for key, known in (("over", ("arrived", "all")), ("of", ("values", "differences"))):
            if getattr(self, key) not in known:
                raise DeclarationError(
                    f"Mean({self.field!r}, {key}={getattr(self, key)!r}): {key} is {known[0]!r} or {known[1]!r}."
                )
        if not isinstance(self.by, str | Mapping | None):
            raise DeclarationError(
                f"Mean({self.field!r}, by={self.by!r}): give the name of a number in the reply, a mapping from party "
                "to weight, or None for equal weights."
            )
        if self.over == "all" and isinstance(self.by, str):
            raise DeclarationError(
                f"Mean({self.field!r}, by={self.by!r}, over='all'): the weight of a party that did not answer is not "
                "known. Give the weights from the server (by={party: weight}) or leave `by` out for equal weights."
            )

    @property
    def key(self) -> str:
        """The name under which `answer.aggregated` holds the result."""
        return self.name or self.field


def check_aggregate(aggregate: Any, declaration: StepDeclaration, everyone: Iterable[str]) -> None:
    """Raise TypeError or ValueError unless every mean can be taken of the replies to a step.

    `everyone` are all parties of the step's role.
    """
    if isinstance(aggregate, Mean | str | Mapping) or not isinstance(aggregate, Iterable):
        field = (
            aggregate.field if isinstance(aggregate, Mean) else aggregate if isinstance(aggregate, str) else "backbone"
        )
        raise TypeError(f"aggregate is a {type(aggregate).__name__}; give a list: `aggregate=[Mean({field!r}, …)]`.")
    for mean in aggregate:
        if not isinstance(mean, Mean):
            fix = f"Mean({mean!r})" if isinstance(mean, str) else "Mean('backbone')"
            raise TypeError(f"aggregate holds {mean!r}, which is no Mean: write `aggregate=[{fix}]`.")
    keys = [mean.key for mean in aggregate]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(
            f"two means are called {twice[0]!r}, so one would be lost: give each Mean a `name` of its own."
        )
    everyone, sent = tuple(everyone), [c for c in (declaration.each, declaration.common) if c is not None]
    for mean in aggregate:
        if declaration.reply is not None:
            check_mean(mean, everyone=everyone, reply=declaration.reply, sent=sent)


def check_mean(mean: Mean, *, everyone: Sequence[str], reply: type, sent: Sequence[type]) -> None:
    """Raise ValueError where a mean names a field, a weight or a party that is not there, or a field that is `free()`.

    `reply` and `sent` are the classes of the reply and of the messages that go to the parties.
    """
    declared, called = resolved(reply, reply.__name__), reply.__name__
    tensors = [n for n, a in declared.items() if without_none(a)[0] in (Tensor, Tensors)]
    if mean.field not in tensors:
        raise ValueError(f"Mean({mean.field!r}): no tensors of {called}; those that can be aggregated: {tensors}.")
    numbers = [n for n, a in declared.items() if a in (int, float)]
    if isinstance(mean.by, str) and mean.by not in numbers:
        raise ValueError(f"Mean({mean.field!r}, by={mean.by!r}): no number of {called}; it has {numbers}.")
    other = counterpart(reply, mean.field)
    if other is None:
        raise ValueError(
            f"Mean({mean.field!r}): {called}.{mean.field} is free(), so replies need not have the same tensors, and "
            "a sum of them would mean nothing. Send a field that it must look like and declare it "
            f"`{mean.field}: … = like('…')`, or take the replies singly from answer.each."
        )
    if mean.of == "differences" and (other != mean.field or not any(mean.field in resolved(c, "") for c in sent)):
        raise ValueError(
            f"Mean({mean.field!r}, of='differences'): nothing sent to the party is called {mean.field!r}. Send the "
            "values under that name, or average differences that the step has taken."
        )
    if isinstance(mean.by, Mapping) and (unknown := sorted(set(mean.by) - set(everyone))[:5]):
        raise ValueError(
            f"Mean({mean.field!r}): `by` gives weights to {unknown}, which are not parties of the step's role. "
            f"The parties are {', '.join(everyone[:5])}{' …' if len(everyone) > 5 else ''}"
        )
