"""Teachers: networks whose embeddings others learn, each image's computed once and cached by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.checks import at_key
from coalface.core.errors import DataError, RecipeError
from coalface.core.method import generator
from coalface.data.cache import TEACHERS, default_cache, open_cache, use
from coalface.data.faceset import FaceSet
from coalface.evaluation.finished_model import read_model
from coalface.experiments.setup.weights import Keys, fit_backbone
from coalface.methods.distill import Distill
from coalface.models import Backbone, build
from coalface.models.embedding import raw_features
from coalface.models.pretrained.onnx import SUFFIX, read_input, read_onnx
from coalface.models.pretrained.weights import identify, read_weights
from coalface.models.speed import Arithmetic, threads
from coalface.training.compute import Compute

KEYS = Keys(
    "methods.distill.backbone",
    "methods.distill.size",
    ("methods.distill.input.channels=1", "methods.distill.input.channels=3"),
)
BATCH = 64
BLOCKS = 16
"""Batches after which it is told how many images are embedded."""


@dataclass(frozen=True)
class Teacher:
    """A network that embeds images (n, size, size, channels) of pixels."""

    size: int
    channels: int
    embedding_size: int
    embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]]


def open_teacher(distill: Distill, compute: Compute) -> Teacher:
    """The teacher of a distillation: an ONNX file, a run or model folder, or the weights of a backbone.

    Raises RecipeError for one that cannot be read, or is not the file that the run began with.
    """
    if not distill.teacher:
        raise RecipeError("name the network to learn from", where="methods.distill.teacher")
    path = Path(distill.teacher)
    with at_key("methods.distill.teacher", OSError, DataError):
        if identify(path)[0] != distill.sha256:
            raise DataError("its SHA-256 is not that of `sha256`; put the file back", where=path)
        if path.is_dir():
            backbone, about = read_model(path)
            module, size, channels = backbone.module, about["size"], about["channels"]
        elif path.suffix == SUFFIX:
            takes = read_input(path.read_bytes(), path)
            size, channels = takes.size or distill.size, takes.channels
            module, _ = read_onnx(path, size=size, convention=distill.input)
        else:
            weights, size, channels = read_weights(path), distill.size, 1 if distill.input.channels == 1 else 3
            if distill.backbone is None:
                raise DataError(f"a file of weights does not say its backbone: set {KEYS.backbone}", where=path)
            options: dict[str, Any] = {"size": size, "channels": channels, "convention": distill.input}
            tensors, _ = fit_backbone(weights, distill.backbone, KEYS, **options)
            module = build(distill.backbone, **options, generator=generator(0, "replaced by the weights"))
            module.load_state_dict(tensors, strict=False)
    # whatever the student's: under bfloat16 a MobileFaceNet embeds 1.8 times as many images a second so
    module = module.to(compute.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def embed(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        autocast = getattr(torch, compute.autocast) if compute.autocast else None
        with torch.autocast(torch.device(compute.device).type, dtype=autocast, enabled=autocast is not None):
            rows = raw_features(module, pixels, mirror=bool(distill.mirror), device=compute.device)
        half = rows.shape[1] // 2
        return rows[:, :half] + rows[:, half:] if distill.mirror else rows

    return Teacher(size, channels, Backbone(module).embedding_size, embed)


def teach(
    distill: Distill, faces: FaceSet, teacher: Teacher, how: Arithmetic, told: Callable[[int, int], None] | None = None
) -> NDArray[np.float32]:
    """(n, d) what the teacher gives for each image, of length 1, from the cache where it was computed before.

    `told` hears how many images are embedded, of how many, where they are computed.
    """
    # of all images together, and in this order: a batch's other images and the threads may touch the last bits of an
    # embedding, and a run has the same bytes whatever the cache holds
    made_of = [distill.sha256, distill.backbone, asdict(distill.input), how.autocast, how.threads]
    made_of += [distill.mirror] * bool(distill.mirror)
    key = hashlib.sha256(json.dumps(made_of).encode())
    blocks = [np.arange(at, min(at + BATCH, len(faces))) for at in range(0, len(faces), BATCH)]
    for block in blocks:
        key.update(faces.take(block).tobytes())
    folder = open_cache(default_cache()) / TEACHERS / key.hexdigest()[:24]
    if not folder.exists():
        embedded = []
        with threads(how.threads):
            for number, block in enumerate(blocks, start=1):
                embedded.append(teacher.embed(faces.take(block)))
                if told is not None and (number % BLOCKS == 0 or number == len(blocks)):
                    told(int(block[-1]) + 1, len(faces))
        rows = np.concatenate(embedded)
        if not np.isfinite(rows).all():
            raise RecipeError("it gives embeddings that are not finite", where="methods.distill.teacher")
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        with disk.beside(folder) as partial:
            partial.mkdir()
            np.save(partial / "embeddings.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
            if not folder.exists():  # another process may have made it meanwhile
                partial.rename(folder)
    use(folder)
    try:
        return np.asarray(np.load(folder / "embeddings.npy"), np.float32)
    except (ValueError, EOFError) as error:
        raise DataError(f"damaged ({error}): delete it, and the teacher embeds the faces again", where=folder) from None
