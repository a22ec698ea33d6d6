"""From a recipe to who takes part and what is judged: sources, packs, partitions, pair lists."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coalface import config
from coalface.checking import nearest
from coalface.config import PairsFrom, Recipe, RecipeError
from coalface.core import Tensors, generator
from coalface.data.augment import Augment
from coalface.data.faces import FaceSet
from coalface.data.joined import Joined
from coalface.data.layouts import read_lists
from coalface.data.pack import cached_pack, read_pack
from coalface.data.pairs import PairList, balanced_pairs, devtest_all, list_sha256, named_identities, read_pairs
from coalface.data.partition import (
    by_domain,
    check_disjoint,
    dirichlet,
    equal,
    hold_out,
    minimum_images,
    one_identity,
    shares,
    without,
)
from coalface.data.source import Source
from coalface.data.stores import Store, open_store
from coalface.data.synthetic import SyntheticFaces
from coalface.engines.local import World
from coalface.engines.standing import Numerics
from coalface.evaluate.paired import PairIdentities
from coalface.learn.compute import Compute
from coalface.methods import METHODS
from coalface.models import Backbone, build

SPLIT_SEED = 2048
"""Held-out identities and judged pairs are drawn from it, so that runs of every seed are judged alike."""

POOLED = "pooled"
"""The name of the one party that holds everybody's data."""

Packing = Callable[[int, int], None]
"""Called with (images packed, images in all)."""


def unseen(done: int, total: int) -> None:
    """Given as `packing`: images are listed and not decoded, for checks; every pixel is black and takes no memory."""


@dataclass(frozen=True)
class Lists:
    """One thing to judge on."""

    name: str
    faces: FaceSet
    pairs: PairList

    @functools.cached_property
    def identities(self) -> PairIdentities:
        """Who is in each pair, as the paired comparison wants it."""
        labels, pairs = self.faces.labels, self.pairs
        sha256 = list_sha256(pairs, self.faces)
        return PairIdentities(labels[pairs.left], labels[pairs.right], sha256, pairs.headline, pairs.fold)


def open_source(recipe: Recipe, source: config.Source, packing: Packing | None = None) -> FaceSet:
    """The images of a source at the recipe's size and colour, from the cache of packs."""
    size, grey = recipe.data.size, recipe.data.grey
    if source.kind != "pack":
        made = listed(recipe, source)
        faces = _pixels(recipe, made, packing)
        if isinstance(made, Store):
            return replace(faces, domains=made.domains)
        if isinstance(made, Joined) or (isinstance(made, SyntheticFaces) and len(made.domains) > 1):
            return replace(faces, domains=made.domain_numbers)
        return faces
    faces = read_pack(_folder(recipe, source))
    if faces.shape != (size, size, 1 if grey else 3):
        height, width, channels = faces.shape
        raise RecipeError(
            f"{source.path} holds images of {height}×{width}×{channels}, the recipe wants "
            f"{size}×{size}×{1 if grey else 3}: set data.size and data.grey to the pack's, or pack anew"
        )
    return faces


def _pixels(recipe: Recipe, source: Source, packing: Packing | None) -> FaceSet:
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
        return open_store(_folder(recipe, source), part=source.part or "")
    return SyntheticFaces(
        source.identities,
        source.images,
        source.seed,
        size=recipe.data.size,
        grey=recipe.data.grey,
        domains=source.domains,
        first=source.first,
    )


def _folder(recipe: Recipe, source: config.Source) -> Path:
    if source.path is None:
        raise RecipeError(f"data.source.path: a source of kind {source.kind!r} needs the folder it lies in")
    return _below_root(recipe, source.path)


def content(recipe: Recipe, packing: Packing | None = None) -> list[str]:
    """What names the images that a recipe trains on: the source's fingerprint, and the identities that are taken."""
    source = recipe.data.source
    if source.kind == "pack":
        fingerprint = hashlib.sha256((_folder(recipe, source) / "meta.json").read_bytes()).hexdigest()
    else:
        fingerprint = listed(recipe, source).fingerprint()
    train, _ = training_faces(recipe, packing)
    return [fingerprint, *train.names]


def check_device(recipe: Recipe) -> None:
    """Raise RecipeError where this machine has not got the recipe's device."""
    try:
        torch.zeros(1, device=recipe.engine.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"engine.device: {recipe.engine.device!r} is not there ({reason}); take cpu") from None


def _below_root(recipe: Recipe, path: str) -> Path:
    return Path(path) if Path(path).is_absolute() else recipe.root() / path


