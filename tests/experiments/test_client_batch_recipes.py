"""`engine.client_batch` of a recipe; what client batches do is in engine/test_client_batch.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tinyruns
from safetensors.torch import load_file

from coalface.core.errors import RecipeError
from coalface.experiments.plan import preflight
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import Parts

CLIENTS = 8
"""Of four images each."""


def recipe(method: str = "fedface", **changes: Any) -> Recipe:
    """The tiny recipe with one identity a client, each of whom takes one step on all of its images."""
    own = {"fedfv": {"sample": 3, "equivalents": 4}, "feduv": {"length": 127}}
    common = {"method": method, "methods": own, "data": {"scenario": "devices"}}
    return tinyruns.tiny(**loader.merged(common, changes))


def images(method: str = "fedface", **changes: Any) -> int:
    made = recipe(method, **changes)
    return Parts(made).client_batch


@pytest.mark.parametrize("method", ["fedface", "feduv", "fedavg", "pfm"])
def test_where_clients_take_one_step_auto_is_a_batch_of_256_images_or_32_large_ones(method: str) -> None:
    assert images(method, engine={"client_batch": "auto"}) == 256
    assert images(method, engine={"client_batch": 12}) == 12
    assert images(method) == images(method, engine={"client_batch": 0}) == 0
    assert images(method, engine={"client_batch": "auto"}, local={"steps_per_round": 1, "batch_size": 2}) == 256
    assert images(method, engine={"client_batch": 12}, local={"epochs": 2}) == 12
    assert images(method, engine={"client_batch": "auto"}, data={"size": 112}) == 32
    assert images(method, engine={"client_batch": "auto"}, data={"size": 64}) == 256
    with pytest.raises(RecipeError, match=r"engine\.device: 'cuda:99'"):  # and no error of torch
        images(method, engine={"client_batch": "auto", "device": "cuda:99"})


@pytest.mark.gpu
def test_on_a_gpu_a_batch_of_large_images_is_of_256_too() -> None:
    assert images(engine={"client_batch": "auto", "device": "cuda"}, data={"size": 112}) == 256


CANNOT: list[tuple[str, dict[str, Any], str]] = [
    ("scaffold", {}, "the method has no batched form"),
    ("fedavg-fv", {}, "validators' weightings are of single replies"),
    ("fedface-multi", {}, "clients of several identities have a softmax of their own each"),
    ("fedface", {"model": {"name": "mobilefacenet"}}, "the backbone has BatchNorm"),
    ("feduv", {"faults": {"dropout": 0.1}}, "faults are simulated party by party"),
    ("fedaws", {"data": {"party_augment": {"device-00": {"flip": False}}}}, "data.party_augment changes the images"),
    ("fedface", {"engine": {"processes_per_party": {"device-00": 2}}}, "engine.processes_per_party splits"),
    ("fedface", {"engine": {"update_dtype": "int8"}}, "engine.update_dtype narrows"),
    ("fedavg", {"engine": {"max_update_norm": 3.0}}, "engine.max_update_norm bounds"),
    ("fedavg", {"engine": {"max_share": 0.5}}, "engine.max_share holds down"),
    ("fedface", {"engine": {"aggregator": {"name": "median"}}}, "engine.aggregator needs the reply of each party"),
    ("fedface", {"privacy": {"countersign": True}}, "privacy.countersign signs which replies"),
]


@pytest.mark.parametrize(("method", "changes", "why"), CANNOT)
def test_where_it_cannot_be_auto_does_without_and_a_number_is_refused_with_the_reason(
    method: str, changes: dict[str, Any], why: str
) -> None:
    assert images(method, **loader.merged(changes, {"engine": {"client_batch": "auto"}})) == 0
    assert images(method, **changes) == 0
    with pytest.raises(RecipeError, match=f"engine.client_batch: .*{why}"):
        images(method, **loader.merged(changes, {"engine": {"client_batch": 64}}))


def test_the_dry_run_says_what_is_computed_together_and_refuses_as_a_run_does() -> None:
    assert "parties are computed together, 256 images at a time (engine.client_batch)" in preflight.describe(
        recipe(engine={"client_batch": "auto"})
    )
    assert "computed together" not in preflight.describe(recipe())
    many = {"data": {"faces": {"identities": 200}}}
    assert "engine.client_batch=auto" in preflight.describe(recipe(**many))
    assert "engine.client_batch=auto" not in preflight.describe(recipe(**many, engine={"client_batch": 0}))
    several_steps = preflight.describe(recipe(engine={"client_batch": "auto"}, local={"epochs": 2}))
    assert "computed together" not in several_steps
    assert "measured when the run begins: engine.client_batch" in several_steps
    with pytest.raises(RecipeError) as error:
        preflight.describe(recipe("scaffold", engine={"client_batch": 64}))
    assert error.value.where == "engine.client_batch"


@pytest.mark.parametrize("method", ["fedface", "fedavg"])
def test_a_run_with_cohorts_is_one_without_but_for_rounding_and_says_so(method: str, tmp_path: Path) -> None:
    """The summary lists the same pieces, as often, of as many bytes; the size of cohorts stands among the numerics."""
    common: dict[str, Any] = {"method": method, "data": {"scenario": "devices"}}
    alone = tinyruns.run(tmp_path / "alone", **common)
    many = tinyruns.run(tmp_path / "many", **common, engine={"client_batch": "auto"})
    one, other = (load_file(folder / "model" / "backbone.safetensors") for folder in (alone, many))
    assert one.keys() == other.keys()
    assert max(float((one[n] - other[n]).abs().max()) for n in one) < 1e-5
    said = [json.loads((folder / "summary.json").read_text()) for folder in (alone, many)]
    assert [s["numerics"]["cohorts"] for s in said] == [0, 256]

    def tensors(summary: dict[str, Any]) -> set[tuple[Any, ...]]:
        listed = summary["ledger"]["tensors"]
        return {(t["name"], tuple(t["shape"]), t["bytes"], t["count"]) for t in listed if t["kind"] == "tensor"}

    assert tensors(said[0]) == tensors(said[1])
    assert {count for *_, count in tensors(said[1])} == {2 * CLIENTS}
    assert said[1]["ledger"]["checked"]["faults"] == {}
    assert list(said[1]["ledger"]["head"]) == ["cohorts"]
    assert (many / "cohorts.jsonl").exists()
    assert not (alone / "cohorts.jsonl").exists()
    assert abs(said[1]["ledger"]["bytes"] - said[0]["ledger"]["bytes"]) <= 8 * 2 * CLIENTS  # digits in the headers
