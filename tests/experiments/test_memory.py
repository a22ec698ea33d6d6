from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tinyruns import run, tiny
from torch import nn

from coalface.experiments.plan import preflight
from coalface.experiments.plan.footprint import activations, footprint
from coalface.models import build, sketch


def test_activations_by_hand() -> None:
    layers = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    images = torch.zeros(3, 10)
    # The first layer needs its input (3 × 10), the second and the ReLU one and the same output (3 × 20): each once.
    assert activations(layers, images) == 4 * (3 * 10 + 3 * 20)
    assert activations(layers, torch.zeros(6, 10)) == 2 * activations(layers, images)
    layers.eval()
    activations(layers, images)
    assert not layers.training


@pytest.mark.parametrize("name", ["cnn-small", "ir18"])
def test_activations_on_the_meta_device_are_those_of_a_real_batch(name: str) -> None:
    real = build(name, size=32, channels=1, generator=np.random.default_rng(0))
    counted = activations(sketch(name, size=32, channels=1), torch.empty(4, 1, 32, 32, device="meta"))
    assert counted == activations(real, torch.zeros(4, 1, 32, 32)) > 0


def test_training_is_weights_gradients_momentum_and_a_copy() -> None:
    recipe = tiny()
    need = footprint(recipe, preflight.check(recipe))
    numbers = sum(p.numel() for p in sketch("cnn-small", size=32, channels=1).parameters())
    assert need.training == 4 * 4 * (numbers + 4 * 128)  # four people a party
    assert need.batch == 16


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "solo"},
        {"method": "centralized", "data": {"faces": {"identities": 200}}},
        {"methods": {"fedavg": {"momentum": "keep"}}},
    ],
    ids=str,
)
def test_private_state_is_what_the_parties_write(changes: dict[str, object], tmp_path: Path) -> None:
    changes |= {"engine": {"save_replies": False}, "rounds": 1}
    folder = run(tmp_path / "run", **changes)
    need = footprint(tiny(**changes), preflight.check(tiny(**changes)))
    largest = max(p.stat().st_size for p in (folder / "parties").rglob("*.commit"))
    assert need.uncounted == () and 0 < largest - need.private < 12_000