def training_faces(recipe: Recipe, packing: Packing | None = None) -> tuple[FaceSet, FaceSet]:
    """(the identities that may be trained on, those held out for judging), disjoint by identity."""
    data = recipe.data
    faces = open_source(recipe, data.source, packing)
    faces = without(faces, _excluded(recipe))
    faces = minimum_images(faces, data.min_images)
    held = faces.only([])
    if data.hold_out:
        faces, held = _held_out(faces, data.hold_out, tuple(data.source.parts))
    if data.max_identities is not None and data.max_identities < len(faces.names):
        deal = generator(_deal_seed(recipe), "identities").permutation(len(faces.names))[: data.max_identities]
        faces = faces.only(np.sort(deal))
    if len(faces) == 0:
        raise RecipeError("no image is left to train on: lower data.min_images or data.hold_out, or check data.exclude")
    return faces, held


def _held_out(faces: FaceSet, wanted: int, parts: tuple[str, ...]) -> tuple[FaceSet, FaceSet]:
    """(rest, held): so many identities are held; of a joined source, of each part its share by number of identities."""
    present = faces.only(np.flatnonzero(faces.counts())) if parts else faces
    if not parts or not 0 < wanted < len(present.names):
        return hold_out(faces, generator(SPLIT_SEED, "hold out"), identities=wanted)
    faces = present
    belongs = np.array([parts.index(name.partition("/")[0]) for name in faces.names])
    counts = np.bincount(belongs, minlength=len(parts))
    chosen = np.zeros(len(faces.names), dtype=bool)
    for number, share in enumerate(shares(counts.tolist(), wanted)):
        rng = generator(SPLIT_SEED, "hold out", parts[number])
        chosen[rng.permutation(np.flatnonzero(belongs == number))[:share]] = True
    return faces.only(np.flatnonzero(~chosen)), faces.only(np.flatnonzero(chosen))


def _excluded(recipe: Recipe) -> set[str]:
    """The identities that `data.exclude` names, as the training source calls them."""
    wanted = recipe.data.exclude
    by_prefix = {f"{part}/": paths for part, paths in wanted.items()} if isinstance(wanted, dict) else {"": wanted}
    return {
        prefix + name
        for prefix, paths in by_prefix.items()
        for path in paths
        for name in named_identities(_below_root(recipe, path))
    }


def _deal_seed(recipe: Recipe) -> int:
    own = recipe.data.partition.seed
    return recipe.seed if own is None else own


