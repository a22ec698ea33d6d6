"""Images of a run, embedded for the lab's evaluation by a model that it left."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Backbone, Tensors
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData


def load(backbone: Backbone, model: Tensors) -> None:
    """A whole model into the backbone, with what its policy keeps at parties where the model has that."""
    shared, private = backbone.shared(), backbone.kept()
    backbone.load({n: model[n] for n in shared}, {n: model[n] for n in private} if private else None)


def embeddings(data: FederatedData, faces: FaceSet) -> Tensor:
    """(n, d) embeddings of all images as at the parties, unaugmented, not brought to length one."""
    return data.compute.embed_all(data.backbone, faces).cpu()


def unit(rows: Tensor) -> NDArray[np.float32]:
    """(n, d) at length one; zeros stay zeros."""
    return np.asarray(torch.nn.functional.normalize(rows.float(), dim=1).numpy(), dtype=np.float32)
