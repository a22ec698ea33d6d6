"""Fields that leave a party singly with noise that their method has put on them: what they cost, what a ledger says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.core.declarations import contents
from coalface.core.steps import HasSteps
from coalface.privacy.secure_sums.guard import Answers

SPENT = "spent"
"""The folder in which each party writes down what such fields have cost."""


@dataclass(frozen=True)
class Releases:
    """What a step needs to put noise on a field, and to have it counted."""

    secret: bytes
    """What the noise is drawn from. Nobody else has it; in a simulation the seed tells it."""
    path: Path
    """Where the party writes down what has left it so, in all runs that share this file."""
    flush: bool = False

    def spend(self, name: str, digest: bytes, rho: float, check: Callable[[float], None]) -> float:
        """Write down the ρ of a release that is about to leave; returns that of all up to it.

        So ρ adds up over rounds that are abandoned, over other settings, and over runs of any name. The same release,
        of one `name` and `digest`, counts once. `check` is given the ρ of all with it, and raises where that is too
        much: then it must not leave, and nothing is written.
        """
        return Answers(self.path, flush=self.flush).spend(name, digest, rho, check)


def sanitised(reply: type | None) -> tuple[str, ...]:
    """The fields of a reply that are declared so; none of a step that has no reply."""
    return tuple(field for field, content in contents(reply).items() if content == "sanitised") if reply else ()


def protections(owner: HasSteps, reply: Any) -> dict[str, str]:
    """Name of a sanitised tensor in the encoded reply -> how it is protected; none that the reply leaves out."""
    names = [name for field in sanitised(type(reply)) for name in codec.by_path(field, getattr(reply, field))]
    return dict.fromkeys(names, owner.protection(reply)) if names else {}