def deal(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The parties and their images."""
    partition, rng = recipe.data.partition, generator(_deal_seed(recipe), "deal")
    if METHODS[recipe.method].pooled:
        return {POOLED: faces}
    if partition.kind == "equal":
        return equal(faces, partition.parties, rng)
    if partition.kind == "dirichlet":
        return dirichlet(faces, partition.parties, partition.alpha, rng)
    if partition.kind == "by-domain":
        source = recipe.data.source
        if source.kind == "folder":
            return by_domain(faces, _domain_names(faces))
        return by_domain(faces, tuple(source.parts) or source.domains)
    return one_identity(faces)


def _domain_names(faces: FaceSet) -> tuple[str, ...]:
    """What the domains of a data set of several are called: the first part of their identities' names."""
    if faces.domains is None:
        return ()
    firsts = np.unique(faces.domains, return_index=True)[1]
    return tuple(faces.names[faces.labels[i]].partition("/")[0] for i in firsts)


def judged(recipe: Recipe, train: FaceSet, held: FaceSet, packing: Packing | None = None) -> list[Lists]:
    """The pair lists of the recipe. Raises RecipeError where an identity is both judged and trained on."""
    found = []
    for name, wanted in recipe.judge.lists.items():
        faces, pairs = _list(recipe, name, wanted, held, packing)
        shown = faces.only(np.unique(faces.labels[np.concatenate([pairs.left, pairs.right])]))
        try:
            for prefix in _prefixes(recipe, wanted):
                check_disjoint(train, replace(shown, names=tuple(prefix + known for known in shown.names)))
        except ValueError as error:
            shared = str(error).partition(": ")[0].removeprefix("the two sets share ")
            raise RecipeError(
                f"judge.lists.{name}: {shared} would be trained on as well, so that its figures would say nothing of "
                "unseen people: keep them out of training by data.exclude or data.hold_out, or judge on others"
            ) from None
        found.append(Lists(name, faces, pairs))
    return found


def _prefixes(recipe: Recipe, wanted: PairsFrom) -> list[str]:
    """What the training source may put before the names of a list's identities.

    A list with images of its own is held against every part of a joined source that may show the same people: of the
    same folder, or synthetic of the same seed.
    """
    parts = recipe.data.source.parts
    if wanted.source is None or not parts:
        return [""]

    def origin(source: config.Source) -> tuple[str, object]:
        return source.kind, source.seed if source.kind == "synthetic" else _folder(recipe, source).resolve()

    mine = origin(wanted.source)
    return [f"{name}/" for name, part in parts.items() if origin(part) == mine]


def _list(
    recipe: Recipe, name: str, wanted: PairsFrom, held: FaceSet, packing: Packing | None
) -> tuple[FaceSet, PairList]:
    """The images and the pairs of a list; the identities are called as in the source that it takes them from."""
    prefix = f"{wanted.part}/" if wanted.part else ""
    if wanted.kind == "balanced":
        faces = held if wanted.source is None else open_source(recipe, wanted.source, packing)
        if prefix:
            faces = faces.only([number for number, known in enumerate(faces.names) if known.startswith(prefix)])
        if len(faces) == 0:
            of_part = f" of part {wanted.part}" if wanted.part else ""
            raise RecipeError(
                f"judge.lists.{name}: no identity{of_part} is held out: set data.hold_out, or give "
                f"judge.lists.{name}.source"
            )
        try:
            rng = generator(SPLIT_SEED, "pairs", name)
            return faces, balanced_pairs(faces, pairs=wanted.pairs, rng=rng, title=name)
        except ValueError as error:
            raise RecipeError(f"judge.lists.{name}: {error}") from None
    if wanted.path is None:
        raise RecipeError(f"judge.lists.{name}.path: a list of kind {wanted.kind!r} needs the file of pairs")
    if wanted.kind == "bin":
        return _of_bin(recipe, name, wanted.path, packing)
    if wanted.kind == "layout":
        own = wanted.source or config.Source(kind="folder", path=wanted.path)
        faces = open_source(recipe, own, packing)
        lists = read_lists(_below_root(recipe, wanted.path), faces)
        if wanted.list is None and len(lists) != 1:
            known = ", ".join(lists) or "none: this data set has no lists"
            raise RecipeError(f"judge.lists.{name}.list: say which list of {wanted.path}; it has {known}")
        chosen = nearest(wanted.list, lists, f"judge.lists.{name}.list") if wanted.list else next(iter(lists))
        return faces, lists[chosen]
    source = recipe.data.source.parts[wanted.part] if wanted.part else wanted.source or recipe.data.source
    faces, path = open_source(recipe, source, packing), _below_root(recipe, wanted.path)
    pairs = read_pairs(path, faces) if wanted.kind == "lfw" else devtest_all(faces, named_identities(path))
    return replace(faces, names=tuple(prefix + known for known in faces.names)), pairs


def _of_bin(recipe: Recipe, name: str, path: str, packing: Packing | None) -> tuple[FaceSet, PairList]:
    """The images and pairs of a `.bin`. Who is in them is not known, so its identities are named after the list."""
    store = open_store(_below_root(recipe, path))
    if store.pairs is None:
        raise RecipeError(f"judge.lists.{name}.path: {path} is no .bin of pairs")
    faces = _pixels(recipe, store, packing)
    return replace(faces, names=tuple(f"{name}/{known}" for known in faces.names)), store.pairs


def backbone(recipe: Recipe) -> Backbone:
    """The network with its first weights, which follow from the seed."""
    channels, model = 1 if recipe.data.grey else 3, recipe.model
    module = build(
        model.name,
        size=recipe.data.size,
        channels=channels,
        embedding_size=model.embedding_size,
        generator=generator(recipe.seed, "backbone"),
    )
    if recipe.engine.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Backbone(module.to(recipe.engine.device), model.batchnorm)


def build_world(tree: Mapping[str, Any], initial: Tensors | None = None) -> World:
    """The world of a resolved recipe: what each worker process makes for itself."""
    recipe = config.parse(tree)
    train, _ = training_faces(recipe)
    network = backbone(recipe)
    if initial is not None:
        network.load(initial)
    engine = recipe.engine
    compute = Compute(
        augment=Augment(**recipe.data.augment.model_dump()),
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
    )
    return World(data=deal(recipe, train), backbone=network, compute=compute)


def numerics(recipe: Recipe) -> Numerics:
    """The record of what the bits depend on."""
    engine = recipe.engine
    return Numerics(
        threads=engine.threads,
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
        flush_denormals=engine.flush_denormals,
        block=engine.block,
    )
