"""What is drawn from a secret that the seed does not tell: noise and codewords at nodes; at the server what FedFV
fuses, where class embeddings begin, and how Federated Validation weighs its candidates."""

from __future__ import annotations

import json
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import naive
import pytest
import tinyruns
import torch
import yaml
from federations import TWO_SILOS
from grids import run_recipe
from tinyruns import Silent

from coalface.core.errors import RunError
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
from coalface.flower.party import process
from coalface.flower.provision import certificates, pins
from coalface.methods.feduv import Code
from coalface.privacy.local_clustering import LocalClustering
from coalface.privacy.noise import FILE, keep_secret

PARTIES = ("silo-00", "silo-01")


MULTI = {"method": "fedface-multi", "privacy": {"templates": {"noise_multiplier": 0.5}}}
EASY = {"angle": 1.5, "members": 0.1, "clusters": 1, "directions": 8, "noise_multiplier": 0.05}
CLUSTERED = {"method": "privacyface", "methods": {"privacyface": {"clustering": EASY}}}


@pytest.mark.parametrize(
    ("changes", "field", "protection"),
    [
        (MULTI, "centre", "noise on the sphere, z = 0.5"),
        (CLUSTERED, "centres", LocalClustering(**EASY).protection(LocalClustering(**EASY).rho)),
    ],
)
def test_a_node_draws_from_its_own_secret(changes: dict[str, Any], field: str, protection: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(loader.merged(TWO_SILOS, {**changes, "rounds": 1})))
    run_recipe(recipe, tmp_path / "homes", PARTIES, {}, out=str(tmp_path / "run"), **{"join-seconds": 0.5})
    experiment.run(loader.load(recipe, ["engine.save_replies=true"]), tmp_path / "local", Silent(), report=False)
    homes = [tmp_path / "homes" / party / TWO_SILOS["name"] for party in PARTIES]
    secrets = {(home / FILE).read_bytes() for home in homes}
    assert len(secrets) == 2 and {stat.S_IMODE((home / FILE).stat().st_mode) for home in homes} == {0o600}
    for party, home in zip(PARTIES, homes, strict=True):
        here, there = (
            {
                line["name"]: line
                for line in map(json.loads, (folder / "ledger" / f"{party}.jsonl").read_text().splitlines())
            }
            for folder in (tmp_path / "local", home)
        )
        assert here[field]["sha256"] != there[field]["sha256"]  # who has the recipe cannot take it off
        assert there[field]["protection"] == protection
        assert {n for n in here if here[n]["sha256"] == there[n]["sha256"]} == {*here} - {field}
        (home / FILE).unlink()
        with pytest.raises(RunError, match="is gone"):
            keep_secret(home, begun=(home / "ledger" / f"{party}.jsonl").exists())


DEVICES = loader.merged(
    {key: value for key, value in TWO_SILOS.items() if key != "data"},
    {
        "rounds": 1,
        "data": {
            "size": 32,
            "faces": {"kind": "synthetic", "identities": 8, "images": 4},
            "scenario": "devices",
            "hold_out": 4,
        },
        "methods": {
            "fedfv": {"sample": 1, "equivalents": 3},
            "fedaws": {"sample": 1},
            "feduv": {"sample": None, "length": 127},
        },
    },
)
"""Four clients of one identity."""


@pytest.mark.parametrize("method", ["fedfv", "feduv", "fedaws"])
def test_a_federation_draws_from_secrets_what_nobody_else_may_tell(method: str, tmp_path: Path) -> None:
    recipe, run, local = tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "local"
    recipe.write_text(yaml.safe_dump({**DEVICES, "method": method}))
    experiment.run(loader.load(recipe), local, Silent(), report=False)
    parties = [party["name"] for party in json.loads((local / "summary.json").read_text())["parties"]]
    run_recipe(recipe, tmp_path / "homes", parties, {}, out=str(run), **{"join-seconds": 0.5})
    homes = {party: tmp_path / "homes" / party / DEVICES["name"] for party in parties}
    kept = [path for path in (run, *homes.values()) if (path / FILE).exists()]
    if method != "feduv":  # one secret, of the server, which decides what its clients train against
        assert kept == [run] and tinyruns.model_bytes(run) != tinyruns.model_bytes(local)
        return
    assert kept == [*homes.values()] and len({(home / FILE).read_bytes() for home in kept}) == 4
    for party, home in homes.items():
        here, there = naive.kept(local, party, Code), naive.kept(home, party, Code)
        assert here is not None and there is not None and not torch.equal(here.codeword, there.codeword)
        assert torch.equal(here.codeword[:, :2], there.codeword[:, :2])  # the client's number, of four


VALIDATED = {
    "method": "fedavg-fv",
    "rounds": 1,
    "methods": {"fedavg-fv": {"validation": {"score": "loss", "lag": 0}}},
    "validators": {"clinic": {"identities": 4, "pairs": 10}},
}
"""By whose seed a validator could take the candidates apart into the silos' backbones."""


def test_a_federations_validators_are_sent_means_of_secret_weights(tmp_path: Path) -> None:
    recipe, run, local = tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "local"
    recipe.write_text(yaml.safe_dump(loader.merged(TWO_SILOS, VALIDATED)))
    experiment.run(loader.load(recipe), local, Silent(), report=False)
    run_recipe(recipe, tmp_path / "homes", (*PARTIES, "clinic"), {}, out=str(run), **{"join-seconds": 0.5})
    ledgers = (
        local / "ledger" / "clinic.jsonl",
        tmp_path / "homes" / "clinic" / TWO_SILOS["name"] / "ledger" / "clinic.jsonl",
    )
    here, there = (
        {line["name"]: line["sha256"] for line in map(json.loads, path.read_text().splitlines())} for path in ledgers
    )
    assert {name for name in here if here[name] != there[name]} == {"scores"}  # of other candidates
    assert (run / FILE).exists()


