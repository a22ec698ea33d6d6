from __future__ import annotations

import json
from pathlib import Path

import torch
from worlds import recipe

from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.training.local_work import LocalTraining


def test_a_single_party_alone_is_centralised_training(tmp_path: Path) -> None:
    alone, work = Tiny(pooled=True, norm=True), LocalTraining(epochs=2, batch_size=4, lr=0.05)
    (model,) = run(recipe("solo", local=work)[0], tmp_path / "solo", alone).own_models().values()
    central = run(recipe("centralized", local=work)[0], tmp_path / "central", alone).state.backbone
    assert all(torch.equal(model[n], t) for n, t in central.items())


def test_nothing_but_numbers_is_sent_and_nothing_comes_back(tmp_path: Path) -> None:
    ran = run(recipe("solo")[0], tmp_path)
    lines = [json.loads(t) for p in (ran.folder / "ledger").iterdir() for t in p.read_text().splitlines()]
    assert {entry["name"] for entry in lines} == {"header"}
    assert ran.server.at.totals["down"] == 0
    assert ran.models.shared is None


def test_every_party_has_a_model_of_its_own_that_does_not_depend_on_the_others(tmp_path: Path) -> None:
    three = run(recipe("solo")[0], tmp_path / "three", Tiny(parties=3)).own_models()
    four = run(recipe("solo")[0], tmp_path / "four", Tiny(parties=4)).own_models()
    assert not torch.equal(three["silo-0"]["up.weight"], three["silo-1"]["up.weight"])
    # Identities are drawn by number, so the first three parties hold the same images in both.
    for name, model in three.items():
        assert all(torch.equal(four[name][n], t) for n, t in model.items())
