"""Short keys: `lr` for `local.lr`, `parties` for `data.partition.parties`, `mu` for `methods.fedprox.mu`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coalface.core.checks import UnknownKey
from coalface.core.declarations import without_none
from coalface.core.errors import RecipeError
from coalface.experiments.recipe.base import Section
from coalface.experiments.recipe.objects import fields_of
from coalface.experiments.recipe.partitions import PARTITIONS
from coalface.experiments.recipe.scenarios import SCENARIOS, Silos
from coalface.experiments.recipe.schema import LOSS, SHARED, Recipe
from coalface.experiments.recipe.sections import SOURCES
from coalface.methods import METHODS
from coalface.training.local_work import LocalTraining

CHOICES = {"model": "model.name", "backbone": "model.name", "loss": "loss.name", "partition": "data.partition.kind"}
"""A section of which a name is given -> the key that chooses it."""
OFTEN = {"learning_rate": "local.lr", "clients": "data.partition.parties", "dataset": "data.faces", **CHOICES}
"""What other programs call a key, or leave out of it -> the key."""


def full_key(key: str, tree: Mapping[str, Any]) -> str:
    """The key of a recipe that a short one stands for: the first that ends so.

    The order is: keys at the top, settings of the method, `local`, `loss`, `data`, its partition, and the others as
    recipes have them. Raises RecipeError for a name that no key ends with.

    >>> full_key("lr", {}), full_key("mu", {"method": "fedprox"}), full_key("parties", {})
    ('local.lr', 'methods.fedprox.mu', 'data.partition.parties')
    """
    if "." in key or key in Recipe.model_fields:
        return key
    keys = list(_keys(tree))
    for path in keys:
        if path.rpartition(".")[2] == key:
            return path
    near = _ending(key, _unchosen()) or _near(key, keys)
    near = [path.rpartition(".")[2] if path in keys else path for path in near]  # a keyword of Python has no dot
    hint = f"; did you mean {' or '.join([*dict.fromkeys(near)][:3])}?" if near else ""
    raise RecipeError(f"not a key of this recipe{hint}", where=key)


def with_hint(error: RecipeError, tree: Mapping[str, Any]) -> RecipeError:
    """The error of an unknown key, with the keys of the same name elsewhere: `lr` -> `local.lr`."""
    if not isinstance(error, UnknownKey):
        return error
    key, below = error.where, tree
    for name in key.split("."):
        below = _below(below, name)
    while len(below) == 1:  # `fedprox.mu=1` makes a section `fedprox`
        (name,) = below
        key, below = f"{key}.{name}", _below(below, name)
    keys, unchosen, name = [path for path in _keys(tree) if path != key], list(_unchosen()), key.rpartition(".")[2]
    if key in unchosen:  # the error says what has it
        return error
    near = _ending(key, keys) or _ending(key, unchosen) or _ending(name, keys) or list(error.near)
    near = near or _ending(name, unchosen) or _near(name, keys)
    return UnknownKey(error.where, error.keys, error.of, near[:3])


def _unchosen() -> Iterator[str]:
    """Keys of methods, partitions and sources that a recipe may choose."""
    yield from (f"methods.{method}.{name}" for method in METHODS.own for name in fields_of(METHODS[method]))
    for key, kinds in (("data.partition", PARTITIONS), ("data.faces", SOURCES)):
        yield from (f"{key}.{name}" for section in kinds.classes.values() for name in section.model_fields)


def _ending(key: str, keys: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(path for path in keys if path.endswith(f".{key}")))


def _near(name: str, keys: Iterable[str]) -> list[str]:
    """Keys whose end is near a name, has it as a word, or is what others call so."""
    if name in OFTEN:
        return [OFTEN[name]]
    ends: dict[str, list[str]] = {}
    for path in dict.fromkeys(keys):
        ends.setdefault(path.rpartition(".")[2], []).append(path)
    close = difflib.get_close_matches(name, ends, n=2, cutoff=0.75) or [end for end in ends if name in end.split("_")]
    return [path for end in close for path in ends[end]]


def _keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """The keys that a recipe with these choices can have, in the order of `full_key`."""
    method, loss, data = tree.get("method", "fedavg"), _below(tree, "loss"), _below(tree, "data")
    yield from (f"methods.{method}.{name}" for name in fields_of(METHODS.find(method, "method")) if name not in SHARED)
    yield from (f"local.{name}" for name in fields_of(LocalTraining))
    yield from (f"loss.{name}" for name in fields_of(LOSS.registry.find(loss.get("name", LOSS.usual), "loss.name")))
    scenario = SCENARIOS.classes.get(data.get("scenario", "silos"), Silos)
    yield from (f"data.{name}" for name in scenario.model_fields)
    if "partition" in scenario.model_fields:
        kind = PARTITIONS.classes.get(_below(data, "partition").get("kind", "equal"))
        yield from (f"data.partition.{name}" for name in (kind.model_fields if kind is not None else ()))
    yield from _section(Recipe, "")


def _section(section: type[Section], before: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{before}{name}"
        kind: Any = without_none(field.annotation)[0]
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _section(kind, f"{before}{name}.")


def _below(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return value if isinstance(value := tree.get(key), Mapping) else {}
