"""Toy methods whose every number can be worked by hand, for tests of the core and the engines."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from coalface.core.local_results import OWN_MODEL
from coalface.core.method import (
    Component,
    Federation,
    Mean,
    Method,
    Models,
    Party,
    Stage,
    Tensors,
    Ticket,
    content,
    free,
    like,
    message,
    private,
    state,
    step,
)

CALLS: list[tuple[str, str, str, int]] = []
"""(party, step, stage, round) of every step that ran in this process."""

HOOKS: list[Callable[[Party], None]] = []
"""Run at the beginning of every toy step, for example to fail or to count."""


def _begin(party: Party, name: str) -> None:
    CALLS.append((party.name, name, party.stage, party.round))
    for hook in HOOKS:
        hook(party)


@message
class Values:
    """Down: the server's values."""

    values: Tensors


@message
class Nudge:
    """Down, to one party."""

    amount: Tensor = content("weight")


@message
class Moved:
    """Up: the values, moved, and by how much."""

    values: Tensors
    delta: Tensors = like("values")
    images: int
    loss: float


@message
class Note:
    """Up: any shape."""

    drawn: Tensor = free("weight")
    remembered: int


@private
class Control:
    """A party's control variate: the sum of the deltas that the server accepted."""

    total: Tensors
    rounds: int


@private
class Memory:
    """A second class of private state: how often `remember` was accepted."""

    times: int


@state
class State:
    """The server's values, and the sum of the deltas it accepted."""

    values: Tensors
    control: Tensors


def _zeros() -> Tensors:
    return {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}


@dataclass(frozen=True, kw_only=True)
class Moves(Method):
    """Each round, every party moves the values by the number in its name; the server keeps count, as SCAFFOLD does."""

    title: ClassVar[str] = "moves values"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    rounds: int = 3
    note: bool = False
    """Ask a second step in each round, which keeps a private state of its own."""
    at_least: int | None = None
    """How many must answer the second step."""
    sample: int | None = None

    def init(self, fed: Federation) -> State:
        return State(values=_zeros(), control=_zeros())

    def round(self, fed: Federation, state: State) -> State:
        chosen = fed.sample("trainer", self.sample) if self.sample else None
        aggregate = [Mean("values", by="images"), Mean("delta", over="all", name="control")]
        answer = fed.ask(self.move, to=chosen, common=Values(values=state.values), aggregate=aggregate)
        if self.note:
            nudges = {p: Nudge(amount=torch.tensor(float(fed.round))) for p in answer.arrived}
            notes = fed.ask(self.remember, each=nudges, at_least=self.at_least)
            fed.log(remembered=sum(notes.each["remembered"].values()))
        n = len(fed.parties("trainer"))
        control = {name: state.control[name] + n * t for name, t in answer.aggregated["control"].items()}
        fed.log(loss=answer.mean("loss"))
        return State(values=answer.aggregated["values"], control=control)

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        _begin(party, "move")
        by = float(party.name[-1]) + 1
        delta = {name: torch.full_like(t, by) for name, t in common.values.items()}
        values = {name: t + by for name, t in common.values.items()}
        total = {name: t + (own.total[name] if own else 0) for name, t in delta.items()}
        control = Control(total=total, rounds=own.rounds + 1 if own else 1)
        return Moved(values=values, delta=delta, images=len(party.data), loss=by), control

    @step(role="trainer")
    def remember(self, party: Party, own: Memory | None, each: Nudge) -> tuple[Note, Memory]:
        _begin(party, "remember")
        times = own.times + 1 if own else 1
        return Note(drawn=each.amount + torch.from_numpy(party.rng.random(2)), remembered=times), Memory(times=times)

    @step(role="trainer", local=OWN_MODEL)
    def own_model(self, party: Party, own: Control | None) -> Tensors:
        return own.total if own else _zeros()

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=state.values)


@dataclass(frozen=True, kw_only=True)
class Deadly(Moves):
    """The process that plays the last party in round 2 is killed, once: a file marks that it was."""

    marker: str

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        if party.round == 2 and party.name == "silo-2" and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Moves.move(self, party, own, common)


@message
class Candidate:
    """Down: what is to be scored."""

    values: Tensors


@message
class Score:
    """Up."""

    score: float


@private
class Seen:
    """How many candidates a validator has scored."""

    candidates: int


