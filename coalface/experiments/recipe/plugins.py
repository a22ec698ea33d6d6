"""What a recipe names that is not the package's own: methods, losses, backbones, partitions and readers of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coalface.core.registry import Registry
from coalface.experiments.recipe.partitions import PARTITIONS
from coalface.experiments.recipe.schema import LOSS, Recipe
from coalface.experiments.recipe.sections import SOURCES
from coalface.methods import METHODS
from coalface.models import BACKBONES


def plugins(recipe: Recipe) -> Iterator[tuple[str, str, Any]]:
    """(key of the recipe, name there, class, function or object) of each."""
    named: list[tuple[str, Registry[Any] | None, str]] = [
        ("method", METHODS, recipe.method),
        ("model.name", BACKBONES, recipe.model.name),
        ("loss.name", LOSS.registry, LOSS.name_of(recipe.loss)),
    ]
    if recipe.partition is not None:
        named.append(("data.partition.kind", PARTITIONS.plugins, recipe.partition.kind))
    faces = getattr(recipe.data, "faces", None)
    for source in [*([faces] if faces is not None else []), *recipe.data.parts.values()]:
        named.append(("data.faces.kind", SOURCES.plugins, source.kind))
    for key, registry, name in named:
        if registry is not None and name not in registry.own:
            yield key, name, registry.find(name, key)


def module_of(thing: Any) -> str:
    """The module that has a class or a function, or the class of an object."""
    return str(getattr(thing, "__module__", None) or type(thing).__module__)
