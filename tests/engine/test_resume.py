from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import worlds
from server_runs import metrics, stopped_and_resumed
from toys import CALLS, Moves, Staged

from coalface.engine.checkpoint import CheckpointError
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.conformance.tiny_federation import NUMERICS, Stop, run

pytestmark = pytest.mark.usefixtures("toy_steps")


# --- stages -----------------------------------------------------------------------------------------------------------


def test_a_stage_hands_its_state_to_the_next(tmp_path: Path) -> None:
    ran = run(Staged(), tmp_path)
    assert ran.state.begun_with["a"].tolist() == [2.0] * 3
    assert ran.state.sum.item() == 3 * (1 + 2 + 3)
    assert [r["stage"] for r in metrics(tmp_path)] == ["moves", "moves", "sums", "sums"]
    assert {(call[2], call[3]) for call in CALLS if call[1] == "remember"} == {("sums", 0), ("sums", 1), ("sums", 2)}


def test_every_stage_can_be_resumed(tmp_path: Path) -> None:
    unbroken = run(Staged(), tmp_path / "unbroken", checkpoint_every=3).bytes()
    for after in (0, 2, 5, 6, 8, 9, 12, 14):
        resumed = stopped_and_resumed(Staged(), tmp_path / f"{after}", after, checkpoint_every=3)
        assert resumed.bytes() == unbroken, after


# --- stopping and resuming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, every: int) -> None:
    method, rules = (
        Moves(rounds=5, note=True),
        {"checkpoint_every": every, "faults": SimulatedFaults(lost=0.2), "min_reply_fraction": 0.3},
    )
    unbroken = run(method, tmp_path / "unbroken", **rules)
    for after in (0, 3, 9, 14, 21):
        resumed = stopped_and_resumed(method, tmp_path / f"{after}", after, **rules)
        assert resumed.bytes() == unbroken.bytes(), after
        for what in ("party_stats", "totals"):
            assert getattr(resumed.server.at, what) == getattr(unbroken.server.at, what)


@pytest.mark.parametrize("name", ["solo", "fedavg"])
def test_nothing_is_pending_after_a_run(tmp_path: Path, name: str) -> None:
    run(worlds.recipe(name)[0], tmp_path)
    assert [len(list(p.iterdir())) for p in sorted((tmp_path / "parties").iterdir())] == [1, 1, 1]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(Moves(), tmp_path).bytes()
    ran = len(CALLS)
    assert run(Moves(), tmp_path).bytes() == first
    assert len(CALLS) == ran


def test_lines_of_rounds_that_are_repeated_are_taken_back(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise Stop

    with pytest.raises(Stop):
        run(Moves(rounds=5), tmp_path, checkpoint_every=3, report=stop)
    assert len(metrics(tmp_path)) == 4
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "cut')
    run(Moves(rounds=5), tmp_path, checkpoint_every=3)
    assert [r["round"] for r in metrics(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"numerics": replace(NUMERICS, threads=3, sum_block=4)},
            r"threads 1 \(now 3\), sum_block 2 \(now 4\)",
        ),
        ({"seed": 1}, "the seed"),
    ],
)
def test_a_run_is_not_resumed_with_other_numerics(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    run(Moves(rounds=2), tmp_path)
    with pytest.raises(CheckpointError, match=says):
        run(Moves(rounds=2), tmp_path, **changes)


def test_a_checkpoint_calls_numerics_as_it_always_did(tmp_path: Path) -> None:
    """Summaries are hashed and old checkpoints read: a field may be renamed, its key in files may not."""
    run(Moves(rounds=1), tmp_path)
    (path,) = (tmp_path / "checkpoints").glob("*/checkpoint.json")
    numerics = json.loads(path.read_text())["record"]["numerics"]
    words = [
        "threads",
        "device",
        "autocast",
        "channels_last",
        "flush_denormals",
        "block",
        "cohorts",
        "shards",
        "updates",
    ]
    assert list(numerics) == words and (numerics["block"], numerics["cohorts"]) == (2, 0)
