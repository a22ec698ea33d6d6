"""The identities of a recipe, disjoint: trained on, held out, set aside for validators, public or private."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.core.method import generator
from coalface.data.faceset import FaceSet
from coalface.data.pairs import named_identities
from coalface.data.partition import hold_out, minimum_images, shares, without
from coalface.data.test_images import hold_back
from coalface.experiments.recipe.own_data import before
from coalface.experiments.recipe.schema import Recipe, RecipeError
from coalface.experiments.recipe.sections import OWN, Data, Private
from coalface.experiments.setup import domains
from coalface.experiments.setup.pair_lists import SPLIT_SEED
from coalface.experiments.setup.sources import Packing, below_root, folder, listed, open_source, origin, unseen
from coalface.methods import METHODS


def content(recipe: Recipe, packing: Packing | None = None) -> list[str]:
    """What names the images that a recipe trains on: the source's fingerprint, and the identities that are taken."""
    source = recipe.data.source
    if source.kind == "pack":
        fingerprint = hashlib.sha256((folder(recipe, source) / "meta.json").read_bytes()).hexdigest()
    else:
        fingerprint = listed(recipe, source).fingerprint()
    train, _ = training_faces(recipe, packing)
    return [fingerprint, *train.names]


def training_faces(recipe: Recipe, packing: Packing | None = None) -> tuple[FaceSet, FaceSet]:
    """(the identities that may be trained on, those held out for judging), disjoint by identity."""
    found = split(recipe, packing)
    return _test_images(recipe, found.train)[0], found.held


def testing(recipe: Recipe, packing: Packing | None = None) -> FaceSet | None:
    """The test images of those who are trained on, who have the numbers that they have in training; None without.

    `coalface.data.test_images.by_party` tells whose they are.
    """
    return None if recipe.data.test is None else _test_images(recipe, split(recipe, packing).train)[1]


def _test_images(recipe: Recipe, faces: FaceSet) -> tuple[FaceSet, FaceSet | None]:
    """(those to train on, those to test on): disjoint images of the same identities."""
    wanted, source = recipe.data.test, recipe.data.source
    if wanted is None:
        return faces, None
    if source.kind == OWN and len(source.parts) < len(source.parties):  # what one party has says nothing of all
        return _held_back(faces, wanted.images) if (faces.counts() > wanted.images).any() else (faces, None)
    if np.count_nonzero(faces.counts()) < 2:
        raise RecipeError("data.test: one identity alone has nobody to be told apart from; take two or more")
    try:
        rest, test = _held_back(faces, wanted.images)
    except ValueError as error:
        raise RecipeError(f"data.test.images: {error}") from None
    if recipe.data.side != "both" or recipe.data.private is None:
        return rest, test
    whose = of_the_parties(recipe, test.names)[test.labels]  # public people are nobody's clients and keep all images
    kept = np.isin(faces.rows, test.rows[whose], invert=True)
    return faces.select(np.flatnonzero(kept)), test.select(np.flatnonzero(whose))


def _held_back(faces: FaceSet, images: int) -> tuple[FaceSet, FaceSet]:
    return hold_back(faces, images, lambda name: generator(SPLIT_SEED, "test", name))


def of_the_parties(recipe: Recipe, names: Sequence[str]) -> NDArray[np.bool_]:
    """(n,) which of some identities the parties hold, and which are public."""
    private = recipe.data.model_copy(update={"side": None, "test": None})
    return np.isin(names, split(recipe.model_copy(update={"data": private}), unseen).train.names)


def public_faces(recipe: Recipe, packing: Packing | None = None) -> FaceSet | None:
    """The images that the server and every party hold, of the identities that are nobody's; None for most methods.

    They are those, in the same order, that a pre-training on the public identities trains on. Raises RecipeError where
    the method needs some and the recipe does not say which.
    """
    if not METHODS[recipe.method].shares_public:
        return None
    if recipe.data.source.kind == OWN:
        apart = Data.model_validate(before(recipe.data.model_dump(mode="json"), {}))
        return _of_nobody(recipe, split(recipe.model_copy(update={"data": apart}), packing).train)
    if recipe.data.private is None:
        raise RecipeError(
            f"data.private: in {recipe.method} all parties hold the public images beside their own, so say how many "
            "identities are the parties', as `private: {identities: 150}`; all others are public"
        )
    public = recipe.data.model_copy(update={"side": "public", "test": None})
    return split(recipe.model_copy(update={"data": public}), packing).train


