"""Methods with a softmax over a party's own people, where each party has one: the loss is 0, and nothing is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from worlds import recipe

from coalface.core.local_results import PERSONAL_MODEL
from coalface.experiments.conformance.tiny_federation import WORK, Tiny, raw, run


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "fedbabu"])
def test_of_one_identity_nothing_is_trained(name: str, tmp_path: Path) -> None:
    method, build = recipe(name, local=replace(WORK, weight_decay=0.0))[0], Tiny(one_identity=True)
    ran, first = run(method, tmp_path, build), build().backbone.shared()
    assert raw(ran.state.backbone) == raw(first)
    personal = dict(ran.server.local_results(PERSONAL_MODEL, ran.models))
    assert len(personal) == (0 if name == "fedavg" else 3)
    for model in personal.values():
        assert raw(model) == raw(first)
