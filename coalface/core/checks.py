"""What is wrong with a recipe, in words: the key, the reason and the nearest thing that is right."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from coalface.core.errors import RecipeError
from coalface.core.text import told

T = TypeVar("T")


def short(key: str) -> str:
    """A dotted key as it may stand in an error, each of its parts in 80 letters."""
    return ".".join(told(part, 80) for part in key.split("."))


def unknown_key(where: str, known: Sequence[str]) -> str:
    """What to say of a key that is not known."""
    where = short(where)
    parent, _, key = where.rpartition(".")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    hint = f"did you mean {parent + '.' if parent else ''}{near[0]}? " if near else ""
    return f"{where} is not a key of a recipe; {hint}Known here: {', '.join(known) or 'none'}"


def nearest(name: str, registry: Mapping[str, Any], what: str) -> str:
    """The name itself, if the registry has it. Raises RecipeError with the nearest one else."""
    if not isinstance(name, str) or name not in registry:
        near = difflib.get_close_matches(str(name), list(registry), n=1, cutoff=0.0)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise RecipeError(f"{what}: {repr(name)[:100]} is not known{hint} Known: {', '.join(registry) or 'none'}")
    return name


def _finite(value: Any) -> bool:
    """Whether every number in a setting is finite."""
    if isinstance(value, Mapping):
        return all(_finite(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


@functools.cache
def type_hints(cls: type[Any]) -> dict[str, Any]:
    """The types of a class's fields."""
    return typing.get_type_hints(cls)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def build(cls: type[T], settings: Mapping[str, Any], where: str, given: Mapping[str, Any] | None = None) -> T:
    """A dataclass from a mapping, its types checked. Raises RecipeError naming the key."""
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values, types = dict(given or {}), type_hints(cls)  # type: ignore[arg-type]
    for key, value in settings.items():
        if key not in fields:
            raise RecipeError(unknown_key(f"{where}.{key}", [n for n in fields if n not in (given or {})]))
        if dataclasses.is_dataclass(types[key]) and isinstance(value, Mapping):
            values[key] = build(typing.cast(type[Any], types[key]), value, f"{where}.{key}")
            continue
        try:
            values[key] = _adapter(types[key]).validate_python(value)
        except ValidationError as error:
            wrong = ", or: ".join(dict.fromkeys(one["msg"] for one in error.errors()))
            raise RecipeError(f"{where}.{key}: {wrong}; got {repr(value)[:200]}") from None
        if not _finite(values[key]):
            raise RecipeError(f"{where}.{key}: numbers must be finite; got {repr(value)[:200]}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{where}: {error}") from error
