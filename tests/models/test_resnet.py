from __future__ import annotations

import math

import pytest
import torch
from layer_costs import conv, linear, only, total
from sketches import numbers, sketched

from coalface.models.catalogue import multiply_adds
from coalface.models.resnet import BasicBlock


def by_hand(size, channels, outputs):
    side = math.ceil(size / 2)
    yield from (conv(7, channels, 64, side), only(2 * 64))
    side, width = math.ceil(side / 2), 64
    for stage, (wider, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True)):
        side = side if stage == 0 else math.ceil(side / 2)
        for block in range(blocks):
            yield from (conv(3, width, wider, side), only(2 * wider), conv(3, wider, wider, side), only(2 * wider))
            if block == 0 and stage > 0:
                yield from (conv(1, width, wider, side), only(2 * wider))
            width = wider
    yield linear(512, outputs)


@pytest.mark.parametrize(("size", "channels"), [(112, 3), (64, 3), (64, 1)])
def test_parameters_and_multiply_adds_layer_by_layer(size, channels):
    hand = total(by_hand(size, channels, 256))
    module = sketched("resnet34", size, channels)
    assert numbers(module.parameters()) == hand.parameters
    assert module.embedding_size == 256
    assert multiply_adds(module, size=size, channels=channels) == hand.multiply_adds


def test_with_1000_outputs_at_224_it_is_the_published_network():
    module = sketched("resnet34", 224, 3, 1000)
    # torchvision's documentation of resnet34: 21797672 parameters, 3.66 "GFLOPS" (multiply-adds); He et al.: 3.6e9
    assert numbers(module.parameters()) == 21_797_672
    assert round(multiply_adds(module, size=224, channels=3) / 1e9, 2) == 3.66


def test_a_block_by_hand():
    block = BasicBlock(1, 1, 1).eval()
    with torch.no_grad():
        for convolution, factor in ((block.conv1, 2), (block.conv2, -3)):
            convolution.weight.zero_()
            convolution.weight[0, 0, 1, 1] = factor
        for norm in (block.bn1, block.bn2):
            norm.running_var.fill_(1 - norm.eps)
        block.bn1.running_mean.fill_(2)
        # 1: 2, bn1 → 0, ReLU → 0, 0, plus 1 → 1. 4: 8 → 6 → −18, plus 4 → −14, ReLU → 0. −1: −2 → −4 → 0, −1 → 0.
        maps = torch.tensor([[[[1.0, 4.0, -1.0]]]])
        torch.testing.assert_close(block(maps), torch.tensor([[[[1.0, 0.0, 0.0]]]]))


def test_names_are_those_that_torchvision_gives():
    names = list(sketched("resnet34", 112, 3).state_dict())
    assert names[:7] == [
        "conv1.weight",
        *(f"bn1.{key}" for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
        "layer1.0.conv1.weight",
    ]
    assert "layer2.0.downsample.1.running_var" in names and "layer1.0.downsample.0.weight" not in names
    assert names[-2:] == ["fc.weight", "fc.bias"] and len(names) == 218
