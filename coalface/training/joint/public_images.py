"""Public images that every party holds beside its own: which of them are near its people, and their features once.

C.-T. Liu et al., "FedFR: joint optimization federated framework for generic and personalized face recognition", 2022.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Party, Tensors
from coalface.data.faceset import FaceSet
from coalface.training.features import unit_features

BLOCK = 4096
"""Public features that are compared at a time."""


class PublicImages:
    """Public images, and their features by the model that they were last asked for of.

    Parties of one process would each compute them alike, so the first of them that asks does it for all. What they are
    given is shared: nobody may change it.
    """

    def __init__(self, faces: FaceSet, class_embeddings: Tensor | None = None) -> None:
        self.faces = faces
        self.class_embeddings = class_embeddings
        """(k, d) of their identities, at a server whose pre-training left some."""
        self._last: tuple[str, Tensor] | None = None

    def features(self, party: Party, backbone: Tensors, kept: Tensors | None = None) -> Tensor:
        """(P, d) unit features, made at the party where nobody did; `kept` is what stays there of the backbone."""
        model = digest({**backbone, **(kept or {})})
        if self._last is None or self._last[0] != model:
            self._last = None  # what is replaced takes no memory beside what replaces it
            self._last = model, unit_features(party, self.faces, backbone, kept)
        return self._last[1]


def public_features(party: Party, backbone: Tensors, kept: Tensors | None = None) -> Tensor:
    """(P, d) unit features of the party's public images; parties of one process share those of one model.

    Raises ValueError where the party holds no public images.
    """
    public = party.extra_data
    if not isinstance(public, PublicImages) or not len(public.faces):
        raise ValueError(f"{party.name} holds no public images: use data.scenario=private-public")
    return public.features(party, backbone, kept)


def hard_negatives(public: Tensor, local: Tensor, threshold: float, block: int = BLOCK) -> NDArray[np.int64]:
    """Which of (P, d) public unit features have a cosine above `threshold` with any of (n, d) `local` ones; ascending.

    Time O(P n d), memory O(block · n): the cosines of all are never there together. Source: FedFR, "Hard Negative
    Sampling Strategy".
    """
    if not len(local) or not len(public):
        return np.empty(0, dtype=np.int64)
    most = [(public[at : at + block] @ local.T).amax(1) for at in range(0, len(public), block)]
    return np.flatnonzero((torch.cat(most) > threshold).cpu().numpy())


def digest(tensors: Tensors) -> str:
    """SHA-256 over the names and bytes of tensors: tells models apart."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha256.hexdigest()