def _of_nobody(recipe: Recipe, public: FaceSet) -> FaceSet:
    """Public people. Raises RecipeError where a party that is played here has some of them, of the same folder."""
    wanted, parts = recipe.data.public, recipe.data.source.parts
    assert wanted is not None
    alike = [name for name, part in parts.items() if origin(recipe, part) == origin(recipe, wanted)]
    trained = split(recipe, unseen).train.names if alike else ()
    for name in alike:
        own = {known.removeprefix(f"{name}/") for known in trained if known.startswith(f"{name}/")}
        if shared := sorted(own & set(public.names)):
            some = ", ".join(shared[:5]) + (", …" if len(shared) > 5 else "")
            raise RecipeError(
                f"data.public: {len(shared)} of its people are {name}'s own ({some}), who would be trained on as "
                "strangers to themselves: take others, or leave them out by data.exclude"
            )
    return public


@dataclass(frozen=True)
class Split:
    """The identities of a recipe, disjoint."""

    train: FaceSet
    """For training, and for tests of those who are trained on."""
    held: FaceSet
    """Held out for judging."""
    validators: dict[str, FaceSet]
    """Set aside for each validator."""
    calibration: FaceSet
    """Of the source domain, to choose a threshold by."""


def split(recipe: Recipe, packing: Packing | None) -> Split:
    data = recipe.data
    faces = _opened(recipe, packing)
    faces = without(faces, _excluded(recipe))
    faces = minimum_images(faces, data.min_images)
    held = calibration = faces.only([])
    if data.domains is not None:
        faces, held, calibration = domains.apart(recipe, faces)
    if data.hold_out:
        faces, held = _held_out(faces, data.hold_out, tuple(data.source.parts))
    aside = {}
    for name, wanted in recipe.validators.items():
        if wanted.identities is not None:
            rng = generator(SPLIT_SEED, "validator", name)
            try:
                faces, aside[name] = hold_out(faces, rng, identities=wanted.identities)
            except ValueError as error:
                raise RecipeError(f"validators.{name}.identities: {error}") from None
    if data.private is not None:
        public, dealt = _public(faces, data.private), _dealt(faces, data.private)
        faces = faces.only(np.flatnonzero({"public": public, "both": public | dealt}.get(data.side or "", dealt)))
    if data.max_identities is not None and data.max_identities < len(faces.names):
        deal = generator(deal_seed(recipe), "identities").permutation(len(faces.names))[: data.max_identities]
        faces = faces.only(np.sort(deal))
    if len(faces) == 0 and (data.source.kind != OWN or data.source.parts):
        if data.public is not None:
            raise RecipeError(
                f"data.public: none of its people has data.min_images={data.min_images} images or more, or "
                "data.exclude names them all: take others, or lower data.min_images"
            )
        raise RecipeError("no image is left to train on: lower data.min_images or data.hold_out, or check data.exclude")
    return Split(faces, held, aside, calibration)


def _opened(recipe: Recipe, packing: Packing | None) -> FaceSet:
    """The images of `data.source`. Raises RecipeError, which names `data.public`, where those are of public people."""
    try:
        return open_source(recipe, recipe.data.source, packing)
    except (ValueError, OSError) as error:
        if recipe.data.public is None or recipe.data.source.kind == OWN:
            raise
        raise RecipeError(f"data.public: {error}") from None


def _public(faces: FaceSet, private: Private) -> NDArray[np.bool_]:
    """(len(names),) which identities are nobody's."""
    found = np.ones(len(faces.names), dtype=bool)
    found[_drawn(faces, private)] = False
    return found


def _dealt(faces: FaceSet, private: Private) -> NDArray[np.bool_]:
    """(len(names),) which identities the parties hold; those for fewer are among those for more."""
    found = np.zeros(len(faces.names), dtype=bool)
    found[_drawn(faces, private)[: private.dealt]] = True
    return found


def _drawn(faces: FaceSet, private: Private) -> NDArray[np.int64]:
    eligible = np.flatnonzero(faces.counts() >= private.min_images)
    if len(eligible) < private.identities:
        raise RecipeError(
            f"data.private.identities: {private.identities:,} are wanted of those with {private.min_images} images or "
            f"more, and there are {len(eligible):,}; lower it, or data.private.min_images"
        )
    if (private.dealt or 0) > private.identities:
        raise RecipeError(f"data.private.dealt: {private.dealt:,} of {private.identities:,} identities; give fewer")
    return generator(SPLIT_SEED, "private").permutation(eligible)[: private.identities]


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
    wanted, source = recipe.data.exclude, recipe.data.source
    if source.kind == OWN:  # the lists of the parties that are played here
        wanted = {name: wanted.get(name, ()) if isinstance(wanted, dict) else wanted for name in source.parts}
    by_prefix = {f"{part}/": paths for part, paths in wanted.items()} if isinstance(wanted, dict) else {"": wanted}
    try:
        return {
            prefix + name
            for prefix, paths in by_prefix.items()
            for path in paths
            for name in named_identities(below_root(recipe, path))
        }
    except FileNotFoundError as error:
        raise RecipeError(f"data.exclude: {error.filename} is not there") from None


def deal_seed(recipe: Recipe) -> int:
    own = recipe.data.partition.seed
    return recipe.seed if own is None else own
