"""Backbones: the networks that map face images to embeddings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from coalface.core.errors import PluginError, RecipeError
from coalface.core.registry import Registry
from coalface.core.text import several
from coalface.data.source import LARGEST_SIDE
from coalface.models.cnn import CnnSmall
from coalface.models.embedding import eval_mode
from coalface.models.feduv_cnn import FedUvCnn
from coalface.models.groups import Backbone, BatchNormPolicy
from coalface.models.iresnet import IResNet
from coalface.models.mobilefacenet import MobileFaceNet
from coalface.models.pretrained.input import InputConvention, WithInput
from coalface.models.resnet import ResNet34
from coalface.models.sphere import SphereNet
from coalface.models.vit import VitTiny

__all__ = ["BACKBONES", "Backbone", "BatchNormPolicy", "build", "sketch"]

_OWN: dict[str, Callable[..., nn.Module]] = {
    "cnn-small": CnnSmall,
    "feduv-cnn": FedUvCnn,
    "ir18": partial(IResNet, 18),
    "ir34": partial(IResNet, 34),
    "ir50": partial(IResNet, 50),
    "ir100": partial(IResNet, 100),
    "resnet34": ResNet34,
    "sphere20": partial(SphereNet, 20),
    "sphere64": partial(SphereNet, 64),
    "mobilefacenet": MobileFaceNet,
    "mobilefacenet-relu": partial(MobileFaceNet, relu=True),
    "vit-tiny": VitTiny,
}
BACKBONES = Registry[Callable[..., nn.Module]](
    "coalface.backbones", _OWN, callable, "a function or class that makes an nn.Module"
)
"""Name → `make(size, channels, embedding_size=its own default)`.

Every backbone maps images (n, channels, size, size), float in [−1, 1], to embeddings (n, embedding_size) that are not
normalised to unit length.
"""


def build(
    name: str,
    *,
    size: int,
    channels: int,
    embedding_size: int | None = None,
    convention: InputConvention | None = None,
    generator: np.random.Generator,
) -> nn.Module:
    """A backbone on the CPU, in training mode, with fresh weights drawn from `generator` alone.

    One draw from `generator` seeds the weights: the same state of the generator gives the same bytes, and torch's own
    random state is left as it was. `size` is the side of the square image in pixels, `channels` 1 (grey) or 3 (RGB);
    `embedding_size` None means the backbone's own default. With a `convention`, the network stands in a `WithInput`,
    which takes images in [−1, 1] all the same.

    Raises ValueError for an unknown name, or a size that the backbone cannot take.
    """
    seed = int(generator.integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        with torch.device("cpu"):
            return _make(name, size, channels, embedding_size, convention)


def sketch(
    name: str,
    *,
    size: int,
    channels: int,
    embedding_size: int | None = None,
    convention: InputConvention | None = None,
) -> nn.Module:
    """A backbone on the meta device: names, shapes and dtypes without memory for weights, for counting.

    Raises ValueError as `build` does.
    """
    with torch.device("meta"), _Undrawn():
        return _make(name, size, channels, embedding_size, convention)


class _Undrawn(TorchFunctionMode):
    """Within, no normal numbers are drawn: on the meta device they import a compiler, which takes 1.5 s."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in ("normal_", "trunc_normal_"):
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def _make(
    name: str, size: int, channels: int, embedding_size: int | None, convention: InputConvention | None
) -> nn.Module:
    make = BACKBONES.find(name, "model.name")
    if channels not in (1, 3):
        raise ValueError(f"backbone {name!r}: {channels} channels; images are grey (channels=1) or RGB (channels=3)")
    if size > LARGEST_SIDE:
        raise ValueError(f"backbone {name!r}: images of {size}×{size} are too large; give size {LARGEST_SIDE} or less")
    if embedding_size is not None and embedding_size < 1:
        raise ValueError(f"backbone {name!r}: an embedding of {embedding_size} numbers; give embedding_size 1 or more")
    images, channels = channels, (convention and convention.channels) or channels
    if channels < images:
        raise RecipeError("the network takes one channel and the images have three: use data.grey", where="model.input")
    given = (size, channels) if embedding_size is None else (size, channels, embedding_size)
    module = make(*given) if name in BACKBONES.own else _measured(make, given, name)
    return module if convention is None else WithInput(module, convention, images, channels)


def _measured(make: Callable[..., nn.Module], given: tuple[int, ...], name: str) -> nn.Module:
    """A backbone of somebody else, or a copy of one, with its `embedding_size`, which one image through it tells.

    Raises PluginError where it cannot be made, or gives no embeddings.
    """
    try:
        module = copy.deepcopy(make) if isinstance(make, nn.Module) else make(*given)
        if torch.get_default_device().type == "meta":
            module = module.to("meta")
        with torch.no_grad(), eval_mode(module):
            made = module(torch.zeros(1, given[1], given[0], given[0]))
        if made.ndim != 2:
            raise ValueError(f"it makes {tuple(made.shape)} of one image, not (1, embedding size)")
        if len(given) == 3 and made.shape[1] != given[2]:
            raise ValueError(f"it makes embeddings of {made.shape[1]} numbers, not of {given[2]}")
    except Exception as error:  # whatever a network of somebody else raises
        raise PluginError(
            f"{name} does not embed images of {given[0]}×{given[0]} with {several(given[1], 'channel')}: "
            f"{type(error).__name__}: {error}",
            where="model.name",
        ) from error
    module.embedding_size = made.shape[1]
    return module
