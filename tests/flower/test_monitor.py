from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from coalface.experiments import run as experiment
from coalface.flower.poc import monitor


def test_a_run_that_has_ended_is_asked_for_at_once_and_its_end_is_not_silent(
    fedavg_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without this the SuperLink is asked every ten seconds, each time by a process of its own."""
    folder = shutil.copytree(fedavg_run, tmp_path / "run")
    lock = experiment.alone(folder)
    lock.__enter__()
    asked_after: list[int] = []
    looks: list[float] = []

    class Here:
        def state_of(self, number: int) -> tuple[str, str]:
            asked_after.append(len(looks))
            return ("running" if len(asked_after) < 3 else "finished:completed"), ""

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        assert len(looks) < 9, "nobody asks whether the run has ended"
        if len(looks) == 3:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(monitor.time, "sleep", sleep)
    federation: Any = Here()
    monitor.follow(federation, 7, folder)
    assert asked_after == [0, 3, 4]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == [
        "the server evaluates the model, and the parties check their ledgers",
        "the SuperLink ends the run",
    ]
    assert lines[-1].startswith("tiny-fedavg  done")
