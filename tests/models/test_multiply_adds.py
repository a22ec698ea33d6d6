from __future__ import annotations

import numpy as np
import pytest
import torch
from sketches import sketched
from torch import nn

from coalface.models import build
from coalface.models.catalogue import multiply_adds


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(3, 5, 3, padding=1), 8 * 8 * 5 * 3 * 9),
        (nn.Conv2d(3, 5, 3, stride=2), 3 * 3 * 5 * 3 * 9),
        (nn.Conv2d(3, 6, 3, padding=1, groups=3), 8 * 8 * 6 * 9),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 7)), 192 * 7),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), 8 * 8 * 3 * 4),
    ],
)
def test_single_layers_by_hand(layer, expected):
    assert multiply_adds(layer, size=8, channels=3) == expected


def test_a_network_with_numbers_gives_the_same_and_is_left_as_it_was():
    module = build("mobilefacenet", size=32, channels=1, generator=np.random.default_rng(0))
    module.blocks[3].eval()
    modes = [part.training for part in module.modules()]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    counted = multiply_adds(module, size=32, channels=1)
    assert counted == multiply_adds(sketched("mobilefacenet", 32, 1), size=32, channels=1)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
