"""How pixels become embeddings at a party: augmentation, memory layout, autocast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.core.method import Backbone
from coalface.data.augment import DRAWS, Augment, to_tensor
from coalface.data.faceset import FaceSet
from coalface.models.embedding import cache_sized

BATCH = 256
"""Images that are embedded at a time where all of a set are."""


@dataclass(frozen=True)
class Compute:
    """The arithmetic of a run, the same at every party."""

    augment: Augment = Augment()
    by_domain: tuple[Augment, ...] = ()
    """Where given, image i is changed by the one of its domain: pooled images, each as at the silo that it is of."""
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
        draws = rng.random((len(index), DRAWS))
        if part is not None:
            draws, index = draws[part], index[part]
        images = self._ready(self._changed(to_tensor(faces.take(index)), faces, index, draws))
        return images, torch.from_numpy(faces.labels[index]).to(self.device)

    def many(self, parts: Sequence[tuple[FaceSet, NDArray[np.int64], np.random.Generator]]) -> Tensor:
        """The augmented images of several `batch`es, one after the other: (faces, index, rng) of each."""
        draws = np.concatenate([rng.random((len(index), DRAWS)) for _, index, rng in parts])
        store = parts[0][0].pixels
        if self.by_domain or any(faces.pixels is not store for faces, _, _ in parts):
            raise ValueError(
                "the images of a client batch lie in one store and are changed alike: set engine.client_batch=0"
            )
        images = to_tensor(store[np.concatenate([faces.rows[index] for faces, index, _ in parts])])
        return self._ready(self.augment.by(draws, images))

    def plain(self, faces: FaceSet) -> Tensor:
        """(n, c, h, w) all images of a face set as they are."""
        return self._ready(to_tensor(faces.take(np.arange(len(faces)))))

    @torch.no_grad()
    def embed_all(self, backbone: Backbone, faces: FaceSet) -> Tensor:
        """(n, d) embeddings of all images as they are, `BATCH` at a time; the module is left in evaluation mode."""
        module, places = backbone.module.eval(), np.arange(len(faces))
        starts = range(0, len(faces), BATCH)
        blocks = (self.plain(faces.select(places[at : at + BATCH])) for at in starts)
        parts = [self.embed(module, part) for block in blocks for part in cache_sized(block)]
        return torch.cat(parts) if parts else torch.empty(0, backbone.embedding_size, device=self.device)

    def _ready(self, images: Tensor) -> Tensor:
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images.to(self.device, self.dtype)

    def _changed(self, images: Tensor, faces: FaceSet, index: NDArray[np.int64], draws: NDArray[np.float64]) -> Tensor:
        if not self.by_domain or faces.domains is None:
            return self.augment.by(draws, images)
        domains, changed = faces.domains[index], torch.empty_like(images)
        for domain in np.unique(domains):
            places = np.flatnonzero(domains == domain)
            at = torch.from_numpy(places)
            changed[at] = self.by_domain[domain].by(draws[places], images[at])
        return changed

    def embed(self, module: nn.Module, images: Tensor) -> Tensor:
        """Embeddings (n, d) of a batch, in float32 or wider."""
        if self.autocast is None:
            return module(images)
        with torch.autocast(torch.device(self.device).type, dtype=getattr(torch, self.autocast)):
            embeddings: Tensor = module(images)
        return embeddings.float()
