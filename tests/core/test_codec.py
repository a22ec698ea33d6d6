from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coalface.core import codec, header
from coalface.core.codec import Refused, WireError
from coalface.core.method import Tensors, Ticket, content, free, like, message, private, state


@message
class Everything:
    tensor: Tensor = content("template")
    maybe: Tensor | None = content("template")
    tensors: Tensors
    count: int
    number: float
    flag: bool
    text: str = content("code")
    label: str | None = content("code", default=None)


@message
class Small:
    w: Tensors
    images: int = 1
    loss: float = 0.0


@private
class Secret:
    w: Tensors
    history: tuple[Tensor, ...] = ()


@state
class Held:
    deep: dict[str, Tensors]
    tickets: tuple[Ticket, ...]
    rows: tuple[int, ...]
    last: Ticket | None = None


def tensors_of(dtype: torch.dtype) -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(
        lambda shape, seed: torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, shape)).to(dtype),
        shapes,
        st.integers(0, 99),
    )


tensors = st.sampled_from(list(header.DTYPES.values())).flatmap(tensors_of)
names = st.text(min_size=0, max_size=6).filter(lambda s: s.isprintable())
everything = st.builds(
    Everything,
    tensor=tensors,
    maybe=st.none() | tensors,
    tensors=st.dictionaries(names, tensors, max_size=4),
    count=st.integers(-(10**20), 10**20),
    number=st.floats(allow_nan=False),
    flag=st.booleans(),
    text=st.text(),
    label=st.none() | st.text(),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__coalface_kind__"):
        return type(a) is type(b) and all(same(v, getattr(b, n)) for n, v in vars(a).items())
    return type(a) is type(b) and a == b


# --- there and back ---------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(everything)
def test_a_message_comes_back_as_it_was_and_is_a_safetensors_file(sent: Everything) -> None:
    encoded = codec.encode(sent)
    assert same(codec.decode(encoded.data, Everything), sent)
    assert codec.encode(sent).data == encoded.data
    assert sum(e.bytes for e in encoded.entries) == len(encoded.data) == codec.size(sent)
    loaded = safetensors.torch.load(bytes(encoded.data))
    expected = {path: t for field, value in vars(sent).items() for path, t in codec.by_path(field, value).items()}
    assert same(dict(sorted(loaded.items())), dict(sorted(expected.items())))
    assert {e.name for e in encoded.entries[1:]} == set(expected)


def test_every_entry_names_its_piece_and_its_hash() -> None:
    encoded = codec.encode(Small(w={"b": torch.arange(3.0), "a": torch.zeros(2, 2, dtype=torch.bfloat16)}))
    header, b, a = encoded.entries
    assert (header.kind, b.name, b.shape, b.dtype, b.bytes) == ("header", "w/b", (3,), "F32", 12)
    assert (a.name, a.shape, a.dtype, a.bytes) == ("w/a", (2, 2), "BF16", 8)
    start = header.bytes
    assert encoded.sums[1] == hashlib.sha256(encoded.data[start : start + 12]).hexdigest()
    assert encoded.sums[0] == hashlib.sha256(encoded.data[:start]).hexdigest()


@pytest.mark.parametrize("largest", [10, 200_000])
def test_the_hashes_are_the_same_whichever_thread_takes_which_piece(largest: int) -> None:
    tensors = {f"t{i}": torch.full((1 + largest * i // 8,), float(i)) for i in range(9)}
    encoded = codec.encode(Small(w=tensors))
    ends = list(itertools.accumulate(entry.bytes for entry in encoded.entries))
    pieces = [encoded.data[end - entry.bytes : end] for end, entry in zip(ends, encoded.entries, strict=True)]
    assert list(encoded.sums) == [hashlib.sha256(piece).hexdigest() for piece in pieces]


def test_the_digest_follows_the_content() -> None:
    zeros, changed = Small(w={"a": torch.zeros(2)}), Small(w={"a": torch.tensor([0.0, 1.0])})
    digests = {
        codec.encode(m).digest for m in (zeros, changed, Small(w=zeros.w, images=2), Small(w={"b": zeros.w["a"]}))
    }
    assert len(digests) == 4
    assert codec.encode(Small(w={"a": torch.zeros(2)})).digest == codec.encode(zeros).digest


def test_views_and_graphs_are_sent_by_value() -> None:
    base = torch.arange(6.0).reshape(2, 3)
    sent = Small(w={"t": base.T, "grad": torch.ones(2, requires_grad=True)})
    back = codec.decode(codec.encode(sent).data, Small)
    assert torch.equal(back.w["t"], base.T)
    assert not back.w["grad"].requires_grad


def test_state_and_private_state_are_packed_for_files() -> None:
    held = Held(
        deep={"x": {"a": torch.ones(2)}, "y": {}}, tickets=(Ticket("s", 1, 2), Ticket("s", 3, 1)), rows=(3, 1, 2)
    )
    assert same(vars(codec.decode(codec.pack(held).data, Held)), vars(held))
    secret = Secret(w={"a": torch.ones(1)}, history=(torch.zeros(2), torch.ones(0, 3)))
    assert same(codec.decode(codec.pack(secret).data, Secret), secret)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [Secret(w={}), Held(deep={}, tickets=(), rows=()), Small, {"w": torch.zeros(1)}, None]
)
def test_only_messages_are_encoded(value: Any) -> None:
    with pytest.raises(WireError, match="@message"):
        codec.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        Secret(w={"a": torch.ones(1)}),
        {"own": Secret(w={"a": torch.ones(1)})},
        {"deep": {"a": torch.ones(1)}},
        {1: torch.ones(1)},
        torch.ones(1),
        None,
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_field_that_holds_something_else_than_declared_is_not_sent(value: Any) -> None:
    with pytest.raises(WireError, match="^Small.w"):
        codec.encode(Small(w=value))


@pytest.mark.parametrize("value", [True, 1.0, np.int64(3), "3", None])
def test_a_count_is_a_plain_int(value: Any) -> None:
    with pytest.raises(WireError, match="Small.images holds"):
        codec.encode(Small(w={}, images=value))


def test_what_is_kept_holds_what_it_declares() -> None:
    with pytest.raises(WireError, match="^Held.rows/1 holds a str"):
        codec.pack(Held(deep={}, tickets=(), rows=(1, "2")))  # type: ignore[arg-type]
    with pytest.raises(WireError, match="^Secret.w holds a NoneType"):
        codec.pack(Secret(w=None))  # type: ignore[arg-type]


def test_a_dtype_without_an_encoding_is_named() -> None:
    with pytest.raises(WireError, match="Small.w/c: torch.complex64"):
        codec.encode(Small(w={"c": torch.zeros(1, dtype=torch.complex64)}))


def test_names_that_would_meet_are_refused() -> None:
    clashing = Held(deep={"a": {"b/c": torch.zeros(1)}, "a/b": {"c": torch.zeros(1)}}, tickets=(), rows=())
    with pytest.raises(WireError, match="deep/a/b/c names two tensors"):
        codec.pack(clashing)


def test_a_reply_is_no_larger_than_what_was_asked_for() -> None:
    sent = Small(w={"a": torch.zeros(2), "long name" * 20: torch.zeros(3, 0, 2)})
    like = codec.forms(Small, [sent])
    assert same(codec.decode(codec.encode(sent).data, Small, like=like), sent)
    many = codec.encode(Small(w={"a": torch.zeros(1 << 15)}))
    with pytest.raises(WireError, match="what was asked for"):
        codec.decode(many.data, Small, like=like)
    wide = codec.encode(Small(w={f"w{i}": torch.zeros(0) for i in range(2_000)}))
    with pytest.raises(WireError, match="header"):
        codec.decode(wide.data, Small, like=codec.forms(Small, [Small(w={"a": torch.zeros(1 << 16)})]))


def test_a_reply_whose_form_is_free_may_be_of_any_size_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    free_form = reply(shape_free=torch.zeros(1 << 16))
    assert same(codec.decode(codec.encode(free_form).data, Reply, like=forms()), free_form)
    monkeypatch.setattr(codec, "FREE", 1 << 16)
    with pytest.raises(WireError, match="what was asked for"):
        codec.decode(codec.encode(free_form).data, Reply, like=forms())


def test_more_tensors_than_are_read_back_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "SENT", 10)
    codec.pack(Small(w={str(i): torch.zeros(0) for i in range(10)}))
    with pytest.raises(WireError, match="11 tensors"):
        codec.pack(Small(w={str(i): torch.zeros(0) for i in range(11)}))


# --- checking a reply -------------------------------------------------------------------------------------------------


@message
class Reply:
    w: Tensors
    point: Tensor | None = like("centre", "template")
    shape_free: Tensor = free("weight")
    loss: float = 0.0


@message
class Common:
    w: Tensors


@message
class Each:
    centre: Tensor | None = content("template", default=None)
    w: Tensors | None = None


W = {"a": torch.zeros(2), "b": torch.zeros(1, 2)}


def reply(**changes: Any) -> Reply:
    return Reply(**{"w": W, "point": torch.zeros(3), "shape_free": torch.zeros(7), **changes})


def forms(each: Each | None = None) -> codec.Forms:
    return codec.forms(Reply, [each or Each(centre=torch.ones(3)), Common(w=W)])


def test_a_reply_that_fits_what_was_sent_passes() -> None:
    codec.validate(reply(), forms())
    codec.validate(reply(point=None, shape_free=torch.zeros(0)), forms())


def test_what_a_party_was_sent_by_itself_goes_before_what_all_were_sent() -> None:
    own = {"only": torch.zeros(1)}
    codec.validate(reply(w=own), forms(Each(centre=torch.ones(3), w=own)))
    with pytest.raises(Refused, match="w has other tensors"):
        codec.validate(reply(w=W), forms(Each(centre=torch.ones(3), w=own)))


NAN = torch.tensor([0.0, math.nan])


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"w": {"a": W["a"]}}, r"w .*missing \['w/b'\]"),
        ({"w": W | {"c": W["a"]}}, r"w .*unexpected \['w/c'\]"),
        ({"w": {"b": W["b"], "a": W["a"]}}, "w .*order"),
        ({"w": W | {"a": torch.zeros(2, 1)}}, r"w/a is F32 \(2, 1\), not F32 \(2,\)"),
        ({"w": W | {"b": W["b"].double()}}, r"w/b is F64 \(1, 2\), not F32 \(1, 2\)"),
        ({"point": torch.zeros(4)}, r"point is F32 \(4,\), not F32 \(3,\)"),
        ({"w": W | {"a": NAN}}, "w/a"),
        ({"w": W | {"a": torch.tensor([math.inf, -math.inf])}}, "w/a"),
        ({"shape_free": NAN.bfloat16()}, "shape_free"),
        ({"loss": math.nan}, "loss is nan"),
        ({"loss": -3.5e38}, r"loss is -3.5e\+38"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(Refused, match=names):
        codec.validate(reply(**changes), forms())


def test_a_field_without_its_counterpart_is_refused() -> None:
    with pytest.raises(Refused, match="point"):
        codec.validate(reply(), forms(Each()))


def test_large_finite_values_are_not_mistaken_for_infinite_ones() -> None:
    codec.validate(reply(shape_free=torch.full((10,), 6e4, dtype=torch.float16)), forms())
    codec.validate(reply(shape_free=torch.full((10,), 3e38)), forms())
