"""What the sections of a recipe share: their base, keys that hold one of several, and the error of what they refuse."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from coalface.core.checks import UnknownKey, needs_section, short, unknown_name, wrong_value
from coalface.core.declarations import without_none
from coalface.core.errors import PluginError, RecipeError
from coalface.core.registry import Registry, subclass_of


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused, and nothing changes once it is made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )

    if not TYPE_CHECKING:

        def __init__(self, /, **values: Any) -> None:
            """Raises RecipeError for a key or a value that the section cannot have."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise first_error(type(self), error) from None

        __init__.__pydantic_base_init__ = True  # sections within a recipe are read by pydantic, and explained as one

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, which are not checked. Raises TypeError for a key that the section has not."""
        if unknown := (update or {}).keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no key {min(unknown)}")
        return super().model_copy(update=update, deep=deep)


class PluginSection(Section):
    """A section that plug-ins may extend; a class that has no `kind` of its own is called `package.module:Class`."""

    kind: str = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        if "kind" not in vars(cls).get("__annotations__", {}):
            cls.model_fields["kind"].default = f"{cls.__module__}:{cls.__qualname__}"
            cls.model_rebuild(force=True)


class UnknownKind(ValueError):
    """A `kind` that a key has not."""

    def __init__(self, kind: object, key: str, known: Iterable[str]) -> None:
        self.kind, self.key, self.known = kind, key, tuple(known)
        super().__init__(f"unknown {key} {repr(kind)[:100]}; use one of {', '.join(self.known)}")


class PluginFault(ValueError):
    """What the section of a plug-in refuses, at a key below the one that holds it."""

    def __init__(self, error: RecipeError, key: str) -> None:
        self.error, self.key = error, error.where or key
        super().__init__(error.text)


class Kinds:
    """Marks a key that holds a section of one of several classes, which `kind` below it chooses; the first is usual.

    `partition: Annotated[Partition, Kinds(Equal, Dirichlet)]` reads `{kind: dirichlet, alpha: 0.1}` into
    `Dirichlet(alpha=0.1)`. With a `base`, plug-ins have more of them: subclasses of it, by entry points of `group`, or
    as `package.module:Class`.
    """

    def __init__(
        self, *classes: type[Section], key: str = "kind", group: str = "", base: type[Section] | None = None
    ) -> None:
        self.key = key
        self.classes: dict[str, type[Section]] = {cls.model_fields[key].default: cls for cls in classes}
        self.plugins: Registry[type[Section]] | None = None
        if base is not None:
            what = f"a subclass of {base.__module__}.{base.__name__}"
            self.plugins = Registry(group, self.classes, subclass_of(base), what)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {f"[{kind}]": handler.generate_schema(cls) for kind, cls in self.classes.items()}
        union = core_schema.tagged_union_schema(choices, discriminator=lambda value: f"[{self._kind(value)}]")
        if self.plugins is None:
            return core_schema.no_info_before_validator_function(self._checked, union)
        written = core_schema.wrap_serializer_function_ser_schema(self._write, info_arg=True, schema=union)
        return core_schema.no_info_wrap_validator_function(self._read, union, serialization=written)

    def class_of(self, kind: object) -> type[Section] | None:
        """The class that a kind names; None for an unknown one. Raises PluginError where it cannot be imported."""
        if not isinstance(kind, str) or kind in self.classes or self.plugins is None:
            return self.classes.get(str(kind))
        return self.plugins.get(kind)

    def _read(self, value: object, handler: core_schema.ValidatorFunctionWrapHandler) -> object:
        """A section; one of a plug-in is made by its own class, whose errors name its keys."""
        kind = self._kind(value)
        if isinstance(value, Mapping | Section) and isinstance(kind, str) and kind not in self.classes:
            try:
                if (cls := self.class_of(kind)) is not None:
                    return value if isinstance(value, cls) else cls(**typing.cast(Mapping[str, Any], value))
            except RecipeError as error:
                raise PluginFault(error, self.key) from None
        return handler(self._checked(value))

    def _write(self, value: Any, handler: Any, info: Any) -> Any:
        return handler(value) if type(value) in self.classes.values() else value.model_dump(mode=info.mode)

    def of_kind(self, tree: Mapping[str, Any], kind: object) -> dict[str, Any]:
        """The keys of a section of another kind, with what that has of the keys before."""
        cls = self.class_of(kind)
        fields = tree if cls is None else cls.model_fields
        return {**{key: value for key, value in tree.items() if key in fields}, self.key: kind}

    def _kind(self, value: object) -> object:
        if isinstance(value, Mapping):
            return value.get(self.key, next(iter(self.classes)))
        return getattr(value, self.key, None)

    def _checked(self, value: object) -> object:
        kind = self._kind(value)
        if not isinstance(value, Mapping | Section):
            raise ValueError(f"this key has keys below it, such as {self.key}; got {repr(value)[:200]}")
        if not isinstance(kind, str) or kind not in self.classes:
            raise UnknownKind(kind, self.key, self.classes)
        return value


def first_error(cls: type[Section], error: ValidationError, file: str = "a recipe") -> RecipeError:
    """What pydantic refuses first in a section, as an error of its key; `file` is what has the keys."""
    # a key that is missing comes last: it is most often one that is misspelt
    first = min(error.errors(), key=lambda detail: detail["type"] == "missing")
    cause, path = first.get("ctx", {}).get("error"), _path(first["loc"])
    where = short(".".join(path))
    if isinstance(cause, RecipeError):  # it names the key itself
        return cause
    if isinstance(cause, PluginFault):
        kind = PluginError if isinstance(cause.error, PluginError) else RecipeError
        return kind(cause.error.text, where=".".join([*filter(None, [where]), cause.key]))
    if isinstance(cause, UnknownKind):
        return unknown_name(cause.kind, cause.known, ".".join([*filter(None, [where]), cause.key]))
    if cause is not None:  # of a key or a value, which the text names
        return RecipeError(str(cause), where=where)
    if first["type"] in ("extra_forbidden", "missing"):
        section, kinds = _section_at(cls, first["loc"][:-1])
        choice = ".".join([*path[:-1], f"{kinds.key}={first['loc'][-2][1:-1]}"]) if kinds else ""  # type: ignore[index]
        if first["type"] == "missing":
            return RecipeError(f"this key is missing{f'; {choice} needs it' if choice else ''}", where=where)
        having = [kind for kind, member in kinds.classes.items() if path[-1] in member.model_fields] if kinds else []
        if having:
            have = "have" if len(having) > 1 else "has"
            return UnknownKey(where, [], of=f"{choice} ({', '.join(having)} {have} it)")
        return UnknownKey(where, list(section.model_fields) if section else [], of=file)
    if first["type"] in ("model_type", "dict_type"):
        section, _ = _section_at(cls, first["loc"])
        return needs_section(where, first["input"], list(section.model_fields) if section else [])
    return wrong_value(where, first["input"], [detail for detail in error.errors() if _path(detail["loc"]) == path])


def _path(loc: Sequence[str | int]) -> list[str]:
    """The key at which pydantic finds an error."""
    if loc[-1:] == ("[key]",):  # what is wrong is the key itself
        loc = loc[:-2]
    elif loc[-1:] in (("int",), ("constrained-int",)):  # pydantic names the member of a union as well
        loc = loc[:-1]
    return [str(part) for part in loc if "[" not in str(part)]


def _section_at(cls: type[Section], loc: Sequence[str | int]) -> tuple[type[Section] | None, Kinds | None]:
    """The class of the section at a place, and those that it is chosen among."""
    section: Any = cls
    marks: Sequence[Any] = ()
    kinds: Kinds | None = None
    for part in map(str, loc):
        if kinds is not None and part.startswith("["):
            section = kinds.classes[part[1:-1]]
            continue
        if isinstance(section, type) and issubclass(section, BaseModel):
            field = section.model_fields[part]
            section, marks = without_none(field.annotation)[0], field.metadata
        else:  # below a name that the file gives, such as that of a pair list
            section = typing.get_args(section)[-1]
        if typing.get_origin(section) is Annotated:
            section, *marks = typing.get_args(section)
        kinds = next((mark for mark in marks if isinstance(mark, Kinds)), None)
    return section if isinstance(section, type) and issubclass(section, Section) else None, kinds
