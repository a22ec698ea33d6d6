"""Two domains of a recipe: a source whose identities are known, targets whose are not, and who holds which of them.

What the method must not know is taken off here, at the door: a target's images come without identities, file names and
the order that they lay in. The lab keeps the truth, to evaluate by.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coalface.core.checks import at_key
from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.data.faceset import FaceSet
from coalface.data.partition import equal, identities_of, part_of
from coalface.experiments.recipe.scenarios import Domains
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.pair_lists import SPLIT_SEED
from coalface.methods import METHODS

SOURCE, TARGET = "trainer/source", "trainer/target"
"""Their roles: a step for `trainer` is that of both."""
NAMED_SOURCE = "source"
"""The name of the source client."""


def split_domains(recipe: Recipe, data: Domains, faces: FaceSet) -> tuple[FaceSet, FaceSet, FaceSet]:
    """(for training, target identities to evaluate, source identities to choose a threshold by), disjoint by identity.

    Split number s evaluates `hold_out` identities from the s-th such group of the target's on, in an order drawn by a
    fixed seed, so that the evaluated people of different splits differ as long as there are enough; in a rehearsal the
    next `rehearsal` ones, and those are left out. Raises RecipeError.
    """
    source, target = identities_of(faces, data.source_domain), identities_of(faces, data.target_domain)
    rehearsed = data.rehearsal or 0
    asked = {
        "hold_out": (data.hold_out, target, data.target_domain),
        "rehearsal": (data.hold_out + rehearsed, target, data.target_domain),
        "calibrate": (data.calibrate, source, data.source_domain),
    }
    for key, (count, identities, domain) in asked.items():
        if count >= len(identities):
            raise RecipeError(
                f"{count:,} of the {len(identities):,} identities of {domain} leave nobody to train on; lower it",
                where=f"data.{key}",
            )
    order = generator(SPLIT_SEED, "domains", "target").permutation(target)
    split = recipe.seed if data.split is None else data.split
    aside = order[(split * data.hold_out + np.arange(data.hold_out + rehearsed)) % len(order)]
    evaluated = aside[data.hold_out :] if rehearsed else aside
    calibrating = generator(SPLIT_SEED, "domains", "source").permutation(source)[: data.calibrate]
    trained = np.setdiff1d(np.concatenate([source, target]), np.concatenate([aside, calibrating]))
    if data.side == "source":
        trained = np.setdiff1d(trained, target)
    return faces.only(trained), faces.only(np.sort(evaluated)), faces.only(np.sort(calibrating))


def deal(recipe: Recipe, faces: FaceSet, rng: np.random.Generator) -> dict[str, FaceSet]:
    """The parties of the domains that the recipe's method trains on, each with the truth about its identities.

    The source is `source`; the target's identities are dealt equally over `target-00`, …, their images shuffled.
    """
    data = recipe.domains
    assert data is not None  # the recipe of a method for domains has them
    method, parties = METHODS[recipe.method], {}
    source, target = identities_of(faces, data.source_domain), identities_of(faces, data.target_domain)
    if "source" in method.sides:
        parties[NAMED_SOURCE] = faces.only(source)
    if "target" in method.sides:
        with at_key("data.clients"):
            silos = equal(faces.only(target), data.clients, rng)
        for name, silo in zip(targets(recipe), silos.values(), strict=True):
            parties[name] = silo.select(rng.permutation(len(silo)))
    return parties


def parties(recipe: Recipe) -> list[str]:
    """The names of the parties that `deal` gives, or of the one that they are pooled at, without a look at images."""
    method = METHODS[recipe.method]
    if method.pools:
        return ["pooled"]
    clients = targets(recipe) if "target" in method.sides else []
    return [*([NAMED_SOURCE] if "source" in method.sides else []), *clients]


def targets(recipe: Recipe) -> list[str]:
    """The names of the target clients."""
    return [f"target-{number:02d}" for number in range(recipe.domains.clients)] if recipe.domains else []


def roles(recipe: Recipe, parties: Iterable[str]) -> dict[str, str]:
    """The role of each party of a method for two domains; empty where it pools them, and for other methods."""
    method = METHODS[recipe.method]
    if method.scenario != "domains" or method.pools:
        return {}
    return {name: SOURCE if name == NAMED_SOURCE else TARGET for name in parties}


def pooled(parties: dict[str, FaceSet]) -> FaceSet:
    """All of their images as one set, party after party, with the truth about their identities."""
    whole = functools.reduce(FaceSet.beside, parties.values())
    return replace(whole, files=next(iter(parties.values())).files)


def unlabelled(faces: FaceSet, source: str | None) -> FaceSet:
    """The set without what tells identities: of all images, or of those that are not of the part `source`."""
    identified = [n for n, name in enumerate(faces.names) if source is not None and part_of(name) == source]
    renumbered: NDArray[np.int64] = np.full(len(faces.names), -1, dtype=np.int64)
    renumbered[identified] = np.arange(len(identified))
    names = tuple(faces.names[n] for n in identified)
    return replace(faces, labels=renumbered[faces.labels], names=names, files=None, domains=None)
