"""Backbones on the meta device, made once for all tests that only look at them."""

from __future__ import annotations

import functools

from coalface.models import sketch


@functools.cache
def sketched(name, size, channels, embedding_size=None):
    return sketch(name, size=size, channels=channels, embedding_size=embedding_size)


def numbers(tensors):
    return sum(tensor.numel() for tensor in tensors)
