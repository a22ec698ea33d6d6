"""Images from the disk as a model takes them, one by one: what cannot be read is refused with a reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.disk import explained
from coalface.core.errors import CoalfaceError, DataError
from coalface.core.text import natural
from coalface.data.detection import Detector
from coalface.data.photographs import cut_faces, decode_photograph, find_faces
from coalface.data.readers.folders import SUFFIXES, read_file
from coalface.data.source import decode, in_order
from coalface.data.stores import open_store
from coalface.evaluation.feature_file import QUIET, Show
from coalface.experiments.api.face_model import FaceModel

BATCH = 256
"""Images that the model takes at a time."""


@dataclass(frozen=True)
class ImageFile:
    """An image that was found, not yet read."""

    file: str
    person: str
    """The name of its folder, or what a pack or records call the person."""
    read: Callable[[], bytes | memoryview]


@dataclass(frozen=True)
class Refusal:
    """An image that was not taken, and why."""

    file: str
    reason: str


@dataclass(eq=False)
class Embedded:
    """Some images with their embeddings, and those that were refused among them."""

    images: list[ImageFile] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    """Of each image's encoded bytes."""
    embeddings: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """(n, d) of unit length."""
    refused: list[Refusal] = field(default_factory=list)


def find_images(paths: Sequence[Path]) -> list[ImageFile]:
    """The images at some paths: a file, all files of a folder and of those in it, records, a `.bin`, or a pack.

    Raises FileNotFoundError for what does not exist, and DataError where there is no image.
    """
    images: list[ImageFile] = []
    for path in paths:
        if path.is_dir() and not (path / "meta.json").exists() and not (path / "train.rec").exists():
            below = sorted((p for p in path.rglob("*") if _is_image(p, path)), key=lambda p: natural(str(p)))
            images += [ImageFile(str(p), p.parent.name, partial(read_file, p)) for p in below]
        elif path.is_dir() or path.suffix in (".rec", ".bin"):
            store = open_store(path, damaged="leave out")
            for i, label in enumerate(store.labels.tolist()):
                images.append(ImageFile(store.where(i), store.names[label], partial(store.encoded, i)))
        elif path.exists():
            images.append(ImageFile(str(path), path.absolute().parent.name, partial(read_file, path)))
        else:
            raise FileNotFoundError(f"{path} does not exist; give images, or a folder of them")
    if not images:
        where = ", ".join(map(str, paths))
        raise DataError(
            f"no images there; give files that end in {', '.join(SUFFIXES)}, or folders of them", where=where
        )
    return images


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix.lower() in SUFFIXES and not hidden and path.is_file()


def embed_images(
    model: FaceModel, images: Sequence[ImageFile], show: Show = QUIET, detector: Detector | None = None
) -> Iterator[Embedded]:
    """The embeddings of images, a batch at a time. What cannot be used is refused, and the others are embedded.

    An image is an aligned face, of which the central square is taken, or a photograph, whose face the `detector` finds
    and which is aligned and left out as `coalface data align` does.
    """

    def face_in(encoded: bytes | memoryview, where: str) -> NDArray[np.uint8]:
        if detector is None:
            return decode(encoded, where, size=model.size, grey=model.grey)
        photograph = decode_photograph(encoded, where)
        return cut_faces(photograph, find_faces(photograph, detector)).face

    def read(i: int) -> tuple[str, NDArray[np.uint8]] | Refusal:
        try:
            encoded = images[i].read()
            return hashlib.sha256(encoded).hexdigest(), face_in(encoded, images[i].file)
        except CoalfaceError as error:
            return Refusal(images[i].file, error.text)
        except (OSError, ValueError) as error:
            return Refusal(images[i].file, explained(error))

    batch, faces = Embedded(), list[NDArray[np.uint8]]()
    with show("embedding", len(images)) as count:
        for done, face in enumerate(in_order(read, len(images)), start=1):
            if isinstance(face, Refusal):
                batch.refused.append(face)
            else:
                batch.images.append(images[done - 1])
                batch.sha256.append(face[0])
                faces.append(face[1])
            if len(faces) == BATCH or done == len(images):
                yield _embedded(model, batch, faces)
                count(done)
                batch, faces = Embedded(), []


def _embedded(model: FaceModel, batch: Embedded, faces: Sequence[NDArray[np.uint8]]) -> Embedded:
    embeddings = model.embed(faces)
    is_unit = np.abs(np.linalg.norm(embeddings, axis=1) - 1) < 1e-3  # not where it is zero or not finite
    for i in np.flatnonzero(~is_unit).tolist():
        batch.refused.append(Refusal(batch.images[i].file, "the model gives it no direction: it has not been trained"))
    kept = np.flatnonzero(is_unit).tolist()
    batch.images, batch.sha256 = [batch.images[i] for i in kept], [batch.sha256[i] for i in kept]
    batch.embeddings = embeddings[is_unit]
    return batch
