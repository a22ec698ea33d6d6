"""The identities of a recipe, disjoint: trained on, held out, set aside for validators, public or private."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.core import disk
from coalface.core.checks import at_key
from coalface.core.errors import DataError, RecipeError
from coalface.core.method import generator
from coalface.core.text import first_few
from coalface.data.faceset import FaceSet
from coalface.data.held_back import hold_back
from coalface.data.pairs import named_identities
from coalface.data.partition import first_images, hold_out, identities_of, part_of, shares, without
from coalface.data.partition_file import PartitionFile, read_partition
from coalface.experiments.recipe.own_data import pretraining_data
from coalface.experiments.recipe.partitions import FromFile
from coalface.experiments.recipe.scenarios import Assigned, Domains, OfFaces, Own, Private, Public
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Pack
from coalface.experiments.setup import domains
from coalface.experiments.setup.pair_lists import SPLIT_SEED
from coalface.experiments.setup.sources import Packing, below_root, folder, open_listing, open_own, open_source, origin
from coalface.methods import METHODS


def fingerprint(recipe: Recipe) -> str:
    """What names the images of a recipe's source."""
    assert isinstance(recipe.data, OfFaces)  # those of parties' own images are not looked up
    source = recipe.data.faces
    if isinstance(source, Pack):
        return hashlib.sha256((folder(recipe, source) / "meta.json").read_bytes()).hexdigest()
    return open_listing(recipe, source).fingerprint()


@dataclass(frozen=True)
class Split:
    """The identities of a recipe, disjoint but for `test`, and for `trainable`, which has those of `train`."""

    train: FaceSet
    """For training."""
    of_parties: FaceSet
    """Of these, who is a party's: all, but for those of a bound that trains on public people as well."""
    test: FaceSet | None
    """Test images of those who are trained on, who have the numbers that they have in training; None without.

    `coalface.data.held_back.by_party` tells whose they are."""
    held: FaceSet
    """Held out for evaluation."""
    validators: dict[str, FaceSet]
    """Set aside for each validator."""
    calibration: FaceSet
    """Of the source domain, to choose a threshold by."""
    trainable: FaceSet
    """Before private people are told from public ones: of both."""


def split(recipe: Recipe, packing: Packing | None = None) -> Split:
    """Open the images of a recipe and draw who is trained on, held out and set aside. Raises RecipeError for nobody."""
    data = recipe.data
    everybody, listed = _opened(recipe, packing), partition_file(recipe)
    faces = without(everybody, _excluded(recipe) | _named(recipe, everybody))
    faces = faces.only(np.flatnonzero(faces.counts() >= data.min_images))
    if isinstance(data, Assigned) and data.max_images is not None:
        faces = first_images(faces, data.max_images)
    held = calibration = faces.only([])
    if isinstance(data, Domains):
        faces, held, calibration = domains.split_domains(recipe, data, faces)
    elif listed is not None:
        listed.check(everybody)
        faces, held = listed.hold_out(faces)
    elif isinstance(data, Assigned):
        faces, held = _held_out(faces, data)
    aside = {}
    for name, validator in recipe.validators.items():
        if validator.identities is not None:
            rng = generator(SPLIT_SEED, "validator", name)
            with at_key(f"validators.{name}.identities"):
                faces, aside[name] = hold_out(faces, rng, identities=validator.identities)
    train = of_parties = of_side(recipe, faces, recipe.side)
    if recipe.side == "both":
        of_parties = of_side(recipe, faces, None)
    remaining, test = _without_test_images(recipe, train, of_parties)
    if of_parties is not train:
        of_parties = remaining.only(np.flatnonzero(np.isin(remaining.names, of_parties.names)))
    return Split(remaining, remaining if of_parties is train else of_parties, test, held, aside, calibration, faces)


def of_side(recipe: Recipe, faces: FaceSet, side: str | None) -> FaceSet:
    """The public people, the parties', or both; at most `max_identities`. Raises RecipeError where nobody is left."""
    data, private = recipe.data, recipe.private
    if private is not None:
        drawn = _drawn(faces, private)
        everyone = np.arange(len(faces.names))
        public, of_parties = _public(faces, private, drawn), np.isin(everyone, drawn[: private.assigned])
        chosen = {"public": public, "both": public | of_parties}.get(side or "", of_parties)
        faces = faces.only(np.flatnonzero(chosen))
    if isinstance(data, Assigned) and data.max_identities is not None and data.max_identities < len(faces.names):
        drawn = generator(deal_seed(recipe), "identities").permutation(len(faces.names))[: data.max_identities]
        faces = faces.only(np.sort(drawn))
    if len(faces) == 0 and (recipe.own is None or recipe.own.party_data):
        raise RecipeError("no image is left to train on; lower data.min_images or data.hold_out, or check data.exclude")
    return faces


