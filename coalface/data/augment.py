"""Pixels as network input, and the augmentation of training batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_tensor(pixels: NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
    """Images (n, height, width, channels), uint8, as float32 (n, channels, height, width): (x − 127.5) / 127.5.

    >>> to_tensor(np.array([0, 255], dtype=np.uint8).reshape(1, 1, 2, 1)).tolist()
    [[[[-1.0, 1.0]]]]
    """
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())  # a copy: torch warns of memory it may not write to
    return images.to(device).to(torch.float32).sub_(127.5).div_(127.5)


DRAWS = 7
"""Numbers drawn per image: flip, shift down, shift across, brightness, contrast, saturation, blur."""


@dataclass(frozen=True)
class Augment:
    """Random flip, crop, colour and blur of a batch in [−1, 1], each image changed on its own.

    Every image takes `DRAWS` uniform numbers from the generator, whatever is switched on and whatever they come out
    as. So two runs that differ in one setting flip the same images, and a stream is at the same place after the same
    number of images.
    """

    flip: bool = True
    """Mirror left and right with probability 1/2."""
    crop: int = 0
    """Shift by a whole number of pixels, uniform in −crop … crop, down and across; the edge is filled by reflection."""
    colour: float = 0.0
    """Brightness, contrast and (of RGB) saturation are multiplied by factors uniform in 1 − colour … 1 + colour."""
    blur: float = 0.0
    """The probability of a blur by (1, 4, 6, 4, 1)/16 down and across, which is a Gaussian of σ = 1 pixel or nearly."""

    def __post_init__(self) -> None:
        if self.crop < 0 or not 0 <= self.colour < 1 or not 0 <= self.blur <= 1:
            raise ValueError(
                f"{self} cannot be applied: crop is a number of pixels from 0, colour a fraction from 0 to below 1, "
                "blur a probability from 0 to 1"
            )

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The changed images (n, channels, height, width), on the same device; nothing is changed in place."""
        return self.by(rng.random((len(images), DRAWS)), images)

    def by(self, draws: NDArray[np.float64], images: Tensor) -> Tensor:
        """The images (n, …) as (n, `DRAWS`) uniform numbers say."""
        if self.crop >= min(images.shape[2:]):
            raise ValueError(
                f"a crop of {self.crop} pixels is too large for images of {images.shape[2]} × {images.shape[3]}: "
                "what is shifted in is the reflection of the rest, so choose a crop smaller than the image"
            )
        if self.flip:
            images = torch.where(_per_image(draws[:, 0] < 0.5, images), images.flip(3), images)
        if self.crop:
            images = _shifted(
                images, np.floor(draws[:, 1:3] * (2 * self.crop + 1)).astype(np.int64) - self.crop, self.crop
            )
        if self.colour:
            factors = (1 + self.colour * (2 * draws[:, 3:6] - 1)).astype(np.float32)
            images = _recoloured(images, *(_per_image(factors[:, k], images).to(images.dtype) for k in range(3)))
        if self.blur:
            chosen = torch.from_numpy(np.flatnonzero(draws[:, 6] < self.blur)).to(images.device)
            images = images.index_copy(0, chosen, _blurred(images[chosen]))
        return images


def _per_image(values: NDArray[np.bool_] | NDArray[np.float32], images: Tensor) -> Tensor:
    return torch.from_numpy(values).to(images.device)[:, None, None, None]


def _shifted(images: Tensor, shift: NDArray[np.int64], limit: int) -> Tensor:
    """Image i moved by shift[i] = (down, across): out[y, x] = in[y − down, x − across], −1 being read at 1.

    All the (2 limit + 1)² windows of the padded images are one strided view, of which each image copies one window; on
    the CPU, copying them one by one is faster.
    """
    height, width = images.shape[2:]
    padded = torch.nn.functional.pad(images, (limit,) * 4, mode="reflect")
    if images.device.type == "cpu" and images.dtype != torch.bfloat16:  # which NumPy has not got
        source = padded.numpy()
        moved = np.empty(images.shape, source.dtype)
        for i, (down, across) in enumerate((limit - shift).tolist()):
            moved[i] = source[i, :, down : down + height, across : across + width]
        return torch.from_numpy(moved)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    start = torch.from_numpy(limit - shift).to(images.device)
    return windows[torch.arange(len(images), device=images.device), :, start[:, 0], start[:, 1]]


def _recoloured(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Scale by brightness with black (−1) fixed, then about the image's mean, then about each pixel's grey; clip."""
    mean = (images.mean(dim=(1, 2, 3), keepdim=True) + 1) * brightness - 1  # once the brightness has changed
    # mean + ((x + 1)·brightness − 1 − mean)·contrast, in one pass over the pixels
    shift = (brightness - 1) * contrast + mean * (1 - contrast)
    images = torch.addcmul(shift, images, brightness * contrast)
    if images.shape[1] == 3:
        grey = (images * images.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True)
        images = grey + (images - grey) * saturation
    return images.clamp_(-1, 1)


def _blurred(images: Tensor) -> Tensor:
    """Two passes of (1, 2, 1)/4 along each axis, the edge reflected; two make (1, 4, 6, 4, 1)/16."""
    for pad in ((0, 0, 1, 1), (1, 1, 0, 0)) * 2:
        padded = torch.nn.functional.pad(images, pad, mode="reflect")
        axis = 2 if pad[2] else 3
        length = images.shape[axis]
        images = (padded.narrow(axis, 0, length) + 2 * images + padded.narrow(axis, 2, length)) / 4
    return images
