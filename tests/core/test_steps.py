from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor
from toys import Lagged, Moves, Validation

from coalface.core.declarations import counterparts
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import (
    Component,
    DeclarationError,
    Party,
    Tensors,
    batched,
    content,
    free,
    like,
    message,
    private,
    step,
)

TRAIN = step(role="trainer")


@message
class Down:
    w: Tensors
    point: Tensor | None = content("template", default=None)


@message
class Up:
    w: Tensors


@message
class UpPoint:
    point: Tensor = content("template")


@message
class UpOther:
    moved: Tensors = like("w")


@message
class UpFree:
    anything: Tensor = free("weight")


@message
class UpUnchecked:
    elsewhere: Tensors


@message
class UpCounted:
    w: Tensors
    images: int


@private
class Own:
    w: Tensors


def no_party(self: Any, common: Down) -> Up: ...
def no_self(party: Party, common: Down) -> Up: ...
def extra_parameter(self: Any, party: Party, lr: float) -> UpFree: ...
def common_not_a_message(self: Any, party: Party, common: int) -> UpFree: ...
def common_without_annotation(self: Any, party: Party, common) -> UpFree: ...  # type: ignore[no-untyped-def]
def own_is_a_message(self: Any, party: Party, own: Down | None) -> UpFree: ...
def own_never_none(self: Any, party: Party, own: Own) -> UpFree: ...
def returns_nothing(self: Any, party: Party): ...  # type: ignore[no-untyped-def]
def returns_private(self: Any, party: Party) -> Own: ...
def returns_three(self: Any, party: Party) -> tuple[UpFree, Own, Own]: ...
def keeps_a_message(self: Any, party: Party) -> tuple[UpFree, Up]: ...
def nothing_like_it_was_sent(self: Any, party: Party, common: Down) -> UpUnchecked: ...
def nothing_was_sent(self: Any, party: Party) -> Up: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (no_party, "`self, party: Party`"),
        (no_self, "`self, party: Party`"),
        (extra_parameter, "'lr'"),
        (common_not_a_message, "`common` .*@message"),
        (common_without_annotation, "`common` .*@message; it is None"),
        (own_is_a_message, "`own` .*@private"),
        (own_never_none, r"`own: Own \| None`"),
        (returns_nothing, r"return `Reply` or"),
        (returns_private, "Reply is declared with @message"),
        (returns_three, r"return `Reply` or"),
        (keeps_a_message, "declared with @private"),
        (nothing_like_it_was_sent, "elsewhere"),
        (nothing_was_sent, "the reply's w"),
    ],
)
def test_a_step_that_no_engine_could_run_is_refused(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=f"step Bad.{function.__name__}: .*{says}"):
        type("Bad", (Component,), {function.__name__: TRAIN(function)})


def test_a_step_with_a_local_result_must_return_tensors() -> None:
    with pytest.raises(DeclarationError, match="step Bad.own_model: .*-> Tensors"):
        type("Bad", (Component,), {"own_model": step(role="trainer", local=OWN_MODEL)(returns_nothing)})


def checked(self: Any, party: Party, common: Down) -> Up: ...
def checked_point(self: Any, party: Party, each: Down) -> UpPoint: ...
def checked_like(self: Any, party: Party, common: Down) -> UpOther: ...
def unchecked(self: Any, party: Party, own: Own | None) -> tuple[UpFree, Own]: ...


def test_the_signature_is_the_declaration() -> None:
    functions = (checked, checked_point, checked_like, unchecked)
    good: Any = type("Good", (Component,), {f.__name__: TRAIN(f) for f in functions})
    declared = good.own_steps["unchecked"]
    assert (declared.role, declared.common, declared.each) == ("trainer", None, None)
    assert (declared.own, declared.reply, declared.keeps) == (Own, UpFree, Own)
    assert [*map(counterparts, (Up, UpOther, UpFree))] == [{"w": "w"}, {"moved": "w"}, {"anything": None}]


def test_a_step_overridden_without_its_mark_is_refused() -> None:
    parent: Any = type("Parent", (Component,), {"checked": TRAIN(checked)})
    with pytest.raises(DeclarationError, match=r"Child.checked .*@step\(role=…\)"):
        type("Child", (parent,), {"checked": lambda self, party, common: Up(w={})})
    child: Any = type("Child", (parent,), {"checked": step(role="judge")(checked)})
    assert child.own_steps["checked"].role == "judge"


def test_a_step_reads_what_the_method_keeps_in_place_of_what_it_asks_for() -> None:
    """Whether inherited or not; where both are kept, what it asks for."""

    @private
    class More(Own):
        more: Tensors

    def keeps_more(self: Any, party: Party) -> Any: ...
    def reads(self: Any, party: Party, own: Own | None) -> UpFree: ...

    keeps_more.__annotations__ |= {"party": Party, "return": tuple[UpFree, More]}
    parent: Any = dataclass(frozen=True)(
        type("Parent", (Component,), {"unchecked": TRAIN(unchecked), "reads": TRAIN(reads)})
    )
    child: Any = dataclass(frozen=True)(type("Child", (parent,), {"unchecked": TRAIN(keeps_more)}))
    again: Any = dataclass(frozen=True)(type("Again", (child,), {"unchecked": TRAIN(unchecked)}))
    both: Any = dataclass(frozen=True)(type("Both", (parent,), {"other": TRAIN(keeps_more)}))
    assert [cls().steps["reads"][1].own for cls in (parent, child, again, both)] == [Own, More, Own, Own]


