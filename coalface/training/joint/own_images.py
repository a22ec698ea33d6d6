"""Which of a client's own images it trains on: those whose identity it knows or can tell, perhaps the easier first.

After SS-FedFR and CL-FedFR: Dube, Eroğlu Erdem, Korçak, "CL-FedFR: curriculum learning for federated face recognition",
VISIGRAPP 2024, and its public code (github.com/dcdube/CL-FedFR).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalface.core.method import Party, Tensors
from coalface.data.faceset import FaceSet
from coalface.training.losses.base import unit

BLOCK = 4096
"""Images that are compared with class embeddings, or whose sharpness is computed, at a time."""


@dataclass(frozen=True)
class Curriculum:
    """The easier half of a client's images first, then all."""

    order: Literal["norm", "sharpness"] = "norm"
    """What tells an easy image: the norm of its embedding by the model that the client was sent, or its sharpness."""
    rounds: float = 0.5
    """The share of the stage's rounds that have the easier half alone."""

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= 1:
            raise ValueError(f"curriculum.rounds is {self.rounds}; give a share from 0 to 1")

    def applies(self, party: Party) -> bool:
        """Whether the party's round under way has the easier half alone."""
        return party.round <= self.rounds * party.rounds

    def easier(self, party: Party, faces: FaceSet, backbone: Tensors, kept: Tensors | None) -> FaceSet:
        """The easier half of some images of the party's, in their order; the party's module is left loaded."""
        if self.order == "sharpness":
            return faces.select(easier_half(sharpness(faces)))
        party.backbone.load(backbone, kept)
        return faces.select(easier_half(party.compute.embed_all(party.backbone, faces).norm(dim=1).cpu().numpy()))


def easier_half(ease: NDArray[np.floating]) -> NDArray[np.int64]:
    """Which ⌈n/2⌉ of n images are the easiest, ascending; of equally easy ones the first."""
    return np.sort(np.argsort(-ease, kind="stable")[: (len(ease) + 1) // 2])


def sharpness(faces: FaceSet) -> NDArray[np.float64]:
    """(n,) the variance of each image's discrete Laplacian, 4 v − its four neighbours, inside its border; grey levels.

    Colours are averaged first.
    """
    variances = np.empty(len(faces))
    for at in range(0, len(faces), BLOCK):
        places = np.arange(at, min(at + BLOCK, len(faces)))
        grey = faces.take(places).mean(axis=3)
        laplacian = 4 * grey[:, 1:-1, 1:-1] - grey[:, :-2, 1:-1] - grey[:, 2:, 1:-1] - grey[:, 1:-1, :-2]
        variances[places] = (laplacian - grey[:, 1:-1, 2:]).var(axis=(1, 2))
    return variances


def confident_labels(features: Tensor, head: Tensor, public: int, threshold: float) -> NDArray[np.int64]:
    """(n,) the identity of each of (n, d) unit features where it can be told, 0 to k − 1, else −1.

    It is that of the largest cosine to the (K + k, d) class embeddings, of which the first `public`, K, are of others:
    an image that is nearest to one of these, or whose cosine is not above `threshold`, is told nothing of.
    """
    rows, labels = unit(head), list[Tensor]()
    for block in features.split(BLOCK):
        most, nearest = (block @ rows.T).max(dim=1)
        labels.append(torch.where((most > threshold) & (nearest >= public), nearest - public, -1))
    return torch.cat(labels).cpu().numpy() if labels else np.empty(0, dtype=np.int64)


def with_labelled(known: FaceSet, unlabelled: FaceSet, labels: NDArray[np.int64]) -> FaceSet:
    """The images of known identity, and after them those of the others that have got one; all with its identities."""
    joined = unlabelled.select(np.flatnonzero(labels >= 0))
    joined = replace(joined, labels=labels[labels >= 0], names=known.names)
    both = known.beside(joined)
    return replace(both, labels=np.concatenate([known.labels, joined.labels]), names=known.names)
