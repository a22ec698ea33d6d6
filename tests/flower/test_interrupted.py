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
    with Standing.build(tmp_path_factory.mktemp("standing")).taken_down() as federation:
        yield federation


def test_the_run_goes_on_and_who_looked_is_told_so(standing: Standing) -> None:
    running = standing.up("--run-config", "rounds=400")
    standing.wait_for_round("faces", 2)
    standing.wait(lambda: standing.processes("run"))  # and the command has come to follow the run
    running.send_signal(signal.SIGINT)
    code, printed = standing.finish(running, 30)
    assert code == 0 and "the federation and its run continue" in printed, printed
    assert "coalface down" in printed and "stopped" not in printed and "coalface resume" not in printed, printed
    for words in (("status", "--watch"), ("logs", "--party", "silo-00", "--follow"), ("logs", "--follow")):
        looking = standing.coalface(words[0], str(standing.kits), *words[1:])
        before = len(standing.metrics("faces"))
        standing.wait(lambda before=before: len(standing.metrics("faces")) > before + 2)  # type: ignore[misc]
        looking.send_signal(signal.SIGINT)
        code, printed = standing.finish(looking, 30)
        assert code == 0 and "resume" not in printed and "Traceback" not in printed, printed
        assert ("faces" if words[0] == "status" else "==> ") in printed, printed


def test_a_start_that_is_broken_off_says_what_it_has_left_running(standing: Standing) -> None:
    assert standing.down()
    starting = standing.up("--no-run")
    standing.wait(lambda: standing.processes("superlink"))
    starting.send_signal(signal.SIGINT)
    code, printed = standing.finish(starting, 60)
    assert code == 1 and "what was started still runs" in printed and "coalface down" in printed, printed
    assert "coalface resume" not in printed, printed
    code, printed = standing.finish(standing.up("--no-run"))  # and it comes up again
    assert code == 0, printed
