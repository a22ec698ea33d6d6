from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cases import by_default
from layer_costs import conv, linear, only, total
from sketches import numbers, sketched
from torch import nn

from coalface.models import Backbone, build
from coalface.models.catalogue import multiply_adds
from coalface.models.sphere import SphereBlock

BLOCKS = {20: (1, 2, 4, 1), 64: (3, 8, 16, 3)}


def convolutions(layers, size, channels):
    width, side = channels, size
    for wider, blocks in zip((64, 128, 256, 512), BLOCKS[layers], strict=True):
        side = math.ceil(side / 2)
        yield from (conv(3, width, wider, side, bias=True), only(wider))
        for _ in range(2 * blocks):
            yield from (conv(3, wider, wider, side), only(wider))
        width = wider


@pytest.mark.parametrize("layers", BLOCKS)
@pytest.mark.parametrize(
    ("size", "channels", "side"), by_default(2, [(112, 3, 7), (112, 1, 7), (64, 3, 4), (64, 1, 4)])
)
def test_parameters_and_multiply_adds_layer_by_layer(layers, size, channels, side):
    hand = total([*convolutions(layers, size, channels), linear(512 * side * side, 512)])
    name = f"sphere{layers}"
    module = sketched(name, size, channels)
    assert numbers(module.parameters()) == numbers(Backbone(module).shared().values()) == hand.parameters
    assert multiply_adds(module, size=size, channels=channels) == hand.multiply_adds
    assert sum(isinstance(part, nn.Conv2d) for part in module.modules()) == layers


def test_sphere20_weighs_what_open_model_zoo_says_of_the_authors_model():
    # Open Model Zoo, "Sphereface": 22.671 M parameters at 112×96, with the residual biases that are fixed at zero there
    at_112 = numbers(sketched("sphere20", 112, 3).parameters())
    fewer_columns = 512 * 512 * 7
    fixed_biases = 2 * 64 + 4 * 128 + 8 * 256 + 2 * 512
    assert round((at_112 - fewer_columns + fixed_biases) / 1e6, 3) == 22.671
    # and 3.504 "GFLOPs", two a multiply-add, with what we do not count (biases, PReLU, sums)
    columns = total(convolutions(20, 112, 3)).multiply_adds * 96 // 112 + 512 * 7 * 6 * 512
    assert 2 * columns / 1e9 == pytest.approx(3.504, rel=2e-3)


def test_a_block_by_hand():
    block = SphereBlock(1)
    with torch.no_grad():
        for convolution, factor in ((block.conv1, 2), (block.conv2, -3)):
            convolution.weight.zero_()
            convolution.weight[0, 0, 1, 1] = factor
    # 1: 2 → 2, −6 → PReLU (¼) −1.5, plus 1 → −0.5. −4: −8 → −2, 6 → 6, plus −4 → 2.
    maps = torch.tensor([[[[1.0, -4.0]]]])
    torch.testing.assert_close(block(maps), torch.tensor([[[[-0.5, 2.0]]]]))


def test_first_weights_are_those_of_the_authors_definition():
    module = build("sphere20", size=64, channels=3, generator=np.random.default_rng(0))
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    for part in module.modules():
        if isinstance(part, SphereBlock):
            assert part.conv1.bias is None and part.conv2.bias is None
            assert float(part.conv2.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    for strided in (stage[0] for stage in (module.layer1, module.layer2, module.layer3, module.layer4)):
        fan_in = strided.weight[0].numel()
        assert (strided.bias == 0).all() and strided.stride == (2, 2)
        assert float(strided.weight.detach().abs().max()) == pytest.approx(math.sqrt(3 / fan_in), rel=0.01)
    assert (
        float(module.fc.weight.detach().std()) == pytest.approx(math.sqrt(1 / 8192), rel=0.02)
        and (module.fc.bias == 0).all()
    )
