from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor
from toys import Lagged, Moves, State, Validation

from coalface.core import declarations
from coalface.core import method as core
from coalface.core.local_results import OWN_MODEL
from coalface.core.method import (
    Answer,
    DeclarationError,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Tensors,
    Ticket,
    batched,
    free,
    generator,
    like,
    message,
    private,
    state,
    step,
)


@message
class Down:
    w: Tensors
    point: Tensor | None = None


@message
class Up:
    w: Tensors


@message
class UpPoint:
    point: Tensor


@message
class UpOther:
    moved: Tensors = like("w")


@message
class UpFree:
    anything: Tensor = free()


@message
class UpUnchecked:
    else_where: Tensors


@private
class Own:
    w: Tensors


@dataclass(frozen=True)
class Plain:
    w: int


# --- randomness -------------------------------------------------------------------------------------------------------


def test_a_stream_is_found_by_its_names_whatever_was_drawn_before() -> None:
    first = generator(7, "silo-0", "train", 3).random(4)
    generator(7, "silo-1").random(1000)
    assert np.array_equal(generator(7, "silo-0", "train", 3).random(4), first)


@pytest.mark.parametrize("other", [(8, "silo-0", 3), (7, "silo-1", 3), (7, "silo-0", 4), (7, "silo-0"), (7, "silo-03")])
def test_streams_of_other_names_differ(other: tuple[Any, ...]) -> None:
    assert not np.array_equal(generator(*other).random(4), generator(7, "silo-0", 3).random(4))


def test_a_stream_is_the_same_on_every_machine() -> None:
    # Worked apart from the function: Philox keyed with the first 16 bytes of SHA-256("1/a/2"), little endian.
    import hashlib

    key = int.from_bytes(hashlib.sha256(b"1/a/2").digest()[:16], "little")
    expected = np.random.Generator(np.random.Philox(key=key)).integers(1 << 40, size=3)
    assert np.array_equal(generator(1, "a", 2).integers(1 << 40, size=3), expected)


# --- messages and states ----------------------------------------------------------------------------------------------


def declare_message_with_private() -> None:
    @message
    class Leak:
        own: Own


def declare_message_with_numpy() -> None:
    @message
    class Odd:
        array: np.ndarray


def declare_message_with_list() -> None:
    @message
    class Listed:
        numbers: list[int]


def declare_message_in_message() -> None:
    @message
    class Nested:
        inner: Up


def declare_message_with_two_kinds() -> None:
    @message
    class Either:
        value: int | str


def declare_private_with_message() -> None:
    @private
    class Kept:
        reply: Up


def declare_state_with_object() -> None:
    @state
    class Held:
        method: Plain


def declare_state_with_int_keys() -> None:
    @state
    class Numbered:
        by_round: dict[int, Tensor]


@pytest.mark.parametrize(
    ("declare", "where", "fix"),
    [
        (declare_message_with_private, "Leak.own", "never leaves a party.*Use Tensor, Tensors"),
        (declare_message_with_numpy, "Odd.array", "not plain.*Use Tensor, Tensors"),
        (declare_message_with_list, "Listed.numbers", "Use Tensor, Tensors"),
        (declare_message_in_message, "Nested.inner", "Use Tensor, Tensors"),
        (declare_message_with_two_kinds, "Either.value", r"each may be `\| None`"),
        (declare_private_with_message, "Kept.reply", "another class declared with @private"),
        (declare_state_with_object, "Held.method", "another class declared with @state"),
        (declare_state_with_int_keys, "Numbered.by_round", r"dict\[str, …\]"),
    ],
)
def test_a_field_that_cannot_be_carried_is_refused_by_name(declare: Callable[[], None], where: str, fix: str) -> None:
    with pytest.raises(DeclarationError, match=rf"{where}.*{fix}"):
        declare()


def test_what_may_be_kept_is_wider_than_what_may_be_sent() -> None:
    @private
    class Deep:
        parts: dict[str, Own]
        row: tuple[Tensor, ...]
        many: dict[str, Tensors]

    @state
    class Server:
        tickets: tuple[Ticket, ...]
        last: Ticket | None
        name: str | None

    assert (core.kind_of(Deep), core.kind_of(Server), core.kind_of(Plain), core.kind_of(Up(w={}))) == (
        "private",
        "state",
        None,
        "message",
    )


