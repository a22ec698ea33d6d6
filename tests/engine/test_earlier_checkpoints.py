"""Abandoned rounds push out no accepted checkpoint, and a run can go back to one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import by_default
from server_runs import metrics
from test_update_bounds import FIVE, hostile, times
from toys import Moves, State

from coalface.core.method import Federation
from coalface.engine import checkpoint
from coalface.engine.faults import SimulatedFaults
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import run

pytestmark = pytest.mark.usefixtures("toy_steps")
NOBODY = SimulatedFaults(lost=1.0)


def kept(folder: Path) -> list[int]:
    return [int(place.name) - 1 for place in sorted((folder / "checkpoints").glob("[0-9]*"))]  # the first begins it


def ended(folder: Path, rounds: int, **rules: Any) -> str:
    with pytest.raises(RunFailed) as failed:
        run(Moves(rounds=rounds), folder, **rules)
    return str(failed.value)


def stop_after(rounds: int) -> Any:
    def report(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise RunFailed("stopped")

    return report


@pytest.mark.parametrize("keep", [1, 3])
def test_abandoned_rounds_push_out_no_accepted_checkpoint(tmp_path: Path, keep: int) -> None:
    ended(tmp_path, 20, report=stop_after(4), keep_checkpoints=keep)
    ended(tmp_path, 20, faults=NOBODY, keep_checkpoints=keep)
    assert kept(tmp_path) == [*range(5 - keep, 5), 9]  # five abandoned rounds leave one
    ended(tmp_path, 20, report=stop_after(10), keep_checkpoints=keep)
    assert kept(tmp_path) == [*range(6 - keep, 5), 10]  # which goes with the next that is accepted


def test_a_checkpoint_that_holds_an_accepted_round_is_kept_though_its_last_was_abandoned(tmp_path: Path) -> None:
    ended(tmp_path, 20, report=stop_after(2), checkpoint_every=3)
    ended(tmp_path, 20, faults=SimulatedFaults(lost=0.5), checkpoint_every=3, report=stop_after(9))
    fresh = [not r["abandoned"] for r in metrics(tmp_path)]
    assert any(fresh[2:5]) and any(fresh[5:8]) and not all(fresh)
    assert kept(tmp_path) == [5, 8]


@pytest.mark.parametrize("save_replies", [True, False])
@pytest.mark.parametrize("to", by_default(1, [3, 4]))
def test_what_follows_a_way_back_is_the_run_that_never_went_astray(tmp_path: Path, to: int, save_replies: bool) -> None:
    """One of five parties spoils a round; then nobody answers. Private state goes back as well."""
    settings: dict[str, Any] = {"save_replies": save_replies}
    whole = run(Moves(rounds=8), tmp_path / "whole", FIVE, **settings)
    folder = tmp_path / "astray"
    with pytest.raises(RunFailed):
        run(Moves(rounds=8), folder, FIVE, report=stop_after(to), **settings)
    with pytest.raises(RunFailed):
        spoilt = {"transport": hostile(times(1000)), "max_update_norm": 0.0}
        run(Moves(rounds=8), folder, FIVE, report=stop_after(to + 1), **settings, **spoilt)
    with pytest.raises(
        RunFailed, match=rf"accepted checkpoints are those after round {to} and {to + 1}; .*--from-round {to}"
    ):
        run(Moves(rounds=8), folder, FIVE, faults=NOBODY, max_abandoned_rounds=2, **settings)
    ends = checkpoint.accepted_ends(folder / "checkpoints", [8])
    assert list(ends) == [to, to + 1]
    before = (folder / "ledger" / "silo-0.jsonl").read_bytes()
    checkpoint.go_back(folder / "checkpoints", ends[to])
    back = run(Moves(rounds=8), folder, FIVE, **settings)
    mine, other = back.bytes(), whole.bytes()
    for name in [n for n in other if not n.startswith("ledger") and not n.endswith("(ledger)")]:
        assert mine[name] == other[name], name
    assert (folder / "ledger" / "silo-0.jsonl").read_bytes().startswith(before)  # what has left has left
    assert back.server.check_ledgers() == {}


@dataclass(frozen=True, kw_only=True)
class Diverges(Moves):
    """Its server divides by zero in one round."""

    at: int = 2

    def round(self, fed: Federation, state: State) -> State:
        state_after = Moves.round(self, fed, state)
        if fed.round == self.at:
            state_after.values["a"][0] = torch.tensor(1.0) / 0
        return state_after


def test_a_state_that_is_not_finite_is_an_abandoned_round(tmp_path: Path) -> None:
    run(Diverges(rounds=3), tmp_path / "one")
    assert [r["abandoned"] for r in metrics(tmp_path / "one")] == [False, True, False]
    assert "values/a" in metrics(tmp_path / "one")[1]["reason"]
    two = run(Moves(rounds=2), tmp_path / "two").state
    three = run(Diverges(rounds=3), tmp_path / "one").state
    assert torch.equal(three.values["a"], two.values["a"])


def test_a_first_state_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Begins(Moves):
        def init(self, fed: Federation) -> State:
            return State(values={"a": torch.tensor([float("nan")])}, control={})

    with pytest.raises(RunFailed, match="could not begin: .*not finite: values/a"):
        run(Begins(), tmp_path)
