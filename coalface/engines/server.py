"""The server's side of a run, the same for every engine: rounds, asking, folding, accepting, checkpoints, observers."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coalface import wire
from coalface.calls import check_call, check_state
from coalface.core import (
    Abandoned,
    Answer,
    Backbone,
    Federation,
    Mean,
    Method,
    Models,
    Probes,
    Tensors,
    Ticket,
    generator,
)
from coalface.engines import checkpoint
from coalface.engines.cohorts import COHORTS, Apart, Cohort, CohortLedger, can_fold
from coalface.engines.desk import Request, StepFailed
from coalface.engines.gathering import Gathering, Lost
from coalface.engines.opened import Opened
from coalface.engines.rounds import Round, Rules
from coalface.engines.standing import Call, Numerics, Standing, Tally, check_same
from coalface.engines.transport import Reply, RunFailed, Transport

READ = 200
"""Ledgers whose chain is followed from the start where a run is resumed or ends; of the others the head is checked."""


def _data(reply: bytearray | memoryview | wire.Encoded) -> bytearray | memoryview:
    return reply.data if isinstance(reply, wire.Encoded) else reply


def _size(reply: Reply) -> int:
    return 0 if isinstance(reply, StepFailed) else len(_data(reply))


Observer = Callable[["Server", Models], dict[str, Any]]
"""Judges models outside the method, with its own generator, nothing on the wire; its answer is the round's `judged`."""


