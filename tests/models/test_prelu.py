"""PReLU against torch's own, bit for bit, and by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cases import by_default
from torch import nn

from coalface.models import build
from coalface.models.layers import PReLU


def test_gradients_by_hand() -> None:
    layer, maps = PReLU(2, init=0.5), torch.tensor([[[[2.0]], [[-3.0]]]], requires_grad=True)
    (layer(maps) * torch.tensor([[[[10.0]], [[4.0]]]])).sum().backward()
    assert layer(maps).flatten().tolist() == [2.0, -1.5]
    assert maps.grad is not None and maps.grad.flatten().tolist() == [10.0, 2.0]
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [0.0, -12.0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_layer_has_the_bits_of_torchs(dtype: torch.dtype, layout: torch.memory_format) -> None:
    g = torch.Generator().manual_seed(0)
    images, gradient = (torch.randn(3, 7, 9, 5, generator=g).to(dtype, memory_format=layout) for _ in range(2))
    images[0, 0, 0, :2] = torch.tensor([0.0, -0.0])
    results = []
    for layer in (PReLU(7).to(dtype), nn.PReLU(7).to(dtype)):
        layer.weight.data = (torch.rand(7, generator=torch.Generator().manual_seed(1)) - 0.3).to(dtype)
        x = images.clone().requires_grad_()
        out = layer(x)
        out.backward(gradient)
        results.append((out, x.grad, layer.weight.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", by_default(1, ["mobilefacenet", "ir18", "sphere20"]))
def test_a_backbone_trains_to_the_bits_that_it_has_with_torchs(
    name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(name, size=32, channels=1, generator=np.random.default_rng(0))
    images = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    results = []
    for forward in (PReLU.forward, nn.PReLU.forward):
        monkeypatch.setattr(PReLU, "forward", forward)
        trained = copy.deepcopy(module).train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = trained(images)
        out.float().square().mean().backward()
        results.append([out, *(p.grad for p in trained.parameters() if p.grad is not None)])
    assert any(isinstance(part, PReLU) for part in module.modules())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
