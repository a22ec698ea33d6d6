"""Secure sums over kills and resumes: the same bytes, and no second sum over other parties."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from secure_runs import STAGES, WIDE, away, changing, opened_totals, stage_of
from server_runs import metrics, stopped_and_resumed
from toys import Moves

from coalface.engine.local import InProcess
from coalface.engine.party.commits import DamagedCommit
from coalface.engine.party.request import Request
from coalface.engine.rounds import RoundPolicy
from coalface.engine.transport import Reply
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run
from coalface.privacy.secure import SecureSettings

pytestmark = pytest.mark.usefixtures("toy_steps")

FIVE = Tiny(parties=5, each=3)
LOSE: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.0, "max_abandoned_rounds": 9}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Four rounds that nobody disturbs."""
    return run(Moves(rounds=4), tmp_path_factory.mktemp("unbroken"), FIVE, secure=WIDE, checkpoint_every=2)


@pytest.mark.parametrize("after", range(0, 41, 7))
def test_a_run_that_is_stopped_at_any_stage_and_resumed_ends_in_the_same_bytes(
    tmp_path: Path, unbroken: Ran, after: int
) -> None:
    """A round of five parties is 20 answers; checkpoints are written after the second and the fourth. It is
    stopped in every stage, and in rounds before and after a checkpoint."""
    rules: dict[str, Any] = {"secure": WIDE, "checkpoint_every": 2}
    resumed = stopped_and_resumed(Moves(rounds=4), tmp_path, after + 10, FIVE, **rules)
    assert resumed.bytes() == unbroken.bytes()
    for name in ("receipts.jsonl", "opened.jsonl"):
        assert (tmp_path / name).read_bytes() == (unbroken.folder / name).read_bytes()


@pytest.mark.parametrize("stage", STAGES)
def test_a_process_that_is_killed_at_a_stage_ends_in_the_same_bytes_once_another_goes_on(
    tmp_path: Path, unbroken: Ran, stage: str
) -> None:
    """`silo-2` has answered the stage, in the second round, and the server does not come to hear of it."""

    def die(request: Request, reply: Reply) -> Reply:
        if (request.round, request.party, stage_of(request)) == (2, "silo-2", stage):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    rules: dict[str, Any] = {"secure": WIDE, "checkpoint_every": 2}
    if (child := os.fork()) == 0:
        run(Moves(rounds=4), tmp_path, FIVE, transport=changing(die), **rules)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert run(Moves(rounds=4), tmp_path, FIVE, **rules).bytes() == unbroken.bytes()


@pytest.mark.parametrize("stage", ["advertise", "mask"])
def test_after_a_kill_no_second_sum_is_opened_over_other_parties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """silo-1 is away in round 1 when it is repeated, and was there when its sum was opened. The server abandons the
    round; one that has forgotten what it opened is answered by nobody."""
    totals = opened_totals(monkeypatch)
    settings = SecureSettings(clip=64.0, dropouts=0.3)
    rules: dict[str, Any] = {"secure": settings, "checkpoint_every": 9, **LOSE}
    for forgets in (False, True):
        folder = tmp_path / str(forgets)
        with pytest.raises(KeyboardInterrupt):
            run(Moves(rounds=2), folder, FIVE, transport=interrupted(round_number=2), **rules)
        assert len(totals) == 1
        if forgets:
            (folder / "opened.jsonl").unlink()
        ran = run(Moves(rounds=2), folder, FIVE, transport=away({stage: ["silo-1"]}, rounds=[1]), **rules)
        first, second = metrics(folder)
        assert first["abandoned"] and not second["abandoned"]
        assert len(totals) == 2  # that of round 2
        assert ran.state.control["a"].tolist() == pytest.approx([15] * 3, rel=1e-5)
        totals.clear()


def interrupted(round_number: int) -> type[InProcess]:
    def stop(request: Request, reply: Reply) -> Reply:
        if request.round == round_number:
            raise KeyboardInterrupt
        return reply

    return changing(stop)


def test_a_damaged_accepted_state_is_named_at_a_later_stage_too_and_not_removed(tmp_path: Path) -> None:
    """It is damaged in round 2, after the step has run from it."""
    damaged: list[Path] = []

    def damage(request: Request, reply: Reply) -> Reply:
        if (request.round, request.party, stage_of(request)) == (2, "silo-1", "advertise"):
            path = tmp_path / "parties" / "silo-1" / f"{request.base}.commit"
            path.write_bytes(path.read_bytes()[:-1])
            damaged.append(path)
        return reply

    with pytest.raises(DamagedCommit):
        run(Moves(rounds=2), tmp_path, FIVE, transport=changing(damage), secure=WIDE)
    assert damaged[0].exists()


def test_the_same_work_under_another_name_opens_no_second_sum_over_other_parties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two would differ by silo-1's vector. Over the same parties it is the same sum; under another seed there are
    other vectors."""
    totals = opened_totals(monkeypatch)
    rules: dict[str, Any] = {"secure": SecureSettings(clip=64.0, dropouts=0.3), **LOSE}
    gone = away({"advertise": ["silo-1"]})

    def again(name: str, transport: type[InProcess], **other: Any) -> dict[str, Any]:
        monkeypatch.setattr(tiny_federation, "RoundPolicy", lambda _, **values: RoundPolicy(name, **values))
        for path in tmp_path.iterdir():
            if path.name not in ("parties", "ledger", "answers"):  # what the server can forget
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        run(Moves(rounds=1), tmp_path, FIVE, transport=transport, **rules, **other)
        (record,) = metrics(tmp_path)
        return record

    assert not again("first", InProcess)["abandoned"]
    assert again("second", gone)["abandoned"] and len(totals) == 1
    assert not again("third", InProcess)["abandoned"]
    assert not again("fourth", gone, seed=1)["abandoned"] and len(totals) == 3