class Server(Federation):
    """Runs a method over a transport; leaves `checkpoints/`, `metrics.jsonl` and `events.jsonl` in its folder."""

    def __init__(
        self,
        method: Method,
        rules: Rules,
        numerics: Numerics,
        transport: Transport,
        folder: Path,
        *,
        backbone: Backbone,
        public: Any = None,
        observers: Sequence[Observer] = (),
        report: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self.method, self.rules, self.numerics, self.transport = method, rules, numerics, transport
        self.folder, self.observers, self.report = folder, observers, report
        self.initial, self.policy, self.data = backbone.shared(), backbone.policy, public
        self.parameters = frozenset(self.initial) & frozenset(backbone.parameters)
        self.embedding_size = backbone.embedding_size
        self.at = Standing({name: Tally() for name in sorted(transport.members)})
        self._stages = method.stages()
        self._now = Round()
        folder.mkdir(parents=True, exist_ok=True)
        self._opened = Opened(folder / "opened.jsonl")
        self._cohorts = CohortLedger(folder / f"{COHORTS}.jsonl")

    @property
    def round(self) -> int:
        return self.at.round

    # --- what a method may ask ----------------------------------------------------------------------------------------

    def parties(self, role: str) -> tuple[str, ...]:
        return tuple(name for name in self.at.tallies if self.transport.members[name].role == role)

    def images(self, party: str) -> int:
        return self.transport.members[party].images

    def stream(self, *names: str | int) -> np.random.Generator:
        return generator(self.rules.seed, "server", self._stages[self.at.stage].name, self.at.round, *names)

    def log(self, **metrics: float) -> None:
        self._now.metrics |= metrics

    def ask(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
        folds: Sequence[Mean] = (),
        at_least: int | None = None,
    ) -> Answer:
        call = self._idle(self._call(step, to, common, each, folds))
        failed: dict[str, str] = {}
        self._event("asks", call)
        answer = self._gather(call, self._replies(call, folds, failed), failed, folds, at_least)
        self._event("answered", call)
        return answer

    def post(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
    ) -> Ticket:
        call = self._idle(self._call(step, to, common, each, ()))
        ticket = Ticket(call.stage, call.round, call.call)
        self.at.posted[ticket] = call
        self._event("posts", call)
        self.transport.post(ticket, list(self._requests(call, {})))
        return ticket

    def collect(
        self, ticket: Ticket, *, folds: Sequence[Mean] = (), at_least: int | None = None, optional: bool = False
    ) -> Answer:
        if ticket not in self.at.posted:
            raise ValueError(f"{ticket} is not open: a ticket is collected once, in the stage that posted it.")
        call, failed = self.at.posted[ticket], dict[str, str]()
        requests = list(self._requests(call, failed))
        self._event("collects", call)
        answer = self._gather(call, self.transport.collect(ticket, requests), failed, folds, at_least, optional)
        self._event("collected", call)
        del self.at.posted[ticket]
        return answer

    def _call(
        self,
        step: Callable[..., Any],
        to: Iterable[str] | None,
        common: Any,
        each: Mapping[str, Any] | None,
        folds: Sequence[Mean] | None = None,
    ) -> Call:
        name, _, names = check_call(self.method, step, self.parties, to=to, common=common, each=each, folds=folds)
        self._now.calls += 1
        stage = self._stages[self.at.stage]
        encoded = wire.encode(common) if common is not None else None
        when = (stage.name, self.at.round, stage.rounds, self.at.ordinal, self._now.calls)
        return Call(name, names, *when, encoded, each)

    def _idle(self, call: Call) -> Call:
        if busy := sorted({p for other in self.at.posted.values() for p in other.to} & set(call.to))[:5]:
            raise ValueError(
                f"{type(self.method).__name__}, step {call.step}: {busy} still work on what was posted to them; "
                "collect that ticket first."
            )
        return call

    def _requests(self, call: Call, failed: dict[str, str] | None) -> Iterator[Request]:
        """The requests of a call, each made when it is dispatched, so that memory does not grow with the parties.

        `failed` takes the parties that are not reached; with None every party is.
        """
        ordinal, checkpointed = self.at.horizons[0]
        when = (call.stage, call.round, call.call)
        shared = {f.name: getattr(call, f.name) for f in dataclasses.fields(call) if f.name not in ("to", "each")}
        before = encoded = None
        for party in call.to:
            if failed is not None and (why := self.rules.trouble.before(self.rules.seed, party, when)):
                failed[party] = why
                continue
            if call.each is not None and call.each[party] is not before:  # one object for all is encoded once
                before, encoded = call.each[party], wire.encode(call.each[party])
            yield Request(
                run=self.rules.run,
                party=party,
                each=encoded,
                base=self._now.accepted.get(party, self.at.accepted.get(party)),
                horizon=(ordinal, checkpointed.get(party)),
                **shared,
            )

    def _gather(
        self,
        call: Call,
        replies: Iterator[tuple[Request, Reply] | Cohort],
        failed: dict[str, str],
        folds: Sequence[Mean],
        at_least: int | None,
        optional: bool = False,
    ) -> Answer:
        now, got = self._now, self._gathering(call, folds, failed)
        for item in replies:
            for request, reply in self._together(got, item) if isinstance(item, Cohort) else (item,):
                read = functools.partial(self._read, request, reply)
                got.take(request, _size(reply), read, self.at.tallies[request.party], self._most(request.party))
        now.bytes.update(got.bytes)
        now.asked |= set(call.to)
        now.failed |= failed
        for party in failed:
            self.at.tallies[party].failed += 1
        share = self.rules.quorum * len(call.to)
        need = 0 if optional else max(1, at_least or 0, math.ceil(share - 1e-9))  # 0.55 · 100 is above 55 in floats
        if len(got.arrived) < need:  # before any sum is opened
            reasons = "; ".join(f"{party}: {why}" for party, why in list(failed.items())[:3])
            raise Abandoned(f"{len(got.arrived)} of {len(call.to)} replies count, {need} are needed ({reasons})")
        if got.arrived and any(mean.once for mean in folds):
            self._opened.record(call, folds, got.arrived)
        try:
            folded = got.folded() if got.arrived else {}
        except ValueError as error:  # those with a weight are among those that failed
            raise Abandoned(str(error)) from error
        now.accepted |= got.accepted
        now.losses |= got.each.get("loss", {})
        return Answer(folded, got.each, dict(sorted(failed.items())), tuple(got.arrived))

    def _replies(
        self, call: Call, folds: Sequence[Mean], failed: dict[str, str]
    ) -> Iterator[tuple[Request, Reply] | Cohort]:
        requests = self._requests(call, failed)
        if self.numerics.cohorts and can_fold(self.method.steps[call.step][1], folds):
            return self.transport.together(requests, self.numerics.cohorts)
        return self.transport.exchange(requests)

    def _together(self, got: Gathering, cohort: Cohort) -> Iterator[tuple[Request, Reply]]:
        """Take in a cohort; where that cannot be, the replies of its parties, each asked by itself."""
        try:
            got.take_together(cohort, self.at.tallies, self._most)
        except Apart:
            return self.transport.exchange(cohort.requests)
        self._cohorts.write(cohort)
        return iter(())

    def _most(self, party: str) -> int:
        """The most images that a party can say it has trained on."""
        return self.images(party) + (len(self.data) if self.data is not None else 0)

    def _gathering(self, call: Call, folds: Sequence[Mean], failed: dict[str, str]) -> Gathering:
        declaration = self.method.steps[call.step][1]
        everyone = self.parties(declaration.role)
        return Gathering(call, declaration, folds, failed, block=self.numerics.block, everyone=everyone)

    def _read(self, request: Request, reply: Reply, cls: type) -> Any:
        if isinstance(reply, StepFailed):
            if self.rules.on_error == "stop":
                raise RunFailed(
                    f"{str(reply).rstrip('.')}. Set engine.on_error=exclude to go on without such a party."
                ) from reply
            raise reply
        when = (request.stage, request.round, request.call)
        if why := self.rules.trouble.after(self.rules.seed, request.party, when):
            raise Lost(why)
        return self.rules.trouble.reply(request.party, wire.decode(_data(reply), cls))

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> tuple[Any, Models]:
        """Run all stages, from the last checkpoint if there is one; returns the last state and what the run leaves.

        Raises RunFailed after `rules.patience` abandoned rounds in a row, or at a failed step if `on_error` is `stop`.
        """
        state = self._restore()
        for index in range(self.at.stage, len(self._stages)):
            stage = self._stages[index]
            if self.at.stage != index or state is None:
                self.at.stage, self.at.round = index, 0
                state = self._begin(stage.begin, state)
            while self.at.round < stage.rounds:
                self.at.round += 1
                state = self._one_round(stage.round, state, last=self.at.round == stage.rounds)
            asked = [party for party, tally in self.at.tallies.items() if tally != Tally()]
            self.transport.settle({party: self.at.accepted.get(party) for party in asked}, self.at.ordinal)
        return state, self.method.models(self, state)

    def resumes_after(self) -> tuple[int, Mapping[str, int]]:
        """Rounds that a resume of this folder need not repeat, and the bytes that they sent down and up."""
        found = checkpoint.load(self.folder / "checkpoints")
        if found is None:
            return 0, self.at.totals
        return sum(s.rounds for s in self._stages[: found.stage]) + found.round, found.record["totals"]

    def check_ledgers(self) -> dict[str, str]:
        """What is wrong with ledgers, by party: their heads are held against the accepted commits, as `READ` says."""
        parties = {party: self.at.accepted.get(party) for party in self.at.tallies}
        return self._cohorts.check() | self.transport.check(parties, READ)

    def checkpoint_share(self) -> float:
        """The checkpoints' share of the time of all rounds so far."""
        return self.at.seconds["checkpoint"] / max(1e-9, sum(self.at.seconds.values()))

    def _drain(self, tickets: Iterable[Ticket]) -> None:
        """Let posted work that nobody will collect come to its end, so that no party works on two things at once."""
        for ticket in tickets:
            call, failed = self.at.posted.pop(ticket), dict[str, str]()
            got = self._gathering(call, (), failed)
            for request, reply in self.transport.collect(ticket, list(self._requests(call, failed))):
                got.count(request, _size(reply), self.at.tallies[request.party])
            self._now.bytes.update(got.bytes)

    def own_models(self, models: Models) -> Iterator[tuple[str, Tensors]]:
        """Every party's own model, made at the party by the step that `models` names: for the lab's eyes alone."""
        return iter(()) if models.at_party is None else self._staying(models.at_party, models.common)

    def verified(self, models: Models, embeddings: Tensor) -> Iterator[tuple[str, Tensors]]:
        """How every party scores embeddings (n, d) by the step that `models` names: for the lab's eyes alone."""
        if models.verify is None:
            return iter(())
        role = self.method.find(models.verify)[1].role
        probes = dict.fromkeys(self.parties(role), Probes(embeddings=embeddings))
        return self._staying(models.verify, models.common, probes)

    def _staying(
        self, step: Callable[..., Any], common: Any, each: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, Tensors]]:
        """What a step with stays=True gives at each party: nothing of it is a message, a commit or a ledger's line."""
        return self.transport.own_models(self._requests(self._call(step, None, common, each), None))

    def _begin(self, begin: Callable[..., Any], before: Any) -> Any:
        self.at.ordinal += 1
        self._start()
        try:
            state = begin(self, before)
        except Abandoned as error:
            raise RunFailed(f"stage {self._stages[self.at.stage].name} could not begin: {error}") from error
        if not self._stages[self.at.stage].rounds:
            self._drain(list(self.at.posted))
        self.at.accepted |= self._now.accepted
        self._count()
        return check_state(self.method, self._stages[self.at.stage], state, beginning=True)

    def _count(self) -> None:
        for what, count in self._now.bytes.items():
            self.at.totals[what] = self.at.totals.get(what, 0) + count

    def _start(self) -> None:
        self._now = Round()
        self.rng = generator(self.rules.seed, "server", self._stages[self.at.stage].name, self.at.round)

    def _one_round(self, round_: Callable[..., Any], state: Any, *, last: bool) -> Any:
        self.at.ordinal += 1
        self._start()
        begun, abandoned = time.perf_counter(), None
        kept_open = dict(self.at.posted)
        try:
            state = check_state(self.method, self._stages[self.at.stage], round_(self, state))
            self.at.accepted |= self._now.accepted
            self.at.abandoned = 0
        except Abandoned as error:
            abandoned, self.at.abandoned = str(error), self.at.abandoned + 1
            self._drain(t for t in list(self.at.posted) if t not in kept_open)  # they start from what was accepted
            self._now.accepted.clear()
            self.at.posted = kept_open
        if last:
            self._drain(list(self.at.posted))
        trained = time.perf_counter()
        for party in self._now.arrived:
            self.at.tallies[party].rounds += abandoned is None
        self._count()
        record = self._now.record(self._stages[self.at.stage].name, self.at.round, abandoned)
        if self.rules.judge and (self.at.round % self.rules.judge == 0 or last):
            models = self.method.models(self, state)
            record["judged"] = {k: v for observe in self.observers for k, v in observe(self, models).items()}
        judged = time.perf_counter()
        self.at.seconds["training"] += trained - begun
        self.at.seconds["judging"] += judged - trained
        self._write_line("metrics.jsonl", record)
        in_a_row = self.at.abandoned
        over = abandoned is not None and in_a_row >= self.rules.patience
        if over:  # a resume goes on from here and counts anew; one after a kill in the row goes on counting
            self.at.abandoned = 0
        if last or over or self.at.ordinal % self.rules.checkpoint == 0:
            self._checkpoint(state, keep=1 if last else self.rules.keep)
        ended = time.perf_counter()
        self.at.seconds["checkpoint"] += ended - judged
        clock = {"seconds": ended - begun, "checkpoint_seconds": ended - judged}
        self._write_line("events.jsonl", {"event": "round", "stage": record["stage"], "round": self.at.round, **clock})
        self.report({**record, **clock})
        if over:
            rows = "a round was abandoned" if in_a_row == 1 else f"{in_a_row} rounds in a row were abandoned; the last"
            raise RunFailed(
                f"{rows}: {abandoned}. The model is as it was before. Mend the parties and resume, or resume with a "
                f"lower engine.quorum (now {self.rules.quorum:g}) or more engine.patience (now {self.rules.patience})."
            )
        return state

    # --- what a resume needs ------------------------------------------------------------------------------------------

    @property
    def _row_rules(self) -> dict[str, float]:
        return {"quorum": self.rules.quorum, "patience": self.rules.patience}

    def _event(self, what: str, call: Call) -> None:
        """What the server does, about which call: `asks` till `answered`; `posts`, `collects` till `collected`."""
        about = {"event": what, "step": call.step, "stage": call.stage, "of_round": call.round, "parties": len(call.to)}
        self._write_line("events.jsonl", {**about, "round": self.at.round, "time": time.time()})

    def _write_line(self, name: str, record: Mapping[str, Any]) -> None:
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _checkpoint(self, state: Any, *, keep: int) -> None:
        at = self.at
        length = (self.folder / "metrics.jsonl").stat().st_size
        record, posted = at.record(self.numerics, self.rules.seed, length)
        record["rules"], record["cohorts"] = self._row_rules, self._cohorts.size
        packed = bytes(wire.pack(state).data)
        here = checkpoint.Checkpoint(at.ordinal, at.stage, at.round, packed, record, posted)
        os.sync()  # the parties' commits of these rounds before the checkpoint that names them
        checkpoint.save(self.folder / "checkpoints", here, keep=keep)
        at.horizons = [*at.horizons, at.horizon][-keep:]

    def _refuse_faults(self) -> None:
        """Raise RunFailed where the chain of a party's ledger does not hold."""
        if faults := self.check_ledgers():
            more = f" (so it is at {len(faults) - 1} other parties)" if len(faults) > 1 else ""
            raise RunFailed(f"{next(iter(faults.values()))}{more}")

    def _restore(self) -> Any:
        found = checkpoint.load(self.folder / "checkpoints")
        metrics = self.folder / "metrics.jsonl"
        try:  # before its chain is followed: a kill may have cut off the last line
            self._cohorts.cut(0 if found is None else found.record.get("cohorts", 0))
        except ValueError as error:
            raise RunFailed(str(error)) from error
        if found is None:
            self._refuse_faults()
            metrics.write_bytes(b"")
            return None
        check_same(found.record, self.numerics, self.rules.seed)
        self.at.ordinal, self.at.stage, self.at.round = found.ordinal, found.stage, found.round
        self.at.restore(found.record, found.posted, self.method, self.rules.keep)
        if found.record.get("rules") != self._row_rules:  # other rules: a row of abandoned rounds begins anew
            self.at.abandoned = 0
        self._refuse_faults()  # before any party is at work again
        os.truncate(metrics, found.record["metrics"])
        for ticket, call in self.at.posted.items():
            self.transport.post(ticket, list(self._requests(call, {})))
        return checkpoint.unpack_state(found.state, self._stages[self.at.stage].state)
