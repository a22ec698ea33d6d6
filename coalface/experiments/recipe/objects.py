"""Keys of a recipe that hold an object of another package: read from a mapping, checked there, and written as one."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import textwrap
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from coalface.core.checks import build, needs_section, type_hints
from coalface.core.errors import RecipeError
from coalface.core.registry import Registry


@dataclass(frozen=True)
class Settings:
    """Marks a key that holds a dataclass of some type: its fields are the keys below it.

    `local: Annotated[LocalTraining, Settings("local", LocalTraining)]` reads `{lr: 0.1}` into `LocalTraining(lr=0.1)`.
    """

    key: str
    cls: type[Any]
    short: bool = False
    """Write only the fields that differ from their defaults."""
    switch: bool = dataclasses.field(default=False, kw_only=True)
    """`true` stands for the defaults, `false` for nothing."""

    def read(self, value: object) -> Any:
        """The object of a mapping. Raises RecipeError with the key and the remedy."""
        if self.switch and isinstance(value, bool):
            return self.cls() if value else None
        if isinstance(value, self.cls):
            return value
        return build(self.cls, _mapping(value, self.key, fields_of(self.cls)), self.key)

    def write(self, value: Any) -> dict[str, Any]:
        """The mapping of an object."""
        return changed(value) if self.short else dataclasses.asdict(value)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the mapping."""
        mapping = object_schema(self.cls)
        return {"anyOf": [{"type": "boolean"}, mapping]} if self.switch else mapping

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.schema()


@dataclass(frozen=True)
class Named(Settings):
    """Marks a key that holds one of several dataclasses, which `name` below it chooses; `cls` is their base.

    Where nothing else is set it can be the name alone.
    """

    registry: Registry[Any] = dataclasses.field(kw_only=True, hash=False)
    usual: str = ""
    """The name where none is given."""

    def read(self, value: object) -> Any:
        """The object of a mapping. Raises RecipeError with the key and the remedy."""
        if isinstance(value, self.cls):
            return value
        settings = {"name": value} if isinstance(value, str) else dict(_mapping(value, self.key, ["name"]))
        cls = self.registry.find(settings.pop("name", self.usual), f"{self.key}.name")
        return build(cls, settings, self.key)

    def write(self, value: Any) -> dict[str, Any]:
        """The mapping of an object, its name first."""
        return {"name": self.name_of(value), **dataclasses.asdict(value)}

    def name_of(self, value: Any) -> str:
        """What the registry calls the type of an object."""
        return self.registry.name_of(type(value))

    def schema(self) -> dict[str, Any]:
        """The JSON schema: the name alone, or the mapping, one for each name."""
        several: list[dict[str, Any]] = [{"type": "string"}]
        for name in self.registry.own:
            one = object_schema(self.registry[name])
            one["properties"] = {"name": {"const": name}, **one["properties"]}
            several.append(one | ({} if name == self.usual else {"required": ["name"]}))
        return {"anyOf": several}


@dataclass(frozen=True)
class ByName(Named):
    """Marks a key that holds several dataclasses by their names, that which `method` names among them.

    `shared` are fields of theirs that the recipe has at its top.
    """

    shared: tuple[str, ...] = ()

    def read_within(self, value: object, info: ValidationInfo) -> dict[str, Any]:
        """The objects by name, with what the keys before say of shared fields. Raises RecipeError."""
        tree = _mapping(value, self.key, list(self.registry)[:3])
        for name in tree:
            self.registry.find(name, self.key)
        if not {"method", *self.shared} <= info.data.keys():  # they are wrong themselves, which is told first
            return {}
        chosen = info.data["method"]
        self.registry.find(chosen, "method")
        return {name: self.build(name, below, info.data) for name, below in ({chosen: {}} | dict(tree)).items()}

    def build(self, name: str, below: object, top: Mapping[str, Any]) -> Any:
        """The object of a name, from its own settings and those at the top of the recipe."""
        cls = self.registry[name]
        cls.check_frozen()
        given = {key: top[key] for key in self.shared if key in fields_of(cls)}
        if "rounds" in given:
            given["rounds"] = top["local"].rounds or top["rounds"]
        settings = self.settings(below) if isinstance(below, cls) else _mapping(below, f"{self.key}.{name}", ())
        if clash := set(settings) & set(given):
            raise RecipeError(
                "set it at the top of the recipe, where all methods share it", where=f"{self.key}.{name}.{min(clash)}"
            )
        return build(cls, settings, f"{self.key}.{name}", given)

    def settings(self, value: Any) -> dict[str, Any]:
        """The settings of an object that are its own."""
        return {key: setting for key, setting in dataclasses.asdict(value).items() if key not in self.shared}

    def write(self, value: Any) -> dict[str, Any]:
        """The settings by name."""
        return {name: self.settings(below) for name, below in value.items()}

    def schema(self) -> dict[str, Any]:
        """The JSON schema: the settings of each name."""
        below = {name: object_schema(self.registry[name], self.shared) for name in self.registry.own}
        return {"type": "object", "additionalProperties": False, "properties": below}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.with_info_plain_validator_function(self.read_within, serialization=written)


def changed(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, as plain values."""
    tree = {}
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if setting != usual:
            tree[field.name] = changed(setting) if dataclasses.is_dataclass(setting) else setting
    return tree


def fields_of(cls: type[Any]) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(cls)]


def object_schema(cls: type[Any], without: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON schema of a dataclass as a mapping: types, defaults and what the fields' docstrings say."""
    hints = type_hints(cls)  # type: ignore[arg-type]
    docstrings, properties = _docstrings(cls), {}  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):
        if field.name in without:
            continue
        schema = properties[field.name] = _value_schema(hints[field.name])
        default = field.default
        if default not in (dataclasses.MISSING, math.inf) and not dataclasses.is_dataclass(default):  # JSON has no inf
            schema["default"] = default
        if field.name in docstrings:
            schema["description"] = docstrings[field.name]
    about = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return {"type": "object", "description": about, "additionalProperties": False, "properties": properties}


def _value_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a field's type: of a dataclass, of one or nothing, or of plain values."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return object_schema(kind)
    if any(dataclasses.is_dataclass(choice) for choice in typing.get_args(kind)):
        return {"anyOf": [_value_schema(choice) for choice in typing.get_args(kind)]}
    return _whole(TypeAdapter(kind).json_schema())


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its definitions where they are used, so that it can stand in another."""
    definitions = schema.pop("$defs", {})

    def filled(part: Any) -> Any:
        if isinstance(part, list):
            return [filled(item) for item in part]
        if not isinstance(part, dict):
            return part
        return (
            filled(definitions[part["$ref"].rpartition("/")[2]])
            if "$ref" in part
            else {k: filled(v) for k, v in part.items()}
        )

    return dict(filled(schema))


@functools.cache
def _docstrings(cls: type[Any]) -> dict[str, str]:
    """What stands below each field of a class and of its bases."""
    docstrings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for statement, below in zip(body, body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    docstrings[statement.target.id] = inspect.cleandoc(str(below.value.value)).replace("\n", " ")
    return docstrings


def _mapping(value: object, key: str, keys: Iterable[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise needs_section(key, value, list(keys))
    return value
