"""The parties of a recipe and their identities: silos, devices, domains, a pooled party, parties with their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coalface.core.errors import CoalfaceError, RecipeError
from coalface.core.method import generator
from coalface.data.faceset import FaceSet
from coalface.data.held_back import hide_identities
from coalface.data.partition import by_domain, part_of
from coalface.experiments.recipe.partitions import Equal
from coalface.experiments.recipe.scenarios import OfFaces, Own
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Synthetic
from coalface.experiments.setup.pair_lists import SPLIT_SEED
from coalface.experiments.setup.splits import deal_seed, partition_file
from coalface.methods import METHODS

POOLED = "pooled"
"""The name of the one party that holds everybody's data."""


def silos(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The silos that the recipe's partition makes, whether or not the method pools them.

    Where parties bring images of their own, those that are played here.
    """
    if recipe.own is not None:
        return _bringing(recipe.own, faces)
    partition, rng = recipe.partition or Equal(), generator(deal_seed(recipe), "deal")
    try:
        if (file := partition_file(recipe)) is not None:
            return file.assign(faces)
        return partition.assign(faces, rng, _domain_names(recipe, faces))
    except CoalfaceError:
        raise
    except ValueError as error:
        raise RecipeError(str(error), where="data.partition") from None


def without_some_labels(
    recipe: Recipe, parties: Mapping[str, FaceSet]
) -> tuple[dict[str, FaceSet], dict[str, FaceSet]]:
    """(the parties' images of known identity, their others), as `data.unlabelled` has it."""
    known, unknown = dict(parties), dict[str, FaceSet]()
    for name, faces in parties.items() if recipe.unlabelled else ():

        def rng_of(identity: str, party: str = name) -> np.random.Generator:
            return generator(SPLIT_SEED, "unlabelled", *([identity] if identity else ["order", party]))

        known[name], unknown[name] = hide_identities(faces, recipe.unlabelled, rng_of)
    return known, unknown


def marked_by_silo(faces: FaceSet, silos: Mapping[str, FaceSet]) -> FaceSet:
    """The faces with the silo that each would be dealt to as its domain."""
    numbers = np.zeros(len(faces.pixels), dtype=np.int64)
    for number, silo in enumerate(silos.values()):
        numbers[silo.rows] = number
    return replace(faces, domains=numbers[faces.rows], domain_names=tuple(silos))


def check_one_identity(recipe: Recipe, parties: Mapping[str, FaceSet]) -> None:
    """Raise RecipeError where a method for clients of one identity would have one with more."""
    if METHODS[recipe.method].scenario != "devices":
        return
    brings = recipe.own is not None
    for party, faces in parties.items():
        if len(faces.names) != 1:
            remedy = "let it bring the images of one person" if brings else "set data.scenario=devices"
            raise RecipeError(
                f"{recipe.method} needs clients with one identity each, and {party} has {len(faces.names)}; {remedy}",
                where="data.parties" if brings else "data.partition",
            )


def _bringing(data: Own, faces: FaceSet) -> dict[str, FaceSet]:
    names = tuple(data.party_data)
    present = set() if faces.domains is None else set(faces.domains.tolist())
    if empty := [name for number, name in enumerate(names) if number not in present]:
        raise RecipeError(
            f"nobody is left to train on: each of its people has fewer than data.min_images={data.min_images} "
            "images, or is in data.exclude; check its folder, or lower data.min_images",
            where=empty[0],
        )
    return by_domain(faces, names) if names else {}


def _domain_names(recipe: Recipe, faces: FaceSet) -> tuple[str, ...]:
    """What domains are called: of a data set of several, and of joined ones, as identities' names begin."""
    if isinstance(recipe.data, OfFaces) and isinstance(recipe.data.faces, Synthetic):
        return recipe.data.faces.domains
    if faces.domains is None:
        return ()
    firsts = np.unique(faces.domains, return_index=True)[1]
    return tuple(part_of(faces.names[faces.labels[i]]) for i in firsts)
