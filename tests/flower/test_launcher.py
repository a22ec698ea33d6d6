"""A federation on one machine: started, looked at and ended by single commands; and where any run stands."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from federations import Standing
from flwr.common.config import parse_config_args
from tinyruns import run
from typer.testing import CliRunner

from coalface.cli.main import app
from coalface.core.errors import RecipeError
from coalface.core.names import KITS
from coalface.experiments import status as following
from coalface.flower.app import run_config
from coalface.flower.party import daemon
from coalface.flower.poc import flwr_cli, launcher, monitor, network
from coalface.flower.poc import processes as marked
from coalface.flower.provision import project


def said(*words: str | Path) -> tuple[int, str]:
    """What a command ends with, and what it says or raises."""
    told = CliRunner().invoke(app, [str(word) for word in words])
    return told.exit_code, told.output + (str(told.exception) if told.exception else "")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that tests give in their own process stay in the network of this machine, and nobody else is on it."""
    monkeypatch.setattr(network, "enter", lambda kits: "so the tests have it")
    monkeypatch.setattr(network, "others", lambda: [])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Standing:
    """Kits for this machine, of which nothing runs."""
    return Standing.made(tmp_path_factory.mktemp("here"))


# --- processes --------------------------------------------------------------------------------------------------------

DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


def test_all_that_carries_the_mark_is_ended_wherever_it_has_gone_and_nothing_else(tmp_path: Path) -> None:
    def started(kits: Path, part: str) -> subprocess.Popen[bytes]:
        environment = os.environ | marked.environment(kits, part)
        return subprocess.Popen([sys.executable, "-c", DEAF, DEAF], env=environment, start_new_session=True)

    mine, other = tmp_path / "mine", tmp_path / "other"
    processes = [started(mine, "superlink"), started(mine, "silo-00"), started(other, "silo-00")]
    try:
        ends = time.monotonic() + 30
        while len(marked.find_processes(mine)) < 4 or len(marked.find_processes(other)) < 2:
            assert time.monotonic() < ends
        processes[1].kill()  # its child has lost its parent, and had left its session before
        assert {one.part for one in marked.end(mine, part="silo-00", grace=0.2)} == {"silo-00"}
        assert [one.part for one in marked.find_processes(mine)] == ["superlink", "superlink"]
        assert len(marked.end(mine, grace=0.2)) == 2
        assert marked.find_processes(mine) == [] and len(marked.find_processes(other)) == 2
    finally:
        for kits in (mine, other):
            marked.end(kits, grace=0)
        for process in processes:
            process.wait(10)
    assert marked.end(mine) == []


# --- what cannot be started, and why ----------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_before_anything_starts(here: Standing) -> None:
    with socket.create_server(("127.0.0.1", project.read_kits(here.kits).superlink.port)):
        code, text = said("up", here.kits)
    assert code == 1 and "is in use by another process" in text and not here.processes()


def test_two_do_not_start_the_same_kits_at_once(here: Standing) -> None:
    (here.kits / "logs").mkdir(exist_ok=True)
    with open(here.kits / "logs" / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, text = said("up", here.kits)
    assert code == 1 and "another process is starting this" in text


def test_where_others_can_log_in_what_is_open_is_said_and_agreed_to(
    here: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "others", lambda: ["ann", "bob"])
    code, text = said("up", here.kits)
    assert code == 1 and "ann, bob" in text and "start code as you" in text and "--yes" in text
    assert "so the tests have it" in text and not here.processes()
    with socket.create_server(("127.0.0.1", project.read_kits(here.kits).superlink.port)):
        code, text = said("up", here.kits, "--yes")
    assert code == 1 and "ann, bob" in text and "is in use by another process" in text  # it went on


def test_a_federation_that_does_not_run_has_no_log(here: Standing) -> None:
    with pytest.raises(RecipeError) as error:
        monitor.logs(here.kits, "silo-01")
    assert error.value.where == str(here.kits / "logs" / "silo-01.log")


# --- what Flower is given, and answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", ["rounds=40 local.lrr=0.1", "local.momentum=0.0", "rounds = 3", "name=faces", "none.toml"]
)
def test_a_run_config_that_flower_would_not_take_is_refused_before(given: str, here: Standing) -> None:
    with pytest.raises(RecipeError) as error:
        run_config.check(here.kits / "operator" / "project", given)
    assert error.value.where == "--run-config"


