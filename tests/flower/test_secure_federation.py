"""Secure sums over Flower: nodes that sign with their keys, and the bytes of a run here."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from federations import FACES, SILOS, Standing, digests
from grids import InProcessGrid, run_recipe
from tinyruns import Silent

from coalface.core.errors import RunError
from coalface.engine.party.commits import Commit, LockedCommit
from coalface.engine.party.sums import HiddenReply
from coalface.engine.transport import RunFailed
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.party import process, rekey
from coalface.flower.provision import certificates, pins

SECURE: dict[str, Any] = {**FACES, "privacy": {"secure": True}, "engine": {**FACES["engine"], "on_error": "exclude"}}
RECIPE: dict[str, Any] = {**SECURE, "model": {"name": "tinyruns:Linear", "embedding_size": 8}}
"""Of few weights, of which each is masked and noised; known in this process alone."""

JOINED: dict[str, Any] = {
    "secure": {},
    "dp": {"noise_multiplier": 2.0, "clip": 1.0, "target_epsilon": 8.0, "delta": 1e-5},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return tmp_path / "recipe.yaml"


def keyed(folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """(what a node's configuration says of keys, the public ones): a key for each party, as kits have them."""
    keys = {party: certificates.node() for party in SILOS}
    for party, key in keys.items():
        (folder / f"{party}.key").write_bytes(key.private)
    public = {party: key.public_pem for party, key in keys.items()}
    (folder / "names.json").write_text(json.dumps({party: key.hex() for party, key in public.items()}))
    return {"names": str(folder / "names.json"), "sign": str(folder / "{party}.key")}, public


def kit(folder: Path) -> dict[str, str]:
    """The configuration of silo-00's node, but for what it is held to."""
    keys = {key: value.format(party="silo-00") for key, value in keyed(folder)[0].items()}
    return {"party": "silo-00", "home": str(folder / "home"), **keys}


def states(homes: Mapping[str, Path]) -> dict[tuple[str, str], bytes]:
    """The private state of each party, by its class."""
    (paths,) = {tuple(len(list(home.glob(f"parties/{party}/*.commit"))) for party, home in homes.items())}
    assert set(paths) == {1}
    commits = {party: next(home.glob(f"parties/{party}/*.commit")) for party, home in homes.items()}
    return {
        (party, name): bytes(state)
        for party, path in commits.items()
        for name, state in Commit.open(path).states().items()
    }


def without_bytes(run: Path) -> list[dict[str, Any]]:
    """The metrics, but for the bytes, of which signatures are some."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("bytes_")} for line in lines]


def same_but_for_secrets(served: Path, local: Path, homes: Mapping[str, Path], rounds: int = 2) -> None:
    """Masks follow from secrets that differ, and cancel: model, figures and private state are the same bytes."""
    models = [
        {name: digest for name, digest in digests(run, {}).items() if name != "metrics.jsonl"}
        for run in (served, local)
    ]
    assert models[0] == models[1] and any(name.startswith("model/") for name in models[0])
    assert without_bytes(served) == without_bytes(local) and len(without_bytes(local)) == rounds
    assert states(homes) == states(dict.fromkeys(homes, local))


def signed_run(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> InProcessGrid:
    node_config, public = keyed(tmp_path)
    monkeypatch.setenv("COALFACE_KEYS", str(tmp_path / "names.json"))
    out = {"out": str(tmp_path / "there")}
    return run_recipe(recipe, tmp_path / "homes", SILOS, {**node_config, **config}, keys=public, **out)


def test_nodes_that_sign_end_in_the_bytes_of_a_run_here(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_run(recipe, tmp_path, monkeypatch)
    experiment.run(loader.load(recipe), tmp_path / "here", Silent(), report=False)
    homes = {party: tmp_path / "homes" / party / "faces" for party in SILOS}
    same_but_for_secrets(tmp_path / "there", tmp_path / "here", homes)
    lines = [json.loads(line) for line in (homes["silo-00"] / "ledger" / "silo-00.jsonl").read_text().splitlines()]
    sums = [line["sum"] for line in lines if line["name"] != "header"]
    assert sums == 2 * ["advertise", "share", "mask", "confirm", "unmask"]
    for party, home in homes.items():
        opened = home.parent / ".opened" / f"{party}.jsonl"  # beside the runs: it binds the party in all of them
        assert len(opened.read_text().splitlines()) == 2 and opened.stat().st_mode & 0o777 == 0o600
        assert opened.parent.stat().st_mode & 0o777 == 0o700
        assert (home / "sums.key").stat().st_mode & 0o777 == 0o600 and len((home / "sums.key").read_bytes()) == 32
    assert len({(home / "sums.key").read_bytes() for home in homes.values()}) == 3


def test_a_partys_vector_is_encrypted_on_its_disk_where_its_private_state_is(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_run(recipe, tmp_path, monkeypatch, key=str(tmp_path / "{party}.key"))
    experiment.run(loader.load(recipe), tmp_path / "here", Silent(), report=False)
    model = "model/backbone.safetensors"
    assert (tmp_path / "there" / model).read_bytes() == (tmp_path / "here" / model).read_bytes()
    for party in SILOS:
        (path,) = (tmp_path / "homes" / party / "faces").glob(f"parties/{party}/*.commit")
        with pytest.raises(LockedCommit):
            Commit.open(path)
        vault = rekey.vault(tmp_path / f"{party}.key", "faces", party)
        assert len(HiddenReply.read(Commit.open(path, vault)).vector) > 8_000
        assert not (tmp_path / "homes" / party / "faces" / "sums.key").exists()


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ({}, True),
        ({"privacy.secure.corrupt": 0.2}, True),
        ({"privacy.secure": False}, False),
        ({"privacy.secure.corrupt": 0.05}, False),
        ({"privacy.secure.dropouts": 0.32}, False),
    ],
)
def test_a_node_takes_part_in_no_run_that_hides_less_than_it_asks_for(
    recipe: Path, tmp_path: Path, changes: dict[str, Any], joins: bool
) -> None:
    """The server changes the recipe as it likes, by a run's configuration."""
    node_config = {"party": "silo-00", "home": str(tmp_path / "home"), "secure": True, "dropouts": 0.3, "corrupt": 0.1}
    with nullcontext() if joins else pytest.raises(pins.Unprotected) as refused:
        assert process.take(recipe, node_config, changes).name == "silo-00"
    assert joins or refused.value.where == "privacy.secure"


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ({}, True),
        ({"privacy.dp.noise_multiplier": 3.0}, True),
        ({"privacy.dp.target_epsilon": 5.0}, True),
        ({"privacy.dp": "null"}, False),
        ({"privacy.dp.noise_multiplier": 1.9}, False),
        ({"privacy.dp.delta": 1e-3}, False),
        ({"privacy.dp.target_epsilon": 9.0}, False),
    ],
)
def test_a_node_takes_part_in_no_run_with_less_noise_than_its_kit_says(
    tmp_path: Path, changes: dict[str, Any], joins: bool
) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"privacy": JOINED}))
    loaded = loader.load(tmp_path / "recipe.yaml")
    words = dict(word.split("=") for word in pins.words(loaded))
    node_config = kit(tmp_path) | words
    with nullcontext() if joins else pytest.raises(pins.Unprotected) as refused:
        assert process.take(tmp_path / "recipe.yaml", node_config, changes).name == "silo-00"
    assert joins or refused.value.where == "privacy.dp"