# --- folds and answers ------------------------------------------------------------------------------------------------


def test_a_mean_over_all_cannot_take_its_weights_from_replies() -> None:
    with pytest.raises(DeclarationError, match=r"by='images', over='all'.*Give the weights from the server"):
        Mean("w", by="images", over="all")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"over": "al"}, r"over='al'\): over is 'arrived' or 'all'"),
        ({"of": "diff"}, r"of='diff'\): of is 'values' or 'differences'"),
        ({"by": ["images"]}, r"by=\['images'\]\): give the name of a number in the reply, a mapping from party"),
    ],
)
def test_a_mean_of_unknown_kind_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=r"Mean\('w', " + says):
        Mean("w", **wrong)


def test_the_mean_of_replies_is_weighted_as_asked() -> None:
    answer = Answer({}, {"loss": {"a": 1.0, "b": 4.0}, "images": {"a": 3, "b": 1}}, {"c": "late"}, ("a", "b"))
    assert answer.mean("loss") == 2.5
    assert answer.mean("loss", by="images") == (3 * 1.0 + 1 * 4.0) / 4


# --- steps ------------------------------------------------------------------------------------------------------------


class Base(Method):
    """The part of a method that these tests do not look at."""

    title: ClassVar[str] = "toy"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    def init(self, fed: Federation) -> State:
        raise NotImplementedError

    def round(self, fed: Federation, state: State) -> State:
        raise NotImplementedError

    def models(self, fed: Federation, state: Any) -> Models:
        raise NotImplementedError


def no_party(self: Any, common: Down) -> Up: ...
def extra_parameter(self: Any, party: Party, lr: float) -> UpFree: ...
def common_not_a_message(self: Any, party: Party, common: Plain) -> UpFree: ...
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
        (no_party, "the first parameter must be `party: Party`"),
        (extra_parameter, "'lr'.*hyper-parameters into fields of the method"),
        (common_not_a_message, "`common` must be a class declared with @message.*Put @message above"),
        (common_without_annotation, "`common` must be a class declared with @message; it is None"),
        (own_is_a_message, "`own` must be a class declared with @private"),
        (own_never_none, r"has no private state: write `own: Own \| None`"),
        (returns_nothing, r"must return `Reply` or `tuple\[Reply, Own\]`"),
        (returns_private, "Reply is declared with @message"),
        (returns_three, r"must return `Reply` or `tuple\[Reply, Own\]`"),
        (keeps_a_message, "what stays at the party must be declared with @private"),
        (nothing_like_it_was_sent, r"else_where could not be checked.*like\('…'\).*free\(\)"),
        (nothing_was_sent, r"w could not be checked.*like\('…'\).*free\(\)"),
    ],
)
def test_a_step_that_no_engine_could_run_is_refused_with_the_fix(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=f"step Bad.{function.__name__}: .*{says}"):
        type("Bad", (Base,), {function.__name__: step(role="trainer")(function)})


def test_a_step_that_stays_must_return_a_model() -> None:
    with pytest.raises(DeclarationError, match="returns tensors by name, `-> Tensors`"):
        type("Bad", (Base,), {"own_never_none": step(role="trainer", local=OWN_MODEL)(returns_nothing)})


def checked(self: Any, party: Party, common: Down) -> Up: ...
def checked_point(self: Any, party: Party, each: Down) -> UpPoint: ...
def checked_like(self: Any, party: Party, common: Down) -> UpOther: ...
def unchecked(self: Any, party: Party, own: Own | None) -> tuple[UpFree, Own]: ...


def test_the_signature_is_the_declaration() -> None:
    functions = (checked, checked_point, checked_like, unchecked)
    made: Any = type("Good", (Base,), {f.__name__: step(role="trainer")(f) for f in functions})
    declared = made.own_steps["unchecked"]
    assert (declared.role, declared.common, declared.each) == ("trainer", None, None)
    assert (declared.own, declared.reply, declared.keeps) == (Own, UpFree, Own)
    assert (declarations.counterpart(Up, "w"), declarations.counterpart(UpOther, "moved")) == ("w", "w")
    assert declarations.counterpart(UpFree, "anything") is None


