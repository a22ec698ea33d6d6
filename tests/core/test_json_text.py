from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.core.parsing import DEPTH, LARGEST, LONGEST, parse_json, strict_json

plain = st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    plain | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(values)
def test_what_is_strict_comes_back_as_it_was(value: Any) -> None:
    assert parse_json(strict_json(value)) == value == parse_json(strict_json(value).encode())


@settings(max_examples=100, deadline=None)
@given(st.text() | st.binary() | st.text(alphabet='[]{}",:\\\\eE-+.0123456789Infinty '))
def test_any_text_is_refused_or_what_json_reads(text: str | bytes) -> None:
    with contextlib.suppress(ValueError):
        assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 30_000,
        "[" * 2_000 + "]" * 2_000,
        "[" * (DEPTH + 1) + "]" * (DEPTH + 1),
        '{"a":' * 5_000,
        '[{"a":' * 5_000,
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e400",
        "-1e400",
        str(LARGEST + 1),
        str(-LARGEST - 1),
        "1" + "0" * 400,
        "9" * 20_000,
        '"' + "x" * LONGEST + '"',
        b"\xff",
        b"\xff\xfe1\x000\x00",
        3,
        None,
    ],
    ids=lambda text: str(text)[:12],
)
def test_what_is_not_strict_is_refused(text: Any) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_brackets_in_texts_are_no_depth() -> None:
    deep = ["[" * 100, '"[{' * 100, "\\\\[" * 100]
    assert parse_json(json.dumps([deep] * 20)) == [deep] * 20
    within: Any = 1
    for _ in range(DEPTH):
        within = [within]
    assert parse_json(json.dumps(within)) == within


def test_values_are_counted_before_they_are_read() -> None:
    assert parse_json("[[],[]]", values=4) == [[], []]
    with pytest.raises(ValueError, match="more than 3 values"):
        parse_json("[[],[]]", values=3)


def test_numbers_that_json_cannot_say_are_null() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5, (-math.inf,)], "c": {"d": None}}
    assert json.loads(strict_json(value)) == {"a": None, "b": [None, 1.5, [None]], "c": {"d": None}}
