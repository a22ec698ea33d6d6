"""How pixels become embeddings at a party: augmentation, memory layout, autocast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.data.augment import DRAWS, Augment, to_tensor
from coalface.data.faces import FaceSet


@dataclass(frozen=True)
class Compute:
    """The arithmetic of a run, the same at every party."""

    augment: Augment = Augment()
    device: str = "cpu"
    autocast: str | None = None
    """None for float32 throughout, or `bfloat16` for the forward pass of the backbone."""
    channels_last: bool = False
    dtype: torch.dtype = torch.float32
    """Of the images, and so of the arithmetic of a backbone with such parameters; float64 is for exact comparisons."""

    def batch(
        self, faces: FaceSet, index: NDArray[np.int64], rng: np.random.Generator, part: slice | None = None
    ) -> tuple[Tensor, Tensor]:
        """Augmented images (n, c, h, w) in [−1, 1] and labels (n,) on the device.

        With `part`, a slice with both ends, only so many of the n, changed as they would be among all of them; `rng` is
        left as after all.
        """
        whole = len(index)
        if part is not None:
            rng.random((part.start, DRAWS))
            index = index[part]
        images = self.augment(to_tensor(faces.take(index)), rng)
        if part is not None:
            rng.random((whole - part.stop, DRAWS))
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images.to(self.device, self.dtype), torch.from_numpy(faces.labels[index]).to(self.device)

    def embed(self, module: nn.Module, images: Tensor) -> Tensor:
        """Embeddings (n, d) of a batch, in float32 or wider."""
        if self.autocast is None:
            return module(images)
        with torch.autocast(torch.device(self.device).type, dtype=getattr(torch, self.autocast)):
            embeddings: Tensor = module(images)
        return embeddings.float()
