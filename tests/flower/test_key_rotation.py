"""Keys of an encrypting federation are changed in the middle of a run, one or all, with real processes over TLS."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federations import FACES, SILOS, Standing, left
from tinyruns import Silent

from coalface.engine.party.commits import Commit, LockedCommit
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.party import rekey
from coalface.flower.poc import flwr_cli

pytestmark = pytest.mark.slow
RUN = ("--run-config", "rounds=6")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], Standing]]:
    """Makes federations of nodes that encrypt their private state; each is ended."""
    standing: list[Standing] = []

    def make(name: str) -> Standing:
        standing.append(Standing.made(tmp_path / name, encrypt=True))
        return standing[-1]

    yield make
    for one in standing:
        one.leave()
        one.ended(one.coalface("down", str(one.kits)))
        assert not one.processes()


def test_a_key_that_is_withdrawn_in_a_run_is_refused_and_a_new_one_takes_its_place(
    made: Callable[[str], Standing],
) -> None:
    one = made("one")
    running = one.up("--run-config", "rounds=14 step-seconds=30")
    one.wait(lambda: len(one.metrics("faces")) >= 2)
    (node,) = set(re.findall(r"SuperNode ID: (\d+)", one.log("silo-02")))
    flwr_cli.run_command(one.operators("flwr", "supernode", "unregister", node, "here"), one.kits, 60)
    one.wait(lambda: any("silo-02" in line["failed"] for line in one.metrics("faces")))
    refused = len(one.metrics("faces"))
    one.wait(lambda: len(one.metrics("faces")) >= refused + 2)
    lines = one.metrics("faces")[refused:]
    assert all(list(line["failed"]) == ["silo-02"] and not line["abandoned"] for line in lines)
    (listed,) = flwr_cli.run_json(one.operators("flwr", "list", "here", "--format", "json"), one.kits, 60)["runs"]
    flwr_cli.run_command(one.operators("flwr", "stop", str(listed["run-id"]), "here"), one.kits, 60)
    code, said = one.ended(running)
    assert code == 1 and "stopped" in said, said

    kit = one.kits / "parties" / "silo-02"
    assert one.ended(one.coalface("down", str(one.kits), "--party", "silo-02"))[0] == 0
    assert one.ended(one.coalface("provision", "rotate", str(one.kits), "silo-02"))[0] == 0
    keys = ("--from", str(kit / "node.key.old"), "--to", str(kit / "node.key"))
    assert one.ended(one.coalface("party", "rekey", str(kit / "home"), *keys))[0] == 0
    (kit / "node.key.old").unlink()
    said = flwr_cli.run_command(one.operators("register.sh"), one.kits, 60)
    assert said.count("its key is known already") == 2, said
    stopped = len(one.metrics("faces"))
    code, said = one.ended(one.coalface("resume", str(one.run("faces"))), 600)
    assert code == 0 and "silo-00 is there already" in said and "silo-01 is there already" in said, said
    assert stopped < 14 and all(line["failed"] == {} for line in one.metrics("faces")[stopped:])
    summary = json.loads((one.run("faces") / "summary.json").read_text())
    assert summary["ledger"]["checked"]["faults"] == {}  # one chain of silo-02, before and after
    vault = rekey.vault(kit / "node.key", "faces", "silo-02")
    (*_, commit) = sorted(one.home("silo-02", "faces").rglob("*.commit"))
    assert Commit.open(commit, vault).states()


def test_new_kits_take_over_a_run_of_nodes_that_encrypt(made: Callable[[str], Standing], tmp_path: Path) -> None:
    old, new = made("old"), made("new")
    running = old.up(*RUN)
    old.wait(lambda: len(old.metrics("faces")) >= 2)
    assert old.ended(old.coalface("down", str(old.kits)))[0] == 0
    assert old.ended(running)[0] == 1 and 2 <= len(old.metrics("faces")) < 6
    for party in SILOS:
        homes, keys = (
            [kits / "parties" / party / name for kits in (old.kits, new.kits)] for name in ("home", "node.key")
        )
        (commit, *_) = old.home(party, "faces").rglob("*.commit")
        with pytest.raises(LockedCommit):
            Commit.open(commit)
        assert Commit.open(commit, rekey.vault(keys[0], "faces", party)).states()
        shutil.copytree(homes[0], homes[1], dirs_exist_ok=True)
        code, said = new.ended(
            new.coalface("party", "rekey", str(homes[1]), "--from", str(keys[0]), "--to", str(keys[1]))
        )
        assert code == 0, said
    shutil.copytree(old.kits / "superlink" / "runs", new.kits / "superlink" / "runs")
    code, said = new.ended(new.up(*RUN))
    assert code == 0, said
    here = experiment.run(loader.parse({**FACES, "rounds": 6}), tmp_path / "here", Silent())
    homes = {party: new.home(party, "faces") for party in SILOS}

    def bare(found: dict[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in found.items() if not name.endswith(".commit")}

    assert bare(left(new.run("faces"), homes)) == bare(left(here, dict.fromkeys(SILOS, here)))
    for party in SILOS:
        vault = rekey.vault(new.kits / "parties" / party / "node.key", "faces", party)
        for theirs in (here / "parties" / party).glob("*.commit"):
            mine = Commit.open(homes[party] / "parties" / party / theirs.name, vault).states()
            assert {n: bytes(d) for n, d in mine.items()} == {
                n: bytes(d) for n, d in Commit.open(theirs).states().items()
            }
