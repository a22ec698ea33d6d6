"""The strided depthwise convolution: its gradients by a naive sum and by torch's own, in bfloat16 and else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coalface.models.layers import DepthwiseConv2d


def test_gradients_by_hand() -> None:
    """On one line of three values y_0 = w_1 x_0 + w_2 x_1 and y_1 = w_0 x_1 + w_1 x_2."""
    layer = DepthwiseConv2d(1, 3, 2).bfloat16()
    layer.weight.data.zero_()
    layer.weight.data[0, 0, 1] = torch.tensor([2.0, 3.0, 5.0])
    line = torch.tensor([[[[1.0, 3.0, 5.0]]]], dtype=torch.bfloat16, requires_grad=True)
    out = layer(line)
    assert out.flatten().tolist() == [18.0, 21.0]
    out.backward(torch.tensor([[[[1.0, 4.0]]]], dtype=torch.bfloat16))
    assert line.grad is not None and line.grad.flatten().tolist() == [3.0, 5.0 + 8.0, 12.0]
    assert layer.weight.grad is not None and layer.weight.grad[0, 0, 1].tolist() == [12.0, 1.0 + 20.0, 3.0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(8, 8), (7, 9)])
def test_bfloat16_gradients_are_torchs_to_its_rounding(shape: tuple[int, int], layout: torch.memory_format) -> None:
    g = torch.Generator().manual_seed(0)
    images = torch.randn(3, 6, *shape, generator=g).to(memory_format=layout)
    ours = DepthwiseConv2d(6, 3, 2)
    torchs, theirs = (nn.Conv2d(6, 6, 3, 2, padding=1, groups=6, bias=False) for _ in range(2))
    torchs.weight.data = ours.weight.data
    theirs.double().weight.data = ours.weight.data.bfloat16().double()
    gradients: list[list[Tensor]] = []
    for layer, autocast in ((ours, True), (torchs, True), (theirs, False)):
        x = images.bfloat16().to(layer.weight.dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = layer(x)
        out.backward(torch.ones_like(out))
        assert x.grad is not None and layer.weight.grad is not None
        gradients.append([out.double(), x.grad.double(), layer.weight.grad.double()])
    (out, to_maps, to_filters), (*_, of_torch), (exact_out, exact_to_maps, exact) = gradients
    tolerance = {"rtol": 2**-8, "atol": 2**-8}
    torch.testing.assert_close(out, exact_out, **tolerance)
    torch.testing.assert_close(to_maps, exact_to_maps, **tolerance)
    # The filters' is torch's own, which without AVX-512 is further from the exact one.
    expected = exact if torch.allclose(of_torch, exact, **tolerance) else of_torch
    torch.testing.assert_close(to_filters, expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_have_torchs_bits(dtype: torch.dtype) -> None:
    images = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer = DepthwiseConv2d(4, 3, 2).to(dtype)
    own, plain = (images.clone().requires_grad_() for _ in range(2))
    layer(own).square().sum().backward()
    nn.functional.conv2d(plain, layer.weight, stride=2, padding=1, groups=4).square().sum().backward()
    assert torch.equal(own.grad, plain.grad)  # type: ignore[arg-type]


def test_stacked_filters_give_what_each_gives_alone() -> None:
    """As a client batch computes several parties' steps at once."""
    layer, g = DepthwiseConv2d(4, 3, 2).bfloat16(), torch.Generator().manual_seed(0)
    images, filters = torch.randn(3, 2, 4, 8, 8, generator=g).bfloat16(), torch.randn(3, 4, 1, 3, 3, generator=g)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, x).float().square().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1))
    together = torch.func.vmap(gradient)(filters.bfloat16(), images)
    alone = [gradient(weight, x) for weight, x in zip(filters.bfloat16(), images, strict=True)]
    for several, single in zip(together, map(torch.stack, zip(*alone, strict=True)), strict=True):
        torch.testing.assert_close(several, single)