@dataclass(frozen=True, kw_only=True)
class Validation(Component):
    """Scores candidates at the validators: the sum of the values, plus how many it has seen."""

    weight: float = 1.0

    @step(role="validator")
    def score(self, party: Party, own: Seen | None, common: Candidate) -> tuple[Score, Seen]:
        _begin(party, "score")
        count = own.candidates + 1 if own else 1
        return Score(score=self.weight * float(common.values["a"].sum()) + count), Seen(candidates=count)


@state
class Lagging:
    """The values, the tickets that are open, and the scores that came."""

    values: Tensors
    tickets: tuple[Ticket, ...]
    scores: Tensors


@dataclass(frozen=True, kw_only=True)
class Lagged(Method):
    """Moves values, and has them scored beside the coming rounds: posted in round r, collected in round r + lag."""

    title: ClassVar[str] = "moves values and has them scored"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    rounds: int = 5
    lag: int = 2
    validation: Validation = Validation(weight=2.0)
    fragile: bool = False
    """Need every mover to answer after the posting."""

    def init(self, fed: Federation) -> Lagging:
        return Lagging(values=_zeros(), tickets=(), scores={})

    def round(self, fed: Federation, state: Lagging) -> Lagging:
        tickets, scores = state.tickets, state.scores
        if fed.round > self.lag and tickets:
            answer = fed.collect(tickets[0])
            scores = {**scores, f"round-{fed.round}": torch.tensor(sorted(answer.each["score"].values()))}
            tickets = tickets[1:]
        if not tickets:
            tickets = (fed.post(self.validation.score, common=Candidate(values=state.values)),)
        need = len(fed.parties("trainer")) if self.fragile else None
        moved = fed.ask(self.move, common=Values(values=state.values), aggregate=[Mean("values")], at_least=need)
        return Lagging(values=moved.aggregated["values"], tickets=tickets, scores=scores)

    @step(role="trainer")
    def move(self, party: Party, common: Values) -> Moved:
        _begin(party, "move")
        values = {name: t + 1 for name, t in common.values.items()}
        return Moved(values=values, delta=values, images=len(party.data), loss=0.0)

    def models(self, fed: Federation, state: Lagging) -> Models:
        return Models(shared=state.values)


@dataclass(frozen=True, kw_only=True)
class HeldValidation(Validation):
    """The same, but that `silo-2` waits until somebody writes to the named pipe `gate`."""

    gate: str

    @step(role="validator")
    def score(self, party: Party, own: Seen | None, common: Candidate) -> tuple[Score, Seen]:
        if party.name == "silo-2":
            pipe = os.open(self.gate, os.O_RDONLY | os.O_NONBLOCK)
            assert select.select([pipe], [], [], 60)[0], "nobody opened the gate"
            os.close(pipe)
        return super().score(party, own, common)


@state
class Second:
    """The state of the second stage."""

    sum: Tensor
    begun_with: Tensors


@dataclass(frozen=True, kw_only=True)
class Staged(Method):
    """Two stages with states of their own: `moves`, then `sums`, which begins with an ask of its own."""

    title: ClassVar[str] = "two stages"
    paper: ClassVar[str] = "none"
    setting: ClassVar[str] = "any"

    rounds: int = 2

    def init(self, fed: Federation) -> State:
        return State(values=_zeros(), control=_zeros())

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.move, common=Values(values=state.values), aggregate=[Mean("values")])
        return State(values=answer.aggregated["values"], control=state.control)

    def begin_sums(self, fed: Federation, before: State) -> Second:
        answer = fed.ask(self.remember)
        return Second(sum=torch.tensor(float(sum(answer.each["remembered"].values()))), begun_with=before.values)

    def sums(self, fed: Federation, state: Second) -> Second:
        answer = fed.ask(self.remember)
        return Second(sum=state.sum + sum(answer.each["remembered"].values()), begun_with=state.begun_with)

    @step(role="trainer")
    def move(self, party: Party, common: Values) -> Moved:
        _begin(party, "move")
        values = {name: t + 1 for name, t in common.values.items()}
        return Moved(values=values, delta=values, images=len(party.data), loss=0.0)

    @step(role="trainer")
    def remember(self, party: Party, own: Memory | None) -> tuple[Note, Memory]:
        _begin(party, "remember")
        times = own.times + 1 if own else 1
        return Note(drawn=torch.from_numpy(party.rng.random(2)), remembered=times), Memory(times=times)

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("moves", self.rounds, begin=lambda fed, _: self.init(fed), round=self.round),
            Stage("sums", 2, begin=self.begin_sums, round=self.sums),
        )

    def models(self, fed: Federation, state: State | Second) -> Models:
        return Models(shared=state.values if isinstance(state, State) else state.begun_with)
