"""What recipes can name: the package's own objects, those of installed plug-ins, and any `package.module:Name`."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Generic, TypeVar

import cloudpickle
import safetensors.torch
from torch import nn

from coalface.core.checks import unknown_name
from coalface.core.errors import PluginError, RecipeError, raised_at
from coalface.core.text import told

T = TypeVar("T")

_held: dict[str, Any] = {}
"""Name -> an object that no module could give to another process: one of `__main__`, or one without a name."""


class Registry(Mapping[str, T], Generic[T]):
    """The objects of one kind by name; iterating over it gives the package's own names, then those of plug-ins.

    A distribution adds some by entry points of the group; `package.module:Name` names one that nobody registered.

    >>> from coalface.training.losses.registry import LOSSES
    >>> LOSSES["arcface"] is LOSSES["coalface.training.losses.margins:ArcFace"]
    True
    """

    def __init__(
        self,
        group: str,
        own: Mapping[str, T | str],
        fits: Callable[[Any], bool],
        what: str,
        known_as: Mapping[str, str] | None = None,
    ) -> None:
        """`fits` says whether an object is of this kind, `what` what it must be: `a subclass of …`.

        An own one may be given as `package.module:Name`, and is then imported when it is first asked for. `known_as`
        are names that the literature has for what is written otherwise here, each with that.
        """
        self.group, self.own, self._fits, self._what = group, dict(own), fits, what
        self.known_as = dict(known_as or {})

    def __getitem__(self, name: str) -> T:
        """Raises KeyError for an unknown name, and PluginError for one whose object cannot be imported, or is another
        thing.
        """
        if name in self.own:
            own = self.own[name]
            return load(own) if isinstance(own, str) else own
        if name in _held:
            return self._checked(_held[name], name)
        if point := self._points.get(name):
            return self._checked(load(point.value), name)
        if isinstance(name, str) and ":" in name:
            return self._checked(load(name), name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.own, **self._points})

    def __len__(self) -> int:
        return len(self.own.keys() | self._points.keys())

    def find(self, name: Any, where: str) -> T:
        """The object of a name. Raises RecipeError, at the recipe's key that has it."""
        try:
            return self[name]
        except (KeyError, TypeError):
            if isinstance(name, str) and (written := self.known_as.get(name.lower())):
                raise RecipeError(f"{name!r} is of another name here; write {written}", where=where) from None
            if isinstance(name, str) and (own := _own(name)):
                text = f"{told(name)!r} is not known here; your own is written module:Class, as {own}"
                raise RecipeError(text, where=where) from None
            raise unknown_name(name, self, where) from None
        except PluginError as error:
            raise PluginError(error.text, where=where) from None

    def name_of(self, thing: T) -> str:
        """What a recipe calls an object: its registered name, else `package.module:Name`.

        What no module has, such as a lambda or an object, is held in this process under a name of its own, which says
        what it was made of: a resume in another process asks for it.
        """
        place = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        for name, own in self.own.items():
            if own is thing or own == place:
                return name
        reference = reference_to(thing)
        for name, point in self._points.items():
            if point.value == reference:
                return name
        return reference

    @functools.cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.own}

    def _checked(self, thing: Any, name: str) -> T:
        if not self._fits(thing):
            raise PluginError(f"{name} is {_described(thing)}; it must be {self._what}")
        return thing


def subclass_of(base: type[Any]) -> Callable[[Any], bool]:
    """Whether an object is a class that extends `base`."""
    return lambda thing: isinstance(thing, type) and issubclass(thing, base)


def load(reference: str) -> Any:
    """The object that `package.module:Name` names. Raises PluginError where there is none."""
    if reference in _held:
        return _held[reference]
    module, _, path = reference.partition(":")
    if module == "python" or (module == "__main__" and not hasattr(sys.modules[module], path.partition(".")[0])):
        raise PluginError(
            f"{reference} is of the script or notebook that began this run; resume the run there, by "
            "coalface.resume(…), or define it in a module that can be imported, for a new run"
        )
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise PluginError(
            f"{reference} cannot be imported: {error}. Install the package that has it, or start this in the folder "
            "that holds it"
        ) from error
    except Exception as error:  # whatever the module of somebody else raises
        why = f"{type(error).__name__}: {error}".rstrip(".") + raised_at(error)
        raise PluginError(f"{reference} cannot be loaded: {why}") from error
    try:
        thing = attrgetter(path)(imported)
    except AttributeError:
        near = [f"{module}:{name}" for name in vars(imported) if name.lower() == path.lower()]
        hint = f"; did you mean {near[0]}?" if near else "; write module:Class, as in mine:MyMethod"
        raise PluginError(f"the module {module} has no {path!r}{hint}") from None
    if module == "__main__":
        _held[reference] = thing  # a worker process has another
    return thing


def _own(name: str) -> str:
    """How somebody's own is written that was named as a dotted path, or as a file that lies here; empty if neither."""
    module, dot, cls = name.rpartition(".")
    if dot:
        return f"{module}:{cls}" if cls.isidentifier() else ""
    module = name.replace("-", "_")
    is_here = module.isidentifier() and os.path.isfile(f"{module}.py")  # also of names too long for a file
    return f"{module}:{''.join(part.capitalize() for part in module.split('_'))}" if is_here else ""


def reference_to(thing: Any) -> str:
    """The name by which `load` finds an object here and in the processes that a run starts.

    One that no module has, such as a lambda or a network that is there already, is held under `python:` and what it is
    made of; another process does not know it, unless the same program makes it there again.
    """
    module, path = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is thing:
        reference = f"{module}:{path}"
        if module == "__main__":
            _held[reference] = thing
        return reference
    name = getattr(thing, "__name__", type(thing).__name__).strip("<>")
    reference = f"python:{name}-{hashlib.sha256(_content(thing)).hexdigest()[:12]}"
    _held[reference] = thing
    return reference


def _content(thing: Any) -> bytes:
    """What tells an object from another of its kind, the same in each process that makes it in the same way."""
    if isinstance(thing, nn.Module):
        tensors = {name: tensor.contiguous() for name, tensor in thing.state_dict().items()}
        return str(thing).encode() + safetensors.torch.save(tensors)
    try:
        return inspect.getsource(thing).encode()
    except (TypeError, OSError):
        return cloudpickle.dumps(thing)


def held() -> dict[str, Any]:
    """What a worker process needs beside the modules that it can import itself."""
    return dict(_held)


def hold(things: Mapping[str, Any]) -> None:
    """In a worker process: what the one that started it has held."""
    _held.update(things)


def _described(thing: Any) -> str:
    if inspect.isclass(thing):
        return f"the class {thing.__qualname__}"
    if callable(thing):
        return f"the function {getattr(thing, '__qualname__', thing)}"
    return f"an object of type {type(thing).__name__}"
