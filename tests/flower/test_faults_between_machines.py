"""What goes wrong between machines, with real processes over TLS that are killed, stopped and turned away for real."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import DAY, NOW, SILOS, Standing, digests
from tinyruns import Silent

from coalface.engine.party.commits import Commit
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.poc import flwr_cli
from coalface.flower.provision import certificates

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """Three silos that stand ready; each test runs under a name of its own, and leaves them standing or for `up`."""
    with Standing.build(tmp_path_factory.mktemp("standing")).taken_down() as federation:
        assert federation.finish(federation.up("--no-run"))[0] == 0
        yield federation


def run_here(standing: Standing, out: Path, *changes: str) -> Path:
    """The operator's recipe without Flower, in this process."""
    recipe = loader.load(
        standing.kits / "operator/project/recipe.yaml",
        ["engine.on_error=exclude", "engine.save_replies=true", *changes],
    )
    return experiment.run(recipe, out, Silent(), report=False)


def test_a_node_killed_in_a_round_is_left_out_by_the_deadline_and_takes_part_again(standing: Standing) -> None:
    running = standing.up("--run-config", 'name="killed" rounds=14 step-seconds=12')
    standing.wait_for_round("killed", 2)
    standing.send("silo-02", signal.SIGKILL)
    standing.wait(lambda: len(standing.metrics("killed")) >= 2)
    code, printed = standing.finish(standing.up("--no-run"))  # what has gone is brought back, beside the run
    assert code == 0 and "starting silo-02" in printed and "silo-01 is there already" in printed, printed
    code, printed = standing.finish(running)
    assert code == 0, printed
    rounds = standing.metrics("killed")
    assert len(rounds) == 14
    assert rounds[0]["failed"] == {} and list(rounds[1]["failed"]) == ["silo-02"]
    assert "no reply within 12 s" in rounds[1]["failed"]["silo-02"] and not rounds[1]["abandoned"]
    closed = [event["seconds"] for event in standing.events("killed", "round")]
    assert 24 <= closed[1] < 29, closed  # who is silent is waited for as long again
    assert rounds[-1]["failed"] == {}
    summary = json.loads((standing.run("killed") / "summary.json").read_text())
    assert summary["ledger"]["checked"]["faults"] == {}  # one chain from before and after, at its own disk
    (party,) = (party for party in summary["parties"] if party["name"] == "silo-02")
    assert party["rounds"] == sum("silo-02" not in line["failed"] for line in rounds)
    commits = [Commit.open(path) for path in sorted(standing.home("silo-02", "killed").rglob("*.commit"))]
    assert commits[-1].base is not None  # it went on from its private state, and did not begin anew


@pytest.mark.ci
def test_below_quorum_the_run_ends_and_says_why(standing: Standing) -> None:
    began = time.monotonic()
    running = standing.up("--run-config", 'name="few" rounds=5 step-seconds=8 engine.max_abandoned_rounds=1')
    standing.wait_for_round("few", 1)
    for party in ("silo-01", "silo-02"):
        standing.send(party, signal.SIGKILL)
    code, printed = standing.finish(running)
    assert code == 1 and "the run has failed" in printed, printed
    assert "1 of 3 replies count, 2 are needed" in printed, printed
    assert time.monotonic() - began < 120
    (line,) = standing.metrics("few")
    assert line["abandoned"]
    standing.wait(lambda: not any("flwr-serverapp" in process.command for process in standing.processes()), 20)
    assert not standing.processes("silo-01") and not standing.processes("silo-02")
    code, printed = standing.finish(standing.up("--no-run"))
    assert code == 0, printed


def test_a_superlink_killed_and_started_again_goes_on_to_the_same_bytes(standing: Standing, tmp_path: Path) -> None:
    run_config = 'name="again" rounds=5'
    running = standing.up("--run-config", run_config)
    standing.wait_for_round("again", 3)
    (link,) = (process for process in standing.processes("superlink") if "flower-superlink" in process.command)
    os.kill(link.pid, signal.SIGKILL)
    code, printed = standing.finish(running)
    assert code == 1 and "the SuperLink has ended" in printed and "coalface up" in printed, printed
    code, printed = standing.finish(standing.coalface("resume", str(standing.run("again"))))
    assert code == 0 and "silo-00 is there already" in printed, printed
    local = run_here(standing, tmp_path / "local", "name=again", "rounds=5")
    assert standing.digests("again") == digests(local, dict.fromkeys(SILOS, local))
    assert (standing.run("again") / "config.yaml").read_bytes() == (local / "config.yaml").read_bytes()