NO_NOISE, NO_SUMS = {"privacy.dp": "null"}, {"privacy.dp": "null", "privacy.secure": False}


@pytest.mark.parametrize(
    ("words", "changes", "where"),
    [
        ("corrupt=0.1", NO_SUMS, "privacy.secure"),
        ("dropouts=0.3", {"privacy.secure.dropouts": 0.32}, "privacy.secure"),
        ("noise_multiplier=2.0", NO_SUMS, "privacy.secure"),
        ("noise_multiplier=2.0", {"privacy.secure": False}, "privacy.secure"),
        ("delta=1e-5", NO_NOISE, "privacy.dp"),
        ("delta=1e-5", {"privacy.dp.delta": 1e-4}, "privacy.dp"),
        ("target_epsilon=8.0", NO_NOISE, "privacy.dp"),
        ("target_epsilon=8.0", {"privacy.dp.target_epsilon": 1e6}, "privacy.dp"),
        ("target_epsilon=8.0", {"privacy.dp.target_epsilon": "null"}, "privacy.dp"),
        ("secure=true noise_multiplier=2.0", NO_NOISE, "privacy.dp"),
        ("names= noise_multiplier=2.0", {}, "privacy.dp"),
        ("names= secure=true", {}, None),
        ("noise_multiplier=2.0", {"privacy.dp.target_epsilon": "null"}, None),
        ("secure=true", NO_NOISE, None),
        ("", NO_SUMS, None),
    ],
)
def test_each_word_of_a_nodes_configuration_holds_by_itself(
    tmp_path: Path, words: str, changes: dict[str, Any], where: str | None
) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"privacy": JOINED}))
    node_config = kit(tmp_path) | dict(word.split("=") for word in words.split())
    with nullcontext() if where is None else pytest.raises(pins.Unprotected) as refused:
        assert process.take(tmp_path / "recipe.yaml", node_config, changes).name == "silo-00"
    assert where is None or refused.value.where == where