def test_a_step_overridden_without_its_mark_is_refused() -> None:
    parent: Any = type("Parent", (Base,), {"checked": step(role="trainer")(checked)})
    with pytest.raises(DeclarationError, match=r"Child.checked.*Put @step\(role=…\) above it too"):
        type("Child", (parent,), {"checked": lambda self, party, common: Up(w={})})
    child: Any = type("Child", (parent,), {"checked": step(role="judge")(checked)})
    assert child.own_steps["checked"].role == "judge"


def test_two_private_classes_of_one_name_are_refused() -> None:
    @private
    class Own:
        other: int

    def keeps_other(self: Any, party: Party) -> Any: ...

    keeps_other.__annotations__ |= {"party": Party, "return": tuple[UpFree, Own]}
    both = {"unchecked": step(role="trainer")(unchecked), "keeps_other": step(role="trainer")(keeps_other)}
    made = dataclass(frozen=True)(type("Clash", (Base,), both))
    with pytest.raises(DeclarationError, match=r"two classes of private state are called Own.*Rename one"):
        made().steps  # noqa: B018


# --- a step for many parties at once ----------------------------------------------------------------------------------


@message
class UpCounted:
    w: Tensors
    images: int


def counted(self: Any, party: Party, common: Down) -> UpCounted: ...
def counted_own(self: Any, party: Party, own: Own | None, common: Down, each: Down) -> UpCounted: ...
def counted_kept(self: Any, party: Party, own: Own | None, common: Down) -> tuple[UpCounted, Own]: ...
def many(self: Any, parties: Any, common: Down) -> Any: ...
def many_own(self: Any, parties: Any, own: Any, common: Down, each: Any) -> Any: ...
def many_without(self: Any, parties: Any) -> Any: ...
def many_more(self: Any, parties: Any, common: Down, each: Any) -> Any: ...
def one_party(self: Any, party: Party, common: Down) -> Any: ...


TRAIN = step(role="trainer")


def with_form(function: Callable[..., Any], form: Callable[..., Any], of: str = "", parent: type = Base) -> Any:
    """A class with a step and its batched form."""
    name = function.__name__
    return type("Made", (parent,), {name: TRAIN(function), form.__name__: batched(of or name)(form)})


def test_a_step_may_say_what_it_is_for_many_parties_at_once() -> None:
    assert with_form(counted, many).own_steps["counted"].batched is many
    assert with_form(counted_own, many_own).own_steps["counted_own"].batched is many_own
    plain: Any = type("Plain", (Base,), {"counted": TRAIN(counted)})
    assert plain.own_steps["counted"].batched is None


@pytest.mark.parametrize(
    ("function", "form", "of", "says"),
    [
        (counted, many, "trian", r"Made.many: @batched\('trian'\) names no step; known steps: counted"),
        (counted_kept, many, "", "Made.many: step counted_kept keeps private state or a model at its party"),
        (checked, many, "", "Made.many: .*weighted by their images: give Up a field `images: int`"),
        (counted, many_without, "", r"it takes \['parties', 'self'\], .*must take \['common', 'parties', 'self'\]"),
        (counted, many_more, "", r"it takes \['common', 'each', .*must take \['common', 'parties', 'self'\]"),
        (counted, one_party, "", r"it takes \['common', 'party', 'self'\].*must take \['common', 'parties', 'self'\]"),
        (counted_own, many, "", r"must take \['common', 'each', 'own', 'parties', 'self'\]"),
    ],
)
def test_a_batched_form_that_no_engine_could_run_is_refused_with_the_fix(
    function: Callable[..., Any], form: Callable[..., Any], of: str, says: str
) -> None:
    with pytest.raises(DeclarationError, match=says):
        with_form(function, form, of)


def test_two_batched_forms_of_one_step_are_refused() -> None:
    def other(self: Any, parties: Any, common: Down) -> Any: ...

    members = {"counted": TRAIN(counted), "many": batched("counted")(many), "other": batched("counted")(other)}
    with pytest.raises(DeclarationError, match="Made: many and other are both the batched form of step counted: keep"):
        type("Made", (Base,), members)


