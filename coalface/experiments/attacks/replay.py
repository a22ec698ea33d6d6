"""The replay of a run under the eyes, or by the hands, of an attacker: same recipe and seed, same messages."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coalface.core.method import Models, Ticket
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply, Transport
from coalface.experiments.attacks.base import Attack, Exchange, NotAttackable
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.execution import make_server, open_transport
from coalface.experiments.prepare import PreparedRun, prepare
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.run import begin_or_resume


class Watched:
    """A transport whose messages pass by an attack. Every party answers by itself: none is computed in a batch."""

    def __init__(self, transport: Transport, run: PreparedRun, attack: Attack) -> None:
        self._transport, self._run, self._attack = transport, run, attack

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        return self._pass(self._transport.exchange(requests))

    def batched(self, requests: Iterable[Request], images: int) -> Iterator[tuple[Request, Reply]]:
        return self.exchange(requests)

    def collect(self, ticket: Ticket, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        return self._pass(self._transport.collect(ticket, requests))

    def _pass(self, replies: Iterator[tuple[Request, Reply]]) -> Iterator[tuple[Request, Reply]]:
        passing = (Exchange(self._run, request, reply) for request, reply in replies)
        if type(self._attack).lie is not Attack.lie:  # who lies together has seen what the others say
            exchanges = list(passing)
            lies = self._attack.lie(exchanges)
            passing = (dataclasses.replace(e, answer=lies.get(e.request.party, e.answer)) for e in exchanges)
        for exchange in passing:
            if exchange.request.sum is None or exchange.request.sum.stage == "advertise":  # later ones ask for no work
                self._attack.watch(exchange)
            yield exchange.request, exchange.answer


def _poisoned(run: PreparedRun, attack: Attack) -> PreparedRun:
    """The run with the attack's images, in one process: others would make the recipe's images anew."""
    if run.numerics.processes_per_party:
        raise NotAttackable(
            "parties of several processes make their images themselves; drop engine.processes_per_party"
        )
    engine = run.recipe.engine.model_copy(update={"workers": 1})
    recipe = run.recipe.model_copy(update={"engine": engine})
    return dataclasses.replace(run, recipe=recipe, data=attack.poison(run.data))


def replay(recipe: Recipe, make_attack: Any, callback: Callback) -> tuple[Attack, Models]:
    """Run a recipe's rounds in a folder that is thrown away, with the attack that `make_attack(run, seed)` gives.

    A pre-training that is not in the cache is run first. Nothing is evaluated beside it. Raises what a run raises.
    """
    run = prepare(recipe, callback, begin_or_resume, elsewhere=False)
    attack: Attack = make_attack(run, recipe.seed)
    if type(attack).poison is not Attack.poison:
        run = _poisoned(run, attack)
    with tempfile.TemporaryDirectory(prefix="coalface-attack-") as folder:
        with open_transport(run, Path(folder), None) as transport:
            server = make_server(run, Path(folder), Watched(transport, run, attack), callback, simulated=True)
            callback.start(recipe.name, sum(stage.rounds for stage in run.method.stages()))
            _, models = server.run()
    return attack, models
