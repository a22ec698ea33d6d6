"""Images whose labels are likely wrong: a model finds them nearer to another identity than to their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import several
from coalface.data.stores import Store
from coalface.evaluation.feature_file import QUIET, Show
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.gallery.images import embed_images, images_of

MARGIN = 0.1
"""By so much the cosine with the other centre is greater, at least."""
LEAST = 3
"""Images of an identity from which on its centre says something."""
_ROWS = 1024


@dataclass(frozen=True)
class Suspect:
    """An image that another identity's images are nearer to than those of its own."""

    file: str
    identity: str
    cosine: float
    """With the centre of its identity's other images."""
    nearer: str
    """The identity whose centre is the nearest."""
    nearer_cosine: float


@dataclass(frozen=True)
class LabelNoise:
    """What a model says of the labels of a set."""

    suspects: list[Suspect]
    """The worst first."""
    images: int
    """How many were compared: of identities with `LEAST` images or more."""

    def __str__(self) -> str:
        """The finding, or nothing."""
        if not self.suspects:
            return ""
        if 5 * len(self.suspects) > self.images:
            return (
                f"{len(self.suspects):,} of {several(self.images, 'image')} are nearer to another identity than to "
                "their own: the model does not tell these people apart, so it says nothing of their labels"
            )
        worst, count = self.suspects[0], len(self.suspects)
        are = "image is likely labelled wrongly" if count == 1 else "images are likely labelled wrongly"
        return (
            f"{count:,} {are}, such as {worst.file}: its cosine with {worst.identity} is {worst.cosine:.2f}, and "
            f"{worst.nearer_cosine:.2f} with {worst.nearer}; look at each, and move or delete it (--json lists all)"
        )


def find_label_noise(model: FaceModel, store: Store, show: Show = QUIET) -> LabelNoise:
    """Embed all images of a set that can be read, and compare each with the identities."""
    batches = list(embed_images(model, images_of(store), show))
    embedded = [image for batch in batches for image in batch.images]
    numbers = {name: number for number, name in enumerate(store.names)}
    labels = np.array([numbers[image.person] for image in embedded], dtype=np.int64)
    compared = int((np.bincount(labels)[labels] >= LEAST).sum())
    embeddings = [batch.embeddings for batch in batches if batch.images]
    rows = suspects(np.concatenate(embeddings), labels) if embeddings else []
    return LabelNoise(
        [
            Suspect(embedded[i].file, embedded[i].person, cosine, store.names[nearer], nearer_cosine)
            for i, cosine, nearer, nearer_cosine in rows
        ],
        compared,
    )


def suspects(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> list[tuple[int, float, int, float]]:
    """Images that another identity's centre is nearer to than their own, the worst first.

    (image, cosine with its own centre, the other identity, cosine with its centre). A centre is the direction of the
    sum of an identity's unit `embeddings` (n, d); an image's own leaves the image itself out. The other cosine is
    greater by `MARGIN` at least, and as great as those of a tenth of the other's own images: one that is far from all
    is a bad photograph. Identities with fewer than `LEAST` images are passed over, also as others.
    """
    counts = np.bincount(labels)
    identities = np.flatnonzero(counts >= LEAST)
    if len(identities) < 2:
        return []
    place = np.full(len(counts), -1)
    place[identities] = np.arange(len(identities))
    images = np.flatnonzero(place[labels] >= 0)
    of, vectors = place[labels[images]], embeddings[images]
    sums = np.zeros((len(identities), embeddings.shape[1]), dtype=np.float32)
    np.add.at(sums, of, vectors)
    to_own = np.einsum("nd,nd->n", vectors, _unit(sums[of] - vectors))
    by_identity = to_own[np.lexsort((to_own, of))]
    sizes = counts[identities]
    usual = by_identity[np.cumsum(sizes) - sizes + (sizes - 1) // 10]  # what nine of ten of its images reach
    centres, rows_of_suspects = _unit(sums), list[tuple[int, float, int, float]]()
    for start in range(0, len(images), _ROWS):
        rows = slice(start, start + _ROWS)
        cosines = vectors[rows] @ centres.T
        every = np.arange(len(cosines))
        cosines[every, of[rows]] = -np.inf
        nearest = cosines.argmax(axis=1)
        nearest_cosines = cosines[every, nearest]
        is_suspect = (nearest_cosines >= to_own[rows] + MARGIN) & (nearest_cosines >= usual[nearest])
        for i in np.flatnonzero(is_suspect).tolist():
            own, other = float(to_own[start + i]), int(identities[nearest[i]])
            rows_of_suspects.append((int(images[start + i]), own, other, float(nearest_cosines[i])))
    return sorted(rows_of_suspects, key=lambda row: row[1] - row[3])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