def test_over_flower_the_noise_is_the_parties_and_is_counted_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of secrets that the seed does not tell: another model each time, and one ε."""
    models, spent = set[bytes](), []
    (recipe := tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"privacy": JOINED}))
    for place in ("here", "there", "again"):
        (out := tmp_path / place).mkdir()
        if place == "here":
            experiment.run(loader.load(recipe), out / "there", Silent(), report=False)
        else:
            signed_run(recipe, out, monkeypatch)
        models.add((out / "there" / "model" / "backbone.safetensors").read_bytes())
        summary = json.loads((out / "there" / "summary.json").read_text())["privacy"]
        spent.append((summary["epsilon"], summary["noise"]))
        assert not (out / "there" / "noise.key").exists() or place != "here"
    (out / "there" / "noise.key").unlink()
    with pytest.raises(RunError, match="the parties of this run were drawn with it"):
        signed_run(recipe, out, monkeypatch)
    assert len(models) == 3
    assert len({epsilon for epsilon, _ in spent}) == 1 and 0 < spent[0][0] < 8
    assert [noise for _, noise in spent] == ["seed", "shares", "shares"]


def test_a_nodes_target_holds_over_all_runs_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds are all that it has room for; another name and seed are other work with noise of its own."""
    dp = JOINED["dp"] | {"target_epsilon": 3.5}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"privacy": JOINED | {"dp": dp}}))
    node_config, public = keyed(tmp_path)
    monkeypatch.setenv("COALFACE_KEYS", str(tmp_path / "names.json"))
    pinned = dict(word.split("=") for word in pins.words(loader.load(tmp_path / "recipe.yaml")))
    for name, ends in (("faces", nullcontext()), ("others", pytest.raises(RunFailed))):
        config: dict[str, Any] = {"name": name, "out": str(tmp_path / name), "seed": len(name)}
        with ends:
            run_recipe(
                tmp_path / "recipe.yaml", tmp_path / "homes", SILOS, {**node_config, **pinned}, keys=public, **config
            )
    entries = (tmp_path / "homes" / "silo-00" / ".opened" / "silo-00.jsonl").read_text().splitlines()
    assert sum("rho" in json.loads(entry) for entry in entries) == 2
    assert not (tmp_path / "others" / "opened.jsonl").exists()


