"""Random class embeddings stay as the server drew them."""

from __future__ import annotations

from pathlib import Path

import torch
from worlds import recipe, run


def test_class_embeddings_stay_and_the_backbone_moves(tmp_path: Path) -> None:
    method, build = recipe("random-init")
    ran = run(method, tmp_path / "three", build)
    once = run(recipe("random-init", rounds=1)[0], tmp_path / "one", build)
    for client, centre in ran.state.centres.items():
        assert torch.allclose(centre, once.state.centres[client], atol=1e-6)
    assert any(not torch.equal(t, ran.server.initial[name]) for name, t in ran.state.backbone.items())
