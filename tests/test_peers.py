"""The work that `benchmarks/peers.py` gives every simulator."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import coalface

FOLDER = Path(coalface.__file__).parents[1] / "benchmarks" / "peers"


def test_a_plain_loop_and_coalface_give_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    same_work, run_plain, run_coalface = map(importlib.import_module, ("same_work", "run_plain", "run_coalface"))
    work, turns = same_work.Work(clients=3, images=5, rounds=2), []
    plain = run_plain.run(work, lambda: turns.append("plain"))
    model = run_coalface.run(work, lambda: turns.append("coalface"))
    assert turns == ["plain"] * 3 + ["coalface"] * 3
    first = same_work.network().state_dict()
    assert model.keys() == plain.keys() == first.keys()
    for name, tensor in model.items():
        assert (plain[name] - first[name]).norm() > 1e-4
        torch.testing.assert_close(tensor, plain[name], rtol=0, atol=1e-6)
