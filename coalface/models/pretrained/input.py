"""The input convention of a network: the numbers that it takes a pixel for, and its channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Levels = float | tuple[float, float, float]


@dataclass(frozen=True)
class InputConvention:
    """What a network expects: (pixel − mean) / std, for pixels from 0 to 255, and the order of its channels."""

    mean: Levels = 127.5
    """Subtracted from a pixel; one number, or one for each channel as the network takes them."""
    std: Levels = 127.5
    """What the difference is divided by."""
    order: Literal["rgb", "bgr"] = "rgb"
    """The order of the channels."""
    channels: Literal[1, 3] | None = None
    """Channels of the network; 3 with grey images: the one channel three times. None: those of the images."""

    def __post_init__(self) -> None:
        if min(self.std if isinstance(self.std, tuple) else [self.std]) <= 0:
            raise ValueError("std must be above 0")

    def __str__(self) -> str:
        """As a person reads it: `RGB, (x − 127.5) / 127.5`, with one level for each channel where they differ."""
        colour = "grey" if self.channels == 1 else self.order.upper()
        if (self.mean, self.std) == (0, 1):
            return f"{colour}, pixels 0 to 255"
        mean, std = (
            f"({', '.join(f'{part:.9g}' for part in level)})" if isinstance(level, tuple) else f"{level:.9g}"
            for level in (self.mean, self.std)
        )
        return f"{colour}, (x − {mean}) / {std}"


IMAGENET = InputConvention(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), channels=3)
"""What torchvision's networks take, and many that began with its code."""


def convention_of(about: Mapping[str, Any]) -> InputConvention | None:
    """That of `model.json`; None for pixels in [−1, 1] as they come."""
    if (given := about.get("input")) is None:
        return None
    mean, std = (tuple(level) if isinstance(level, list) else level for level in (given["mean"], given["std"]))
    return InputConvention(mean, std, given["order"], given["channels"])


class WithInput(nn.Module):
    """A network behind the conversion of its input: it takes images in [−1, 1] as every backbone does.

    x ↦ f(x · 127.5 / std + (127.5 − mean) / std), `mean` and `std` by channel in the order that the network takes them.
    The factors are no parameters and stand in no message and no file of tensors: they follow from the convention.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, convention: InputConvention, images: int, channels: int) -> None:
        """`images` is the number of channels that images have, `channels` that of the network."""
        super().__init__()
        self.network, self.embedding_size, self.convention = network, network.embedding_size, convention
        self.repeated, self.reversed = channels // images, convention.order == "bgr"
        mean, std = (torch.tensor(level, dtype=torch.float64) for level in (convention.mean, convention.std))
        scale, shift = (factor.float().reshape(-1, 1, 1) for factor in (127.5 / std, (127.5 - mean) / std))
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def extra_repr(self) -> str:
        return repr(self.convention)

    def forward(self, images: Tensor) -> Tensor:
        images = images.repeat(1, self.repeated, 1, 1) if self.repeated > 1 else images
        images = images.flip(1) if self.reversed else images
        embeddings: Tensor = self.network(images * self.scale + self.shift)
        return embeddings
