"""Face images for an experiment in Python, wherever they are."""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from coalface.core.disk import from_home
from coalface.core.errors import DataError, RecipeError
from coalface.core.text import several
from coalface.data.arrays import Images
from coalface.data.cache import default_cache, open_cache
from coalface.data.faceset import FaceSet
from coalface.data.readers.pack import read_pack, write_pack
from coalface.data.stores import open_store
from coalface.experiments.recipe import sections
from coalface.experiments.recipe.scenarios import Silos
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.sources import open_source


@dataclass(frozen=True, eq=False)
class Faces(sections.LoadedFaces):
    """Face images with their people: `load_faces` finds them."""

    @functools.cached_property
    def images(self) -> FaceSet:
        """The images, decoded once into the cache and mapped from there."""
        recipe = Recipe(data=Silos(faces=self))
        return open_source(recipe, self.source)

    def __repr__(self) -> str:
        place = getattr(self.source, "path", self.source.kind)
        return f"Faces({place!r}, size={self.size}{', grey=True' if self.grey else ''})"

    def _repr_html_(self) -> str:
        faces = self.images
        people = several(len(faces.names), "person", "people")
        first = [faces.take(np.flatnonzero(faces.labels == person)[:6]) for person in range(min(len(faces.names), 4))]
        rows = [
            np.pad(np.hstack(list(images)), ((0, 0), (0, (6 - len(images)) * self.size), (0, 0))) for images in first
        ]
        png = cv2.imencode(".png", np.vstack(rows)[:, :, ::-1])[1].tobytes() if rows else b""
        caption = f"{len(faces):,} face images of {people}, {self.size}×{self.size}"
        return f'<p>{caption}</p><img src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def load_faces(
    faces: str | os.PathLike[str] | sections.Source | Any,
    labels: Sequence[Any] | None = None,
    *,
    size: int = 112,
    grey: bool = False,
) -> Faces:
    """Face images of identity folders, `.rec`, `.bin`, a pack, arrays, or a torch Dataset of (image, label).

    Images are brought to `size` × `size` pixels, RGB unless `grey`; a pack keeps its own. Those of a Dataset, or of
    arrays, tensors, PIL images or paths with their `labels`, go into the cache as a pack, so that worker processes and
    a resume find them: leave out random transforms. `faces` can also be what a recipe's `data.faces` says, such as
    `coalface.Synthetic(identities=60)`.

    Raises FileNotFoundError, and DataError for what cannot be read as face images.
    """
    if labels is not None and isinstance(faces, str | os.PathLike | sections.Source):
        raise RecipeError("the folders or records say whom they show; leave them out", where="labels")
    if isinstance(faces, sections.Source):
        return Faces(faces, size, grey)
    if not isinstance(faces, str | os.PathLike):
        if not hasattr(faces, "__getitem__") or not hasattr(faces, "__len__") or len(faces) == 0:
            what = "it is empty" if hasattr(faces, "__len__") else f"it is {faces!r:.100}"
            raise DataError(
                f"{what}; give a folder, .rec, .bin or pack, a torch Dataset, or arrays and labels", where="faces"
            )
        source = Images(faces, labels)
        folder = open_cache(default_cache()) / f"{source.fingerprint()[:24]}-{size}-{'grey' if grey else 'rgb'}"
        write_pack(source, folder, size=size, grey=grey, mode=0o700)
        return Faces(sections.Pack(path=str(folder)), size, grey)
    path = from_home(faces).absolute()
    store = open_store(path)
    if store.kind == "pack":
        height, _, channels = read_pack(path).shape
        return Faces(sections.Pack(path=str(path)), height, channels == 1)
    kind = sections.Records if store.kind == "rec" else sections.Folder
    return Faces(kind(path=str(path)), size, grey)
