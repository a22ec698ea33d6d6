from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import by_default
from layer_costs import conv, only, total
from sketches import numbers, sketched
from torch import nn

from coalface.models import build
from coalface.models.catalogue import multiply_adds
from coalface.models.mobilefacenet import Bottleneck
from coalface.models.pretrained.input import IMAGENET
from coalface.models.pretrained.weights import fit_weights, read_weights

MODELS = os.environ.get("COALFACE_MODELS")
TABLE = [(2, 64, 64, 2)] + 4 * [(2, 64, 64, 1)] + [(4, 64, 128, 2)] + 6 * [(2, 128, 128, 1)]
TABLE += [(4, 128, 128, 2)] + 2 * [(2, 128, 128, 1)]
"""Table 1 of the paper, a bottleneck a row: expansion, width in, width out, stride."""


def by_hand(size, channels, outputs):
    """Layers in order, without the BatchNorm that follows every convolution, and the sum of its channels."""
    costs, normed = [], 0

    def convolution(kernel, width, wider, side, groups=1, prelu=True):
        nonlocal normed
        costs.append(conv(kernel, width, wider, side, groups))
        costs.append(only(wider * prelu))
        normed += wider

    side = size // 2
    convolution(3, channels, 64, side)
    convolution(3, 64, 64, side, groups=64)
    for expansion, width, wider, stride in TABLE:
        inner = expansion * width
        convolution(1, width, inner, side)
        side //= stride
        convolution(3, inner, inner, side, groups=inner)
        convolution(1, inner, wider, side, prelu=False)
    convolution(1, 128, 512, side)
    costs.append(conv(side, 512, 512, 1, groups=512))
    costs.append(conv(1, 512, outputs, 1))
    return total(costs), normed + 512 + outputs


@pytest.mark.parametrize(("size", "channels"), by_default(2, [(112, 3), (112, 1), (64, 3), (64, 1)]))
def test_parameters_and_multiply_adds_layer_by_layer(size, channels):
    hand, normed = by_hand(size, channels, 128)
    module = sketched("mobilefacenet", size, channels)
    assert numbers(module.parameters()) == hand.parameters + 2 * normed
    assert multiply_adds(module, size=size, channels=channels) == hand.multiply_adds


def test_it_weighs_what_the_paper_says():
    hand, normed = by_hand(112, 3, 128)
    # section 3.3: 0.99 million parameters and 221 million multiply-adds; folded, BatchNorm leaves a bias a channel
    assert round((hand.parameters + normed) / 1e6, 2) == 0.99 and round(hand.multiply_adds / 1e6) == 221
    assert hand.parameters + normed == 993_344 and hand.parameters + 2 * normed == 1_003_136
    module = sketched("mobilefacenet", 112, 3)
    channels = sum(part.num_features for part in module.modules() if isinstance(part, nn.BatchNorm2d))
    assert numbers(module.parameters()) - channels == 993_344 and module.embedding_size == 128


def test_a_bottleneck_is_added_to_its_input_only_where_the_shape_stays():
    for width, wider, stride, adds in [(8, 8, 1, True), (8, 8, 2, False), (8, 16, 1, False)]:
        block = Bottleneck(width, wider, stride, 2).eval()
        maps = torch.randn(1, width, 6, 6, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            block.layers[-1].weight.zero_()  # the last norm gives zero: what is left is the input, or nothing
            out = block(maps)
        assert out.shape == (1, wider, 6 // stride, 6 // stride)
        assert torch.equal(out, maps) if adds else not out.any()


@pytest.mark.skipif(MODELS is None, reason="COALFACE_MODELS is not set: it names the folder with mobilefacenet.pt")
def test_weights_that_others_trained_give_what_their_network_gives(monkeypatch):
    monkeypatch.setitem(sys.modules, "custom_config", SimpleNamespace(device="cpu", num_classes=2, emb_size=128))
    monkeypatch.syspath_prepend(MODELS)
    oracle = importlib.import_module("mobilefacenet_reference").MobileFaceNet().eval()
    path = Path(MODELS, "mobilefacenet.pt")
    oracle.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    options = {"size": 112, "convention": IMAGENET, "generator": np.random.default_rng(0)}
    pixels = torch.randint(0, 256, (4, 3, 112, 112), generator=torch.Generator().manual_seed(0)).float()
    pixels[2:] = pixels[2:, :1]  # grey
    mean, std = (torch.tensor(level).view(3, 1, 1) for level in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for channels in (3, 1):
        network = build("mobilefacenet-relu", channels=channels, **options)
        tensors, _ = fit_weights(read_weights(path), network)
        network.load_state_dict(tensors, strict=False)
        given = pixels if channels == 3 else pixels[2:]
        with torch.no_grad():
            expected = oracle((given / 255 - mean) / std)
            embeddings = network.eval()((given[:, :channels] - 127.5) / 127.5)
        torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
