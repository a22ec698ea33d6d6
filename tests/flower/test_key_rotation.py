"""Keys of an encrypting federation are changed in the middle of a run, one or all, with real processes over TLS."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federations import FACES, SILOS, Standing, digests
from tinyruns import Silent

from coalface.engine.party.commits import Commit, LockedCommit
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.party import rekey
from coalface.flower.poc import flwr_cli

pytestmark = pytest.mark.slow
RUN = ("--run-config", "rounds=6")


@pytest.fixture
def encrypting(tmp_path: Path) -> Iterator[Callable[[str], Standing]]:
    """Makes federations of nodes that encrypt their private state; each is taken down."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(Standing.build(tmp_path / name, encrypt=True).taken_down())


def test_a_key_that_is_withdrawn_in_a_run_is_refused_and_a_new_one_takes_its_place(
    encrypting: Callable[[str], Standing],
) -> None:
    federation = encrypting("one")
    running = federation.up("--run-config", "rounds=14 step-seconds=30")
    federation.wait(lambda: len(federation.metrics("faces")) >= 2)
    (node,) = set(re.findall(r"SuperNode ID: (\d+)", federation.log("silo-02")))
    flwr_cli.run_command(
        federation.operator_words("flwr", "supernode", "unregister", node, "here"), federation.kits, 60
    )
    federation.wait(lambda: any("silo-02" in line["failed"] for line in federation.metrics("faces")))
    refused = len(federation.metrics("faces"))
    federation.wait(lambda: len(federation.metrics("faces")) >= refused + 2)
    lines = federation.metrics("faces")[refused:]
    assert all(list(line["failed"]) == ["silo-02"] and not line["abandoned"] for line in lines)
    (listed,) = flwr_cli.run_json(
        federation.operator_words("flwr", "list", "here", "--format", "json"), federation.kits, 60
    )["runs"]
    flwr_cli.run_command(federation.operator_words("flwr", "stop", str(listed["run-id"]), "here"), federation.kits, 60)
    code, printed = federation.finish(running)
    assert code == 1 and "stopped" in printed, printed

    kit = federation.kits / "parties" / "silo-02"
    federation.down("--party", "silo-02")
    assert federation.finish(federation.coalface("provision", "rotate", str(federation.kits), "silo-02"))[0] == 0
    keys = ("--from", str(kit / "node.key.old"), "--to", str(kit / "node.key"))
    assert federation.finish(federation.coalface("party", "rekey", str(kit / "home"), *keys))[0] == 0
    (kit / "node.key.old").unlink()
    printed = flwr_cli.run_command(federation.operator_words("register.sh"), federation.kits, 60)
    assert printed.count("its key is known already") == 2, printed
    stopped = len(federation.metrics("faces"))
    code, printed = federation.finish(federation.coalface("resume", str(federation.run("faces"))), 600)
    assert code == 0 and "silo-00 is there already" in printed and "silo-01 is there already" in printed, printed
    assert stopped < 14 and all(line["failed"] == {} for line in federation.metrics("faces")[stopped:])
    summary = json.loads((federation.run("faces") / "summary.json").read_text())
    assert summary["ledger"]["checked"]["faults"] == {}  # one chain of silo-02, before and after
    vault = rekey.vault(kit / "node.key", "faces", "silo-02")
    (*_, commit) = sorted(federation.home("silo-02", "faces").rglob("*.commit"))
    assert Commit.open(commit, vault).states()


def test_new_kits_take_over_a_run_of_nodes_that_encrypt(encrypting: Callable[[str], Standing], tmp_path: Path) -> None:
    old, new = encrypting("old"), encrypting("new")
    running = old.up(*RUN)
    old.wait(lambda: len(old.metrics("faces")) >= 2)
    old.down()
    assert old.finish(running)[0] == 1 and 2 <= len(old.metrics("faces")) < 6
    for party in SILOS:
        homes, keys = (
            [kits / "parties" / party / name for kits in (old.kits, new.kits)] for name in ("home", "node.key")
        )
        (commit, *_) = old.home(party, "faces").rglob("*.commit")
        with pytest.raises(LockedCommit):
            Commit.open(commit)
        assert Commit.open(commit, rekey.vault(keys[0], "faces", party)).states()
        shutil.copytree(homes[0], homes[1], dirs_exist_ok=True)
        code, printed = new.finish(
            new.coalface("party", "rekey", str(homes[1]), "--from", str(keys[0]), "--to", str(keys[1]))
        )
        assert code == 0, printed
    shutil.copytree(old.kits / "superlink" / "runs", new.kits / "superlink" / "runs")
    code, printed = new.finish(new.up(*RUN))
    assert code == 0, printed
    local = experiment.run(loader.parse({**FACES, "rounds": 6}), tmp_path / "local", Silent())

    def without_commits(files: dict[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in files.items() if not name.endswith(".commit")}

    assert without_commits(new.digests("faces")) == without_commits(digests(local, dict.fromkeys(SILOS, local)))
    for party in SILOS:
        vault = rekey.vault(new.kits / "parties" / party / "node.key", "faces", party)
        for clear in (local / "parties" / party).glob("*.commit"):
            sealed = Commit.open(new.home(party, "faces") / "parties" / party / clear.name, vault).states()
            states = Commit.open(clear).states()
            assert {n: bytes(d) for n, d in sealed.items()} == {n: bytes(d) for n, d in states.items()}
