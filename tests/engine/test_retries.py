"""Parties that were not reached, and replies that were lost, late or torn, are asked for again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_runs import metrics, stopped_and_resumed
from toys import CALLS, Moves

from coalface.core import codec
from coalface.engine.faults import SimulatedFaults
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed, Unanswered
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.experiments.prepare import round_policy
from coalface.experiments.recipe import loader

pytestmark = pytest.mark.usefixtures("toy_steps")
EIGHT = Tiny(parties=8)


def test_the_defaults_abandon_no_round_where_three_in_ten_drop_out(tmp_path: Path) -> None:
    rules = round_policy(loader.parse({}))
    settings: dict[str, Any] = {
        "min_reply_fraction": rules.min_reply_fraction,
        "faults": SimulatedFaults(dropout=0.3),
        "checkpoint_every": 50,
    }
    for retries, abandoned in ((0, True), (rules.retries, False)):
        run(Moves(rounds=25), tmp_path / str(retries), EIGHT, save_replies=False, retries=retries, **settings)
        assert any(r["abandoned"] for r in metrics(tmp_path / str(retries))) is abandoned


@pytest.mark.parametrize(
    "faults", [SimulatedFaults(dropout=0.3), SimulatedFaults(lost=0.3), SimulatedFaults(slow={"*": 1.0}, deadline=1.0)]
)
def test_what_comes_in_the_end_counts_as_what_came_at_once(tmp_path: Path, faults: SimulatedFaults) -> None:
    whole = run(Moves(), tmp_path / "whole", EIGHT).bytes()
    CALLS.clear()
    tried = run(Moves(), tmp_path / "tried", EIGHT, faults=faults, retries=20)
    assert len(CALLS) == 3 * 8  # each trains once
    assert {**tried.bytes(), "metrics": b""} == {**whole, "metrics": b""}
    assert tried.server.at.totals.get("again", 0) == tried.server.at.totals.get("lost", 0)
    assert bool(tried.server.at.totals.get("lost")) is not bool(faults.dropout)


def test_the_first_try_is_drawn_as_ever(tmp_path: Path) -> None:
    """So a run in which nothing is asked again is what it was, and one retry can only add replies."""
    for retries in (0, 1):
        run(
            Moves(),
            tmp_path / str(retries),
            EIGHT,
            faults=SimulatedFaults(dropout=0.4),
            min_reply_fraction=0.0,
            retries=retries,
        )
    few, more = ([set(r["failed"]) for r in metrics(tmp_path / str(retries))] for retries in (0, 1))
    assert all(b <= a for a, b in zip(few, more, strict=True)) and few != more


@pytest.mark.parametrize("after", [3, 11, 20])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, after: int) -> None:
    rules: dict[str, Any] = {"faults": SimulatedFaults(dropout=0.3, lost=0.3), "retries": 1, "min_reply_fraction": 0.3}
    unbroken = run(Moves(), tmp_path / "unbroken", EIGHT, **rules)
    resumed = stopped_and_resumed(Moves(), tmp_path / "broken", after, EIGHT, **rules)
    assert resumed.bytes() == unbroken.bytes()


class Fails(InProcess):
    """Of silo-1 the first reply to each request does not come, is torn, is nonsense, or says that the step failed."""

    how = "away"

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        asked = self.__dict__.setdefault("asked", set[str]())
        for request, reply in super().exchange(requests):
            if request.party == "silo-1" and request.id not in asked:
                asked.add(request.id)
                reply = {
                    "away": Unanswered("silo-1: no reply within 5 s"),
                    "torn": codec.Encoded(reply.data[:-9]),
                    "fails": StepFailed("silo-1: OSError"),
                }[self.how]
            yield request, reply


@pytest.mark.parametrize(("how", "comes"), [("away", True), ("torn", True), ("fails", False)])
@pytest.mark.parametrize("on_error", ["exclude", "stop"])
def test_a_party_that_was_away_is_asked_again_and_one_whose_step_failed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, comes: bool, on_error: str
) -> None:
    monkeypatch.setattr(Fails, "how", how)
    whole = run(Moves(), tmp_path / "whole").bytes()
    rules: dict[str, Any] = {"transport": Fails, "retries": 1, "on_error": on_error}
    if on_error == "stop" and not comes:
        with pytest.raises(RunFailed, match="OSError"):
            run(Moves(), tmp_path / "tried", **rules)
        return
    tried = run(Moves(), tmp_path / "tried", **rules).bytes()
    assert (tried["state"] == whole["state"]) is comes
    assert [list(r["failed"]) for r in metrics(tmp_path / "tried")] == [[] if comes else ["silo-1"]] * 3
