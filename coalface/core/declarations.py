"""Declarations of messages, private state and server state, checked when the class is defined, and of means.

Methods import these words from `coalface.core.method`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

from torch import Tensor


class DeclarationError(TypeError):
    """A message, a step or a method is declared, or used, in a way that no engine could carry out."""


Tensors = dict[str, Tensor]
"""Tensors by name, for example the parameters of a backbone."""

Kind = Literal["message", "private", "state"]
Content = Literal["template", "sanitised", "code", "weight", "aggregate", "score", "count"]
"""What a field of a message holds, the most personal first: `template`, an embedding, a class embedding or a mean
feature of a person, or several fused; `sanitised`, made of those of several people with noise, of which the method says
what (ε, δ) holds; `code`, a codeword or a text; `weight`, of a network, or its gradient or
momentum; `aggregate`, weights that were averaged over parties; `score`, of images or models; `count`."""
CONTENTS: tuple[Content, ...] = typing.get_args(Content)
_USUAL: dict[Any, Content] = {Tensors: "weight", int: "count", bool: "count", float: "score"}
"""What a field of a type holds that does not say it, unless it is `free()`."""
C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Ticket:
    """A receipt for posted work; keep it in the state and `collect` it in a later round."""

    stage: str
    round: int
    call: int


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
        for key, choices in (("over", ("arrived", "all")), ("of", ("values", "differences"))):
            if getattr(self, key) not in choices:
                raise DeclarationError(
                    f"Mean({self.field!r}, {key}={getattr(self, key)!r}): {key} is {choices[0]!r} or {choices[1]!r}."
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


def _declare(cls: C, kind: Kind) -> C:
    declared: Any = dataclass(frozen=True, kw_only=True, eq=False)(cls)
    declared.__coalface_kind__ = kind
    annotations = resolved(declared, f"{kind} {cls.__name__}")
    for name, annotation in annotations.items():
        _check_field(declared, name, annotation, kind)
    # not as text, which another process could not read if the class goes there by value
    declared.__annotations__ = {name: annotations[name] for name in declared.__annotations__}
    if kind == "message":
        contents(declared)
    return typing.cast(C, declared)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def message(cls: C) -> C:
    """Declare what may cross the wire: a frozen, keyword-only dataclass of tensors and plain values.

    Fields are `Tensor`, `Tensors`, `int`, `float`, `bool`, `str`, or one of these `| None`. Nothing else ever leaves a
    party. A tensor field of a reply must look (names, shapes, dtypes) like the field of the same name that was sent to
    the party; `like("other")` names another field, `free(…)` lifts the rule. What a field holds is known of `Tensors`
    (`weight`), `int` (`count`) and `float` (`score`); any other says it, `content("template")`: see `Content`.
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


def content(holds: Content, *, default: Any = MISSING) -> Any:
    """A field of a message that says what it holds, such as `"template"`: see `Content`."""
    return field(default=default, metadata={"content": holds})


def like(field_sent: str, content: Content | None = None) -> Any:
    """A reply's tensor field that must look like the field `other` of what was sent to the party."""
    return field(metadata={"like": field_sent, "content": content})


def free(content: Content | None = None) -> Any:
    """A reply's tensor field whose shape only the method knows: it must be finite, and comes singly."""
    return field(metadata={"like": None, "content": content})


@functools.cache
def contents(declared: type) -> dict[str, Content]:
    """Field of a message -> what it holds. Raises DeclarationError for one of which that cannot be told."""
    annotations, holds = typing.get_type_hints(declared), dict[str, Content]()
    for declared_field in dataclasses.fields(declared):
        name, metadata = declared_field.name, declared_field.metadata
        usual = None if metadata.get("like", name) is None else _USUAL.get(without_none(annotations[name])[0])
        said = metadata.get("content") or usual
        if said not in CONTENTS:
            wrong = f"{said!r} is no content" if said else "nothing says what it holds"
            raise DeclarationError(
                f"message field {declared.__name__}.{name}: {wrong}, and whoever sends it must be told. Write "
                f"`content(…)`, with one of {', '.join(map(repr, CONTENTS))}; `like(…)` and `free(…)` take it too."
            )
        holds[name] = said
    return holds


def resolved(declared: Any, where: str) -> dict[str, Any]:
    """The annotations of a class or a function by name. Raises DeclarationError where one cannot be read."""
    try:
        return typing.get_type_hints(declared)
    except NameError as error:
        name = error.name or ""
        texts = {n: a for n, a in getattr(declared, "__annotations__", {}).items() if isinstance(a, str)}
        using = " and ".join(f"`{n}: {a}`" for n, a in texts.items() if re.search(rf"\b{re.escape(name)}\b", a))
        scope = getattr(declared, "__globals__", None) or vars(sys.modules.get(declared.__module__, typing))
        near = difflib.get_close_matches(name, [n for n in scope if not n.startswith("_")], n=1)
        raise DeclarationError(
            f"{where}: {using or 'an annotation'} names {name!r}, which {declared.__module__} does not know."
            f"{f' Did you mean {near[0]!r}?' if near else ''} Import it, or define it at the top level of the file, "
            "neither in a function nor under TYPE_CHECKING."
        ) from None
    except (AttributeError, SyntaxError, TypeError) as error:
        raise DeclarationError(f"{where}: an annotation is not a class: {error}.") from error


def kind_of(value: object) -> Kind | None:
    """`message`, `private` or `state`, of a declared class or of one of its instances; else None."""
    return getattr(value, "__coalface_kind__", None)


def returned_state(function: Callable[..., Any], where: str, overridden: Any = None) -> type:
    """The class of state in a function's return annotation; where it has none, the error names the overridden one's."""
    state_class = resolved(function, where).get("return")
    if kind_of(state_class) != "state":
        base: Any = resolved(overridden, where).get("return") if overridden else None
        known = kind_of(base) == "state"
        origin = f", with `from {base.__module__} import {base.__name__}` or a class of your own" if known else ""
        annotation = "no return annotation" if state_class is None else f"the return annotation {state_class}"
        raise DeclarationError(
            f"{where} must return a class declared with @state, since a checkpoint holds it; it has {annotation}. "
            f"Write `-> {base.__name__ if known else 'State'}`{origin}."
        )
    return typing.cast(type, state_class)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True); any other annotation as (itself, False)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(members) == 1 and len(typing.get_args(annotation)) == 2:
            return members[0], True
    return annotation, False


def _check_field(cls: type, name: str, annotation: Any, kind: Kind) -> None:
    inner, _ = without_none(annotation)
    if inner in (Tensor, Tensors, int, float, bool, str):
        return
    where = f"{cls.__name__}.{name}"
    if kind == "message":
        raise DeclarationError(
            f"message field {where}: {annotation} cannot cross the wire. Use Tensor, Tensors, int, float, bool or str "
            "(each may be `| None`); private state never leaves a party."
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


@functools.cache
def counterparts(reply: type) -> dict[str, str | None]:
    """Field of tensors of a reply -> the field of what was sent that it must look like; None where it is `free()`."""
    hints = typing.get_type_hints(reply)
    tensors = [f for f in dataclasses.fields(reply) if without_none(hints[f.name])[0] in (Tensor, Tensors)]
    return {f.name: f.metadata.get("like", f.name) for f in tensors}
