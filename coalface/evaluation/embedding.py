"""Images of a run, embedded for the lab's judges by a model that it left."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Tensors
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData

BATCH = 256
"""Images that are embedded at a time."""


def load(here: FederatedData, model: Tensors) -> None:
    """A whole model into the backbone, with what its policy keeps at parties where the model has that."""
    shared, kept = here.backbone.shared(), here.backbone.kept()
    here.backbone.load({n: model[n] for n in shared}, {n: model[n] for n in kept} if kept else None)


@torch.no_grad()
def embeddings(here: FederatedData, faces: FaceSet) -> Tensor:
    """(n, d) embeddings of all images as at the parties, unaugmented, not brought to length one."""
    module, places = here.backbone.module.eval(), np.arange(len(faces))
    each = [
        here.compute.embed(module, here.compute.plain(faces.select(places[start : start + BATCH]))).cpu()
        for start in range(0, len(faces), BATCH)
    ]
    return torch.cat(each) if each else torch.empty(0, here.backbone.embedding_size)


def unit(rows: Tensor) -> NDArray[np.float32]:
    """(n, d) at length one; zeros stay zeros."""
    return np.asarray(torch.nn.functional.normalize(rows.float(), dim=1).numpy(), dtype=np.float32)
