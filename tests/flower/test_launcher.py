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
from commands import invoked
from federations import Standing
from flwr.common.config import parse_config_args
from tinyruns import run

from coalface.core.errors import DataError, RecipeError
from coalface.core.names import KITS
from coalface.experiments import status as following
from coalface.flower.app import run_config
from coalface.flower.party import daemon
from coalface.flower.poc import flwr_cli, launcher, monitor, network
from coalface.flower.poc import processes as marked
from coalface.flower.provision import project


def run_coalface(*words: str | Path) -> tuple[int, str]:
    """What a command ends with, and what it prints or raises."""
    result = invoked(*words)
    return result.exit_code, result.output + (str(result.exception) if result.exception else "")


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that tests give in their own process stay in the network of this machine, and nobody else is on it."""
    monkeypatch.setattr(network, "enter", lambda kits: "so the tests have it")
    monkeypatch.setattr(network, "other_users", lambda: [])
    monkeypatch.setenv("COLUMNS", "400")  # an error with a path of any length takes one line


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits for this machine, of which nothing runs."""
    return Standing.build(tmp_path_factory.mktemp("here")).kits


# --- processes --------------------------------------------------------------------------------------------------------

DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


def test_all_that_carries_the_mark_is_ended_wherever_it_has_gone_and_nothing_else(tmp_path: Path) -> None:
    def start(kits: Path, part: str) -> subprocess.Popen[bytes]:
        environment = os.environ | marked.environment(kits, part)
        return subprocess.Popen([sys.executable, "-c", DEAF, DEAF], env=environment, start_new_session=True)

    kits, neighbours = tmp_path / "kits", tmp_path / "other"
    processes = [start(kits, "superlink"), start(kits, "silo-00"), start(neighbours, "silo-00")]
    try:
        ends = time.monotonic() + 30
        while len(marked.find_processes(kits)) < 4 or len(marked.find_processes(neighbours)) < 2:
            assert time.monotonic() < ends
        processes[1].kill()  # its child has lost its parent, and had left its session before
        assert {process.part for process in marked.end(kits, part="silo-00", grace=0.2)} == {"silo-00"}
        assert [process.part for process in marked.find_processes(kits)] == ["superlink", "superlink"]
        assert len(marked.end(kits, grace=0.2)) == 2
        assert marked.find_processes(kits) == [] and len(marked.find_processes(neighbours)) == 2
    finally:
        for folder in (kits, neighbours):
            marked.end(folder, grace=0)
        for process in processes:
            process.wait(10)
    assert marked.end(kits) == []


# --- what cannot be started, and why ----------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told_before_anything_starts(kits: Path) -> None:
    with socket.create_server(("127.0.0.1", project.read_kits(kits).superlink.port)):
        code, text = run_coalface("up", kits)
    assert code == 1 and "is in use by another process" in text and not marked.find_processes(kits)


def test_two_do_not_start_the_same_kits_at_once(kits: Path) -> None:
    (kits / "logs").mkdir(exist_ok=True)
    with open(kits / "logs" / ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, text = run_coalface("up", kits)
    assert code == 1 and "another process is starting this" in text


def test_where_others_can_log_in_what_is_open_is_said_and_agreed_to(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "other_users", lambda: ["ann", "bob"])
    code, text = run_coalface("up", kits)
    assert code == 1 and "ann, bob" in text and "start code as you" in text and "--yes" in text
    assert "so the tests have it" in text and not marked.find_processes(kits)
    with socket.create_server(("127.0.0.1", project.read_kits(kits).superlink.port)):
        code, text = run_coalface("up", kits, "--yes")
    assert code == 1 and "ann, bob" in text and "is in use by another process" in text  # it went on


@pytest.mark.parametrize("left", ["{", "[]", '{"runs": null}', '{"runs": 5}'])
def test_what_a_start_has_left_is_refused_where_it_is_damaged(left: str, tmp_path: Path) -> None:
    assert launcher.read_state(tmp_path) == (tmp_path.resolve() / "superlink" / "runs", False)
    (tmp_path / "up.json").write_text(left)
    with pytest.raises(DataError, match="give `up` its --out") as error:
        launcher.read_state(tmp_path)
    assert error.value.where == str(tmp_path / "up.json")


def test_a_federation_that_does_not_run_has_no_log(kits: Path) -> None:
    with pytest.raises(RecipeError) as error:
        monitor.logs(kits, "silo-01")
    assert error.value.where == str(kits / "logs" / "silo-01.log")


# --- what Flower is given, and answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["rounds=40 local.lrr=0.1", "local.momentum=0.0", "rounds = 3", "name=faces", "none.toml"]
)
def test_a_run_config_that_flower_would_not_take_is_refused_before(text: str, kits: Path) -> None:
    with pytest.raises(RecipeError) as error:
        run_config.check(kits / "operator" / "project", text)
    assert error.value.where == "--run-config"


