"""How many public images clients trained on: what a run's summary says, and the table of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from naive_clients import heard_run
from naive_fedfr import EXACT, joint
from safetensors.torch import load_file
from tinyruns import Silent
from tinyruns import public_images as recipe

from coalface.core import codec
from coalface.core.local_results import PUBLIC_IMAGES_USED
from coalface.core.method import Party, Tensors
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.experiments import run as experiment
from coalface.experiments.conformance.tiny_federation import Stop, run, stopping
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report.long_table import mean_and_spread, pivot
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.experiments.sweep.records import records
from coalface.methods.fedfr_joint import FedFRJoint, Own, Update

CLIENTS = ["silo-00", "silo-01", "silo-02"]
HELD = 30
"""Six public people of five images."""
NEAR = 0.9
"""Above this cosine some public images are near an untrained network's features of a client, and others are not."""


def shared(rounds: int = 2, **joint: Any) -> Recipe:
    settings = {"threshold": NEAR, "contrastive": 0.0, "branch": "none", **joint}
    return recipe(pretrain=None, rounds=rounds, local={"lr": 0.002}, methods={"fedfr-joint": settings})


def said(recipe: Recipe, out: Path) -> Any:
    """What the summary has of it; None where it has nothing."""
    experiment.run(recipe, out, Silent(), report=False)
    return json.loads((out / "summary.json").read_text()).get("public_images")


def by_hand(recipe: Recipe, model: Tensors) -> dict[str, int]:
    """How many public images have a cosine above the threshold to any of a client's, by two loops."""
    module = first_backbone(recipe).module
    module.load_state_dict({**module.state_dict(), **model})

    def features(faces: FaceSet) -> torch.Tensor:
        with torch.no_grad():
            rows = module.eval()(to_tensor(faces.take(np.arange(len(faces)))))
        return rows / rows.norm(dim=1, keepdim=True)

    public = Parts(recipe).public
    assert public is not None and len(public) == HELD
    public_features, used = features(public), {}
    for party, faces in Parts(recipe).data.data.items():
        own_features = features(faces)
        used[party] = sum(
            any(float(feature @ public_feature) > NEAR for feature in own_features)
            for public_feature in public_features
        )
    return used


def test_a_summary_has_the_public_images_held_and_those_of_every_client_and_round(tmp_path: Path) -> None:
    """As a double loop over the features by the model of the round before it says."""
    recipe = shared()
    summary = said(recipe, tmp_path / "two")
    said(shared(rounds=1), tmp_path / "one")
    before = [first_backbone(recipe).shared(), load_file(tmp_path / "one" / "model" / "backbone.safetensors")]
    expected = [by_hand(recipe, model) for model in before]
    assert summary == {"held": HELD, "used": {party: [one[party] for one in expected] for party in CLIENTS}}
    counts = [count for rounds in summary["used"].values() for count in rounds]
    assert 0 < min(counts) < max(counts) and len(set(counts)) > 2 and min(counts) < HELD


# --- stopped and resumed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 4, 8])
def test_wherever_it_is_stopped_no_round_counts_twice(after: int, tmp_path: Path) -> None:
    method = joint(rounds=3, contrastive=0.0, branch="none")
    whole = run(method, tmp_path / "whole", EXACT)
    with pytest.raises(Stop):
        run(method, tmp_path / "stopped", EXACT, checkpoint_every=2, transport=stopping(after))
    again = run(method, tmp_path / "stopped", EXACT, checkpoint_every=2)
    found, expected = (
        {
            party: tensors["images"].tolist()
            for party, tensors in ran.server.local_results(PUBLIC_IMAGES_USED, ran.models)
        }
        for ran in (again, whole)
    )
    assert found == expected and [len(counts) for counts in found.values()] == [3, 3, 3]


# --- nothing of it on the wire ----------------------------------------------------------------------------------------


def test_nothing_of_it_is_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps other counts sends the same bytes, and to ask for them leaves no trace."""
    method = joint(rounds=3, weights="images")
    ran, heard = heard_run(method, tmp_path / "true", EXACT)
    before = ran.bytes()
    given = {
        party: tensors["images"].tolist() for party, tensors in ran.server.local_results(PUBLIC_IMAGES_USED, ran.models)
    }
    assert all(counts and max(counts) > 0 for counts in given.values())
    assert ran.bytes() == before and {h.request.step for h in heard} == {"train"}
    own = {p: len(faces) for p, faces in EXACT().data.items()}
    assert all(codec.decode(bytearray(h.data), Update).images == own[h.request.party] for h in heard)

    plain = FedFRJoint.work

    def other(self: FedFRJoint, party: Party, own: Own | None, common: Any) -> Any:
        trained, images, after = plain(self, party, own, common)
        # As many digits: the tensors that lie behind them in the file start where they did, and round as they did.
        wrong = 99 if after.used[-1] > 9 else 9 - (after.used[-1] == 9)
        return trained, images, Own(**{**vars(after), "used": (*after.used[:-1], wrong)})

    monkeypatch.setattr(FedFRJoint, "work", other)
    lies, requests = heard_run(method, tmp_path / "other", EXACT)
    false_counts = {
        party: tensors["images"].tolist()
        for party, tensors in lies.server.local_results(PUBLIC_IMAGES_USED, lies.models)
    }
    assert all(
        set(false_counts[party]) <= {99, 9, 8} and false_counts[party] != counts for party, counts in given.items()
    )
    assert [h.data for h in requests] == [h.data for h in heard]
    assert [codec.encode(h.common).data for h in requests] == [codec.encode(h.common).data for h in heard]


# --- the table --------------------------------------------------------------------------------------------------------


def cell(seed: int, held_images: int = 0, **used: list[int]) -> dict[str, Any]:
    return {"seed": seed, **({"public_images": {"held": held_images, "used": used}} if used else {})}


def test_the_table_is_the_one_by_hand() -> None:
    """Of seed 0 clients of 5 and 0, then 10 and 5 of 10 images; of seed 1 one client of 2, 4, 6 of 20."""
    groups = {
        "a": [cell(0, 10, x=[5, 10], y=[0, 5]), cell(1, 20, x=[2, 4, 6], y=[])],
        "two halves of a seed": [cell(0, 10, x=[1]), cell(0, 10, x=[3])],
        "without": [cell(0), cell(1)],
        "in one seed of two": [cell(0, 8, x=[1, 2, 6]), cell(1)],
    }
    grid = pivot(records(groups, {})["public images"], {"setting": "setting"}, mean_and_spread)
    assert grid.header == ["setting", "first round", "last round", "all rounds"]
    assert grid.rows == [
        ["a", "17.50 ± 10.61", "52.50 ± 31.82", "35.00 ± 21.21"],
        ["two halves of a seed", "20.00", "20.00", "20.00"],
        ["in one seed of two", "12.50", "75.00", "37.50"],
    ]


def test_cells_that_do_not_say_it_have_no_record() -> None:
    assert records({"a": [cell(0), cell(0, 10, x=[])], "b": []}, {})["public images"] == []
