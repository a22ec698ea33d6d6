"""Fields that leave a party singly with noise that their method has put on them: how often, and what a ledger says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.core.declarations import contents
from coalface.core.steps import HasSteps
from coalface.privacy import ledger


def sanitised(reply: type | None) -> tuple[str, ...]:
    """The fields of a reply that are declared so; none of a step that has no reply."""
    return tuple(field for field, content in contents(reply).items() if content == "sanitised") if reply else ()


def releases(path: Path, step: str, reply: type | None, before: int | None = None) -> int:
    """How often such fields of a step have left a party, by its ledger: also in rounds that were abandoned.

    With `before` only the lines up to there count: what had left when a reply was made first.
    """
    if not (fields := sanitised(reply)) or not path.exists():
        return 0
    lines = itertools.islice((line for _, line in ledger.lines(path)), before)
    left = [line["name"].partition("/")[0] for line in lines if line["step"] == step]
    return max(left.count(field) for field in fields)


def protections(owner: HasSteps, reply: Any) -> dict[str, str]:
    """Name of a sanitised tensor in the encoded reply -> how it is protected; none that the reply leaves out."""
    names = [name for field in sanitised(type(reply)) for name in codec.by_path(field, getattr(reply, field))]
    return dict.fromkeys(names, owner.protection(reply)) if names else {}
