"""Ctrl-C at a command that looks at a federation ends the command alone, and it says what goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from federations import Standing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """Three silos in the middle of a run that takes long."""
    with Standing.made(tmp_path_factory.mktemp("standing")).taken_down() as federation:
        yield federation


def test_the_run_goes_on_and_who_looked_is_told_so(standing: Standing) -> None:
    running = standing.up("--run-config", "rounds=400")
    standing.asked("faces", 2)
    running.send_signal(signal.SIGINT)
    code, said = standing.ended(running, 30)
    assert code == 0 and "the federation and its run continue" in said, said
    assert "coalface down" in said and "stopped" not in said and "coalface resume" not in said, said
    for words in (("status", "--watch"), ("logs", "--party", "silo-00", "--follow"), ("logs", "--follow")):
        looking = standing.coalface(words[0], str(standing.kits), *words[1:])
        before = len(standing.metrics("faces"))
        standing.wait(lambda before=before: len(standing.metrics("faces")) > before + 2)  # type: ignore[misc]
        looking.send_signal(signal.SIGINT)
        code, said = standing.ended(looking, 30)
        assert code == 0 and "resume" not in said and "Traceback" not in said, said
        assert ("faces" if words[0] == "status" else "==> ") in said, said


def test_a_start_that_is_broken_off_says_what_it_has_left_running(standing: Standing) -> None:
    assert standing.ended(standing.coalface("down", str(standing.kits)))[0] == 0
    starting = standing.up("--no-run")
    standing.wait(lambda: standing.processes("superlink"))
    starting.send_signal(signal.SIGINT)
    code, said = standing.ended(starting, 60)
    assert code == 1 and "what was started still runs" in said and "coalface down" in said, said
    assert "coalface resume" not in said, said
    code, said = standing.ended(standing.up("--no-run"))  # and it comes up again
    assert code == 0, said