def test_a_run_config_is_read_as_flower_reads_it(here: Standing, tmp_path: Path) -> None:
    text = "name=\"my faces\" local.lr=1e-5  out='/a b' rounds=5"
    run_config.check(here.kits / "operator" / "project", text)
    assert run_config.read(text) == parse_config_args([text])
    (tmp_path / "x.toml").write_text("rounds = 5\n[local]\nlr = 0.1\n")
    assert run_config.read(str(tmp_path / "x.toml")) == parse_config_args([str(tmp_path / "x.toml")])


def test_a_failure_that_flower_tells_with_exit_status_0_is_one(tmp_path: Path) -> None:
    said = json.dumps({"success": False, "error-message": "[code: 15] Invalid run configuration."})
    with pytest.raises(flwr_cli.Failed, match="code: 15. Invalid run configuration"):
        flwr_cli.run_json(["echo", said], tmp_path, 20)
    with pytest.raises(flwr_cli.Failed, match="failed:\nno JSON"):
        flwr_cli.run_json(["echo", "no JSON"], tmp_path, 20)
    assert flwr_cli.run_json(["echo", '{"success": true, "runs": []}'], tmp_path, 20)["runs"] == []


def test_a_command_that_hangs_is_ended_with_all_that_it_began(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(flwr_cli.Failed, match="was not done within 0.5 s: the SuperLink may hang. `coalface down"):
        flwr_cli.run_command(["sh", "-c", f"sleep 60 & echo $! > {tmp_path / 'pid'}; wait"], tmp_path, 0.5)
    assert time.monotonic() - began < 20
    child = int((tmp_path / "pid").read_text())
    while daemon.find_process(child) is not None:  # it has been killed, and the system takes a moment to end it
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def test_copied_kits_keep_their_runs_in_the_copy_unless_told_otherwise(here: Standing, tmp_path: Path) -> None:
    def begun(kits: Path, out: Path | None) -> None:
        with pytest.raises(launcher.Down, match="the SuperLink has ended"):
            launcher.Loopback(kits).start(out)

    first = Path(shutil.copytree(here.kits, tmp_path / "first"))
    (first / "superlink" / "start.sh").write_text("#!/bin/sh\nexit 1\n")
    begun(first, None)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    begun(copy, None)
    assert launcher.Loopback(copy).folder(None) == copy / "superlink" / "runs" / "faces"
    begun(copy, tmp_path / "elsewhere")
    assert launcher.Loopback(copy).folder('name="b"') == tmp_path / "elsewhere" / "b"
    assert str(copy / "operator" / "ca.crt") in (copy / "operator" / "flower" / "config.toml").read_text()


# --- where a run stands -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    faults = {"corrupt": {"silo-01": "nan"}}
    return run(tmp_path_factory.mktemp("ran") / "tiny", rounds=2, faults=faults)


def test_the_status_of_a_local_run_is_what_its_summary_counts(ran: Path) -> None:
    summary, status = json.loads((ran / "summary.json").read_text()), following.status(ran)
    assert (status.state, status.round, status.rounds, status.elsewhere) == ("finished", 2, 2, False)
    assert (status.bytes_down, status.bytes_up) == (summary["bytes"]["down"], summary["bytes"]["up"])
    found = {party.name: party for party in status.parties}
    for counted in summary["parties"]:
        party = found[counted["name"]]
        for key in ("role", "rounds", "failed", "bytes_down", "bytes_up"):
            assert getattr(party, key) == counted[key], key
    code, text = said("status", ran)
    assert code == 0 and "finished" in text and "round 2/2" in text and "ago" in text
    shown = json.loads(said("status", ran, "--json")[1])
    assert shown["run"]["parties"][0]["name"] == "silo-00" and shown["processes"] is None


def test_a_run_under_way_is_told_from_one_that_was_stopped(ran: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(ran, tmp_path / "half"))
    (half / "summary.json").unlink()
    with open(half / "events.jsonl", "a") as file:
        file.write(json.dumps({"event": "asks", "step": "train", "round": 3, "parties": 2, "time": time.time()}) + "\n")
    status = following.status(half)
    assert (status.state, status.doing, status.counted) == ("stopped", "", 2)
    assert {party.name: party.rounds for party in status.parties}["silo-00"] == 2  # by the checkpoint
    assert f"`coalface resume {half}` goes on" in said("status", half)[1].replace("\n", " ")
    with open(half / "run.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = following.status(half)
        assert (status.state, status.doing) == ("running", "waits for round 3, train of 2 parties")
        assert "waits for round 3" in said("status", half)[1]
    assert following.status(half).state == "stopped"


def test_a_run_whose_parties_are_elsewhere_is_not_resumed_here_and_says_where_logs_are(
    ran: Path, tmp_path: Path
) -> None:
    far = Path(shutil.copytree(ran, tmp_path / "far"))
    code, text = said("logs", ran)
    assert code == 1 and "the run's own process played" in text
    following.began(far, {}, asked={"rounds": 2})
    code, text = said("resume", far, "--quiet")
    assert code == 1 and "use the operator's `run.sh`" in text
    code, text = said("logs", far, "--party", "silo-00")
    assert code == 1 and "silo-00's log is what its start.sh prints, on its machine" in text


def test_a_run_that_kits_here_have_started_goes_on_as_it_was_asked_for(
    ran: Path, here: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Path(shutil.copytree(ran, tmp_path / "far"))
    monkeypatch.setenv(KITS, str(here.kits))
    usual = {"rounds": 2, "local.lr": 0.02, "name": "faces", "step-seconds": 3600}
    following.began(far, {}, asked={**usual, "rounds": 5, "name": "my faces", "local.lr": 1e-5})
    brought = following.brought_up(far)
    assert brought is not None and brought[0] == here.kits
    text = run_config.changed(brought[0] / "operator" / "project", brought[1])
    assert parse_config_args([text]) == {"rounds": 5, "name": "my faces", "local.lr": 1e-5}
    assert run_config.changed(here.kits / "operator" / "project", usual) is None
    assert "remove engine.min_reply_fraction=0.2" in said("resume", far, "engine.min_reply_fraction=0.2")[1]


def test_several_logs_are_followed_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    for path in (one, two):
        path.write_text("before\n")
    follows = monitor.growing([one, two])

    def says(path: Path, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    timer = threading.Timer(0.2, says, (two, "b\n"))  # by then it waits, and has passed over what was there
    timer.start()
    assert next(follows) == (two, "b")
    says(one, "a\n")
    says(two, "c\n")
    assert [next(follows), next(follows)] == [(one, "a"), (two, "c")]
    timer.join()


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
def test_from_nothing_to_a_trained_model_and_back_to_nothing(tmp_path: Path) -> None:
    made = Standing.made(tmp_path)
    try:
        code, text = made.ended(made.up("--out", str(tmp_path / "runs"), "--run-config", "rounds=2"))
        assert code == 0, text
        out = tmp_path / "runs" / "faces"
        assert "faces  round 2/2" in text and f"results: {out}" in text and (out / "report.html").exists()
        state = monitor.told(made.kits)
        assert state["run"]["state"] == "finished" and all(state["processes"].values())
        assert [party["rounds"] for party in state["run"]["parties"]] == [2, 2, 2] and state["run"]["elsewhere"]
        assert monitor.told(out)["processes"] == state["processes"]  # the run folder knows its kits
        if not network._tried():  # this system gives it a network of its own: from here its port is not there
            assert "the federation has its own network" in text
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(project.read_kits(made.kits).superlink.own, timeout=20)
        assert "Sending: train.step" in "\n".join(monitor.tail(*monitor.logs(out, "silo-01"), 1000))
        for log in (made.kits / "logs").glob("*.log"):
            assert log.stat().st_mode & 0o077 == 0
        stranger = made.processes("silo-00")[0]
        os.kill(stranger.pid, signal.SIGKILL)  # half of it has died
    finally:
        code, text = made.ended(made.coalface("down", str(made.kits)))
    assert code == 0 and text.startswith("ended "), text
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]) if one.pid != os.getpid()]
    assert not made.processes() and not [line for line in lines if str(made.kits) in line]
