"""Which cases of a table run by default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def by_default(count: int, cases: Iterable[Any]) -> list[Any]:
    """The first `count` cases by default; the others are slow, and run in the continuous integration."""
    slow = (pytest.mark.slow, pytest.mark.ci)
    tables = [(case, case if isinstance(case, tuple | list) else (case,)) for case in cases]
    return [case if place < count else pytest.param(*many, marks=slow) for place, (case, many) in enumerate(tables)]
