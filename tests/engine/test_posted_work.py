from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from server_runs import Asks, listed, metrics, stopped_and_resumed
from toys import CALLS, HOOKS, HeldValidation, Lagged, Moves, Nudge, State, Values

from coalface.core.method import Federation
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.transport import Reply
from coalface.engine.workers import Workers
from coalface.experiments.conformance.tiny_federation import Tiny, run

pytestmark = pytest.mark.usefixtures("toy_steps")
ROLES = Tiny(parties=4, roles=(("silo-2", "validator"), ("silo-3", "validator")))


def test_posted_work_is_collected_in_the_round_that_was_set(tmp_path: Path) -> None:
    ran = run(Lagged(rounds=5, lag=2), tmp_path, ROLES)
    # Posted in round 1 (values 0), collected in round 3 and posted anew (values 2), collected in 4 (values 3), in 5.
    # The score is 2 · the sum of three equal values + how many the validator has seen.
    assert {k: t.tolist() for k, t in ran.state.scores.items()} == {
        "round-3": [1.0, 1.0],
        "round-4": [2.0 * 3 * 2 + 2] * 2,
        "round-5": [2.0 * 3 * 3 + 3] * 2,
    }


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.usefixtures("quick_workers")
def test_nobody_who_is_asked_waits_for_posted_work(tmp_path: Path) -> None:
    """With one worker a posted step does not end before those that were asked after it have answered."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Opening(Workers):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            yield from super().exchange(requests)
            gate.write_bytes(b"!")

    method = Lagged(rounds=3, lag=1, validation=HeldValidation(gate=str(gate)))
    ran = run(method, tmp_path / "run", ROLES, transport=lambda setup, world: Opening(setup, world, 1, 4))
    assert list(ran.state.scores) == ["round-2", "round-3"]


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_with_open_tickets_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, every: int) -> None:
    method = Lagged(rounds=5, lag=2)
    unbroken = run(method, tmp_path / "unbroken", ROLES, checkpoint_every=every).bytes()
    for after in (1, 4, 7, 10, 13):
        resumed = stopped_and_resumed(method, tmp_path / f"{after}", after, ROLES, checkpoint_every=every).bytes()
        assert resumed == unbroken, after


def test_a_party_that_still_works_on_something_is_not_asked(tmp_path: Path) -> None:
    def ask(method: Moves, fed: Federation, state: State) -> None:
        fed.post(method.move, to=["silo-1"], common=Values(values=state.values))
        fed.ask(method.move, common=Values(values=state.values))

    with pytest.raises(ValueError, match=r"step move: \['silo-1'\] still work on an earlier post.*collect that ticket"):
        run(Asks(rounds=1, asks=ask), tmp_path)


def test_a_ticket_is_collected_once(tmp_path: Path) -> None:
    def ask(method: Moves, fed: Federation, state: State) -> None:
        ticket = fed.post(method.move, common=Values(values=state.values))
        assert fed.collect(ticket).arrived == fed.parties("trainer")
        fed.collect(ticket)

    with pytest.raises(ValueError, match="is not open; collect a ticket once"):
        run(Asks(rounds=1, asks=ask), tmp_path)


def test_work_posted_in_an_abandoned_round_is_over_before_the_next(tmp_path: Path) -> None:
    HOOKS.append(lambda party: 1 / 0 if party.round == 1 and party.name == "silo-0" else None)
    ran = run(Lagged(rounds=4, lag=1, fragile=True), tmp_path, ROLES, on_error="exclude")
    assert [r["abandoned"] for r in metrics(tmp_path)] == [True, False, False, False]
    # The candidate of the abandoned round was scored, and that does not count: 3 posted, 2 collected, 1 left open.
    assert {k: t.tolist() for k, t in ran.state.scores.items()} == {"round-3": [1.0] * 2, "round-4": [8.0] * 2}
    scored = [call for call in CALLS if call[1] == "score"]
    assert [call[3] for call in scored] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_work_of_an_abandoned_round_ends_from_the_state_that_it_was_posted_on(tmp_path: Path) -> None:
    """The same in every engine, although one does the work at once and another when it is collected."""
    bases: dict[str, list[str | None]] = {"posted": [], "collected": []}

    class Spying(InProcess):
        def post(self, ticket: Any, requests: Any) -> None:
            bases["posted"] += [request.base for request in requests]

        def collect(self, ticket: Any, requests: Any) -> Iterator[tuple[Request, Reply]]:
            bases["collected"] += [request.base for request in requests]
            return super().collect(ticket, requests)

    def ask(method: Moves, fed: Federation, state: State) -> None:
        nudge = Nudge(amount=torch.zeros(1))
        fed.ask(method.remember, each={"silo-0": nudge})
        fed.post(method.remember, each={"silo-0": nudge})
        fed.ask(method.move, to=["silo-1"], common=Values(values=state.values), at_least=2)

    run(Asks(rounds=1, asks=ask), tmp_path, transport=Spying)
    assert bases["posted"] == bases["collected"] != [None]


@pytest.mark.parametrize("failing", [False, True])
def test_every_byte_of_posted_work_is_counted_also_where_nobody_collects_it(failing: bool, tmp_path: Path) -> None:
    """The last validation of a run, and an abandoned round's: totals, tallies, metrics and ledgers say the same."""
    if failing:  # the scores of round 1 come in round 2, which is abandoned, and so they come again in round 3
        HOOKS.append(lambda party: 1 / 0 if party.round == 2 and party.name == "silo-0" else None)
    ran = run(Lagged(rounds=4, lag=1, fragile=True), tmp_path, ROLES, on_error="exclude")
    sent, record = sum(listed(tmp_path).values()) + (2 * 56 if failing else 0), metrics(tmp_path)
    party_stats, totals = ran.server.at.party_stats.values(), ran.server.at.totals
    assert totals["up"] == sent == sum(r["bytes_up"] for r in record) == sum(t.bytes_up for t in party_stats)
    assert totals["down"] == sum(r["bytes_down"] for r in record) == sum(t.bytes_down for t in party_stats)
    assert ran.server.resumes_after()[1] == totals  # the checkpoint has them too
