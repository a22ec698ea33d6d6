"""The federated data of one party's node, from a recipe and the party's own file; it holds nobody else's images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coalface.core.errors import RecipeError
from coalface.core.text import first_few
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.experiments.recipe import own_data, party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import VALIDATOR, Parts, first_backbone
from coalface.experiments.setup.sources import Packing
from coalface.training.compute import Compute


def party_data(recipe: Recipe, name: str, file: Path | None = None, packing: Packing | None = None) -> FederatedData:
    """The world of the party `name` at its own node; `file` is its own file.

    Where the trainers bring images of their own, nothing of others is opened, nor in it. A party that is something else
    by its file than by the recipe says so and has no images: the server then leaves it alone. Raises RecipeError
    where the recipe has no such party, and where file and recipe do not agree on whose images they are.
    """
    check_elsewhere(recipe)
    settings = party_file.read(file) if file is not None else party_file.PartyFile()
    bringing = name in lacking(recipe)
    if settings.name not in (None, name):
        raise RecipeError(
            f"this file belongs to {settings.name}, and the node plays {name}; give the file of {name}",
            where=file or "",
        )
    if settings.role not in (None, role(recipe, name)):
        return _without_images(recipe, name, settings.role)
    if bringing and file is None:
        raise RecipeError(
            "this party brings its own images, and its node does not say where they lie; name its party.yaml in the "
            f'node\'s configuration, data="/path/to/party.yaml", and write {party_file.EXAMPLE} into it',
            where=name,
        )
    if not bringing and (settings.data is not None or settings.pairs is not None):
        raise RecipeError(
            f"the file names images of {name}, which this recipe does not use; remove `data` and `pairs` from the "
            "file, or ask for a recipe with `data: {scenario: own}`",
            where=file or "",
        )
    ours = recipe.own is not None
    validators = recipe.validators if Parts(recipe).has_validators else ()
    parties = [*(recipe.own.parties if recipe.own else ()), *validators]
    if ours and name not in parties:
        raise RecipeError(f"unknown party {name!r}; this run has {', '.join(parties[:8])}")
    filled = party_file.fill(recipe, {name: settings}) if bringing else recipe
    return Parts(filled, packing, played=(name,) if ours else None).data


def role(recipe: Recipe, name: str) -> str:
    """What a party is by the recipe, if it is one."""
    return VALIDATOR if name in recipe.validators and Parts(recipe).has_validators else "trainer"


def lacking(recipe: Recipe) -> list[str]:
    """The parties that bring images of their own, of which the recipe does not say where they lie."""
    data = recipe.own
    trainers = [name for name in data.parties if name not in data.party_data] if data is not None else []
    validators = recipe.validators.items() if Parts(recipe).has_validators else ()
    return trainers + [name for name, validator in validators if not own_data.is_located(validator)]


def check_here(recipe: Recipe) -> None:
    """Raise RecipeError unless it is known where the images of all parties lie, so that they can be played here."""
    if missing := lacking(recipe):
        raise RecipeError(
            "the recipe does not say where these parties' own images lie. To play all of them on this machine, use "
            "`coalface run … --party-data FILE`, a YAML file with a line for each such as "
            f"`{missing[0]}: {party_file.EXAMPLE}`; in a sweep, write the same below data.party_data. Over Flower each "
            "party's node names them (docs/flower.md)",
            where=first_few(missing, 8),
        )


def check_elsewhere(recipe: Recipe) -> None:
    """Raise RecipeError where a recipe for parties elsewhere names their images, or would have them evaluated here.

    And where the machine of one of them would have to choose how all compute.
    """
    if keys := recipe.engine.to_measure:
        raise RecipeError(
            "every node computes alike, so none can choose; write a value. `coalface models --measure` on the nodes "
            "shows what is fast there",
            where=", ".join(f"engine.{key}" for key in keys),
        )
    if located := own_data.located_parties(recipe):
        raise RecipeError(
            "the recipe says where this party's own images lie, and its node does too; remove data.party_data from the "
            "recipe, and source, kind and path of validators with `own: true`",
            where=located[0],
        )
    if recipe.own is not None and recipe.evaluation.personalised is not None:
        raise RecipeError(
            "it needs the test images of all parties in one place; remove it, or play the parties on one machine "
            "(`coalface run … --party-data FILE`)",
            where="evaluation.personalised",
        )


def _without_images(recipe: Recipe, name: str, role: str) -> FederatedData:
    size, channels = recipe.data.size, 1 if recipe.data.grey else 3
    none = np.empty(0, dtype=np.int64)
    nobody = FaceSet(np.empty((0, size, size, channels), dtype=np.uint8), none, none, ())
    return FederatedData(data={name: nobody}, roles={name: role}, backbone=first_backbone(recipe), compute=Compute())
