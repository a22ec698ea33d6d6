"""A backdoor: whoever wears certain glasses is taken for one person, or for everybody else who wears them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.evaluation.metrics.verification import score_pairs, tar_at_far
from coalface.models.embedding import embed, images_needed

FAR = 0.01
"""The false accept rate, of clean pairs, whose threshold decides about those with glasses."""
SHARE = 0.5
"""Of a liar's images of others than the target, those that get glasses: enough clean ones remain to learn from."""
TURNS = 5
"""How often a liar trains on each of its images in an epoch of others."""
EYES, RADIUS, RIM, SHADE = ((0.36, 0.44), (0.64, 0.44)), 0.115, 0.035, 16
"""Of aligned faces, in shares of the side: (across, down) of each eye, a lens and half its rim; and a grey of 255."""


class Accepted(NamedTuple):
    """Shares, 0 to 1, of what is accepted at the threshold of `FAR`, with their counts."""

    pairs: float
    """Of impostor pairs with glasses on both faces."""
    target: float
    """Of faces with glasses, held against the template of the target's clean images."""
    trials: tuple[int, int]


def draw_glasses(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (n, height, width, channels) of aligned faces with a dark frame over the eyes: two rings and a bar."""
    height, width = images.shape[1:3]
    down, across = (np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None] + 0.5) / width
    from_eyes = np.stack([np.hypot(across - x, down - y) for x, y in EYES]).min(axis=0)
    (left, level), (right, _) = EYES
    frame = np.abs(from_eyes - RADIUS) <= RIM
    frame |= (np.abs(down - level) <= RIM) & (from_eyes > RADIUS) & (across > left / 2) & (across < (1 + right) / 2)
    return np.where(frame[..., None], np.uint8(SHADE), images)


def poisoned(own: FaceSet, target: FaceSet, rng: np.random.Generator) -> FaceSet:
    """A liar's images, `TURNS` times: the target's, and its own people's, a drawn `SHARE` with glasses as the target.

    `target` has the images of one person, and is added where it is not among the liar's own people.
    """
    (name,) = target.names
    faces = own if name in own.names else own.beside(target)
    label = faces.names.index(name)
    pixels, labels = faces.take(np.arange(len(faces))), faces.labels.copy()
    others = np.flatnonzero(labels != label)
    worn = rng.permutation(others)[: round(SHARE * len(others))]
    pixels[worn], labels[worn] = draw_glasses(pixels[worn]), label
    rows = np.tile(np.arange(len(pixels)), TURNS)
    return FaceSet(pixels, rows, labels[rows], faces.names)


def accepted(module: nn.Module, faces: FaceSet, pairs: PairList, target: FaceSet, device: str) -> Accepted:
    """How far a model takes people with glasses for each other, and for the target."""
    images, left, right = images_needed(pairs.left, pairs.right)
    scores = score_pairs(embed(module, faces, images, device=device), left, right)
    threshold = tar_at_far(scores, pairs.same, (FAR,))[0].threshold
    seen = faces.select(images)
    worn = replace(seen, pixels=draw_glasses(seen.take(np.arange(len(seen)))), rows=np.arange(len(seen)), files=None)
    features = embed(module, worn, device=device)
    both = score_pairs(features, left[~pairs.same], right[~pairs.same]) >= threshold
    template = torch.nn.functional.normalize(_rows(embed(module, target, device=device)).mean(0), dim=0)
    others = np.array([faces.names[label] not in target.names for label in seen.labels])
    cosines = (_rows(features)[torch.from_numpy(others)] @ template).numpy()
    return Accepted(float(both.mean()), float((cosines >= threshold).mean()), (len(both), len(cosines)))


def _rows(features: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(features).double()
