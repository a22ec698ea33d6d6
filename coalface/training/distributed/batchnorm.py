"""BatchNorm over a batch of which each of several processes has a part: the statistics are those of the whole batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coalface.training.distributed.shards import Shards


@contextlib.contextmanager
def synchronised(module: nn.Module, shards: Shards | None, images: int) -> Iterator[None]:
    """Within, BatchNorm layers in training take the statistics of a batch of `images`, which the processes share.

    Output, running statistics and gradients are those that one process would have; the gradient of scale and shift is
    this process's share of the sum. Without `shards` nothing is changed.
    """
    if shards is None:
        yield
        return
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    try:
        for layer in layers:
            layer.forward = functools.partial(_forward, layer, shards, images)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _forward(layer: Any, shards: Shards, images: int, x: Tensor) -> Tensor:
    if not layer.training and layer.running_mean is not None:
        frozen: Tensor = type(layer).forward(layer, x)
        return frozen
    span = shards.span(images)
    if len(x) != span.stop - span.start:
        raise ValueError(
            f"BatchNorm over several processes got {len(x)} rows of a part of {span.stop - span.start} images: the "
            "backbone must keep the images along the first dimension, or its party be played by one process"
        )
    count = images * x.shape[2:].numel()
    if count < 2:
        raise ValueError("BatchNorm cannot train on one value a channel: give batches of 2 images or more")
    with torch.autocast(x.device.type, enabled=False):
        y, mean, variance = _Normalise.apply(x, layer.weight, layer.bias, layer.eps, count, shards)
        if layer.running_mean is not None:
            layer.num_batches_tracked.add_(1)
            rate = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
            unbiased = variance * (count / (count - 1))
            for running, statistic in ((layer.running_mean, mean), (layer.running_var, unbiased)):
                running.mul_(1 - rate).add_(statistic.to(running.dtype), alpha=rate)
    return y


class _Normalise(torch.autograd.Function):
    """y = γ x̂ + β, x̂ = (x − μ) / √(σ² + ε), with μ and σ² over `count` values a channel at all processes.

    dx = γ (dy − mean(dy) − x̂ · mean(dy · x̂)) / √(σ² + ε), whose means are over all of them too. Source: Ioffe and
    Szegedy, "Batch normalization" (ICML 2015), algorithm 1 and section 3.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float, count: int, shards: Shards
    ) -> tuple[Tensor, Tensor, Tensor]:
        across, shape = [d for d in range(x.ndim) if d != 1], [1, -1] + [1] * (x.ndim - 2)
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = shards.sum_(values.sum(across)) / count
        normal = values - mean.view(shape)
        variance = shards.sum_((normal * normal).sum(across)) / count
        inverse = (variance + eps).rsqrt()
        normal *= inverse.view(shape)
        y = normal if scale is None else normal * scale.view(shape)
        y = y if shift is None else y + shift.view(shape)
        ctx.save_for_backward(normal, inverse, scale)
        ctx.about = across, shape, count, shards
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        normal, inverse, scale = ctx.saved_tensors
        across, shape, count, shards = ctx.about
        dy = gradients[0].to(normal.dtype)
        sums = torch.stack([dy.sum(across), (dy * normal).sum(across)])
        means = shards.sum_(sums.clone()) / count
        dx = dy - means[0].view(shape) - normal * means[1].view(shape)
        dx = dx * (inverse if scale is None else inverse * scale).view(shape)
        by_scale, by_shift = (sums[1], sums[0]) if scale is not None else (None, None)
        return dx.to(gradients[0].dtype), by_scale, by_shift, None, None, None
