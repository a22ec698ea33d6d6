"""The images that a recipe names: opened, packed at its size and colour, and cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np

from coalface.core.errors import DataError, RecipeError
from coalface.core.text import shown
from coalface.data.faceset import FaceSet
from coalface.data.joined import Joined
from coalface.data.readers.pack import Packed, cached_pack
from coalface.data.source import Source
from coalface.data.stores import Store, check_names, open_store
from coalface.experiments.recipe import sections
from coalface.experiments.recipe.schema import Recipe

Packing = Callable[[int, int], None]
"""Called with (images packed, images in all)."""


def unseen(packed: int, total: int) -> None:
    """Given as `packing`: images are listed and not decoded, for checks; every pixel is black and takes no memory."""


def open_source(recipe: Recipe, source: sections.Source, packing: Packing | None = None) -> FaceSet:
    """The images of a source at the recipe's size and colour, from the cache of packs."""
    size, grey = recipe.data.size, recipe.data.grey
    if not isinstance(source, sections.Pack):
        store = open_listing(recipe, source)
        faces = pixels(recipe, store, packing)
        if isinstance(store, Store):
            return replace(faces, domains=store.domains)
        if isinstance(source, sections.JoinedParts) or (isinstance(source, sections.Synthetic) and source.domains[1:]):
            return replace(faces, domains=store.domain_numbers)  # type: ignore[attr-defined]
        return faces
    faces = _pack(recipe, source, verify=packing is not unseen).faces
    if faces.shape != (size, size, 1 if grey else 3):
        height, width, channels = faces.shape
        raise RecipeError(
            f"this pack has images of {height}×{width}×{channels}, and the recipe {size}×{size}×{1 if grey else 3}; "
            "set data.size and data.grey to the pack's, or pack it again",
            where=source.path,
        )
    return faces


def open_own(recipe: Recipe, parties: Mapping[str, sections.Source], packing: Packing | None = None) -> FaceSet:
    """The images of parties that bring their own, joined; of one alone called as beside others; none where none is."""
    if len(parties) > 1:
        joined = Joined({name: open_listing(recipe, part) for name, part in parties.items()})
        return replace(pixels(recipe, joined, packing), domains=joined.domain_numbers)
    for name, part in parties.items():
        faces = open_source(recipe, part, packing)
        files = None if faces.files is None else tuple(f"{name}/{file}" for file in faces.files)
        names, domains = tuple(f"{name}/{identity}" for identity in faces.names), np.zeros(len(faces), dtype=np.int64)
        return replace(faces, names=names, files=files, domains=domains)
    shape, none = (0, recipe.data.size, recipe.data.size, 1 if recipe.data.grey else 3), np.empty(0, dtype=np.int64)
    return FaceSet(np.empty(shape, dtype=np.uint8), none, none, (), domains=none)


def pixels(recipe: Recipe, source: Source, packing: Packing | None) -> FaceSet:
    size, grey = recipe.data.size, recipe.data.grey
    if packing is not unseen:
        try:
            return cached_pack(source, size=size, grey=grey, progress=packing)
        except DataError as error:
            if isinstance(source, Store):
                all_of_them = f"; `coalface data inspect {quote(str(source.path))}` lists all"
                raise DataError(f"{error.text}{all_of_them}", where=error.where) from error
            raise
    count = len(source.files)
    black = np.broadcast_to(np.zeros(1, np.uint8), (count, size, size, 1 if grey else 3))
    return FaceSet(black, np.arange(count), np.asarray(source.labels, np.int64), source.names, source.files)


def open_listing(recipe: Recipe, source: sections.Source) -> Source:
    """A source, with no image read yet. Only parties' own images may be packs here."""
    match source:
        case sections.Reader():
            return source.open(size=recipe.data.size, grey=recipe.data.grey)
        case sections.Pack():
            return _pack(recipe, source)
        case sections.JoinedParts():
            return Joined({name: open_listing(recipe, part) for name, part in source.parts.items()})
        case sections.Synthetic():
            from coalface.data.synthetic.generator import SyntheticFaces

            size, grey = recipe.data.size, recipe.data.grey
            people = source.identities, source.images, source.seed
            return SyntheticFaces(*people, size=size, grey=grey, domains=source.domains, first=source.first)
        case sections.Folder():
            return open_store(folder(recipe, source), part=source.part or "")
    return open_store(folder(recipe, source))


def _pack(recipe: Recipe, source: sections.Pack, verify: bool = True) -> Packed:
    """A pack. Raises ValueError for names in it that no folder or file of a source could have; `read_pack` verifies."""
    pack = Packed(folder(recipe, source), verify)
    for names in (pack.names, pack.files):
        check_names(names, shown(pack.path))
    return pack


def origin(recipe: Recipe, source: sections.Source) -> tuple[str, object]:
    """What two sources have in common that may show the same people, under the same names."""
    if isinstance(source, sections.Reader):
        return source.kind, source.model_dump_json()
    return source.kind, source.seed if isinstance(source, sections.Synthetic) else folder(recipe, source).resolve()


def folder(recipe: Recipe, source: sections.Source) -> Path:
    """Where a source on the disk lies."""
    assert isinstance(source, sections.OnDisk)
    return below_root(recipe, source.path)


def below_root(recipe: Recipe, path: str) -> Path:
    return Path(path) if Path(path).is_absolute() else recipe.root() / path