def write_clustered(folder: Path, **changes: Any) -> Path:
    """A recipe whose silos release centres up to a target, in each of two rounds."""
    clustering = EASY | {"noise_multiplier": 1.0, "target_epsilon": LocalClustering().epsilon(1.5)}
    method = {"method": "privacyface", "methods": {"privacyface": {"every": 1, "clustering": clustering}}}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(loader.merged(loader.merged(TWO_SILOS, {**method, "rounds": 2}), changes)))
    return path


CLUSTERING = "methods.privacyface.clustering"
PINS = {"release_noise_multiplier": "1.0", "release_delta": "1e-05", "release_target_epsilon": "9.1"}


@pytest.mark.parametrize(
    ("words", "changes", "where"),
    [
        ([*PINS], {}, None),
        ([*PINS], {f"{CLUSTERING}.noise_multiplier": 2.0, f"{CLUSTERING}.target_epsilon": 3.0}, None),
        ([*PINS], {"method": "fedavg"}, None),  # which releases nothing of the kind
        ([*PINS], {"method": "fedgc"}, "privacy.templates"),
        (["release_noise_multiplier"], {f"{CLUSTERING}.noise_multiplier": 0.999}, "methods.privacyface"),
        (["release_delta"], {f"{CLUSTERING}.delta": 1e-4}, "methods.privacyface"),
        (["release_target_epsilon"], {f"{CLUSTERING}.target_epsilon": 9.2}, "methods.privacyface"),
        (["release_target_epsilon"], {f"{CLUSTERING}.target_epsilon": "null"}, "methods.privacyface"),
        (["release_target_epsilon"], {f"{CLUSTERING}.delta": 0.99}, "methods.privacyface"),
        (["release_delta"], {"method": "fedavg", "privacy.secure.dropouts": 0}, "privacy.secure"),
        ([], {f"{CLUSTERING}.noise_multiplier": 1e-9, f"{CLUSTERING}.target_epsilon": "null"}, None),
    ],
)
def test_a_node_takes_part_in_no_run_that_releases_with_less_noise_than_its_kit_says(
    tmp_path: Path, words: list[str], changes: dict[str, Any], where: str | None
) -> None:
    """The server changes the recipe by a run's configuration; each word holds by itself."""
    node_config = {"party": "silo-00", "home": str(tmp_path / "home"), **{word: PINS[word] for word in words}}
    with nullcontext() if where is None else pytest.raises(pins.Unprotected) as refused:
        assert process.take(write_clustered(tmp_path), node_config, changes).name == "silo-00"
    assert where is None or refused.value.where == where
    assert where is None or not (tmp_path / "home").exists()


def test_templates_with_noise_are_pinned_alike(tmp_path: Path) -> None:
    recipe = write_clustered(tmp_path, **MULTI)
    pinned = dict(word.split("=") for word in pins.words(loader.load(recipe)))
    assert pinned == {"release_noise_multiplier": "0.5", "release_delta": "1e-05"}
    node_config = {"party": "silo-00", "home": str(tmp_path / "home"), **pinned}
    assert process.take(recipe, node_config, {}).name == "silo-00"
    for changes in ({"privacy.templates.noise_multiplier": 0.4}, {"privacy.templates": "null"}):
        with pytest.raises(pins.Unprotected) as refused:
            process.take(recipe, node_config, changes)
        assert refused.value.where == "privacy.templates"


def test_a_target_holds_over_all_runs_of_a_home_whatever_they_are_called(tmp_path: Path) -> None:
    """At z = 1 three releases fit, of which the first run takes two."""
    recipe = write_clustered(tmp_path)
    for name in ("faces", "others"):
        config: dict[str, Any] = {"name": name, "out": str(tmp_path / name), "seed": len(name), "join-seconds": 0.5}
        run_recipe(recipe, tmp_path / "homes", PARTIES, {}, **config)
    for party in PARTIES:
        ledgers = [(tmp_path / "homes" / party / name / "ledger" / f"{party}.jsonl") for name in ("faces", "others")]
        released = [
            [line["protection"] for line in map(json.loads, path.read_text().splitlines()) if line["name"] == "centres"]
            for path in ledgers
        ]
        expected = [LocalClustering().protection(rho) for rho in (0.5, 1.0, 1.5)]
        assert released == [expected[:2], expected[2:]]
        assert stat.S_IMODE((tmp_path / "homes" / party / ".spent").stat().st_mode) == 0o700


def test_the_noise_of_a_party_that_encrypts_follows_from_its_key_and_lies_on_no_disk(tmp_path: Path) -> None:
    secrets = set[bytes]()
    for number in range(2):
        (tmp_path / "node.key").write_bytes(certificates.node().private)
        node_config = {"party": "silo-00", "home": str(tmp_path / str(number)), "key": str(tmp_path / "node.key")}
        taken = [process.take(write_clustered(tmp_path), node_config, {}).context.secret for _ in range(2)]
        assert taken[0] == taken[1] and len(taken[0]) == 32
        secrets.add(taken[0])
        assert not list((tmp_path / str(number)).rglob(FILE))
    assert len(secrets) == 2
