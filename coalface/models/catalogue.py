"""The backbones side by side: parameters, arithmetic, bytes of a message, and speed on this machine where asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coalface.models import BACKBONES, Backbone, sketch
from coalface.models.embedding import eval_mode
from coalface.models.speed import USUAL, Arithmetic, measure


def catalogue(
    names: Sequence[str] = (),
    *,
    size: int,
    channels: int,
    measured: bool = False,
    batch: int = 8,
    arithmetic: Arithmetic = USUAL,
    begins: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One entry a backbone, at its own embedding size; all of them where `names` is empty.

    Keys: `name`, `embedding_size`, `parameters` (fixed ones included), `multiply_adds` (of one image forward),
    `message_bytes` (the tensors of one message under `batchnorm: average`), `batchnorm` (whether it has any), and where
    `measured`, `speed` (as `Speed`; `begins` is told each name before it is measured). A backbone that cannot take the
    size has `name` and `cannot`, the reason.

    Raises ValueError for an unknown name, for channels that no backbone takes, and as `measure` does.
    """
    entries: list[dict[str, Any]] = []
    for name in names or BACKBONES:
        try:
            module = sketch(name, size=size, channels=channels)
        except ValueError as error:
            if name not in BACKBONES or channels not in (1, 3):
                raise
            entries.append({"name": name, "cannot": str(error)})
            continue
        backbone = Backbone(module)
        message = backbone.shared().values()
        entry: dict[str, Any] = {
            "name": name,
            "embedding_size": backbone.embedding_size,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "multiply_adds": multiply_adds(module, size=size, channels=channels),
            "message_bytes": sum(tensor.numel() * tensor.element_size() for tensor in message),
            "batchnorm": bool(Backbone(module, "local").kept()),
        }
        if measured:
            if begins is not None:
                begins(name)
            entry["speed"] = asdict(measure(name, size=size, channels=channels, batch=batch, arithmetic=arithmetic))
        entries.append(entry)
    return entries


def multiply_adds(module: nn.Module, *, size: int, channels: int) -> int:
    """Multiply-adds of the forward pass of one image in eval mode.

    One multiply-add (MAC) is a product and its addition to a sum: two floating-point operations. Papers of the field
    mostly print multiply-adds, often under the name of FLOPs. Counted are convolutions, linear layers and the two
    matrix products of attention; not counted are biases, normalisation, activations, pools and sums (a few per cent).
    A convolution of k×k from c channels (in g groups) to c′ at h×w positions has h · w · c′ · k² · c / g of them, a
    linear layer inputs · outputs. The module is left in the mode it was in; on the meta device nothing is computed.

    >>> multiply_adds(sketch("cnn-small", size=64, channels=1), size=64, channels=1)
    4341760
    """
    device = next(module.parameters()).device
    with eval_mode(module), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.empty(1, channels, size, size, device=device))
    return int(counter.get_total_flops()) // 2
