"""PReLU and strided depthwise convolutions whose gradients take a CPU no longer than they must."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PReLU(nn.PReLU):
    """torch's own to the bit: x where x > 0, else a x, with one a for each channel; (n, c, h, w) → (n, c, h, w).

    torch's kernel for the gradients on a CPU goes value by value, and took a third of a training step of
    `mobilefacenet`. This one is of whole-tensor operations: g₊ = g where x > 0, else 0; g₋ = g − g₊; ∂x = g₊ + a g₋;
    ∂a = Σ x g₋. Every value is rounded once, as in torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.is_cuda or not torch.is_grad_enabled():
            return super().forward(input)
        if torch.is_autocast_enabled("cpu"):  # as autocast has it for torch's own
            input = input.to(torch.get_autocast_dtype("cpu"))
        maps: Tensor = _PReLU.apply(input, self.weight.view(1, -1, 1, 1).to(input.dtype))
        return maps


class _PReLU(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, slopes: Tensor) -> Tensor:
        return torch._prelu_kernel(maps, slopes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        maps, slopes = ctx.saved_tensors
        above = torch.ops.aten.threshold_backward(gradient, maps, 0)
        below = gradient - above
        return torch.addcmul(above, below, slopes), (below * maps).sum((0, 2, 3), keepdim=True)


class DepthwiseConv2d(nn.Conv2d):
    """One k×k filter for each channel, k odd, padded by (k − 1) / 2; (n, c, h, w) → (n, c, ⌈h / stride⌉, ⌈w / stride⌉).

    In bfloat16 on a CPU, torch's gradient to the input of a strided one takes 30 to 60 times the forward pass, and
    three of them took half a training step of `mobilefacenet`. Here it is the convolution of the gradient, with zeros
    between its values, and the turned filters, without a stride: the same sum. All else is torch's own.
    """

    def __init__(self, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels, channels, kernel, stride, padding=kernel // 2, groups=channels, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.stride == (1, 1) or input.is_cuda or not torch.is_grad_enabled():
            return super().forward(input)
        if torch.is_autocast_enabled("cpu"):
            input = input.to(torch.get_autocast_dtype("cpu"))
        if input.dtype != torch.bfloat16:
            return super().forward(input)
        maps: Tensor = _Strided.apply(input, self.weight.to(input.dtype), self.stride[0])
        return maps


class _Strided(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, filters: Tensor, stride: int) -> Tensor:
        return F.conv2d(maps, filters, stride=stride, padding=filters.shape[-1] // 2, groups=len(filters))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.stride = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (maps, filters), stride = ctx.saved_tensors, ctx.stride
        groups, side = len(filters), filters.shape[-1] // 2
        spread = torch.zeros_like(maps)
        spread[:, :, ::stride, ::stride] = gradient
        to_maps = F.conv2d(spread, filters.flip(2, 3), padding=side, groups=groups)
        to_filters = torch.ops.aten.convolution_backward(
            gradient, maps, filters, None, [stride] * 2, [side] * 2, [1, 1], False, [0, 0], groups, [False, True, False]
        )[1]
        return to_maps, to_filters, None
