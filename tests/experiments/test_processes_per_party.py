"""`engine.processes_per_party` of a recipe; what several processes do is in engine/test_process_groups.py."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinyruns
import torch
from safetensors.torch import load_file

from coalface.core.errors import RecipeError
from coalface.engine.party.setup import FederatedData
from coalface.experiments.conformance import tiny_federation
from coalface.experiments.conformance.tiny_federation import Ran
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.setup import shards
from coalface.experiments.setup.parts import Parts
from coalface.models import Backbone


@pytest.mark.usefixtures("quick_workers")
def test_a_recipe_says_which_party_several_processes_play(tmp_path: Path, fedavg_run: Path) -> None:
    out = tinyruns.run(
        tmp_path / "run", name="tiny-fedavg", engine={"processes_per_party": {"silo-00": 2, "silo-01": 1}}
    )
    one, many = (load_file(folder / "model" / "backbone.safetensors") for folder in (fedavg_run, out))
    assert all((many[name] - one[name]).abs().max() < 1e-3 for name in one)
    assert json.loads((out / "summary.json").read_text())["numerics"]["shards"] == {"silo-00": 2}
    assert [len(list((out / "parties" / f"silo-0{i}").glob("*.shard"))) for i in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": {"processes_per_party": {"silo-0": 2}}}, r"engine.processes_per_party: the party.*silo-0.*silo-00"),
        (
            {"engine": {"processes_per_party": {"silo-00": 0}}},
            "engine.processes_per_party.silo-00: 0 is not allowed; use 1 or more",
        ),
        (
            {"engine": {"processes_per_party": {"silo-00": 2}}, "loss": {"name": "adaface"}},
            "engine.processes_per_party: AdaFace cannot be computed",
        ),
        (
            {"engine": {"processes_per_party": {"silo-00": 2}, "device": "meta"}},
            r"engine.processes_per_party.silo-00: 2 processes need .*'meta'",
        ),
        (
            {
                "method": "fedface",
                "data": {"scenario": "devices"},
                "engine": {"processes_per_party": {"device-00": 2}},
            },
            "engine.processes_per_party.device-00: a client of fedface has one class embedding",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        tinyruns.run(tmp_path / "run", **changes)
    with pytest.raises(RecipeError, match=said):
        preflight.check(tinyruns.tiny(**changes))
    assert not (tmp_path / "run").exists()


def test_a_pre_training_is_not_split() -> None:
    shards = {"engine": {"processes_per_party": {"silo-00": 2}}}
    recipe = tinyruns.tiny(pretrain={"method": "centralized", "rounds": 1}, **shards)
    assert recipe.pretrain.recipe.engine.processes_per_party == {}


# --- the one party of centralised training ----------------------------------------------------------------------------

PARTS: dict[str, Any] = {"pooled": 2, "silo-00": 3, "silo-01": 4}
"""Of one recipe for centralised and federated training: each method uses its own."""


@dataclass(frozen=True)
class Exact:
    """The world of a recipe in float64; each process builds it."""

    recipe: str

    def __call__(self) -> FederatedData:
        made = Parts(loader.parse(json.loads(self.recipe))).data
        compute = dataclasses.replace(made.compute, dtype=torch.float64)
        return dataclasses.replace(
            made, backbone=Backbone(made.backbone.module.double(), made.backbone.policy), compute=compute
        )


def exactly(folder: Path, **changes: Any) -> Ran:
    """The tiny recipe's rounds in float64."""
    recipe = tinyruns.tiny(**changes)
    build = Exact(json.dumps(recipe.resolved()))
    return tiny_federation.run(recipe.build_method(), folder, build, numerics=Parts(recipe).numerics())


@pytest.mark.usefixtures("quick_workers")
def test_pooled_training_over_several_processes_is_that_over_one(tmp_path: Path) -> None:
    one = exactly(tmp_path / "one", method="centralized")
    many = exactly(tmp_path / "many", method="centralized", engine={"processes_per_party": PARTS})
    assert dict(many.server.numerics.processes_per_party) == {"pooled": 2}
    assert one.state.backbone.keys() == many.state.backbone.keys()
    moved = max((many.state.backbone[n] - t).abs().max() for n, t in many.server.initial.items())
    apart = max((many.state.backbone[n] - t).abs().max() for n, t in one.state.backbone.items())
    assert apart < 1e-9 < 1e-3 < moved
    shards = [len(list((ran.folder / "parties" / "pooled").glob("*.shard"))) for ran in (one, many)]
    assert shards == [0, 1]


V: dict[str, Any] = {"validators": {"v": {"identities": 2, "pairs": 10}}}


