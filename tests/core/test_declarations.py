from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from toys import Moves, State

from coalface.core.declarations import contents, kind_of
from coalface.core.method import (
    Answer,
    DeclarationError,
    Federation,
    Mean,
    Method,
    Tensors,
    Ticket,
    content,
    free,
    generator,
    like,
    message,
    private,
    state,
)


@message
class Up:
    w: Tensors


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
    key = int.from_bytes(hashlib.sha256(b"1/a/2").digest()[:16], "little")
    expected = np.random.Generator(np.random.Philox(key=key)).integers(1 << 40, size=3)
    assert np.array_equal(generator(1, "a", 2).integers(1 << 40, size=3), expected)


# --- messages and states ----------------------------------------------------------------------------------------------


def test_what_a_field_holds_follows_from_its_type_unless_it_says_it() -> None:
    @message
    class Reply:
        w: Tensors
        late: Tensors | None
        images: int
        found: bool
        loss: float = 0.0
        user: int = content("code")
        row: Tensor | None = like("centre", "template")
        losses: Tensors = free("score")

    assert contents(Reply) == {
        **{"w": "weight", "late": "weight", "images": "count", "found": "count", "loss": "score"},
        **{"user": "code", "row": "template", "losses": "score"},
    }


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(Tensor, ...), (str, ...), (Tensor, like("w")), (Tensors, free()), (int, content("face"))],  # type: ignore[arg-type]
)
def test_a_field_of_which_nobody_can_tell_what_it_holds_is_refused_by_name(annotation: Any, default: Any) -> None:
    members = {"__annotations__": {"w": Tensors, "row": annotation}} | ({} if default is ... else {"row": default})
    with pytest.raises(DeclarationError, match=r"Odd\.row: .*content\(…\).*'template'"):
        message(type("Odd", (), members))


@pytest.mark.parametrize(
    ("kind", "annotation"),
    [
        (message, Own),
        (message, np.ndarray),
        (message, list[int]),
        (message, Up),
        (message, int | str),
        (private, Up),
        (state, Plain),
        (state, dict[int, Tensor]),
    ],
)
def test_a_field_that_cannot_be_carried_is_refused_by_name(kind: Any, annotation: Any) -> None:
    with pytest.raises(DeclarationError, match="Odd.value"):
        kind(type("Odd", (), {"__annotations__": {"value": annotation}}))


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

    kinds = [kind_of(value) for value in (Deep, Server, Plain, Up(w={}))]
    assert kinds == ["private", "state", None, "message"]


# --- means and answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"over": "al"}, {"of": "diff"}, {"by": ["images"]}, {"by": "images", "over": "all"}]
)
def test_a_mean_that_cannot_be_taken_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"Mean\('w', "):
        Mean("w", **settings)


def test_the_mean_of_replies_is_weighted_as_asked() -> None:
    answer = Answer({}, {"loss": {"a": 1.0, "b": 4.0}, "images": {"a": 3, "b": 1}}, {"c": "late"}, ("a", "b"))
    assert answer.mean("loss") == 2.5
    assert answer.mean("loss", by="images") == (3 * 1.0 + 1 * 4.0) / 4


# --- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["title", "paper", "setting"])
def test_a_method_says_what_it_is(missing: str) -> None:
    body: dict[str, Any] = {"title": "t", "paper": "p", "setting": "any"}
    body |= {name: getattr(Moves, name) for name in ("init", "round", "models")}
    del body[missing]
    with pytest.raises(DeclarationError, match=f"Silent: .*`{missing}: "):
        type("Silent", (Method,), body)


@pytest.mark.parametrize("name", ["init", "round"])
def test_what_a_checkpoint_holds_must_be_declared(name: str) -> None:
    def untyped(self: Any, fed: Federation, state: Any = None): ...  # type: ignore[no-untyped-def]

    with pytest.raises(DeclarationError, match=f"Loose: {name} must return a class declared with @state"):
        type("Loose", (Moves,), {name: untyped})


def test_the_state_of_a_stage_is_what_its_round_returns() -> None:
    assert [s.state for s in Moves().stages()] == [State]


# --- sampling ---------------------------------------------------------------------------------------------------------


class Roster(Federation):
    """Only the names and a stream."""

    ask = post = collect = embed = images = log = log_losses = round = stream = secret_stream = weights = None  # type: ignore[assignment]

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
    with pytest.raises(ValueError, match=f"sample {n} of .* {role!r}"):
        Roster(6, 0).sample(role, n)
