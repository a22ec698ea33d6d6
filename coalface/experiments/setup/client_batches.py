"""Whether the parties of a recipe can be trained many at once, in client batches."""

from __future__ import annotations

from coalface.core.method import Method
from coalface.engine.faults import SimulatedFaults
from coalface.experiments.recipe.schema import Recipe
from coalface.models import Backbone


def unbatchable_reason(recipe: Recipe, method: Method, backbone: Backbone) -> str:
    """Why no client batches can be, as a sentence without its end; empty where they can."""
    engine, own, privacy = recipe.engine, recipe.own, recipe.privacy
    hindrances = {
        "the parties' images are their own, each at a node of its own": own is not None and not own.party_data,
        "privacy.dp clips the update of each party": recipe.dp is not None,
        "privacy.secure masks what each party sends": recipe.secure is not None,
        "privacy.templates puts noise on the templates of each party": privacy.templates is not None,
        "faults are simulated party by party": recipe.faults != SimulatedFaults(),
        "data.party_augment changes the images of parties in different ways": recipe.party_augment,
        "engine.processes_per_party splits a party's work": any(n > 1 for n in engine.processes_per_party.values()),
        "engine.max_update_norm bounds the updates of single parties, and a client batch makes none": (
            engine.max_update_norm
        ),
        "engine.aggregator needs the reply of each party by itself": engine.aggregator is not None,
        "engine.max_share holds down the weights of single parties": engine.max_share is not None,
        "engine.update_dtype narrows what each party sends, and a client batch makes no single replies": (
            engine.update_dtype is not None
        ),
        "privacy.countersign signs which replies were accepted, and a client batch makes no single ones": (
            privacy.countersign
        ),
    }
    why = method.unbatchable_reason(backbone)
    return why or next((reason for reason, holds in hindrances.items() if holds), "")
