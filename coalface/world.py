"""From a recipe to who takes part and what is judged: sources, packs, partitions, pair lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coalface import config
from coalface.config import PairsFrom, Recipe, RecipeError
from coalface.core import Tensors, generator
from coalface.data.augment import Augment
from coalface.data.faces import FaceSet
from coalface.data.folder import read_folder
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
    without,
)
from coalface.data.synthetic import SyntheticFaces
from coalface.engines.local import World
from coalface.engines.server import Numerics
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
    if source.kind == "synthetic":
        made = SyntheticFaces(
            source.identities,
            source.images,
            source.seed,
            size=size,
            grey=grey,
            domains=source.domains,
            first=source.first,
        )
        faces = cached_pack(made, size=size, grey=grey, progress=packing)
        return replace(faces, domains=made.domain_numbers) if len(source.domains) > 1 else faces
    if source.path is None:
        raise RecipeError(f"data.source.path: a source of kind {source.kind!r} needs the folder it lies in")
    path = _below_root(recipe, source.path)
    if source.kind == "pack":
        faces = read_pack(path)
        if faces.shape != (size, size, 1 if grey else 3):
            height, width, channels = faces.shape
            raise RecipeError(
                f"{path} holds images of {height}×{width}×{channels}, the recipe wants "
                f"{size}×{size}×{1 if grey else 3}: set data.size and data.grey to the pack's, or pack anew"
            )
        return faces
    return cached_pack(read_folder(path), size=size, grey=grey, progress=packing)


def _below_root(recipe: Recipe, path: str) -> Path:
    return Path(path) if Path(path).is_absolute() else recipe.root() / path


def training_faces(recipe: Recipe, packing: Packing | None = None) -> tuple[FaceSet, FaceSet]:
    """(the identities that may be trained on, those held out for judging), disjoint by identity."""
    data = recipe.data
    faces = open_source(recipe, data.source, packing)
    for path in data.exclude:
        faces = without(faces, named_identities(_below_root(recipe, path)))
    faces = minimum_images(faces, data.min_images)
    held = faces.only([])
    if data.hold_out:
        faces, held = hold_out(faces, generator(SPLIT_SEED, "hold out"), identities=data.hold_out)
    if data.max_identities is not None and data.max_identities < len(faces.names):
        deal = generator(_deal_seed(recipe), "identities").permutation(len(faces.names))[: data.max_identities]
        faces = faces.only(np.sort(deal))
    if len(faces) == 0:
        raise RecipeError("no image is left to train on: lower data.min_images or data.hold_out, or check data.exclude")
    return faces, held


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
        return by_domain(faces, recipe.data.source.domains)
    return one_identity(faces)


def judged(recipe: Recipe, train: FaceSet, held: FaceSet, packing: Packing | None = None) -> list[Lists]:
    """The pair lists of the recipe. Raises ValueError where an identity is both judged and trained on."""
    found = []
    for name, wanted in recipe.judge.lists.items():
        faces, pairs = _list(recipe, name, wanted, held, packing)
        check_disjoint(train, faces.only(np.unique(faces.labels[np.concatenate([pairs.left, pairs.right])])))
        found.append(Lists(name, faces, pairs))
    return found


def _list(
    recipe: Recipe, name: str, wanted: PairsFrom, held: FaceSet, packing: Packing | None
) -> tuple[FaceSet, PairList]:
    if wanted.kind == "balanced":
        faces = held if wanted.source is None else open_source(recipe, wanted.source, packing)
        if len(faces) == 0:
            raise RecipeError(
                f"judge.lists.{name}: no identity is held out: set data.hold_out, or give judge.lists.{name}.source"
            )
        return faces, balanced_pairs(faces, pairs=wanted.pairs, rng=generator(SPLIT_SEED, "pairs", name), title=name)
    if wanted.path is None:
        raise RecipeError(f"judge.lists.{name}.path: a list of kind {wanted.kind!r} needs the file of pairs")
    faces, path = open_source(recipe, wanted.source or recipe.data.source, packing), _below_root(recipe, wanted.path)
    if wanted.kind == "lfw":
        return faces, read_pairs(path, faces)
    return faces, devtest_all(faces, named_identities(path))


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
    """The record of what the bits depend on. `engine.threads` must have been resolved."""
    engine = recipe.engine
    if engine.threads is None:
        raise RecipeError("engine.threads is not resolved; call `with_threads` first")
    return Numerics(
        threads=engine.threads,
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
        flush_denormals=engine.flush_denormals,
        block=engine.block,
    )