def test_a_step_that_leaves_a_model_has_no_batched_form() -> None:
    def own_model(self: Any, party: Party, common: Down) -> Any: ...

    own_model.__annotations__ |= {"party": Party, "common": Down, "return": Tensors}
    members = {"own_model": step(role="trainer", local=OWN_MODEL)(own_model), "many": batched("own_model")(many)}
    with pytest.raises(DeclarationError, match="step own_model keeps private state or a model at its party"):
        type("Made", (Base,), members)


def test_a_mark_without_the_name_of_a_step_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r'@batched above many must name a step: write `@batched\("train"\)`'):
        batched(many)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a step is a plain method, and this is a staticmethod"):
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
    with pytest.raises(DeclarationError, match=r'Child.many takes the place .*Put @batched\("counted"\) above it too'):
        type("Child", (parent,), {"many": lambda self, parties, common: []})


# --- methods and components -------------------------------------------------------------------------------------------


def test_a_component_brings_its_steps_under_the_name_of_its_field() -> None:
    method = Lagged()
    assert set(method.steps) == {"move", "validation.score"}
    name, declaration = method.find(method.validation.score)
    assert (name, declaration.role) == ("validation.score", "validator")
    owner, _ = method.steps["validation.score"]
    assert owner is method.validation


def test_a_step_of_something_else_is_not_found() -> None:
    with pytest.raises(DeclarationError, match=r"Validation.score is not a step of Lagged.*hold its component.*move"):
        Lagged().find(Validation().score)
    with pytest.raises(DeclarationError, match=r"models is not a step of Moves. Put @step"):
        Moves().find(Moves().models)


@pytest.mark.parametrize("missing", ["title", "paper", "setting"])
def test_a_method_says_what_it_is(missing: str) -> None:
    parts: dict[str, Any] = {"title": "t", "paper": "p", "setting": "any"}
    del parts[missing]
    body = {"init": Base.init, "round": Base.round, "models": Base.models}
    with pytest.raises(DeclarationError, match=rf"method Silent: give it a class variable `{missing}: ClassVar"):
        type("Silent", (Method,), parts | body)


@pytest.mark.parametrize("name", ["init", "round"])
def test_what_a_checkpoint_holds_must_be_declared(name: str) -> None:
    def untyped(self: Any, fed: Federation, state: Any = None): ...  # type: ignore[no-untyped-def]

    with pytest.raises(DeclarationError, match=rf"method Loose: {name} must return a class declared with @state"):
        type("Loose", (Base,), {name: untyped})


def test_the_state_of_a_stage_is_what_its_round_returns() -> None:
    assert [s.state for s in Moves().stages()] == [State]


# --- sampling ---------------------------------------------------------------------------------------------------------


class Roster(Federation):
    """Only the names and a stream."""

    ask = post = collect = images = log = round = stream = weights = None  # type: ignore[assignment]

    def __init__(self, n: int, seed: int) -> None:
        self.names, self.rng = tuple(f"p{i}" for i in range(n)), generator(seed, "server")

    def parties(self, role: str) -> tuple[str, ...]:
        return self.names if role == "trainer" else ()


def test_a_sample_is_sorted_without_repeats_and_every_party_has_its_chance() -> None:
    drawn = [Roster(6, seed).sample("trainer", 3) for seed in range(200)]
    assert all(list(names) == sorted(set(names)) and len(names) == 3 for names in drawn)
    counts = {name: sum(name in names for names in drawn) for name in Roster(6, 0).names}
    assert min(counts.values()) > 60  # 100 are expected, with a standard deviation of 7
    assert Roster(6, 3).sample("trainer", 3) == drawn[3]


@pytest.mark.parametrize(("role", "n"), [("trainer", 7), ("trainer", 0), ("judge", 1)])
def test_a_sample_larger_than_the_role_is_refused(role: str, n: int) -> None:
    with pytest.raises(ValueError, match=rf"cannot sample {n} of \d parties with role '{role}'"):
        Roster(6, 0).sample(role, n)
