"""The judge of rebuilt faces: a network that no attacker used decides whether two images are of one person."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from coalface.core import disk
from coalface.core.errors import DataError, RecipeError
from coalface.data.faceset import FaceSet
from coalface.evaluation.finished_model import read_model
from coalface.evaluation.metrics.verification import tar_at_far
from coalface.experiments.attacks.base import NotAttackable
from coalface.experiments.recipe.sections import Model
from coalface.models.embedding import unit_features

BATCH = 64
IMAGES = 300
"""Held-out images, at most, whose pairs give the threshold."""
NO_JUDGE = (
    "who is on a rebuilt face is decided by a network that no attacker used; name one: an ONNX file, or the run or "
    "model folder of a network that was trained on other people, as judge=PATH"
)


@dataclass(frozen=True)
class Judge:
    """A network and the side and channels of the images that it takes."""

    network: torch.nn.Module
    size: int
    channels: int

    def embed(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, d) unit embeddings of images (n, height, width, channels), which are brought to its size and colours."""
        resized = np.stack([self._resized(image) for image in images])
        parts = [unit_features(self.network, resized[at : at + BATCH]) for at in range(0, len(resized), BATCH)]
        return np.concatenate(parts)

    def _resized(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        area = image.shape[0] > self.size
        side, how = (self.size, self.size), cv2.INTER_AREA if area else cv2.INTER_CUBIC
        pixels = cv2.resize(np.ascontiguousarray(image), side, interpolation=how).reshape(*side, -1)
        if pixels.shape[2] == 3 and self.channels == 1:
            return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None], np.uint8)
        return np.repeat(pixels, self.channels // pixels.shape[2], axis=2)


def open_judge(place: str, takes: Any = None) -> Judge:
    """The judge of an ONNX file, which `takes` such input as `model.input` of a recipe says, or of a folder.

    Raises RecipeError where there is none, or it cannot be read.
    """
    if not place:
        raise RecipeError(NO_JUDGE, where="--option")
    with opening():
        convention = None if takes is None else Model(input=takes).input
        network, about = read_model(Path(place), convention=convention)
    return Judge(network.module, about["size"], about["channels"])


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """Within, a judge that cannot be opened is a RecipeError that names the option."""
    try:
        yield
    except ValidationError as error:
        raise RecipeError(error.errors()[0]["msg"], where="--option input") from None
    except (OSError, DataError) as error:
        raise RecipeError(disk.explained(error), where="--option judge") from None


def digest_of(place: str) -> str:
    """SHA-256 of a judge's file, or of the tensors in its folder; empty where there is none."""
    files = [Path(place), *(Path(place) / folder / "backbone.safetensors" for folder in (".", "model"))]
    file = next((file for file in files if file.is_file()), None)
    return hashlib.sha256(file.read_bytes()).hexdigest() if file else ""


def threshold_at(far: float, judge: Judge, faces: FaceSet, rng: np.random.Generator) -> float:
    """The lowest cosine at which at most `far` of all impostor pairs of some images are accepted.

    Raises NotAttackable where the pairs are too few for that rate.
    """
    index = np.sort(rng.permutation(len(faces))[:IMAGES])
    features, labels = judge.embed(faces.take(index)).astype(np.float64), faces.labels[index]
    left, right = np.triu_indices(len(index), 1)
    same = labels[left] == labels[right]
    if same.any() and not same.all():
        (at,) = tar_at_far((features @ features.T)[left, right], same, [far])
        if at.carried:
            return at.threshold
    raise NotAttackable(
        f"the {len(index)} images of people held out make too few pairs for a threshold at FAR {far:g}: hold out more"
    )
