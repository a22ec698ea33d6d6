"""Noise at nodes, on templates and a method's own: each party draws it from a secret that the seed does not tell."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from federations import TWO_SILOS
from grids import run_recipe
from tinyruns import Silent

from coalface.core.errors import RunError
from coalface.experiments import run as experiment
from coalface.experiments.recipe import loader
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
