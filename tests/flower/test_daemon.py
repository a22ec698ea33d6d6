"""A process that stays at a party between messages: real processes, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coalface.flower.party import daemon

SERVER = """
import os, sys, time
from pathlib import Path
from coalface.flower.party import daemon as resident

calls = []

def answer(about, said, data):
    calls.append(about)
    if about == "sleeps":
        time.sleep(60)
    return {"process": os.getpid(), "calls": len(calls), **said}, {k: v[::-1] for k, v in data.items()}

resident.serve(Path(sys.argv[1]), answer, watched=int(sys.argv[2]), idle=float(sys.argv[3]))
"""


@pytest.fixture
def serving() -> Iterator[subprocess.Popen[bytes]]:
    """Whom a resident serves."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def ask(tmp_path: Path, serving: subprocess.Popen[bytes]) -> Callable[..., tuple[dict[str, Any], dict[str, bytes]]]:
    place = tmp_path / "home" / "processes" / "one.json"

    def asks(about: str = "works", values: Any = None, data: Any = None, idle: float = 30) -> Any:
        start = [sys.executable, "-c", SERVER, str(place), str(serving.pid), str(idle)]
        return daemon.ask(place, start, about, values or {}, data or {})

    return asks


def gone(process: int) -> bool:
    """Whether a process has ended, within ten seconds."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if daemon.find_process(process) is None:
            return True
        time.sleep(0.05)
    return False


def test_one_process_answers_message_after_message_with_their_bytes(ask: Any, tmp_path: Path) -> None:
    values, data = ask(values={"name": "silo-0"}, data={"common": b"abc", "each": bytes(5_000_000), "none": b""})
    assert data == {"common": b"cba", "each": bytes(5_000_000), "none": b""}
    again, _ = ask()
    assert values["name"] == "silo-0" and again["process"] == values["process"] and again["calls"] == 2
    about = json.loads((tmp_path / "home" / "processes" / "one.json").read_text())
    socket = Path(about["socket"])
    assert (
        socket.parent.stat().st_mode & 0o777 == 0o700 and (tmp_path / "home" / "processes").stat().st_mode & 0o77 == 0
    )


def test_several_that_come_at_once_start_one(ask: Any) -> None:
    processes: list[int] = []
    threads = [threading.Thread(target=lambda: processes.append(ask()[0]["process"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes) == 4 and len(set(processes)) == 1


def test_it_ends_with_whom_it_serves_in_the_midst_of_its_work_and_leaves_nothing(
    ask: Any, tmp_path: Path, serving: subprocess.Popen[bytes]
) -> None:
    process = ask()[0]["process"]
    place = tmp_path / "home" / "processes" / "one.json"
    socket = Path(json.loads(place.read_text())["socket"])
    failed: list[BaseException] = []

    def works() -> None:
        try:
            ask("sleeps")
        except (OSError, EOFError) as error:
            failed.append(error)

    thread = threading.Thread(target=works)
    thread.start()
    time.sleep(0.3)
    serving.kill()
    serving.wait()
    thread.join(10)
    assert gone(process) and failed
    assert not place.exists() and not socket.parent.exists()


def test_asked_to_end_it_leaves_nothing_either(ask: Any, tmp_path: Path) -> None:
    values, _ = ask()
    folder = tmp_path / "home" / "processes"
    socket = Path(json.loads((folder / "one.json").read_text())["socket"])
    assert socket.exists()
    os.kill(values["process"], signal.SIGTERM)
    assert gone(values["process"])
    assert not socket.parent.exists() and not (folder / "one.json").exists()
    assert ask()[0]["process"] != values["process"]


def test_one_that_was_killed_is_started_again(ask: Any) -> None:
    first = ask()[0]["process"]
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert ask()[0]["calls"] == 1


@pytest.mark.parametrize(
    "place", ["[]", "[" * 9999, "{}", '{"socket": "x", "process": %s}', '{"socket": %s, "process": 1}']
)
def test_of_a_damaged_place_nobody_is_there(place: str, ask: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "processes"
    folder.mkdir(parents=True)
    for odd in ("null", "1e999", "-1", "0", "[]", r'"\ud800"') if "%" in place else ("",):
        (folder / "one.json").write_text(place.replace("%s", odd))
        assert daemon.serving(folder) == ([1] if odd.startswith('"') and place.endswith("1}") else [])
    assert ask()[0]["calls"] == 1


def test_one_that_cannot_start_is_told_with_its_status(tmp_path: Path) -> None:
    start = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(daemon.Absent, match="ended with status 3 before it listened: its output says why"):
        daemon.ask(tmp_path / "processes" / "one.json", start, "works", {}, {})
