"""Trees of keys and values with one value, or one key, that such trees seldom have."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 1.5, 1 << 31, 1 << 63, 10**30, -(10**30), 1e308, math.inf, math.nan),
    *("", "x", "1", "..", "../x", "/x", "\0", "a" * 300, "\ud800"),
    *([], [1], [None], ["a", "a"], [[[]]], [0] * 1000),
    *({}, {"a": 1}, {"": None}, {"a": {"b": {}}}, {"name": "x"}, {"kind": "x"}, {"kind": None}),
)
"""What keys seldom have."""
KEYS = ("", "..", "/x", "a\0b", "\ud800")
"""What keys seldom are."""
_GONE = object()


def places(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a tree has values, the branches among them."""
    if above:
        yield above
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*above, key))


def replaced(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The tree with another value at a place, or none."""
    branch = changed = copy.deepcopy(tree)
    for key in place[:-1]:
        branch = branch[key]
    if value is _GONE:
        del branch[place[-1]]
    else:
        branch[place[-1]] = value
    return changed


def trees(tree: Any) -> Iterator[Any]:
    """Odd values in the place of a tree and of each of its values, each value left out, and odd keys for each key."""
    yield from VALUES
    for place in places(tree):
        for value in (*VALUES, _GONE):
            yield replaced(tree, place, value)
        *above, key = place
        if isinstance(key, str):
            rest, value = replaced(tree, place, _GONE), tree
            for step in place:
                value = value[step]
            for name in KEYS:
                yield replaced(rest, (*above, name), value)