def test_two_private_classes_of_one_name_are_refused() -> None:
    other = private(type("Own", (), {"__annotations__": {"other": int}}))

    def keeps_other(self: Any, party: Party) -> Any: ...

    keeps_other.__annotations__ |= {"party": Party, "return": tuple[UpFree, other]}  # type: ignore[valid-type]
    steps = {"unchecked": TRAIN(unchecked), "keeps_other": TRAIN(keeps_other)}
    clash: Any = dataclass(frozen=True)(type("Clash", (Component,), steps))
    with pytest.raises(DeclarationError, match="private state called Own"):
        clash().steps  # noqa: B018


# --- a step for many parties at once ----------------------------------------------------------------------------------


def counted(self: Any, party: Party, common: Down) -> UpCounted: ...
def counted_own(self: Any, party: Party, own: Own | None, common: Down, each: Down) -> UpCounted: ...
def counted_kept(self: Any, party: Party, own: Own | None, common: Down) -> tuple[UpCounted, Own]: ...
def many(self: Any, parties: Any, common: Down) -> Any: ...
def many_own(self: Any, parties: Any, own: Any, common: Down, each: Any) -> Any: ...
def many_kept(self: Any, parties: Any, own: Any, common: Down) -> Any: ...
def many_without(self: Any, parties: Any) -> Any: ...


def with_form(function: Callable[..., Any], form: Callable[..., Any], of: str = "") -> Any:
    """A class with a step and its batched form."""
    name = function.__name__
    return type("Made", (Component,), {name: TRAIN(function), form.__name__: batched(of or name)(form)})


def test_a_step_may_say_what_it_is_for_many_parties_at_once() -> None:
    assert with_form(counted, many).own_steps["counted"].batched is many
    assert with_form(counted_own, many_own).own_steps["counted_own"].batched is many_own
    assert with_form(counted_kept, many_kept).own_steps["counted_kept"].batched is many_kept


@pytest.mark.parametrize(
    ("function", "form", "of", "says"),
    [
        (counted, many, "trian", "'trian'.* counted"),
        (checked, many, "", "Up a field `images: int`"),
        (counted, many_without, "", r"it takes \['parties', 'self'\].*take \['common', 'parties', 'self'\]"),
        (counted_own, many, "", r"take \['common', 'each', 'own', 'parties', 'self'\]"),
    ],
)
def test_a_batched_form_that_no_engine_could_run_is_refused(
    function: Callable[..., Any], form: Callable[..., Any], of: str, says: str
) -> None:
    with pytest.raises(DeclarationError, match=f"Made.many.*: .*{says}"):
        with_form(function, form, of)


def test_two_batched_forms_of_one_step_are_refused() -> None:
    def other(self: Any, parties: Any, common: Down) -> Any: ...

    members = {"counted": TRAIN(counted), "many": batched("counted")(many), "other": batched("counted")(other)}
    with pytest.raises(DeclarationError, match="step counted has two"):
        type("Made", (Component,), members)


def test_a_mark_without_the_name_of_a_step_is_refused() -> None:
    with pytest.raises(DeclarationError, match="@batched above many"):
        batched(many)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="staticmethod"):
        batched("counted")(staticmethod(many))


def test_a_batched_form_goes_with_its_step() -> None:
    """A child has its parent's, unless it takes the place of the step or of the form."""
    parent = with_form(counted, many)
    assert type("Child", (parent,), {}).own_steps["counted"].batched is many  # type: ignore[attr-defined]

    def counted_anew(self: Any, party: Party, common: Down) -> UpCounted: ...

    alone: Any = type("Child", (parent,), {"counted": TRAIN(counted_anew)})
    assert alone.own_steps["counted"].batched is None

    def many_anew(self: Any, parties: Any, common: Down) -> Any: ...

    other: Any = type("Child", (parent,), {"many": batched("counted")(many_anew)})
    assert other.own_steps["counted"].batched is many_anew
    assert other.own_steps["counted"].function is counted
    assert parent.own_steps["counted"].batched is many
    with pytest.raises(DeclarationError, match=r'Child.many .*@batched\("counted"\)'):
        type("Child", (parent,), {"many": lambda self, parties, common: []})


# --- components -------------------------------------------------------------------------------------------------------


def test_a_component_brings_its_steps_under_the_name_of_its_field() -> None:
    method = Lagged()
    assert set(method.steps) == {"move", "validation.score"}
    name, declaration = method.find(method.validation.score)
    assert (name, declaration.role) == ("validation.score", "validator")
    assert method.steps["validation.score"][0] is method.validation


def test_a_step_of_something_else_is_not_found() -> None:
    with pytest.raises(DeclarationError, match="Validation.score is not a step of Lagged.*move"):
        Lagged().find(Validation().score)
    with pytest.raises(DeclarationError, match="models is not a step of Moves"):
        Moves().find(Moves().models)
