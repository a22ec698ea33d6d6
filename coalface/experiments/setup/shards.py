"""Checks of the processes that the work of single parties is split over."""

from __future__ import annotations

from collections.abc import Collection

import torch

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.experiments.setup.partition import POOLED
from coalface.experiments.setup.parts import Parts


def check_shards(parts: Parts) -> None:
    """Raise RecipeError where `engine.processes_per_party` names no party, or takes more processes than there are GPUs.

    It may name silos, validators and `pooled` whatever the method, so that one recipe serves all methods of a
    sweep.
    """
    recipe, engine, method, silos = parts.recipe, parts.recipe.engine, parts.method, _silos_beside(parts)
    parties = dict.fromkeys([*silos, *recipe.validators, POOLED])
    for party, size in engine.processes_per_party.items():
        nearest(party, parties, "engine.processes_per_party: the party")
        where = f"engine.processes_per_party.{party}"
        if (party in silos) + (party in recipe.validators) + (party == POOLED) > 1:
            raise RecipeError(
                f"two parties have this name: a silo, a validator, or {POOLED!r}, which holds all images in "
                "centralised training; rename the silo or the validator",
                where=where,
            )
        if size == 1 or not parts.plays(party):
            continue
        why = ""
        if method.scenario == "domains" and method.pools == "images":
            why = f"a batch of two domains, as {recipe.method} has it, is not split"
        elif method.scenario == "private-public" or method.taught:
            why = f"the losses of {recipe.method} over one batch are not split"
        elif method.scenario == "devices":
            why = f"a client of {recipe.method} has one class embedding, which cannot lie"
        if why:
            raise RecipeError(f"{why} over {size} processes; remove engine.processes_per_party", where=where)
        if engine.device != "cpu" and (engine.device != "cuda" or torch.cuda.device_count() < size):
            raise RecipeError(
                f"{size} processes need engine.device cpu, or cuda where there are {size} GPUs; it is "
                f"{engine.device!r}, with {torch.cuda.device_count()}",
                where=where,
            )


def _silos_beside(parts: Parts) -> Collection[str]:
    """The silos among the trainers; of a pooled method those that others deal, if `engine.processes_per_party` names
    any.
    """
    recipe = parts.recipe
    if not parts.method.pools:
        return dict.fromkeys([*parts.own_parties, *parts.trainers])
    return () if recipe.engine.processes_per_party.keys() <= {POOLED, *recipe.validators} else parts.silos
