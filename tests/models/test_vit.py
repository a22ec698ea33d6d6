from __future__ import annotations

import numpy as np
import pytest
import torch
from layer_costs import Cost, linear, only, total
from sketches import numbers, sketched
from torch import nn

from coalface.models import Backbone, build
from coalface.models.catalogue import multiply_adds


def by_hand(size, channels, outputs):
    patches = (size // 8) ** 2
    tokens = patches + 1
    yield linear(8 * 8 * channels, 192, times=patches)
    yield only(192 + tokens * 192)
    for _ in range(12):
        yield from (only(2 * 192), linear(192, 3 * 192, times=tokens))
        yield Cost(0, 2 * 3 * tokens * tokens * 64)  # q kᵀ and the mixture of v, three heads of 64
        yield from (linear(192, 192, times=tokens), only(2 * 192))
        yield from (linear(192, 768, times=tokens), linear(768, 192, times=tokens))
    yield from (only(2 * 192), linear(192, outputs))


@pytest.mark.parametrize(("size", "channels"), [(112, 3), (112, 1), (64, 3), (64, 1)])
def test_parameters_and_multiply_adds_layer_by_layer(size, channels):
    hand = total(by_hand(size, channels, 512))
    module = sketched("vit-tiny", size, channels)
    assert numbers(module.parameters()) == numbers(Backbone(module).shared().values()) == hand.parameters
    assert multiply_adds(module, size=size, channels=channels) == hand.multiply_adds


def test_with_1000_outputs_and_patches_of_16_it_weighs_what_deit_tiny_does():
    # DeiT-Ti at 224 has as many patches as we have at 112; its patches of 16×16×3 need more numbers than ours of 8×8×3
    ours = numbers(sketched("vit-tiny", 112, 3, 1000).parameters())
    assert ours + (16 * 16 - 8 * 8) * 3 * 192 == 5_717_416


def test_the_whole_beside_torchs_own_encoder_layers():
    module = build("vit-tiny", size=16, channels=3, generator=np.random.default_rng(0)).eval()
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3, 16, 16, generator=generator) * 2 - 1
    with torch.no_grad():
        for parameter in module.parameters():  # biases and norms too, so that none can be left out unseen
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        corners = [(0, 0), (0, 8), (8, 0), (8, 8)]
        cut = torch.stack([images[:, :, y : y + 8, x : x + 8].flatten(1) for y, x in corners], dim=1)
        tokens = cut @ module.patches.weight.flatten(1).T + module.patches.bias
        tokens = torch.cat([module.token.expand(2, 1, 192), tokens], dim=1) + module.positions
        for block in module.blocks:
            layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
            weights = {
                "self_attn.in_proj_weight": block.attention.qkv.weight,
                "self_attn.in_proj_bias": block.attention.qkv.bias,
                "self_attn.out_proj.weight": block.attention.proj.weight,
                "self_attn.out_proj.bias": block.attention.proj.bias,
            }
            for name, ours in (("linear1", block.mlp[0]), ("linear2", block.mlp[2])):
                weights |= {f"{name}.weight": ours.weight, f"{name}.bias": ours.bias}
            for name, ours in (("norm1", block.norm1), ("norm2", block.norm2)):
                weights |= {f"{name}.weight": ours.weight, f"{name}.bias": ours.bias}
            layer.load_state_dict(weights)
            tokens = layer(tokens)
        expected = module.fc(module.norm(tokens[:, 0]))
        torch.testing.assert_close(module(images), expected, rtol=1e-4, atol=1e-5)
