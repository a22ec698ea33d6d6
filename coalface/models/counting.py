"""Multiply-adds: how much arithmetic a backbone does on one image."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coalface.models.embedding import eval_mode


def multiply_adds(module: nn.Module, *, size: int, channels: int) -> int:
    """Multiply-adds of the forward pass of one image in eval mode.

    One multiply-add (MAC) is a product and its addition to a sum: two floating-point operations. Papers of the field
    mostly print multiply-adds, often under the name of FLOPs. Counted are convolutions, linear layers and the two
    matrix products of attention; not counted are biases, normalisation, activations, pools and sums (a few per cent).
    A convolution of k×k from c channels (in g groups) to c′ at h×w positions has h · w · c′ · k² · c / g of them, a
    linear layer inputs · outputs. The module is left in the mode it was in; on the meta device nothing is computed.

    >>> from coalface.models import sketch
    >>> multiply_adds(sketch("cnn-small", size=64, channels=1), size=64, channels=1)
    4341760
    """
    device = next(module.parameters()).device
    with eval_mode(module), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.empty(1, channels, size, size, device=device))
    return int(counter.get_total_flops()) // 2
