"""A method that is checked, the run of it that nobody disturbs, and what differs in another."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coalface.core.method import Method
from coalface.experiments.conformance.differences import ANOTHER_ORDER, first_difference
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run, tiny
from coalface.experiments.conformance.traffic import Heard, listening
from coalface.privacy.sanitised import sanitised

UNTRACKED = (
    "Something is remembered or drawn outside what Coalface passes on. Keep what a party remembers in its private "
    "state and what the server remembers in the state; draw from party.rng and fed.rng alone."
)
SORTED = (
    "A set has another order in each process, fed.parameters too. Go through sorted(…), or through a dict of tensors "
    "such as fed.initial."
)


class Failure(Exception):
    """What is wrong with a method, and how to mend it."""

    def __init__(self, wrong: str, mend: str) -> None:
        super().__init__(wrong)
        self.wrong, self.mend = wrong, mend


class Unbroken(NamedTuple):
    """A run that nobody disturbs, and what was there before and after it."""

    ran: Ran
    heard: Heard
    """What was said in it."""
    fields: tuple[dict[str, bytes], dict[str, bytes]]
    """Those of the method, without what it derives from them."""
    generators: tuple[dict[str, bytes], dict[str, bytes]]
    """How far those are drawn that torch, NumPy and Python have for all."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A method that is checked, with the settings that it needs in tiny federations; it writes below `folder`."""

    cls: type[Method]
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    sends: frozenset[str] = frozenset()
    """Private fields, as `Class.field`, that leave a party by the method's own words."""

    def build(self, **changes: Any) -> tuple[Method, Tiny]:
        """The method and its federation, all parties asked in each round."""
        return tiny(self.cls, **{**self.settings, **changes})

    @functools.cached_property
    def variant(self) -> tuple[Method, Tiny]:
        """The method with BatchNorm and, where it can, partly asked.

        BatchNorm is kept at the parties, but not where validators need it, nor where clients keep nothing, or sanitise
        what they make of one person's images.
        """
        sample = {"sample": 2} if "sample" in self.fields and "sample" not in self.settings else {}
        method, build = self.build(**sample)
        stateless = self.cls.scenario == "devices" or not any(d.keeps for d in self.cls.own_steps.values())
        sanitises = any(sanitised(declared.reply) for declared in self.cls.own_steps.values())
        averages = build.validators or stateless or sanitises
        return method, replace(build, norm=True, policy="average" if averages else "local")

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        """The names of its settings."""
        return frozenset(f.name for f in dataclasses.fields(self.cls))  # type: ignore[arg-type]

    @functools.cached_property
    def unbroken(self) -> Unbroken:
        """The run of the variant that nobody disturbs."""
        fields, positions, heard = _fields(self.variant[0]), _positions(), Heard()
        ran = self.run("unbroken", transport=listening(heard))
        return Unbroken(ran, heard, (fields, _fields(self.variant[0])), (positions, _positions()))

    def run(self, name: str, **how: Any) -> Ran:
        """The same run again, in a folder of its own, in another way."""
        return run(self.variant[0], self.folder / name, how.pop("build", self.variant[1]), **how)

    def require_same(self, ran: Ran, when: str) -> None:
        """Raise Failure where a run did not end in the bytes of the one that nobody disturbed."""
        require_same(self.variant[0], self.unbroken.ran, ran, when)


def _fields(method: Method) -> dict[str, bytes]:
    inherited = {name: value for cls in type(method).__mro__ for name, value in vars(cls).items()}
    derived = {name for name, value in inherited.items() if isinstance(value, functools.cached_property)}
    return {name: pickle.dumps(value) for name, value in vars(method).items() if name not in derived}


def _positions() -> dict[str, bytes]:
    drawn = torch.get_rng_state().numpy().tobytes()
    return {"torch": drawn, "NumPy": pickle.dumps(np.random.get_state()), "Python": pickle.dumps(random.getstate())}


def require_same(method: Method, expected: Ran, ran: Ran, when: str) -> None:
    if difference := first_difference(method, expected, ran):
        mend = SORTED if difference.endswith(ANOTHER_ORDER) else UNTRACKED
        raise Failure(f"the bytes differ {when}: {difference}", mend)
