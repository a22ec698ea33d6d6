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
from coalface.training.features import unit_features

BLOCK = 4096
"""Public features that are compared at a time."""


def public_features(party: Party, backbone: Tensors, kept: Tensors | None = None) -> Tensor:
    """(P, d) unit features of the party's public images; parties of one process share those of one model.

    Raises ValueError where the party holds no public images.
    """
    if party.public is None or not len(party.public):
        raise ValueError(f"{party.name} holds no public images: give the recipe `data.private`; all others are public")
    return party.memo(
        "public features",
        digest({**backbone, **(kept or {})}),
        lambda: unit_features(party, party.public, backbone, kept),
    )


def hard_negatives(public: Tensor, own: Tensor, threshold: float, block: int = BLOCK) -> NDArray[np.int64]:
    """Which of (P, d) public unit features have a cosine above `threshold` with any of (n, d) own ones; ascending.

    Time O(P n d), memory O(block · n): the cosines of all are never there together. Source: FedFR, "Hard Negative
    Sampling Strategy".
    """
    if not len(own) or not len(public):
        return np.empty(0, dtype=np.int64)
    most = [(public[at : at + block] @ own.T).amax(1) for at in range(0, len(public), block)]
    return np.flatnonzero((torch.cat(most) > threshold).cpu().numpy())


def digest(tensors: Tensors) -> str:
    """SHA-256 over the names and bytes of tensors: tells models apart."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
