"""The network of a federation's own: who is in it, who is not, and who else is on the machine."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from federations import Standing

from coalface.flower.poc import network, processes
from coalface.flower.provision import project

LISTENS = """
import pathlib, socket, sys
from coalface.flower.poc import network
kits = pathlib.Path(sys.argv[1])
assert network.enter(kits) == ""
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    sys.stdin.read()
"""
DIALS = """
import pathlib, socket, sys
from coalface.flower.poc import network
assert network.enter(pathlib.Path(sys.argv[1])) == ""
socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=20)
"""
COMMAND = """
import os, sys
from coalface.cli import main as cli; from coalface.flower.poc import network
def entered(kits):
    print(len(os.listdir("/proc/self/task")))
    raise SystemExit
network.enter = entered
sys.argv = ["coalface", "up", "kits"]
cli.main()
"""


@pytest.fixture
def allowed() -> None:
    """Passes over a test where this system lets this user make no network."""
    if failed := network.find_fault():
        pytest.skip(f"this system gives no network namespace: {os.strerror(failed)}")


@pytest.mark.usefixtures("allowed")
def test_what_listens_in_it_is_reached_from_there_and_not_from_without(tmp_path: Path) -> None:
    environment = os.environ | processes.environment(tmp_path, "superlink")
    command, pipe = [sys.executable, "-c", LISTENS, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as listening:
        assert listening.stdin is not None and listening.stdout is not None
        port = int(listening.stdout.readline())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=20)
        subprocess.run([sys.executable, "-c", DIALS, str(tmp_path), str(port)], check=True, timeout=60)
        assert network.nsenter(tmp_path)[:3] == ["nsenter", "--target", str(listening.pid)]
        listening.stdin.close()


def test_one_that_runs_in_the_machines_network_stays_there_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_make", lambda: pytest.fail("the tests would be moved into a network of their own"))
    environment = os.environ | processes.environment(tmp_path, "superlink")
    command = ["sh", "-c", "echo begun; exec sleep 60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()  # before it, its environment may be empty
            assert "it was started so; `coalface down" in network.enter(tmp_path)
        finally:
            process.kill()


def test_kits_with_a_proxy_are_left_in_the_machines_network(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text("superlink: {hosts: 127.0.0.1, loopback_port: 9444}\n")
    assert "a reverse proxy" in network.enter(tmp_path)


def test_a_system_that_gives_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(network, "_make", refused)
    assert "no network of its own (Operation not permitted)" in network.enter(tmp_path)


def test_up_enters_it_while_it_has_one_thread() -> None:
    """With more, no system lets a user other than root enter."""
    command = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, timeout=60)
    assert command.stdout == "1\n", command.stderr


def test_others_are_the_people_who_can_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def account(name: str, number: int, shell: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", number, number, "", "/", shell))

    user = os.geteuid()
    accounts = [account("ann", 1001 + user, "/bin/bash"), account("web", 33, "/bin/sh"), account("me", user, "/bin/sh")]
    accounts += [account("out", 1002 + user, "/usr/sbin/nologin"), account("nobody", 65534, "/bin/sh")]
    accounts += [account("bob", 1003 + user, "")]
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    monkeypatch.setattr(network.psutil, "process_iter", lambda: iter(()))
    assert network.other_users() == ["ann", "bob"]


ASK = """
import ssl, sys, urllib.error, urllib.request
from flwr.proto.runtime_pb2 import AcquireTaskRequest
url, root = sys.argv[1:]
content = AcquireTaskRequest(supported_task_types=["flwr-clientapp", "flwr-serverapp"]).SerializeToString()
request = urllib.request.Request(url + "/v1/runtime/acquire-task", content, {"Content-Type": "application/protobuf"})
context = ssl.create_default_context(cafile=root) if url.startswith("https") else None
try:
    with urllib.request.urlopen(request, context=context, timeout=20) as reply:
        print(reply.status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.slow
@pytest.mark.ci
def test_who_reaches_the_ports_is_given_no_task_and_no_command_line_has_a_token(tmp_path: Path) -> None:
    with Standing.build(tmp_path).taken_down() as federation:
        code, printed = federation.finish(federation.up("--detach", "--run-config", "rounds=400"))
        assert code == 0, printed
        federation.wait_for_round("faces", 2)
        kinds = {"flwr-serverapp", "flwr-clientapp"}
        while kinds:  # a client's is there while it answers
            commands = [process.command for process in federation.processes()]
            assert not [command for command in commands if "--token " in command]
            kinds -= {kind for kind in kinds for command in commands if kind in command and "--token-file" in command}
        (node,) = [one.command for one in federation.processes("silo-01") if "flower-supernode" in one.command]
        near = f"http://127.0.0.1:{node.split('--port ')[-1].split()[0]}"
        for url in (near, f"https://{project.read_kits(federation.kits).superlink.own_address}"):
            words = [sys.executable, "-c", ASK, url, str(federation.kits / "operator" / "ca.crt")]
            asking = subprocess.run(federation.inside(words), capture_output=True, text=True, check=True, timeout=60)
            assert asking.stdout == "401\n", (url, asking.stdout, asking.stderr)
