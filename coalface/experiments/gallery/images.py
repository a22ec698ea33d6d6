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
from coalface.core.text import natural, several, shown
from coalface.data.detection import Detector
from coalface.data.photographs import cut_faces, decode_photograph, find_faces
from coalface.data.readers.folders import SUFFIXES, read_file
from coalface.data.source import decode, in_order
from coalface.data.stores import Store, open_store
from coalface.data.tools.decode_check import StderrCapture, check_whole
from coalface.data.tools.ignored_files import passed_over
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
        if _is_folder(path):
            images += [ImageFile(str(p), p.parent.name, partial(read_file, p)) for p in _images_below(path)]
        elif path.is_dir() or path.suffix in (".rec", ".bin"):
            images += images_of(open_store(path, damaged="leave out"))
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


def images_of(store: Store) -> list[ImageFile]:
    """The images of a set."""
    labels = enumerate(store.labels.tolist())
    return [ImageFile(store.where(i), store.names[label], partial(store.encoded, i)) for i, label in labels]


def notes_on(paths: Sequence[Path], *, named_by_folder: bool = False) -> list[str]:
    """In sentences, what lies in folders and is no image, and images whose folder is named for no single person."""
    notes = []
    for path in filter(_is_folder, paths):
        below = _images_below(path)
        notes += [f"{shown(path)}: {sentence}" for sentence in passed_over(path, below)]
        loose = [image.name for image in below if image.parent == path]
        if named_by_folder and 0 < len(loose) < len(below):
            name = shown(path.absolute().name)
            notes.append(f"{shown(path)}: {several(len(loose), 'image')} in no person's folder, enrolled as {name!r}")
    return notes


def _is_folder(path: Path) -> bool:
    """Whether it is a folder of images, not one of records or a pack."""
    return path.is_dir() and not (path / "meta.json").exists() and not (path / "train.rec").exists()


def _images_below(root: Path) -> list[Path]:
    return sorted((path for path in root.rglob("*") if _is_image(path, root)), key=lambda path: natural(str(path)))


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
        except (OSError, ValueError) as error:
            return _refusal(images[i], error)

    with StderrCapture() as capture, show("embedding", len(images)) as count:
        for start in range(0, len(images), BATCH):
            batch, faces = Embedded(), list[NDArray[np.uint8]]()
            part = range(start, min(start + BATCH, len(images)))
            results, complaints = capture.run(lambda part=part: list(in_order(lambda k: read(part[k]), len(part))))  # type: ignore[misc]
            for image, result in zip(images[part.start : part.stop], results, strict=True):
                face = _whole(image, capture) or result if complaints else result
                if isinstance(face, Refusal):
                    batch.refused.append(face)
                else:
                    batch.images.append(image)
                    batch.sha256.append(face[0])
                    faces.append(face[1])
            yield _embedded(model, batch, faces)
            count(part.stop)


def _whole(image: ImageFile, capture: StderrCapture) -> Refusal | None:
    """Why an image is not taken of which the decoder complains, and fills what is missing with grey."""
    try:
        check_whole(image.read(), image.file, capture)
    except (OSError, ValueError) as error:
        return _refusal(image, error)
    return None


def _refusal(image: ImageFile, error: Exception) -> Refusal:
    return Refusal(image.file, error.text if isinstance(error, CoalfaceError) else explained(error))


def _embedded(model: FaceModel, batch: Embedded, faces: Sequence[NDArray[np.uint8]]) -> Embedded:
    embeddings = model.embed(faces)
    is_unit = np.abs(np.linalg.norm(embeddings, axis=1) - 1) < 1e-3  # not where it is zero or not finite
    for i in np.flatnonzero(~is_unit).tolist():
        batch.refused.append(Refusal(batch.images[i].file, "the model gives it no direction: it has not been trained"))
    kept = np.flatnonzero(is_unit).tolist()
    batch.images, batch.sha256 = [batch.images[i] for i in kept], [batch.sha256[i] for i in kept]
    batch.embeddings = embeddings[is_unit]
    return batch