def test_a_run_config_is_read_as_flower_reads_it(kits: Path, tmp_path: Path) -> None:
    text = "name=\"my faces\" local.lr=1e-5  out='/a b' rounds=5"
    run_config.check(kits / "operator" / "project", text)
    assert run_config.read(text) == parse_config_args([text])
    (tmp_path / "x.toml").write_text("rounds = 5\n[local]\nlr = 0.1\n")
    assert run_config.read(str(tmp_path / "x.toml")) == parse_config_args([str(tmp_path / "x.toml")])


def test_a_failure_that_flower_tells_with_exit_status_0_is_one(tmp_path: Path) -> None:
    answer = json.dumps({"success": False, "error-message": "[code: 15] Invalid run configuration."})
    with pytest.raises(flwr_cli.Failed, match="code: 15. Invalid run configuration"):
        flwr_cli.run_json(["echo", answer], tmp_path, 20)
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


def test_ctrl_c_just_before_a_command_ends_stays_ctrl_c(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):  # more than a pipe holds is written only once it is read
            flwr_cli.run_command(["sh", "-c", "head -c 200000 /dev/zero; kill -INT $PPID"], tmp_path, 60)
    finally:
        signal.signal(signal.SIGINT, before)


def test_copied_kits_keep_their_runs_in_the_copy_unless_told_otherwise(kits: Path, tmp_path: Path) -> None:
    def start(kits: Path, out: Path | None) -> None:
        with pytest.raises(launcher.Down, match="the SuperLink has ended"):
            launcher.Loopback(kits).start(out)

    first = Path(shutil.copytree(kits, tmp_path / "first"))
    (first / "superlink" / "start.sh").write_text("#!/bin/sh\nexit 1\n")
    start(first, None)
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    start(copy, None)
    assert launcher.Loopback(copy).folder(None) == copy / "superlink" / "runs" / "faces"
    start(copy, tmp_path / "elsewhere")
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
    party_status = {party.name: party for party in status.parties}
    for counted in summary["parties"]:
        party = party_status[counted["name"]]
        for key in ("role", "rounds", "failed", "bytes_down", "bytes_up"):
            assert getattr(party, key) == counted[key], key
    code, text = run_coalface("status", ran)
    assert code == 0 and "finished" in text and "round 2/2" in text and "ago" in text
    status_json = json.loads(run_coalface("status", ran, "--json")[1])
    assert status_json["run"]["parties"][0]["name"] == "silo-00" and status_json["processes"] is None


