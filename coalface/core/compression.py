"""Compression of replies: tensors of an update as float16, bfloat16 or int8, restored at the server.

What is narrowed is a float32 tensor y of two dimensions or more that must look like a tensor x which the party was
sent. Where x is the field of the same name, δ = y − x is sent and the server takes x + δ̂; a field that is only
`like("other")`, such as a gradient, is no change of x, so δ = y and the server takes δ̂. Tensors of one dimension or
none stay as they are: they are few bytes, and a running variance that is rounded may come out below zero. So do
tensors that are not float32 (labels, a validator's scores) and `free()` ones, whose form the server does not know.

int8: each row of the first dimension has a scale s = max|δ| / 127, sent as float32; q = δ / s to the nearest, ties to
even; δ̂ = q s. So |δ̂ − δ| ≤ s / 2, but for the rounding of float32, in which all of this is computed. A row of which s
would be below the smallest normal float32 counts as zero.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from coalface.core import codec

Updates = Literal["float16", "bfloat16", "int8"]
TYPES: dict[Updates, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.int8}
SCALES = "scales of "
"""What the name of a tensor's scales begins with; no field can be called so."""
_MOST = 127
_TINY = torch.finfo(torch.float32).tiny


def narrowing(like: codec.Forms, updates: Updates | None) -> codec.Change | None:
    """What `codec.encode` changes in a reply that looks `like` what it must; None where nothing is narrowed.

    A tensor that the type cannot hold (float16 beyond 65,504, or values that are not finite) is left as it is.
    """
    if updates is None:
        return None
    models = _models(like)

    def narrow(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        narrowed: dict[str, Tensor] = {}
        for path, tensor in tensors.items():
            narrowed |= _narrowed(path, tensor, *models[path], updates) if path in models else {path: tensor}
        return narrowed

    return narrow


def widening(like: codec.Forms, updates: Updates | None) -> codec.Change | None:
    """What `codec.decode` changes in such a reply, so that its tensors are float32 again.

    It raises Refused for scales that are missing, of another form, negative or not finite. A tensor of another shape or
    type than a narrowed one has is left as it is, for `codec.validate` to refuse.
    """
    if updates is None:
        return None
    models = _models(like)

    def widen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        widened = dict(tensors)
        for path, (model, changed) in models.items():
            narrow = tensors.get(path)
            if narrow is None or narrow.dtype != TYPES[updates] or narrow.shape != model.shape:
                continue
            delta = narrow.float()
            if updates == "int8":
                delta *= _by_rows(_checked(path, widened.pop(SCALES + path, None), len(narrow)), narrow)
            widened[path] = delta + model.cpu() if changed else delta
        return widened

    return widen


def _models(like: codec.Forms) -> dict[str, tuple[Tensor, bool]]:
    """Name of a tensor that is narrowed -> (what it must look like, whether it is a changed form of that)."""
    return {
        path: (tensor, form.is_change)
        for form in like.values()
        for path, tensor in form.tensors.items()
        if tensor.dtype == torch.float32 and tensor.dim() > 1 and tensor.numel()
    }


def _narrowed(path: str, tensor: Tensor, model: Tensor, changed: bool, updates: Updates) -> dict[str, Tensor]:
    if tensor.dtype != torch.float32 or tensor.shape != model.shape:
        return {path: tensor}
    after = tensor.detach().cpu()
    delta = after - model.cpu() if changed else after
    if updates != "int8":
        narrow = delta.to(TYPES[updates])
        fits = math.isfinite(narrow.sum(dtype=torch.float64))
        return {path: narrow if fits else tensor}
    scales = delta.flatten(1).abs().amax(1) / _MOST
    if not torch.isfinite(scales).all():
        return {path: tensor}
    scales[scales < _TINY] = 0
    steps = torch.where(scales > 0, scales, torch.inf)  # a row of zeros is divided to zeros
    return {path: (delta / _by_rows(steps, delta)).round().to(torch.int8), SCALES + path: scales}


def _checked(path: str, scales: Tensor | None, rows: int) -> Tensor:
    if scales is None or scales.dtype != torch.float32 or scales.shape != (rows,):
        raise codec.Refused(f"{path} came as int8 without its {rows} float32 scales")
    if not (torch.isfinite(scales) & (scales >= 0)).all():
        raise codec.Refused(f"{path} has scales that are negative or not finite")
    return scales


def _by_rows(scales: Tensor, tensor: Tensor) -> Tensor:
    return scales.view(-1, *[1] * (tensor.dim() - 1))
