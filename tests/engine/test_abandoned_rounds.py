"""Rounds abandoned one after the other: when the run ends, and how a resume goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import by_default
from server_runs import metrics
from toys import Memory, Moves, Note, State

from coalface.core.method import Federation, Party, step
from coalface.engine.faults import SimulatedFaults
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Stop, run, stopping

pytestmark = pytest.mark.usefixtures("toy_steps")


TWO_OF_THREE = SimulatedFaults(corrupt={"silo-0": "nan", "silo-1": "nan"})


def test_patience_ends_the_run_and_a_lower_quorum_lets_it_go_on(tmp_path: Path) -> None:
    says = r"3 rounds in a row .* lower engine.min_reply_fraction \(now 0.5\), or raise .* \(now 3\)"
    with pytest.raises(RunFailed, match=says):
        run(Moves(rounds=6), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=3)
    assert len(metrics(tmp_path)) == 3
    ran = run(Moves(rounds=6), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=3, min_reply_fraction=0.3)
    assert [r["abandoned"] for r in metrics(tmp_path)] == [True] * 3 + [False] * 3
    assert ran.state.values["a"].tolist() == pytest.approx([9.0] * 3)


@pytest.mark.parametrize("patience", [0, 1])
def test_with_a_patience_of_one_or_none_the_first_abandoned_round_ends_the_run(tmp_path: Path, patience: int) -> None:
    with pytest.raises(RunFailed, match=r"^a round was abandoned: 1 of 3 replies count"):
        run(Moves(rounds=6), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=patience)
    assert len(metrics(tmp_path)) == 1
    assert len(run(Moves(rounds=2), tmp_path / "good", max_abandoned_rounds=patience).models.shared or {}) == 2


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_ended_for_abandoned_rounds_counts_anew_when_it_is_resumed(tmp_path: Path, every: int) -> None:
    for lines in (2, 4, 6):
        with pytest.raises(RunFailed, match="2 rounds in a row"):
            run(Moves(rounds=6), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=2, checkpoint_every=every)
        assert len(metrics(tmp_path)) == lines
    assert [r["round"] for r in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("every", by_default(1, [1, 3]))
def test_a_run_killed_in_a_row_of_abandoned_rounds_goes_on_counting(tmp_path: Path, every: int) -> None:
    """So it ends where it would have ended: after the fifth."""
    rules: dict[str, Any] = {"faults": TWO_OF_THREE, "max_abandoned_rounds": 5, "checkpoint_every": every}
    with pytest.raises(RunFailed, match="5 rounds in a row"):
        run(Moves(rounds=9), tmp_path / "unbroken", **rules)
    assert len(metrics(tmp_path / "unbroken")) == 5
    unbroken = run(Moves(rounds=9), tmp_path / "unbroken", **rules, min_reply_fraction=0.3).bytes()
    for after in (0, 5, 8, 14):
        broken = tmp_path / f"{after}"
        with pytest.raises(Stop):
            run(Moves(rounds=9), broken, transport=stopping(after), **rules)
        with pytest.raises(RunFailed, match="5 rounds in a row"):
            run(Moves(rounds=9), broken, **rules)
        assert run(Moves(rounds=9), broken, **rules, min_reply_fraction=0.3).bytes() == unbroken, after


def test_a_row_of_abandoned_rounds_begins_anew_under_other_rules(tmp_path: Path) -> None:
    """Stopped in round 4; three are behind it, and another three are allowed."""
    with pytest.raises(Stop):
        run(Moves(rounds=9), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=5, transport=stopping(10))
    with pytest.raises(RunFailed, match="3 rounds in a row"):
        run(Moves(rounds=9), tmp_path, faults=TWO_OF_THREE, max_abandoned_rounds=3)
    assert [r["round"] for r in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@dataclass(frozen=True, kw_only=True)
class Counts(Moves):
    """Parties count the rounds that were accepted; nothing is sent down, so every round's request says the same."""

    def round(self, fed: Federation, state: State) -> State:
        fed.log(counted=sum(fed.ask(self.count).each["remembered"].values()))
        return state

    @step(role="trainer")
    def count(self, party: Party, own: Memory | None) -> tuple[Note, Memory]:
        times = own.times + 1 if own else 1
        return Note(drawn=torch.zeros(1), remembered=times), Memory(times=times)


@pytest.mark.parametrize("save_replies", [True, False])
def test_what_a_lower_quorum_accepts_is_what_later_rounds_build_on(tmp_path: Path, save_replies: bool) -> None:
    """Stopped in round 2 after the abandoned round 1, which the resume repeats and accepts."""
    rules: dict[str, Any] = {"faults": TWO_OF_THREE, "checkpoint_every": 9, "save_replies": save_replies}
    with pytest.raises(Stop):
        run(Counts(rounds=3), tmp_path, transport=stopping(5), **rules)
    run(Counts(rounds=3), tmp_path, min_reply_fraction=0.3, **rules)
    assert [r["counted"] for r in metrics(tmp_path)] == [1, 2, 3]