def test_a_straggler_is_left_out_and_its_late_answer_is_discarded_and_counted(standing: Standing) -> None:
    running = standing.up("--run-config", 'name="slow" rounds=5 step-seconds=10')
    standing.wait_for_round("slow", 2)
    standing.send("silo-01", signal.SIGSTOP)
    try:
        standing.wait(lambda: len(standing.metrics("slow")) >= 2)
    finally:
        standing.send("silo-01", signal.SIGCONT)
    code, printed = standing.finish(running)
    assert code == 0, printed
    rounds = standing.metrics("slow")
    assert list(rounds[1]["failed"]) == ["silo-01"] and rounds[-1]["failed"] == {}
    assert "a reply of silo-01 came after its deadline, and is discarded" in standing.log("run")


DOUBLING = """
from coalface.flower.app import transport as link
from flwr.app import Message

push = link.FlowerTransport._push


def twice(self, about, node, content):
    sent = push(self, about, node, content)
    push(self, about, node, content)
    return sent


link.FlowerTransport._push = twice
"""
"""What makes a server send every message a second time."""


def answered(standing: Standing, party: str) -> int:
    """How many steps a party has answered."""
    return standing.log(party).count("train.step: answered")


def test_a_request_that_is_delivered_twice_trains_once(standing: Standing, tmp_path: Path) -> None:
    server = standing.kits / "operator" / "project" / "server.py"
    right = server.read_text()
    server.write_text(right + DOUBLING)
    before = {party: answered(standing, party) for party in SILOS}
    try:
        code, printed = standing.finish(standing.up("--run-config", 'name="twice" rounds=3'))
    finally:
        server.write_text(right)
    assert code == 0, printed
    for party in SILOS:  # with the last reply the run ends, and what was asked again then may not be delivered
        assert answered(standing, party) - before[party] >= 2 * 3 - 1
    local = run_here(standing, tmp_path / "local", "name=twice", "rounds=3")
    assert standing.digests("twice") == digests(local, dict.fromkeys(SILOS, local))


# --- who is turned away, and where the reason stands ------------------------------------------------------------------


def nodes(standing: Standing) -> list[dict[str, Any]]:
    """What the SuperLink says of all nodes that were ever registered."""
    words = standing.operator_words("flwr", "supernode", "list", "here", "--format", "json")
    return list(flwr_cli.run_json(words, standing.kits, 60)["nodes"])


def turned_away(standing: Standing, party: str = "silo-02") -> str:
    """What `up` says where a party's node cannot come; the party is as it was afterwards."""
    code, printed = standing.finish(standing.up("--no-run", "--timeout", "40"))
    assert code == 1, printed
    assert f"logs/{party}.log says:" in printed
    standing.down("--party", party)
    return printed


@pytest.fixture
def without(standing: Standing) -> Iterator[Path]:
    """The kit of a party whose node is not there, put back afterwards."""
    kit = standing.kits / "parties" / "silo-02"
    backup = shutil.copytree(kit, standing.kits / "kept")
    standing.down("--party", "silo-02")
    yield kit
    standing.down("--party", "silo-02")
    shutil.rmtree(kit)
    backup.rename(kit)


def test_a_node_that_trusts_another_ca_says_so(standing: Standing, without: Path) -> None:
    (without / "ca.crt").write_bytes(certificates.authority("another", NOW, 365).certificate)
    assert re.search("certificate verify failed|CERTIFICATE_VERIFY_FAILED", turned_away(standing))


@pytest.mark.ci
def test_a_node_with_a_key_that_nobody_has_registered_is_told_so(standing: Standing, without: Path) -> None:
    (without / "node.key").write_bytes(certificates.node().private)
    printed = turned_away(standing)
    assert "Failed to activate SuperNode" in printed and "The SuperLink does not take the key of silo-02" in printed


