"""The iResNets beside a list of names, shapes and dtypes that insightface's own modules printed (docs/models.md)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import by_default
from layer_costs import conv, linear, only, total
from sketches import numbers, sketched

from coalface.models import Backbone, build
from coalface.models.catalogue import multiply_adds
from coalface.models.iresnet import IBasicBlock

LISTED = json.loads(Path(__file__).with_name("iresnet_names.json").read_text(encoding="ascii"))
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}


def spelled(module):
    return [f"{name} {str(t.dtype)[6:]} {list(t.shape)}" for name, t in module.state_dict().items()]


@pytest.mark.parametrize("depth", BLOCKS)
def test_names_shapes_dtypes_and_order_are_those_of_insightface(depth):
    assert spelled(sketched(f"ir{depth}", 112, 3)) == LISTED[str(depth)]


def by_hand(depth, size, channels):
    def norm(width):
        return only(2 * width)

    side, width = size, 64
    yield from (conv(3, channels, 64, side), norm(64), only(64))
    for wider, blocks in zip((64, 128, 256, 512), BLOCKS[depth], strict=True):
        half = math.ceil(side / 2)
        for block in range(blocks):
            before = side if block == 0 else half
            yield from (norm(width), conv(3, width, wider, before), norm(wider), only(wider))
            yield from (conv(3, wider, wider, half), norm(wider))
            if block == 0:
                yield from (conv(1, width, wider, half), norm(wider))
            width = wider
        side = half
    yield from (norm(512), linear(512 * side * side, 512), norm(512))


@pytest.mark.parametrize("depth", by_default(2, BLOCKS))
@pytest.mark.parametrize(("size", "channels"), [(112, 3), (64, 1)])
def test_parameters_and_multiply_adds_layer_by_layer(depth, size, channels):
    hand = total(by_hand(depth, size, channels))
    name = f"ir{depth}"
    module = sketched(name, size, channels)
    assert numbers(module.parameters()) == hand.parameters
    assert multiply_adds(module, size=size, channels=channels) == hand.multiply_adds
    if (size, channels) == (112, 3):  # parameters that insightface's own modules give
        published = {18: 24_025_600, 34: 34_139_328, 50: 43_590_848, 100: 65_156_160}
        assert hand.parameters == published[depth]
        assert round(hand.multiply_adds / 1e9, 2) == {18: 2.61, 34: 4.46, 50: 6.31, 100: 12.09}[depth]


def test_a_block_by_hand():
    block = IBasicBlock(1, 1, 1).eval()
    with torch.no_grad():
        for convolution in (block.conv1, block.conv2):
            convolution.weight.zero_()
            convolution.weight[0, 0, 1, 1] = 2  # a 3×3 convolution that doubles
        for norm in (block.bn1, block.bn2, block.bn3):
            norm.running_var.fill_(1 - norm.eps)
        block.bn1.running_mean.fill_(1)
        # 3: bn1 → 2, conv1 → 4, PReLU → 4, conv2 → 8, plus 3 → 11. −1: bn1 → −2, −4, PReLU (¼) → −1, −2, plus −1 → −3.
        maps = torch.tensor([[[[3.0, -1.0]]]])
        torch.testing.assert_close(block(maps), torch.tensor([[[[11.0, -3.0]]]]))


def test_the_scale_of_the_last_norm_is_fixed_at_one():
    module = build("ir18", size=64, channels=1, generator=np.random.default_rng(0))
    assert (module.features.weight == 1).all()
    assert "features.weight" not in Backbone(module).parameters
    assert "features.weight" in Backbone(module).shared()
