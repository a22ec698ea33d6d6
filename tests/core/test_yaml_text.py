from __future__ import annotations

import itertools

import pytest

from coalface.core.parsing import parse_yaml

REPEATED = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghijkl")
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: &a [1, 1]\n" + REPEATED, "counting those that aliases repeat"),
        ("a: &a [*a]\n", "line 1, column 8: a value holds itself"),
        ("[" * 200_000, "50 deep"),
        ("[" + "1, " * 200_000 + "1]", "at most 1,000,000 characters and 50,000 values"),
        ("- 1\n" * 60_000, "more than 50,000 values"),
        ("\n".join(" " * depth + "a:" for depth in range(200)), "50 deep"),
        ("a: " + ":".join(["1"] * 20_000), "a number has more than 200 characters"),
        ("a: !!timestamp x", "does not match its tag"),
    ],
    ids=lambda value: value[:12],
)
def test_yaml_that_grows_as_it_is_read_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_yaml(text)


def test_yaml_anchors_and_merges_still_work() -> None:
    assert parse_yaml("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}") == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}
