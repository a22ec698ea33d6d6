"""`fedaws` is `fedface` with random class embeddings; beyond that it has the nearest alone to push from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import naive
import pytest
from naive_clients import EXACT, STEPS, WHOLE
from test_fedface import TROUBLED, agree, drawn

from coalface.experiments.conformance.tiny_federation import run
from coalface.methods.fedaws import FedAwS
from coalface.methods.fedface import FedFace
from coalface.training.losses.spreadout import Spreading

WIDE = Spreading(margin=1.3, step=0.1)
"""So wide that random class embeddings of 8 numbers lie within it."""


@pytest.mark.parametrize(
    ("settings", "rules", "sees"),
    [
        ({"spreading": WIDE}, {}, {"spread"}),
        ({"spreading": WIDE, "top_k": 1}, {}, {"spread"}),
        ({"spreading": WIDE, "top_k": 3, "local": STEPS}, {}, {"spread"}),
        ({"spreading": replace(WIDE, reduce="mean", steps=3, momentum=0.5), "top_k": 2}, {}, {"spread"}),
        ({"spreading": WIDE, "top_k": 2, "sample": 3}, {}, {"spread"}),
        ({"spreading": WIDE, "top_k": 2}, {"faults": TROUBLED, "min_reply_fraction": 0.3}, {"spread", "failed"}),
    ],
)
def test_it_pushes_each_from_its_nearest_alone_by_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, rules: Any, sees: set[str]
) -> None:
    """Whoever is not asked keeps the class embedding that the server drew for it, and is pushed as well."""
    method = FedAwS(**{"rounds": 3, "local": WHOLE} | settings)
    assert agree(method, tmp_path, monkeypatch, EXACT, **rules) == sees


def test_without_top_k_it_is_fedface_from_random_class_embeddings(tmp_path: Path) -> None:
    one = run(FedAwS(rounds=3, local=STEPS), tmp_path / "fedaws", EXACT).bytes()
    assert run(FedFace(rounds=3, local=STEPS, head_init="random"), tmp_path / "fedface", EXACT).bytes() == one


def test_the_presets_hold_with_top_k_too(tmp_path: Path) -> None:
    """All six nearest of seven are all; the other constants stay those of the preset."""
    for preset in ("paper", "official"):
        all_, nearest = (
            run(FedAwS(rounds=2, local=WHOLE, preset=preset, top_k=k), tmp_path / f"{preset}-{k}", EXACT).state.centres
            for k in (None, 6)
        )
        assert naive.furthest(all_, nearest) < 1e-13
        few = run(FedAwS(rounds=2, local=WHOLE, preset=preset, top_k=1), tmp_path / f"{preset}-1", EXACT).state.centres
        assert naive.furthest(all_, few) > 1e-5


def test_without_spreadout_top_k_pushes_nobody(tmp_path: Path) -> None:
    still = FedAwS(rounds=2, local=WHOLE, spreading=WIDE, top_k=2, spreadout=False, fixed=True)
    assert naive.furthest(run(still, tmp_path, EXACT).state.centres, drawn(EXACT)) < 1e-15


def test_two_numbers_of_nearest_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="top_k is 5 and spreading.top_k is 3"):
        FedAwS(top_k=5, spreading=Spreading(top_k=3))
    with pytest.raises(ValueError, match="top_k is at least 1"):
        FedAwS(top_k=0)