def _without_test_images(recipe: Recipe, faces: FaceSet, of_parties: FaceSet) -> tuple[FaceSet, FaceSet | None]:
    """(those to train on, those to test on): disjoint images of the same identities, who are among `own`."""
    testing, brought = recipe.test, recipe.own
    if testing is None:
        return faces, None
    if brought is not None and len(brought.party_data) < len(brought.parties):  # what one party has says nothing of all
        return _held_back(faces, testing.images) if (faces.counts() > testing.images).any() else (faces, None)
    if np.count_nonzero(faces.counts()) < 2:
        raise RecipeError("there is one identity, and telling people apart needs two or more", where="data.test")
    with at_key("data.test.images"):
        remaining, test = _held_back(faces, testing.images)
    if of_parties is faces:
        return remaining, test
    whose = np.isin(test.names, of_parties.names)[test.labels]  # public people are nobody's clients and keep all images
    trained = np.isin(faces.rows, test.rows[whose], invert=True)
    return faces.select(np.flatnonzero(trained)), test.select(np.flatnonzero(whose))


def _held_back(faces: FaceSet, images: int) -> tuple[FaceSet, FaceSet]:
    return hold_back(faces, images, lambda name: generator(SPLIT_SEED, "test", name))


def public_faces(recipe: Recipe, own: Split, packing: Packing | None = None) -> FaceSet | None:
    """The images of identities that are nobody's, for the server and what parties hold them; None for most methods.

    They are those, in the same order, that a pre-training on the public identities trains on. Raises RecipeError where
    the method needs some and the recipe does not say which.
    """
    method = METHODS[recipe.method]
    if method.scenario != "private-public" and not (method.takes_public and recipe.own is None and recipe.private):
        return None
    if recipe.own is not None:
        return _of_nobody(recipe, recipe.own, own, _public_alone(recipe, recipe.own, packing))
    if recipe.private is None:
        raise RecipeError(
            f"{recipe.method} needs public images beside those of the parties; write `scenario: private-public`, "
            "and how many identities are private, as `private: {identities: 150}`",
            where="data.scenario",
        )
    return of_side(recipe, own.trainable, "public")


def _public_alone(recipe: Recipe, data: Own, packing: Packing | None) -> FaceSet:
    """Public people beside parties with images of their own, as a pre-training takes them."""
    alone = Public.model_validate(pretraining_data(data, data.model_dump(mode="json"), {}))
    try:
        return split(recipe.model_copy(update={"data": alone, "validators": {}}), packing).train
    except (ValueError, OSError) as error:
        if isinstance(error, RecipeError) and error.where == "data.exclude":
            raise
        raise RecipeError(disk.explained(error), where="data.public") from None


def _of_nobody(recipe: Recipe, data: Own, split: Split, public: FaceSet) -> FaceSet:
    """Public people. Raises RecipeError where a party that is played here has some of them, of the same folder."""
    assert data.public is not None  # else the recipe is refused
    for name, part in data.party_data.items():
        if origin(recipe, part) != origin(recipe, data.public):
            continue
        people = {n.removeprefix(f"{name}/") for n in split.train.names if n.startswith(f"{name}/")}
        if shared := sorted(people & set(public.names)):
            raise RecipeError(
                f"{len(shared)} of its people are {name}'s own ({first_few(shared, 5)}), "
                "who would be trained on under two names; use other people, or list them in data.exclude",
                where="data.public",
            )
    return public


def _opened(recipe: Recipe, packing: Packing | None) -> FaceSet:
    """The images that are trained on, before anybody is left out."""
    if isinstance(recipe.data, OfFaces):
        return open_source(recipe, recipe.data.faces, packing)
    return open_own(recipe, recipe.data.parts, packing)


def _drawn(faces: FaceSet, private: Private) -> NDArray[np.int64]:
    """Who is private, in the order of the draw."""
    eligible = np.flatnonzero(faces.counts() >= private.min_images)
    if len(eligible) < private.identities:
        raise RecipeError(
            f"{private.identities:,} identities need {private.min_images} images or more, and {len(eligible):,} have "
            "them; lower it, or data.private.min_images",
            where="data.private.identities",
        )
    return generator(SPLIT_SEED, "private").permutation(eligible)[: private.identities]


