"""Simulated faults, for tests and studies: parties that drop out, come late or send nonsense, drawn by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from coalface.core.checks import TypedSettings, nearest
from coalface.core.codec import Forms
from coalface.core.errors import RecipeError
from coalface.core.method import Tensors, generator
from coalface.engine.transport import late

Change = Callable[[Tensors], Tensors]


def _first(change: Callable[[Tensor], Tensor]) -> Change:
    def apply(tensors: Tensors) -> Tensors:
        name = next((n for n, t in tensors.items() if t.is_floating_point()), None)  # a whole number cannot be NaN
        return {**tensors, name: change(tensors[name])} if name is not None else tensors

    return apply


TENSOR_FAULTS: dict[str, Change] = {
    "nan": _first(lambda t: torch.full_like(t, float("nan"))),
    "shape": _first(lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype)),
    "dtype": _first(lambda t: t.double() if t.dtype == torch.float32 else t.float()),
    "name": lambda tensors: {f"other.{name}": tensor for name, tensor in tensors.items()},
}
UPDATE_FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scaled": lambda after, before: before + 1000 * (after - before),
    "flipped": lambda after, before: before - (after - before),
    "shifted": lambda after, before: after - (after - before).abs(),
    "pushed": lambda after, before: before - 3 * (after - before).abs(),
}
"""Lies about an update, by what came and what was sent, in every field of tensors. Those who do the last two collude:
all move every number downwards, by as much as it moved, so that they stay among the honest, or by three times that."""
SUM_STAGES = ("share", "mask", "confirm", "unmask")
"""The stages of a secure sum after the first one."""
COUNT_FAULTS = {"negative": lambda n: -1000, "zero": lambda n: 0, "absurd": lambda n: 10**12}


@dataclass(frozen=True)
class SimulatedFaults(TypedSettings):
    """What goes wrong, and how often. Draws depend on (seed, party, stage, round, call, try) alone."""

    dropout: float = 0.0
    """Probability that a party is not reached: it does not train."""
    lost: float = 0.0
    """Probability that a party trains and its reply is lost on the way."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Mean delay of a party in simulated seconds (exponential); the party's name, or `*` for all others."""
    deadline: float = math.inf
    """Simulated seconds after which a reply is late and does not count."""
    corrupt: Mapping[str, str] = field(default_factory=dict)
    """What a party's replies are turned into. Faults: nan, shape, dtype, name, negative, zero or absurd. Lies, about
    each number that moved by δ: scaled (1000 δ), flipped (−δ), shifted (δ − |δ|) or pushed (−3 |δ|)."""

    stages: Mapping[str, float] = field(default_factory=dict)
    """With `privacy.secure`: stage -> probability that a party drops out at it. Stages: share, mask, confirm, unmask;
    before the first one by `dropout`."""

    def __post_init__(self) -> None:
        kinds = [*TENSOR_FAULTS, *COUNT_FAULTS, *UPDATE_FAULTS]
        for party, kind in self.corrupt.items():
            nearest(kind, dict.fromkeys(kinds), f"corrupt.{party}")
        if "advertise" in self.stages:
            raise RecipeError(
                "a party that is away at the first stage has dropped out before the sum; set faults.dropout",
                where="stages.advertise",
            )
        for stage in self.stages:
            nearest(stage, dict.fromkeys(SUM_STAGES), f"stages.{stage}")
        shares = {f"stages.{stage}": probability for stage, probability in self.stages.items()}
        for where, probability in ({"dropout": self.dropout, "lost": self.lost} | shares).items():
            if not 0 <= probability <= 1:
                raise RecipeError(f"it is a probability, 0 to 1; got {probability}", where=where)
        for party, mean in self.slow.items():
            if not 0 <= mean < math.inf:
                raise RecipeError(f"it is a mean delay in seconds, 0 or more; got {mean}", where=f"slow.{party}")
        if not self.deadline > 0:
            raise RecipeError(f"it is in seconds, more than 0; got {self.deadline}", where="deadline")
        if any(self.slow.values()) and self.deadline == math.inf:
            raise RecipeError("it needs a deadline; set faults.deadline, in simulated seconds", where="slow")

    def before(self, seed: int, party: str, when: tuple[str | int, ...], tries: int = 1) -> str | None:
        """Why none of so many tries reaches the party, or None."""
        draws = (generator(seed, "trouble", "dropout", party, *_named(when, n)).random() for n in range(tries))
        return "dropped out" if self.dropout and all(drawn < self.dropout for drawn in draws) else None

    def at_stage(self, seed: int, party: str, when: tuple[str | int, ...], stage: str) -> bool:
        """Whether a party drops out of a secure sum before a stage."""
        probability = self.stages.get(stage, 0.0)
        return bool(probability and generator(seed, "trouble", "stage", party, *when, stage).random() < probability)

    def after(self, seed: int, party: str, when: tuple[str | int, ...], attempt: int = 0) -> str | None:
        """Why a reply that was sent does not arrive in time, or None."""
        when = _named(when, attempt)
        if self.lost and generator(seed, "trouble", "lost", party, *when).random() < self.lost:
            return "the reply was lost"
        if mean := self.slow.get(party, self.slow.get("*", 0.0)):
            seconds = generator(seed, "trouble", "slow", party, *when).exponential(mean)
            if seconds > self.deadline:
                return late(self.deadline, seconds)
        return None

    @staticmethod
    def corrupted(message: Any, fault: str, like: Forms | None = None) -> Any:
        """A reply as a party with one of the faults sends it; it must look `like` what was sent."""
        if (move := UPDATE_FAULTS.get(fault)) is not None:
            return replace(message, **{n: _moved(move, getattr(message, n), f.start) for n, f in (like or {}).items()})
        for f in fields(message):
            value = getattr(message, f.name)
            if fault in COUNT_FAULTS and isinstance(value, int) and not isinstance(value, bool):
                return replace(message, **{f.name: COUNT_FAULTS[fault](value)})
            if fault in TENSOR_FAULTS and isinstance(value, dict):
                return replace(message, **{f.name: TENSOR_FAULTS[fault](value)})
            if fault in TENSOR_FAULTS and fault != "name" and isinstance(value, Tensor):
                return replace(message, **{f.name: TENSOR_FAULTS[fault]({"": value})[""]})
        return message


def _moved(move: Callable[[Tensor, Tensor], Tensor], value: Any, start: Any) -> Any:
    """A field of tensors whose floats are moved; from zero, where they are no changed form of what was sent."""
    if isinstance(value, dict):
        return {name: _moved(move, tensor, (start or {}).get(name)) for name, tensor in value.items()}
    if value is None or not value.is_floating_point():
        return value
    return move(value, torch.zeros_like(value) if start is None else start)


def _named(when: tuple[str | int, ...], attempt: int) -> tuple[str | int, ...]:
    """The names by which faults are drawn: of the first try those of a call, of others its number as well."""
    return (*when, "try", attempt + 1) if attempt else when
