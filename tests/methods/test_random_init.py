"""Random class embeddings stay as the server drew them."""

from __future__ import annotations

from pathlib import Path

import naive
import pytest
from naive_clients import EXACT, STEPS
from test_fedface import agree, drawn

from coalface.experiments.conformance.tiny_federation import run
from coalface.methods.fedface import FedFace, RandomInit


def test_class_embeddings_stay_and_the_backbone_moves_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = RandomInit(rounds=4, local=STEPS)
    assert agree(method, tmp_path / "loop", monkeypatch, EXACT) == set()
    ran = run(method, tmp_path / "again", EXACT)
    assert naive.furthest(ran.state.centres, drawn(EXACT)) < 1e-14
    ablation = FedFace(rounds=4, local=STEPS, head_init="random", spreadout=False, fixed=True)
    assert run(ablation, tmp_path / "ablation", EXACT).bytes() == ran.bytes()
