from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core import codec
from coalface.core.codec import WireError
from coalface.core.method import Tensors, message


@message
class Small:
    w: Tensors
    images: int = 1
    loss: float = 0.0


def file(head: dict[str, Any], body: bytes = b"", plain: str = '{"w":{"a":true},"images":1,"loss":0.0}') -> bytearray:
    text = json.dumps({"__metadata__": {"coalface": plain}, **head}).encode()
    return bytearray(struct.pack("<Q", len(text)) + text + body)


def one(**changes: Any) -> dict[str, Any]:
    return {"w/a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


EIGHT = bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        bytearray(),
        bytearray(b"\xff" * 8),
        file(one(), EIGHT)[:-1],
        file(one(), EIGHT + b"x"),
        file(one(shape=[-2]), EIGHT),
        file(one(shape=[3]), EIGHT),
        file(one(shape=[0, 2**70], data_offsets=[0, 0])),
        file(one(shape=[2**40, 2**40], data_offsets=[0, 2**82])),
        file(one(dtype="C64"), EIGHT),
        file(one(data_offsets=[8, 16]), EIGHT),
        file(one(data_offsets=[0]), EIGHT),
        file({"w/b": one()["w/a"]}, EIGHT),
        file({**one(), "w/b": one()["w/a"]}, EIGHT, plain='{"w":{"a":true,"b":true},"images":1,"loss":0.0}'),
        file({**one(), "extra": {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}}, EIGHT),
        file(one(), EIGHT, plain="{}"),
        file(one(), EIGHT, plain='{"w":{"a":false},"images":1,"loss":0.0}'),
        file(one(), EIGHT, plain='{"w":{"a":true},"images":1.5,"loss":0.0}'),
        file(one(), EIGHT, plain='{"w":{"a":true},"images":1,"loss":1' + "0" * 400 + "}"),
        file(one(), EIGHT, plain='{"w":{"a":true},"images":1' + "0" * 5000 + ',"loss":1}'),
        file(one(), EIGHT, plain='{"w":{"a":true},"images":1,"loss":0.0,"more":1}'),
        file(one(), EIGHT, plain="[" * 5_000 + "]" * 5_000),
        file(one(shape=[2**53 + 1]), EIGHT),
        bytearray(struct.pack("<Q", 5_000) + b'{"a":' * 1_000),
    ],
)
def test_hostile_bytes_raise_wire_errors_only(data: bytearray) -> None:
    with pytest.raises(WireError):
        codec.decode(data, Small)


def bare(header: bytes) -> bytearray:
    return bytearray(struct.pack("<Q", len(header)) + header)


def headed(plain: bytes, entries: Iterable[bytes] = ()) -> bytearray:
    """Bytes whose header says plain values, and tensors without any numbers."""
    form = b',"%s":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return bare(b'{"__metadata__":{"coalface":"' + plain + b'"}' + b"".join(form % name for name in entries) + b"}")


def marks(count: int) -> bytes:
    """The plain values of a `Small` that speak of so many tensors."""
    return b'{\\"w\\":{' + b",".join(b'\\"%d\\":true' % i for i in range(count)) + b'},\\"images\\":1,\\"loss\\":0.0}'


def named(count: int) -> list[bytes]:
    return [b"w/%d" % i for i in range(count)]


OF_STRUCTURE: dict[str, Callable[[], bytearray]] = {
    "lists": lambda: bare(b"[" + b"[]," * 1_000_000 + b"[]]"),
    "lists in the plain values": lambda: headed(b"[" + b"[]," * 1_000_000 + b"[]]"),
    "marks without tensors": lambda: headed(marks(100_000)),
    "a wide character": lambda: headed(b"x" * 1_000_000 + "\U0001f600".encode()),
    "tensors that nothing speaks of": lambda: headed(marks(0), named(20_000)),
    "empty tensors that the plain values name": lambda: headed(marks(300_000), named(300_000)),
    "empty tensors in a header that is not too long": lambda: headed(marks(40_000), named(40_000)),
    "one tensor, and marks": lambda: headed(marks(100_000), [b"w" * 900_000]),
}


@pytest.mark.parametrize("build", OF_STRUCTURE.values(), ids=OF_STRUCTURE)
@pytest.mark.parametrize(
    "like", [None, codec.forms(Small, [Small(w={"a": torch.zeros(2)})])], ids=["anything", "a reply"]
)
def test_what_grows_as_it_is_read_is_refused_before(build: Callable[[], bytearray], like: Any) -> None:
    data = build()
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            codec.decode(data, Small, like=like)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(anything, anything, anything)
def test_any_json_as_a_header_is_a_message_or_a_wire_error(tensor: Any, plain: Any, head: Any) -> None:
    for data in (file({"w/a": tensor}, EIGHT), file(one(), EIGHT, json.dumps(plain)), bare(json.dumps(head).encode())):
        with contextlib.suppress(WireError):
            codec.decode(data, Small)
