"""Checks of settings against types and names; an error names the key, the reason and the nearest valid name."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from coalface.core.disk import explained
from coalface.core.errors import RecipeError
from coalface.core.text import told

T = TypeVar("T")


class at_key:
    """Within, an error of some `kinds`, else a ValueError, is a RecipeError of the key `where`, with its text."""

    def __init__(self, where: str | Path, *kinds: type[Exception]) -> None:
        self._where, self._kinds = where, kinds or (ValueError,)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._kinds):
            raise RecipeError(explained(error), where=self._where) from None


def short(key: str) -> str:
    """A dotted key as it may stand in an error, each of its parts in 80 letters."""
    return ".".join(told(part, 80) for part in key.split("."))


class UnknownKey(RecipeError):
    """A key that is not known: it offers `near` ones, else the nearest of `keys`."""

    def __init__(self, where: str, keys: Sequence[str], of: str = "a recipe", near: Sequence[str] = ()) -> None:
        self.keys, self.of = keys, of
        where = short(where)
        parent, _, key = where.rpartition(".")
        before = f"{parent}." if parent else ""
        near = near or [f"{before}{name}" for name in difflib.get_close_matches(key, keys, n=1, cutoff=0.7)]
        self.near = tuple(near)
        known_keys = f". Known here: {', '.join(keys)}" if keys else ""
        hint = f"; did you mean {' or '.join(near)}?" if near else known_keys
        super().__init__(f"not a key of {of}{hint}", where=where)


def unknown_name(name: object, known_names: Iterable[str], where: str) -> RecipeError:
    """The error of a name that is not known, with the nearest one if one is near."""
    if name == "":
        return RecipeError(f"nothing is named; give one of {', '.join(known_names)}", where=where)
    near = difflib.get_close_matches(str(name), names := list(known_names), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return RecipeError(f"{repr(name)[:100]} is not known{hint} Known: {', '.join(names) or 'none'}", where=where)


def nearest(name: str, registry: Mapping[str, Any], where: str) -> str:
    """The name itself, if the registry has it. Raises RecipeError, with the nearest one if one is near."""
    if not isinstance(name, str) or name not in registry:
        raise unknown_name(name, registry, where)
    return name


def needs_section(where: str, value: object, keys: Sequence[str]) -> RecipeError:
    """The error of a value where keys should be."""
    such = f", such as {', '.join(keys[:3])}" if keys else ""
    return RecipeError(f"this key has keys below it{such}; got {repr(value)[:200]}", where=where)


ALLOWED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "mapping_type": "keys with values",
    "dataclass_type": "keys with values",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "greater_than": "a number above {gt}",
    "less_than": "a number below {lt}",
    "literal_error": "{expected}",
    "none_required": "null",
    "missing": "a longer list",
    "too_long": "a list of at most {max_length}",
}
"""What pydantic misses -> what is allowed."""


def wrong_value(where: str, value: object, errors: Sequence[ErrorDetails]) -> RecipeError:
    """The error of a value that is of none of the types that its key takes: one of `errors` for each.

    >>> try:
    ...     TypeAdapter(typing.Literal["stop", "exclude"] | int).validate_python("x")
    ... except ValidationError as error:
    ...     print(wrong_value("engine.on_error", "x", error.errors()))
    engine.on_error: 'x' is not allowed; use 'stop' or 'exclude', or a whole number
    """
    allowed = [ALLOWED[e["type"]].format_map(e.get("ctx", {})) if e["type"] in ALLOWED else e["msg"] for e in errors]
    text = f"{repr(value)[:200]} is not allowed; use {', or '.join(dict.fromkeys(allowed))}"
    if isinstance(value, str) and "," in value and any(e["type"] in ("int_parsing", "float_parsing") for e in errors):
        text += f". For several, `coalface sweep RECIPE {where}={value[:100]}`"
    return RecipeError(text, where=where)


def _finite(value: Any) -> bool:
    """Whether every number in a setting is finite."""
    if isinstance(value, Mapping):
        return all(_finite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(item) for item in value)
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
            raise UnknownKey(f"{where}.{key}", [n for n in fields if n not in (given or {})])
        section = next(filter(dataclasses.is_dataclass, (types[key], *typing.get_args(types[key]))), None)
        if section is not None and isinstance(value, Mapping):
            values[key] = build(typing.cast(type[Any], section), value, f"{where}.{key}")
            continue
        try:
            values[key] = _adapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise wrong_value(f"{where}.{key}", value, error.errors()) from None
        if isinstance(value, bool) and values[key] is not value:  # pydantic takes it for 0 or 1
            raise RecipeError(f"{value} is not allowed; use a number", where=f"{where}.{key}")
        if not _finite(values[key]):
            raise RecipeError(f"{repr(value)[:200]} is not allowed; use finite numbers", where=f"{where}.{key}")
    unset = (dataclasses.MISSING, dataclasses.MISSING)
    for name, field in fields.items():
        if field.init and name not in values and (field.default, field.default_factory) == unset:
            raise RecipeError("it has no default; set it, or give the field one", where=f"{where}.{name}")
    try:
        return cls(**values)
    except RecipeError as error:
        raise RecipeError(error.text, where=f"{where}.{error.where}" if error.where else where) from error
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error), where=where) from error


class TypedSettings:
    """The base of settings that `__post_init__` checks: where it fails on a wrong type, RecipeError names the field."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if check := vars(cls).get("__post_init__"):

            @functools.wraps(check)
            def explained(self: Any) -> None:
                try:
                    check(self)
                except (TypeError, AttributeError):
                    _check_types(self)
                    raise

            cls.__post_init__ = explained  # type: ignore[attr-defined]


def _check_types(settings: Any) -> None:
    """Raise RecipeError for the first field of a dataclass whose value is not of its type."""
    types = type_hints(type(settings))  # type: ignore[arg-type]
    for strict, field in itertools.product((False, True), dataclasses.fields(settings)):  # "0.1" is a number if not
        value = getattr(settings, field.name)
        try:
            _adapter(types[field.name]).validate_python(value, strict=strict)
        except ValidationError as error:
            raise wrong_value(field.name, value, error.errors()) from None
        except PydanticSchemaGenerationError:  # an object, such as a loss
            continue