def _public(faces: FaceSet, private: Private, drawn: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(k,) who is public, of those who are not `drawn`."""
    others = np.setdiff1d(np.arange(len(faces.names)), drawn)
    if private.public is not None:
        if len(others) < private.public:
            raise RecipeError(
                f"{private.public:,} identities, and {len(others):,} are not private; lower it, or "
                "data.private.identities",
                where="data.private.public",
            )
        others = generator(SPLIT_SEED, "public").permutation(others)[: private.public]
    return np.isin(np.arange(len(faces.names)), others)


def _held_out(faces: FaceSet, data: Assigned) -> tuple[FaceSet, FaceSet]:
    """(to train on, held out to be evaluated)."""
    if isinstance(data.hold_out, int):
        return _drawn_out(faces, data.hold_out, tuple(data.parts)) if data.hold_out else (faces, faces.only([]))
    faces, held = _smallest(faces, data.hold_out, "hold_out")
    return (faces, held) if data.rehearsal is None else _smallest(faces, data.rehearsal, "rehearsal")


def _drawn_out(faces: FaceSet, count: int, parts: tuple[str, ...]) -> tuple[FaceSet, FaceSet]:
    """(rest, held): so many identities are held; of a joined source, of each part its share by number of identities."""
    present = np.flatnonzero(faces.counts())
    if not parts or not 0 < count < len(present):
        with at_key("data.hold_out"):
            return hold_out(faces, generator(SPLIT_SEED, "hold out"), identities=count)
    belongs = np.array([parts.index(part_of(faces.names[number])) for number in present])
    chosen_of_parts = []
    for part, share in enumerate(shares(np.bincount(belongs, minlength=len(parts)).tolist(), count)):
        rng = generator(SPLIT_SEED, "hold out", parts[part])
        chosen_of_parts.append(rng.permutation(np.flatnonzero(belongs == part))[:share])
    chosen = np.isin(np.arange(len(present)), np.concatenate(chosen_of_parts))
    return faces.only(present[~chosen]), faces.only(present[chosen])


def _smallest(faces: FaceSet, counts: dict[str, int], key: str) -> tuple[FaceSet, FaceSet]:
    """(rest, held): of each part so many identities, those with the smallest SHA-256 of `part/identity`."""
    held = list[int]()
    for part, count in counts.items():
        of_part = identities_of(faces, part)
        if not 0 <= count <= len(of_part):
            raise RecipeError(
                f"{part} has {len(of_part):,} identities to set aside from, not {count:,}; lower it",
                where=f"data.{key}.{part}",
            )
        held += sorted(of_part, key=lambda n: hashlib.sha256(os.fsencode(faces.names[n])).digest())[:count]
    return faces.only(np.setdiff1d(np.flatnonzero(faces.counts()), held)), faces.only(np.sort(held))


def _excluded(recipe: Recipe) -> set[str]:
    """The identities that `data.exclude` names, as the training source calls them."""
    exclude = recipe.data.exclude
    if recipe.own is not None:  # the lists of the parties that are played here
        exclude = {n: exclude.get(n, ()) if isinstance(exclude, dict) else exclude for n in recipe.own.party_data}
    by_prefix = {f"{part}/": paths for part, paths in exclude.items()} if isinstance(exclude, dict) else {"": exclude}
    try:
        lists = [(prefix, below_root(recipe, path)) for prefix, paths in by_prefix.items() for path in paths]
        return {prefix + name for prefix, path in lists for name in named_identities(path)}
    except FileNotFoundError as error:
        raise RecipeError(f"{error.filename} does not exist", where="data.exclude") from None


def _named(recipe: Recipe, faces: FaceSet) -> set[str]:
    """The identities of `data.exclude_people`. Raises RecipeError for a name that nobody has."""
    people = set(recipe.data.exclude_people or ())
    if unknown := sorted(people - set(faces.names)):
        one = next(iter(faces.names), "nobody")
        raise RecipeError(
            f"{unknown[0]!r} is no identity of these images, which have {one!r}; correct it or take it out",
            where="data.exclude_people",
        )
    return people


def partition_file(recipe: Recipe) -> PartitionFile | None:
    """Who holds whom, where a file says it. Raises DataError for a file that has changed since the run began."""
    partition = recipe.partition
    if not isinstance(partition, FromFile):
        return None
    file = read_partition(below_root(recipe, partition.path))
    if partition.sha256 not in (None, file.sha256):
        raise DataError("it has changed since this run began; put it back, or start a new run", where=file.path)
    return file


def deal_seed(recipe: Recipe) -> int:
    """The seed of the draws that assign identities."""
    partition = recipe.partition
    return recipe.seed if partition is None or partition.seed is None else partition.seed
