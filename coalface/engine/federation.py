"""The federation of every engine: requests, replies, means."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coalface.core import codec
from coalface.core.calls import check_aggregate, check_call
from coalface.core.disk import writing
from coalface.core.errors import RecipeError
from coalface.core.method import Answer, Mean, Ticket, generator
from coalface.core.parsing import strict_json
from coalface.engine.client_batch import can_batch
from coalface.engine.gathering import Gathering
from coalface.engine.replies import reply_size
from coalface.engine.run_state import Call
from coalface.privacy import secure as secure_settings
from coalface.privacy.dp import POSTED


class ServerFederation(Gathering):
    """What a method may ask of a run: requests out, replies validated, counted and aggregated."""

    def weights(self, role: str) -> dict[str, float]:
        parties = self.parties(role)
        most = self._heaviest([self._most(party) for party in parties])
        return {party: min(float(self.images(party)), most) for party in parties}

    def stream(self, *names: str | int) -> np.random.Generator:
        return generator(self._seed, "server", self._stages[self.at.stage].name, self.at.round, *names)

    def secret_stream(self, *names: str | int) -> np.random.Generator:
        seed = self._seed if self.secret is None else int.from_bytes(self.secret(), "little")
        return generator(seed, "server", self._stages[self.at.stage].name, self.at.round, *names)

    def sample(self, role: str, n: int | None) -> tuple[str, ...]:
        fixed = functools.partial(super().sample, role, n)
        return fixed() if self.private is None else self.private.draws.sample(fixed, self.parties(role), n, self.rng)

    def log(self, **metrics: float) -> None:
        self._now.metrics |= metrics

    def log_losses(self, losses: Mapping[str, float]) -> None:
        self._now.losses = dict(losses)

    def ask(
        self,
        step: Callable[..., Any],
        *,
        to: Iterable[str] | None = None,
        common: Any = None,
        each: Mapping[str, Any] | None = None,
        aggregate: Sequence[Mean] = (),
        at_least: int | None = None,
    ) -> Answer:
        call, failed = self._call(step, to, common, each, aggregate), dict[str, str]()
        self._admit(call, aggregate)
        requests = self._requests(call, failed)
        self._event("asks", call)
        if self.secure is not None:
            answer = self._ask_for_sums(self.secure, call, requests, aggregate, failed, at_least)
            self._event("answered", call)
            return answer
        aggregator = self._aggregator(call, aggregate, failed)
        if (
            self.numerics.client_batch
            and can_batch(self.method.steps[call.step][1], aggregate)
            and aggregator.heaviest >= max(aggregator.images.values())  # else weights are held down
        ):
            replies: Iterator[Any] = self.transport.batched(requests, self.numerics.client_batch)
        else:
            replies = self.transport.exchange(requests)
        answer = self._gather(aggregator, replies, at_least)
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
        if self.private is not None:
            raise RecipeError(POSTED, where="privacy.dp")
        if self.secure is not None:
            raise RecipeError(secure_settings.POSTED, where=secure_settings.WHERE)
        call = self._call(step, to, common, each, ())
        self._admit(call, ())
        ticket = Ticket(call.stage, call.round, call.call)
        self.at.posted[ticket] = call
        self._event("posts", call)
        self.transport.post(ticket, list(self._requests(call, {})))
        return ticket

    def collect(
        self, ticket: Ticket, *, aggregate: Sequence[Mean] = (), at_least: int | None = None, optional: bool = False
    ) -> Answer:
        if ticket not in self.at.posted:
            raise ValueError(f"{ticket} is not open; collect a ticket once, in the stage that posted it.")
        call, failed = self.at.posted[ticket], dict[str, str]()
        declaration = self.method.steps[call.step][1]
        check_aggregate(aggregate, declaration, self.parties(declaration.role))
        requests = list(self._requests(call, failed))
        self._event("collects", call)
        aggregator = self._aggregator(call, aggregate, failed)
        answer = self._gather(aggregator, self.transport.collect(ticket, requests), at_least, optional)
        self._event("collected", call)
        del self.at.posted[ticket]
        return answer

    def _call(
        self,
        step: Callable[..., Any],
        to: Iterable[str] | None,
        common: Any,
        each: Mapping[str, Any] | None,
        aggregate: Sequence[Mean] | None,
    ) -> Call:
        """`aggregate` is None where a local result stays at the party."""
        drawn = self.private is not None and self.private.hides_draws
        name, _, names = check_call(
            self.method, step, self.parties, to=to, common=common, each=each, aggregate=aggregate, allow_nobody=drawn
        )
        busy = {party for posted_call in self.at.posted.values() for party in posted_call.to} & set(names)
        if busy and aggregate is not None:
            raise ValueError(
                f"{type(self.method).__name__}, step {name}: {sorted(busy)[:5]} still work on an earlier post; "
                "collect that ticket first."
            )
        self._now.calls += 1
        stage = self._stages[self.at.stage]
        encoded = codec.encode(common) if common is not None else None
        when = (stage.name, self.at.round, stage.rounds, self.at.ordinal, self._now.calls)
        head = self._receipts.head  # made of every reply as it came, so privacy.dp lets no party know it
        return Call(name, names, *when, encoded, each, (head.lines, head.chain) if self.private is None else None)

    def _drain(self, tickets: Iterable[Ticket]) -> None:
        """Let posted work that nobody will collect come to its end, so that no party works on two things at once."""
        for ticket in tickets:
            call, failed = self.at.posted.pop(ticket), dict[str, str]()
            aggregator = self._aggregator(call, (), failed)
            for request, reply in self.transport.collect(ticket, list(self._requests(call, failed))):
                aggregator.count(request, reply_size(reply))
            self._now.bytes.update(aggregator.bytes)

    # --- what is written of it ----------------------------------------------------------------------------------------

    def _event(self, kind: str, call: Call) -> None:
        """What the server does, about which call: `asks` till `answered`; `posts`, `collects` till `collected`."""
        about = {"event": kind, "step": call.step, "stage": call.stage, "of_round": call.round, "parties": len(call.to)}
        self._write_line("events.jsonl", {**about, "round": self.at.round, "time": time.time()})

    def _write_line(self, name: str, record: Mapping[str, Any]) -> bytes:
        path, line = self.folder / name, strict_json(record).encode() + b"\n"
        with writing(path), open(path, "ab") as file:
            file.write(line)
        return line
