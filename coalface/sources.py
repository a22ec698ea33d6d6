"""The images that a recipe names: opened, packed at its size and colour, and cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from coalface import config
from coalface.config import Recipe, RecipeError
from coalface.data.faces import FaceSet
from coalface.data.joined import Joined
from coalface.data.pack import cached_pack, read_pack
from coalface.data.source import Source
from coalface.data.stores import Store, open_store
from coalface.data.synthetic import SyntheticFaces

Packing = Callable[[int, int], None]
"""Called with (images packed, images in all)."""


def unseen(done: int, total: int) -> None:
    """Given as `packing`: images are listed and not decoded, for checks; every pixel is black and takes no memory."""


def open_source(recipe: Recipe, source: config.Source, packing: Packing | None = None) -> FaceSet:
    """The images of a source at the recipe's size and colour, from the cache of packs."""
    size, grey = recipe.data.size, recipe.data.grey
    if source.kind != "pack":
        made = listed(recipe, source)
        faces = pixels(recipe, made, packing)
        if isinstance(made, Store):
            return replace(faces, domains=made.domains)
        if isinstance(made, Joined) or (isinstance(made, SyntheticFaces) and len(made.domains) > 1):
            return replace(faces, domains=made.domain_numbers)
        return faces
    faces = read_pack(folder(recipe, source))
    if faces.shape != (size, size, 1 if grey else 3):
        height, width, channels = faces.shape
        raise RecipeError(
            f"{source.path} holds images of {height}×{width}×{channels}, the recipe wants "
            f"{size}×{size}×{1 if grey else 3}: set data.size and data.grey to the pack's, or pack anew"
        )
    return faces


def pixels(recipe: Recipe, source: Source, packing: Packing | None) -> FaceSet:
    size, grey = recipe.data.size, recipe.data.grey
    if packing is not unseen:
        return cached_pack(source, size=size, grey=grey, progress=packing)
    count = len(source.files)
    black = np.broadcast_to(np.zeros(1, np.uint8), (count, size, size, 1 if grey else 3))
    return FaceSet(black, np.arange(count), np.asarray(source.labels, np.int64), source.names, source.files)


def listed(recipe: Recipe, source: config.Source) -> Source:
    """A source other than a pack, of which no image has been read yet."""
    if source.kind == "joined":
        return Joined({name: listed(recipe, part) for name, part in source.parts.items()})
    if source.kind in ("folder", "rec"):
        return open_store(folder(recipe, source), part=source.part or "")
    return SyntheticFaces(
        source.identities,
        source.images,
        source.seed,
        size=recipe.data.size,
        grey=recipe.data.grey,
        domains=source.domains,
        first=source.first,
    )


def folder(recipe: Recipe, source: config.Source) -> Path:
    if source.path is None:
        raise RecipeError(f"data.source.path: a source of kind {source.kind!r} needs the folder it lies in")
    return below_root(recipe, source.path)


def below_root(recipe: Recipe, path: str) -> Path:
    return Path(path) if Path(path).is_absolute() else recipe.root() / path
