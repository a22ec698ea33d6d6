"""Keys of a recipe that hold an object of another package: read from a mapping, checked there, and written as one."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, JsonValue, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from coalface.core.checks import build, nearest, type_hints
from coalface.core.errors import RecipeError

Tree = dict[str, JsonValue]
"""Keys and what YAML can hold below them."""


@dataclass(frozen=True)
class Settings:
    """Marks a key that holds a dataclass of some type: its fields are the keys below it.

    `local: Annotated[LocalTraining, Settings("local", LocalTraining)]` reads `{lr: 0.1}` into `LocalTraining(lr=0.1)`.
    """

    key: str
    cls: type[Any]
    short: bool = False
    """Write the fields alone that differ from their defaults."""

    def read(self, value: object) -> Any:
        """The object of a mapping. Raises RecipeError with the key and the remedy."""
        if isinstance(value, self.cls):
            return value
        return build(self.cls, _mapping(value, self.key, fields_of(self.cls)), self.key)

    def write(self, value: Any) -> dict[str, Any]:
        """The mapping of an object."""
        tree, usual = dataclasses.asdict(value), dataclasses.asdict(self.cls()) if self.short else {}
        return {key: setting for key, setting in tree.items() if key not in usual or usual[key] != setting}

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the mapping."""
        return object_schema(self.cls)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.schema()


@dataclass(frozen=True)
class Named(Settings):
    """Marks a key that holds one of several dataclasses, which `name` below it chooses; `cls` is their base."""

    registry: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    usual: str = ""
    """The name where none is given."""

    def read(self, value: object) -> Any:
        """The object of a mapping. Raises RecipeError with the key and the remedy."""
        if isinstance(value, self.cls):
            return value
        settings = dict(_mapping(value, self.key, ["name"]))
        name = nearest(settings.pop("name", self.usual), self.registry, f"{self.key}.name")
        return build(self.registry[name], settings, self.key)

    def write(self, value: Any) -> dict[str, Any]:
        """The mapping of an object, its name first."""
        return {"name": self.name_of(value), **dataclasses.asdict(value)}

    def name_of(self, value: Any) -> str:
        """What the registry calls the type of an object."""
        return next(name for name, cls in self.registry.items() if type(value) is cls)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the mapping: one for each name."""
        several = []
        for name, cls in self.registry.items():
            one = object_schema(cls)
            one["properties"] = {"name": {"const": name}, **one["properties"]}
            several.append(one | ({} if name == self.usual else {"required": ["name"]}))
        return {"anyOf": several}


@dataclass(frozen=True)
class ByName(Settings):
    """Marks a key that holds settings of several dataclasses, by their names; `shared` fields are not among them.

    The settings stay a mapping, whose keys and values are checked when the object is made.
    """

    registry: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    shared: Iterable[str] = ()

    def read(self, value: object) -> dict[str, Tree]:
        """The settings by name. Raises RecipeError for a name that is not known."""
        tree = _mapping(value, self.key, list(self.registry)[:3])
        for name in tree:
            nearest(name, self.registry, self.key)
        return {name: dict(_mapping(below, f"{self.key}.{name}", ())) for name, below in tree.items()}

    def write(self, value: Any) -> dict[str, Any]:
        """The mapping, as it is."""
        return dict(value)

    def schema(self) -> dict[str, Any]:
        """The JSON schema: the settings of each name."""
        below = {name: object_schema(cls, self.shared) for name, cls in self.registry.items()}
        return {"type": "object", "additionalProperties": False, "properties": below}


def fields_of(cls: type[Any]) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(cls)]


def object_schema(cls: type[Any], without: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON schema of a dataclass as a mapping: types, defaults and what the fields' docstrings say."""
    hints = type_hints(cls)  # type: ignore[arg-type]
    said, properties = _docstrings(cls), {}
    for field in dataclasses.fields(cls):
        if field.name in without:
            continue
        kind = hints[field.name]
        nested = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        one = object_schema(kind) if nested else _whole(TypeAdapter(kind).json_schema())
        if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
            one["default"] = field.default
        properties[field.name] = one | ({"description": said[field.name]} if field.name in said else {})
    about = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return {"type": "object", "description": about, "additionalProperties": False, "properties": properties}


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its definitions where they are used, so that it can stand in another."""
    known = schema.pop("$defs", {})

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(one) for one in part]
        if not isinstance(part, dict):
            return part
        return (
            filled(known[part["$ref"].rpartition("/")[2]])
            if "$ref" in part
            else {k: filled(v) for k, v in part.items()}
        )

    return dict(filled(schema))


def _docstrings(cls: type[Any]) -> dict[str, str]:
    """What stands below each field of a class and of its bases."""
    said: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for statement, below in zip(body, body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    said[statement.target.id] = inspect.cleandoc(str(below.value.value)).replace("\n", " ")
    return said


def _mapping(value: object, key: str, known: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        such = f", such as {', '.join(list(known)[:3])}" if known else ""
        raise RecipeError(f"{key}: a section with keys below it is needed{such}; got {repr(value)[:200]}")
    return value