def test_a_node_that_dials_without_tls_is_never_admitted(standing: Standing, without: Path) -> None:
    script = (without / "start.sh").read_text()
    script = script.replace('--root-certificates "$here/ca.crt"', "--insecure")
    script = script.replace('--auth-supernode-private-key "$here/node.key"', "")  # with it, Flower would not dial
    (without / "start.sh").write_text(script)
    code, printed = standing.finish(standing.up("--no-run", "--timeout", "40"))
    assert code == 1 and "not all nodes are online within 40 s" in printed, printed
    assert "silo-02 dials without TLS (`--insecure`), and the SuperLink answers none but TLS" in printed, printed
    node_log = standing.log("silo-02").rpartition("Starting Flower SuperNode")[2]
    assert node_log.count("Connection attempt failed, retrying") > 2  # it dials; neither end's log says what is amiss
    words = standing.operator_words("run.sh", "--format", "json", "--run-config")
    number = flwr_cli.run_json([*words, 'name="plain" join-seconds=5'], standing.kits, 60)["run-id"]

    def state() -> str:
        listing = standing.operator_words("flwr", "list", "here", "--format", "json")
        runs = flwr_cli.run_json(listing, standing.kits, 60)["runs"]
        return next(str(run["status"]) for run in runs if int(run["run-id"]) == int(number))

    standing.wait(lambda: state().startswith("finished"), 120)
    assert state() == "finished:failed"
    run_log = flwr_cli.run_command(standing.operator_words("flwr", "log", number, "here", "--show"), standing.kits, 60)
    assert "silo-02 did not join within 5 s" in run_log
    assert any(
        "flower-supernode" in process.command for process in standing.processes("silo-02")
    )  # all the while it dialled
    node_log = standing.log("silo-02").rpartition("Starting Flower SuperNode")[2]
    assert (
        "SuperNode ID" not in node_log and "Received" not in node_log and not standing.home("silo-02", "plain").exists()
    )
    # a minute after its last sign of life the SuperLink misses the node with TLS that was here before
    standing.wait(lambda: [node["status"] for node in nodes(standing)].count("online") == 2, 90)


def test_a_node_that_plays_anothers_name_or_role_is_left_alone(standing: Standing, without: Path) -> None:
    for file in ("start.sh", "party.yaml"):
        text = (without / file).read_text()
        (without / file).write_text(text.replace("silo-02", "silo-01"))
    code, printed = standing.finish(standing.up("--run-config", 'name="claims" join-seconds=60'))
    assert code == 1 and "silo-02 did not join within 60 s" in printed, printed
    assert "says that it is silo-01 and has not its key" in standing.log("run")
    standing.down("--party", "silo-02")
    for file in ("start.sh", "party.yaml"):
        text = (without / file).read_text()
        (without / file).write_text(text.replace("silo-01", "silo-02").replace("role: trainer", "role: validator"))
    code, printed = standing.finish(standing.up("--run-config", 'name="role" join-seconds=60'))
    assert code == 1 and "silo-02 did not join within 60 s" in printed, printed
    assert "says that it is silo-02, a validator, who is a trainer by the recipe" in standing.log("run")


def test_a_withdrawn_key_is_refused(standing: Standing, without: Path) -> None:
    ours = re.findall(r"SuperNode ID: (\d+)", standing.log("silo-02"))[-1]
    assert ours in [node["node-id"] for node in nodes(standing)]
    flwr_cli.run_command(standing.operator_words("flwr", "supernode", "unregister", ours, "here"), standing.kits, 60)
    printed = turned_away(standing)
    assert "it was withdrawn by `flwr supernode unregister`" in printed
    (status,) = [node["status"] for node in nodes(standing) if node["node-id"] == ours]
    assert status == "unregistered" and len(nodes(standing)) == len(SILOS)  # and no other was registered in its place


def test_a_start_that_was_stopped_or_whose_superlink_forgot_or_hangs_is_made_good(tmp_path: Path) -> None:
    with Standing.build(tmp_path).taken_down() as federation:
        log, database = federation.kits / "logs" / "superlink.log", federation.kits / "superlink"
        stopped = federation.up("--no-run")
        federation.wait(lambda: log.exists() and "Created node_id" in log.read_text())
        stopped.send_signal(signal.SIGINT)  # one key is registered, and two are not
        assert federation.finish(stopped)[0] != 0 and len(nodes(federation)) < len(SILOS)
        code, printed = federation.finish(federation.up("--no-run"))
        assert code == 0 and "registering the parties' keys" in printed and len(nodes(federation)) == len(SILOS), (
            printed
        )
        federation.down()
        for path in database.glob("state.db*"):
            path.unlink()
        (database / "state.db").touch()  # a state from before the keys were registered
        code, printed = federation.finish(federation.up("--no-run"))
        assert code == 0 and printed.count("registering the parties' keys") == 1, printed
        federation.send("superlink", signal.SIGSTOP)
        code, printed = federation.finish(federation.up("--detach", "--timeout", "8"))
        assert code == 1 and "does not answer within 8 s: `coalface down" in printed and "Traceback" not in printed, (
            printed
        )


@pytest.mark.ci
def test_an_expired_certificate_stops_the_start_with_its_reason(tmp_path: Path) -> None:
    with Standing.build(tmp_path, NOW - 366 * DAY).taken_down() as federation:
        code, printed = federation.finish(federation.up("--no-run"))
    assert code == 1 and "the SuperLink's certificate is refused: certificate has expired" in printed, printed
    assert "superlink/superlink.crt expired on" in printed
