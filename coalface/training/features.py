"""Embeddings of a party's images as they are, and class embeddings that start at their means."""

from __future__ import annotations

import torch
from torch import Tensor

from coalface.core.method import Backbone, Party, Tensors
from coalface.data.faceset import FaceSet
from coalface.training.compute import Compute
from coalface.training.losses.base import unit


def unit_features(party: Party, faces: FaceSet, backbone: Tensors, kept: Tensors | None = None) -> Tensor:
    """(n, d) unit features of images at a party, unaugmented, in evaluation mode; the party's module is left loaded.

    `kept` is what the BatchNorm policy keeps at the party. Raises ValueError where a feature is not finite or zero.
    """
    party.backbone.load(backbone, kept)
    return loaded_features(party.name, party.backbone, party.compute, faces)


@torch.no_grad()
def loaded_features(holder: str, backbone: Backbone, compute: Compute, faces: FaceSet) -> Tensor:
    """(n, d) unit features of images by what the backbone is loaded with; `holder` is who has the images.

    Raises ValueError where a feature is not finite or zero.
    """
    features = unit(compute.embed_all(backbone, faces))
    bad = (~((features.norm(dim=1) - 1).abs() < 0.5)).nonzero().view(-1)
    if len(bad):
        raise ValueError(
            f"{holder}: the features of {len(bad)} of {len(faces)} images are zero or not finite, the first of "
            f"image {int(bad[0])}: the model that it was sent has collapsed or diverged"
        )
    return features


def mean_head(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(k, d) class embeddings at the direction of the mean of each class's (n, d) unit features.

    A class without images, or whose features cancel, gets zeros. `labels` (n,), 0 to k − 1.
    """
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, features.double())
    return unit(sums).to(features.dtype)