@pytest.mark.parametrize(
    ("method", "used"),
    [
        ("centralized", {"pooled": 2}),
        ("fedavg", {"silo-00": 3, "silo-01": 4}),
        ("solo", {"silo-00": 3, "silo-01": 4}),
        ("pfm-fv", {"silo-00": 3, "silo-01": 4, "v": 2}),
    ],
)
@pytest.mark.parametrize("augmented", [{}, {"silo-00": {"flip": False}}], ids=["alike", "party_augment"])
def test_a_method_uses_the_parties_that_it_has(method: str, used: dict[str, int], augmented: dict[str, Any]) -> None:
    shards = PARTS | {"v": 2}
    recipe = tinyruns.tiny(
        method=method, engine={"processes_per_party": shards}, data={"party_augment": augmented}, **V
    )
    assert preflight.check(recipe)
    assert Parts(recipe).numerics().processes_per_party == used


@pytest.mark.parametrize("method", ["centralized", "fedavg", "fedavg-fv"])
@pytest.mark.parametrize("party", ["poold", "silo-02"])
def test_a_party_of_no_method_is_refused_whatever_the_method(method: str, party: str) -> None:
    recipe = tinyruns.tiny(method=method, engine={"processes_per_party": {party: 2}}, **V)
    with pytest.raises(RecipeError, match="did you mean .* Known: silo-00, silo-01, v, pooled") as error:
        preflight.check(recipe)
    assert error.value.where == "engine.processes_per_party: the party"


@pytest.mark.parametrize("split", [None, 2])
def test_the_silos_of_a_joined_source_are_known_to_pooled_training(split: int | None) -> None:
    data = {
        "faces": {"kind": "synthetic", "identities": 12, "images": 4, "domains": ["studio", "street"]},
        "partition": {"kind": "by-domain", "split": split},
    }
    names = ["street", "studio"] if split is None else ["street-a", "street-b", "studio-a", "studio-b"]
    parsed: dict[str, Any] = {"method": "centralized", "data": {**data, "party_augment": {names[-1]: {"flip": False}}}}
    assert preflight.check(tinyruns.tiny(engine={"processes_per_party": dict.fromkeys(names, 2)}, **parsed))
    with pytest.raises(RecipeError, match=f"Known: {', '.join(names)}, pooled"):
        preflight.check(tinyruns.tiny(engine={"processes_per_party": {"indoors": 2}}, **parsed))


def test_only_a_party_of_this_method_needs_its_gpus() -> None:
    for method, party in (("centralized", "silo-00"), ("fedavg", "pooled"), ("fedavg", "v")):
        recipe = tinyruns.tiny(method=method, engine={"processes_per_party": {party: 2}, "device": "meta"}, **V)
        shards.check_shards(Parts(recipe))
    recipe = tinyruns.tiny(method="centralized", engine={"processes_per_party": {"pooled": 2}, "device": "meta"})
    with pytest.raises(RecipeError, match=r"engine.processes_per_party.pooled: 2 processes need .*'meta'"):
        shards.check_shards(Parts(recipe))


def test_a_name_that_could_be_two_parties_is_refused() -> None:
    partition = {"kind": "shares", "shares": {"pooled": 1, "other": 2}}
    for changes in (
        {"data": {"partition": partition}, "engine": {"processes_per_party": {"pooled": 2}}},
        {"validators": {"pooled": {"identities": 2, "pairs": 10}}, "engine": {"processes_per_party": {"pooled": 2}}},
        {"validators": {"silo-00": {"identities": 2, "pairs": 10}}, "engine": {"processes_per_party": {"silo-00": 2}}},
    ):
        with pytest.raises(RecipeError, match=r"engine.processes_per_party.*: two parties have this name.*; rename"):
            preflight.check(tinyruns.tiny(**changes))
    assert preflight.check(tinyruns.tiny(data={"partition": partition}, engine={"processes_per_party": {"other": 2}}))


def test_a_pre_training_that_pools_may_be_split_on_its_own() -> None:
    start = {"method": "centralized", "rounds": 1, "engine": {"processes_per_party": {"pooled": 2}}}
    recipe = tinyruns.tiny(pretrain=start)
    assert preflight.check(recipe) and Parts(recipe.pretrain.recipe).numerics().processes_per_party == {"pooled": 2}
    with pytest.raises(RecipeError, match=r"pretrain.engine.processes_per_party: the party: 'poold' .*'pooled'"):
        preflight.check(
            loader.parse(recipe.resolved() | {"pretrain": start | {"engine": {"processes_per_party": {"poold": 2}}}})
        )