def test_no_party_tells_the_server_how_much_it_has(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = signed_run(recipe, tmp_path, monkeypatch)
    joins = [m for m in grid.answered if m.metadata.message_type == "query.join"]
    said = [json.loads(str(m.content.config_records["said"]["json"])) for m in joins]
    assert len(said) == 3 and {(values["images"], values["identities"]) for values in said} == {(0, 0)}
    summary = json.loads((tmp_path / "there" / "summary.json").read_text())
    assert {(party["images"], party["identities"]) for party in summary["parties"]} == {(None, None)}
    assert not any(
        "counts" in json.loads(line) for line in (tmp_path / "there" / "events.jsonl").read_text().splitlines()
    )


@pytest.mark.parametrize("knows", [True, False])
def test_a_server_without_the_parties_signatures_opens_nothing(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """One that takes the place of a party has not its key: its neighbours do not share with it. One that leaves the
    signatures out is given no shares."""
    node_config, public = keyed(tmp_path)
    if knows:  # the server and silo-02's node are one, and have made a key for it
        stranger = certificates.node()
        (tmp_path / "silo-02.key").write_bytes(stranger.private)
        names = {party: key.hex() for party, key in (public | {"silo-02": stranger.public_pem}).items()}
        (tmp_path / "server.json").write_text(json.dumps(names))
        monkeypatch.setenv("COALFACE_KEYS", str(tmp_path / "server.json"))
        public["silo-02"] = stranger.public_pem
    with pytest.raises(RunFailed):
        run_recipe(recipe, tmp_path / "homes", SILOS, node_config, keys=public, out=str(tmp_path / "there"))
    lines = [json.loads(line) for line in (tmp_path / "there" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["abandoned"] for line in lines)
    for party in ("silo-00", "silo-01"):
        ledger = tmp_path / "homes" / party / "faces" / "ledger" / f"{party}.jsonl"
        sent = set(re.findall(r'"sum": "(\w+)"', ledger.read_text()))
        assert sent == ({"advertise"} if knows else {"advertise", "share", "mask"})


@pytest.mark.slow
@pytest.mark.ci
def test_a_federation_over_tls_ends_in_the_bytes_of_a_run_here(tmp_path: Path) -> None:
    standing = Standing.build(tmp_path / "standing", recipe=SECURE)
    standing.look_often()
    with standing.taken_down() as federation:
        code, printed = federation.finish(federation.up("--run-config", "rounds=1"))
        assert code == 0, printed
        local = experiment.run(loader.parse(SECURE | {"rounds": 1}), tmp_path / "here", Silent(), report=False)
        homes = {party: federation.home(party, "faces") for party in SILOS}
        same_but_for_secrets(federation.run("faces"), local, homes, rounds=1)
        ledger = (homes["silo-00"] / "ledger" / "silo-00.jsonl").read_text()
        assert '"sum": "confirm"' in ledger and '"protection": "none"' not in ledger


@pytest.mark.slow
@pytest.mark.skipif("COALFACE_TRIALS" not in os.environ, reason="minutes of real processes: set COALFACE_TRIALS=1")
def test_a_server_and_a_party_killed_within_a_sum_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    """In the second round silo-00 has masked its vector, and nobody has given a share: all of the SuperLink and of the
    party's own process end there, and another server asks for the rest."""
    standing = Standing.build(tmp_path / "standing", recipe=SECURE)
    standing.look_often()
    with standing.taken_down() as federation:
        running = federation.up()
        homes = {party: federation.home(party, "faces") for party in SILOS}
        ledger = homes["silo-00"] / "ledger" / "silo-00.jsonl"

        def stages() -> set[str]:
            """Those of the second round that silo-00 has answered."""
            lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
            return {line["sum"] for line in lines if line["round"] == 2}

        federation.wait(lambda: "mask" in stages(), within=600)
        for process in federation.processes():
            if process.part == "superlink" or (process.part == "silo-00" and "party.process" in process.command):
                os.kill(process.pid, signal.SIGKILL)
        assert stages() == {"advertise", "share", "mask"}
        assert federation.finish(running)[0] == 1
        code, printed = federation.finish(federation.coalface("resume", str(federation.run("faces"))), within=900)
        assert code == 0, printed
        local = experiment.run(loader.parse(SECURE), tmp_path / "here", Silent(), report=False)
        same_but_for_secrets(federation.run("faces"), local, homes)
        for party, home in homes.items():
            assert len((home.parent / ".opened" / f"{party}.jsonl").read_text().splitlines()) == 2
