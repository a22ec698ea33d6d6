"""What lies below a party's home is its owner's alone; with a key, its private state is encrypted there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import said
from federations import NOW, TWO_SILOS, read_files, run_script, write_federation
from flwr.common.config import parse_config_args
from grids import run_recipe
from tinyruns import Silent

from coalface.engine.party.commits import LINES, Commit
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.party import rekey
from coalface.flower.provision import certificates, verify
from coalface.flower.provision import kits as provisioning

PARTIES = ("silo-00", "silo-01")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(TWO_SILOS))
    return tmp_path / "recipe.yaml"


@pytest.fixture
def no_umask() -> Iterator[None]:
    """As a service manager may start a node: what is made is everybody's unless it is made otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def run(recipe: Path, home: Path, out: Path, **node_config: object) -> None:
    run_recipe(recipe, home, PARTIES, node_config, out=str(out), **{"join-seconds": 0.5})


def test_nothing_below_home_is_for_group_or_others(recipe: Path, tmp_path: Path, no_umask: None) -> None:
    run(recipe, tmp_path / "homes", tmp_path / "run")
    every = [tmp_path / "homes", *(tmp_path / "homes").rglob("*")]
    kinds = {path.suffix for path in every}
    assert {".commit", ".jsonl"} <= kinds and len(every) >= 12
    assert {path: oct(mode) for path in every if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077} == {}
    assert (tmp_path / "run").stat().st_mode & 0o077  # the server's folder is as the umask says


@pytest.mark.parametrize("wide", ["", "faces/ledger/silo-00.jsonl"])
def test_a_home_that_others_can_read_is_refused_with_what_to_do(
    wide: str, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "homes" / "silo-00" / wide
    (path.parent if path.suffix else path).mkdir(parents=True)
    if path.suffix:
        path.touch()
    for folder in (tmp_path / "homes").rglob("*"):
        folder.chmod(0o700)
    path.chmod(0o750)
    with pytest.raises(RunFailed):
        run(recipe, tmp_path / "homes", tmp_path / "run")
    home = tmp_path / "homes" / "silo-00"
    assert f"others can read or change {path} (mode 750)" in caplog.text
    assert f"close it with `chmod -R go= {home}`" in caplog.text and path.stat().st_mode & 0o777 == 0o750


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_with_keys_leaves_what_one_without_leaves_and_its_private_state_does_not_show(
    recipe: Path, tmp_path: Path
) -> None:
    for party in PARTIES:
        (tmp_path / f"{party}.key").write_bytes(certificates.node().private)
    run(recipe, tmp_path / "homes", tmp_path / "run", key=tmp_path / "{party}.key")
    experiment.run(
        loader.load(recipe, ["engine.on_error=exclude", "engine.save_replies=true"]),
        tmp_path / "here",
        Silent(),
        report=False,
    )
    for name in ("model/backbone.safetensors", "metrics.jsonl", "evidence.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name
    for party in PARTIES:
        (local_commit,) = (tmp_path / "here" / "parties" / party).glob("*.commit")
        home = tmp_path / "homes" / party / "faces"
        vault = rekey.vault(tmp_path / f"{party}.key", "faces", party)
        clear, sealed = Commit.open(local_commit), Commit.open(home / "parties" / party / local_commit.name, vault)
        assert {n: bytes(d) for n, d in sealed.states().items()} == {n: bytes(d) for n, d in clear.states().items()}
        ledgers = [folder / "ledger" / f"{party}.jsonl" for folder in (home, tmp_path / "here")]
        assert ledgers[0].read_bytes() == ledgers[1].read_bytes()
        below, plain = b"".join(read_files(tmp_path / "homes" / party).values()), local_commit.read_bytes()
        parts = [bytes(data) for name in clear.spans if name != LINES and (data := clear.read(name)) is not None]
        canaries = [part[at : at + 32] for part in parts for at in range(0, len(part) - 32, 500)]
        canaries = [canary for canary in canaries if len(set(canary)) > 12]  # no rows of zeros
        assert len(canaries) > 20 and all(canary in plain for canary in canaries)
        assert not any(canary in below for canary in canaries)


def test_a_wrong_key_is_refused_by_name_and_nothing_begins_anew(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [tmp_path / "one.key", tmp_path / "two.key"]
    for key in keys:
        key.write_bytes(certificates.node().private)
    run(recipe, tmp_path / "homes", tmp_path / "run", key=keys[0])
    before = read_files(tmp_path / "homes"), (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for wrong, reason in (
        ({"key": keys[1]}, "is encrypted with another key than that of silo-00's node"),
        ({}, "is encrypted with the key of the party's node: start the node with key="),
    ):
        caplog.clear()
        with pytest.raises(RunFailed, match="silo-0[01]"):
            run(recipe, tmp_path / "homes", tmp_path / "run", **wrong)
        assert reason in caplog.text
        assert (read_files(tmp_path / "homes"), (tmp_path / "run" / "metrics.jsonl").read_bytes()) == before
    for party in PARTIES:  # a key that has been seen is replaced, and the run goes on
        home = tmp_path / "homes" / party
        assert "1 file was rewritten" in said("party", "rekey", home, "--from", keys[0], "--to", keys[1])
    run(recipe, tmp_path / "homes", tmp_path / "run", key=keys[1])
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before[1]


# --- the kits ---------------------------------------------------------------------------------------------------------

ROLES = {"silo-00": {"role": "trainer"}, "silo-01": {"role": "trainer"}, "clinic": {"role": "validator"}}


@pytest.mark.parametrize(
    ("federation", "encrypt_of", "encrypting"),
    [
        ({}, {"silo-01": True}, {"silo-01"}),
        ({"encrypt": True}, {"clinic": False}, {"silo-00", "silo-01"}),
    ],
)
def test_kits_start_the_nodes_of_parties_that_encrypt_with_their_key(
    federation: dict[str, Any], encrypt_of: dict[str, bool], encrypting: set[str], tmp_path: Path
) -> None:
    parties = {
        name: {**role, **({"encrypt": encrypt_of[name]} if name in encrypt_of else {})} for name, role in ROLES.items()
    }
    kits = provisioning.make(write_federation(tmp_path, parties=parties, **federation), tmp_path / "kits", NOW)
    assert verify.check(kits, NOW) == []
    for name in ROLES:
        (arguments, _, _), *_ = run_script(kits / "parties" / name / "start.sh", tmp_path / name)
        node = parse_config_args([arguments[arguments.index("--node-config") + 1]])
        key = str(kits / "parties" / name / "node.key")
        assert node.get("key") == (key if name in encrypting else None)
        paper = (kits / "parties" / name / "README.md").read_text()
        assert ("party rekey home --from OLD/node.key" in paper) == (name in encrypting)