def test_a_run_under_way_is_told_from_one_that_was_stopped(ran: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(ran, tmp_path / "half"))
    (half / "summary.json").unlink()
    with open(half / "events.jsonl", "a") as file:
        file.write(json.dumps({"event": "asks", "step": "train", "round": 3, "parties": 2, "time": time.time()}) + "\n")
    status = following.status(half)
    assert (status.state, status.doing, status.counted) == ("stopped", "", 2)
    assert {party.name: party.rounds for party in status.parties}["silo-00"] == 2  # by the checkpoint
    assert f"`coalface resume {half}` goes on" in run_coalface("status", half)[1].replace("\n", " ")
    with open(half / "run.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        status = following.status(half)
        assert (status.state, status.doing) == ("running", "waits for round 3, train of 2 parties")
        assert "waits for round 3" in run_coalface("status", half)[1]
    assert following.status(half).state == "stopped"


def test_a_run_whose_parties_are_elsewhere_is_not_resumed_here_and_says_where_logs_are(
    ran: Path, tmp_path: Path
) -> None:
    far = Path(shutil.copytree(ran, tmp_path / "far"))
    code, text = run_coalface("logs", ran)
    assert code == 1 and "the run's own process played" in text
    following.began(far, {}, asked={"rounds": 2})
    code, text = run_coalface("resume", far, "--quiet")
    assert code == 1 and "use the operator's `run.sh`" in text
    code, text = run_coalface("logs", far, "--party", "silo-00")
    assert code == 1 and "silo-00's log is what its start.sh prints, on its machine" in text


def test_a_run_that_kits_here_have_started_goes_on_as_it_was_asked_for(
    ran: Path, kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Path(shutil.copytree(ran, tmp_path / "far"))
    monkeypatch.setenv(KITS, str(kits))
    usual = {"rounds": 2, "local.lr": 0.02, "name": "faces", "step-seconds": 3600}
    following.began(far, {}, asked={**usual, "rounds": 5, "name": "my faces", "local.lr": 1e-5})
    brought = following.brought_up(far)
    assert brought is not None and brought[0] == kits
    text = run_config.changed(brought[0] / "operator" / "project", brought[1])
    assert parse_config_args([text]) == {"rounds": 5, "name": "my faces", "local.lr": 1e-5}
    assert run_config.changed(kits / "operator" / "project", usual) is None
    assert "remove engine.min_reply_fraction=0.2" in run_coalface("resume", far, "engine.min_reply_fraction=0.2")[1]


def test_several_logs_are_followed_together(tmp_path: Path) -> None:
    first, second = tmp_path / "one.log", tmp_path / "two.log"
    for path in (first, second):
        path.write_text("before\n")
    follows = monitor.growing([first, second])

    def says(path: Path, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    timer = threading.Timer(0.2, says, (second, "b\n"))  # by then it waits, and has passed over what was there
    timer.start()
    assert next(follows) == (second, "b")
    says(first, "a\n")
    says(second, "c\n")
    assert [next(follows), next(follows)] == [(first, "a"), (second, "c")]
    timer.join()


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.ci
def test_from_nothing_to_a_trained_model_and_back_to_nothing(tmp_path: Path) -> None:
    with Standing.build(tmp_path).taken_down() as federation:
        kits = federation.kits
        code, text = federation.finish(federation.up("--out", str(tmp_path / "runs"), "--run-config", "rounds=2"))
        assert code == 0, text
        out = tmp_path / "runs" / "faces"
        assert "faces  round 2/2" in text and f"results: {out}" in text and (out / "report.html").exists()
        state = monitor.read_status(kits)
        assert state["run"]["state"] == "finished" and all(state["processes"].values())
        assert [party["rounds"] for party in state["run"]["parties"]] == [2, 2, 2] and state["run"]["elsewhere"]
        assert monitor.read_status(out)["processes"] == state["processes"]  # the run folder knows its kits
        if not network.find_fault():  # this system gives it a network of its own: from here its port is not there
            assert "the federation has its own network" in text
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(project.read_kits(kits).superlink.own, timeout=20)
        assert "Sending: train.step" in "\n".join(monitor.tail(*monitor.logs(out, "silo-01"), 1000))
        for log in (kits / "logs").glob("*.log"):
            assert log.stat().st_mode & 0o077 == 0
        os.kill(federation.processes("silo-00")[0].pid, signal.SIGKILL)  # half of it has died
        assert federation.down().startswith("ended ") and not federation.processes()
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(kits) in command]
