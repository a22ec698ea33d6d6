"""How well models of tiny federations tell the people of their images apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coalface.core.method import Method, Tensors
from coalface.data.augment import to_tensor
from coalface.data.faceset import FaceSet
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.training.local_work import LocalTraining

GAIN = 0.15
"""Of the area under the ROC curve of genuine against impostor pairs; 0.5 is chance, the untrained model has 0.6."""
ROUNDS = 20
LEARNING = LocalTraining(epochs=5, batch_size=8, lr=0.05)


def cosines(model: Tensors, build: Tiny, faces: FaceSet) -> tuple[Tensor, Tensor]:
    """(n, n) cosines between the embeddings of images by a model, and the (n,) identities."""
    backbone = build().backbone
    backbone.module.load_state_dict({**backbone.module.state_dict(), **model})
    with torch.no_grad():
        images = to_tensor(faces.take(np.arange(len(faces))))
        embeddings = backbone.module.eval()(images.double() if build.double else images)
    embeddings = torch.nn.functional.normalize(embeddings)
    return embeddings @ embeddings.T, torch.from_numpy(faces.labels)


def auc(model: Tensors, build: Tiny, faces: FaceSet) -> float:
    """The share of (genuine, impostor) pairs of images in which the genuine one has the larger cosine."""
    cosine, labels = cosines(model, build, faces)
    pairs = torch.triu_indices(len(labels), len(labels), 1)
    values, same = cosine[pairs[0], pairs[1]], labels[pairs[0]] == labels[pairs[1]]
    genuine, impostor = values[same], values[~same]
    return float((genuine[:, None] > impostor[None, :]).double().mean())


def figure(models: Mapping[str, Tensors], shared: Tensors, build: Tiny) -> float:
    """The mean over parties of the figure of the model that each is left with, on its own images.

    Parties of one identity have no impostors: there it is that of the shared model on the images of all.
    """
    if build.one_identity:
        return auc(shared, build, build.trained())
    data = replace(build, uses_target_labels=True)().data
    if build.pooled and build.domains and not build.uses_target_labels:  # of the identities that it is told
        data = {party: faces.only([0, 1]) for party, faces in data.items()}
    return sum(auc(models.get(party, shared), build, faces) for party, faces in data.items()) / len(data)


def learned(method: Method, build: Tiny, folder: Path) -> tuple[float, float]:
    """The figure of the untrained model, and of what a run leaves."""
    ran = run(method, folder, build)
    before = figure({}, build().backbone.shared(), build)
    return before, figure(ran.own_models(), ran.models.shared or {}, build)
