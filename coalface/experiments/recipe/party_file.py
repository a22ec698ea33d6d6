"""A party's own file, `party.yaml`: who it is and where its images lie; and a recipe filled in from such files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from coalface.core.checks import nearest, short
from coalface.core.errors import RecipeError
from coalface.core.yaml_text import parse_yaml
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import SOURCES, OnDisk, OneSource, PartyName, Section

WITH_IMAGES = ("bin", "layout")
"""Kinds of pairs that bring their images along."""
EXAMPLE = "{data: {kind: folder, path: /srv/faces}}"


class Pairs(Section):
    """A list of pairs that a validator holds."""

    kind: Literal["lfw", "all-pairs", "bin", "layout"]
    """As in `evaluation.pairs`."""
    path: str
    list: str | None = None
    """`layout`: which of its lists, where it has several."""


class PartyFile(Section):
    """What a party says of itself, on its own machine; paths are from where the file lies unless absolute."""

    name: PartyName | None = None
    """None: what the node's configuration says."""
    role: Literal["trainer", "validator"] | None = None
    """All that it can be asked to do; None: what the recipe says."""
    data: OneSource | None = None
    """Its images: identity folders, records, a pack, or synthetic ones to try things out."""
    pairs: Pairs | None = None
    """A validator's list; None: pairs are drawn among its images."""


def read(path: Path) -> PartyFile:
    """A party's file. Raises RecipeError for what is wrong in it, for an unknown key with the nearest known one."""
    return made(_tree(path), str(path), path.parent)


def read_all(path: Path) -> dict[str, PartyFile]:
    """Several parties by name, in one file: each as in a file of its own, or the path of that. Raises RecipeError."""
    files = {}
    for name, one in _tree(path).items():
        where = f"{path}: {name}"
        if not isinstance(one, str | dict):
            raise RecipeError(f"give what its party.yaml holds, such as {EXAMPLE}, or that file's path", where=where)
        files[name] = read(path.parent / one) if isinstance(one, str) else made(one, where, path.parent)
        if files[name].name not in (None, name):
            raise RecipeError(f"its file is that of {files[name].name}", where=where)
    return files


def filled(recipe: Recipe, given: Mapping[str, PartyFile]) -> Recipe:
    """The recipe with where the images of some parties lie. Raises RecipeError for a party that brings none by it."""
    tree = recipe.model_dump(mode="json")
    own, validators = recipe.own, tree["validators"]
    bringing = [*(own.parties if own is not None else ()), *(n for n, one in recipe.validators.items() if one.own)]
    for name, one in given.items():
        nearest(name, dict.fromkeys(bringing), "a party with images of its own")
        role = "validator" if name in validators else "trainer"
        if one.role not in (None, role):
            raise RecipeError(f"{name} is a {one.role} by its own file, and a {role} by the recipe: mend one of them")
        if one.data is None and not (role == "validator" and one.pairs and one.pairs.kind in WITH_IMAGES):
            raise RecipeError(f"{name}: its file does not say where its images lie; write data, as in {EXAMPLE}")
        images = one.data.model_dump(mode="json") if one.data is not None else None
        if role == "trainer":
            tree["data"]["party_data"][name] = images
        else:
            pairs = one.pairs.model_dump() if one.pairs is not None else {"kind": "balanced", "path": None}
            validators[name] |= {"source": images, "list": None} | pairs
    if own is not None:  # in one order, whatever that of the files
        placed = tree["data"]["party_data"]
        tree["data"]["party_data"] = {name: placed[name] for name in own.parties if name in placed}
    return loader.parse(tree)


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"it does not exist: write a party's own file, such as {EXAMPLE}", where=path) from None
    except ValueError as error:
        raise RecipeError(f"it is not YAML: {error}", where=path) from None
    if not isinstance(tree, dict):
        raise RecipeError(f"a mapping of keys is needed, such as {EXAMPLE}", where=path)
    return tree


def made(tree: Mapping[str, Any], where: str, base: Path) -> PartyFile:
    """What a party's file says, with paths from `base` made absolute. Raises RecipeError, which begins with `where`."""
    try:
        said = PartyFile.model_validate(tree)
    except ValidationError as error:
        raise RecipeError(f"{where}: {_fault(error)}") from None
    if said.role == "trainer" and said.pairs is not None:
        raise RecipeError(f"{where}: pairs: a trainer has none; leave it out, or is it a validator?")
    changes: dict[str, Any] = {}
    if isinstance(said.data, OnDisk):
        changes["data"] = said.data.model_copy(update={"path": _absolute(base, said.data.path)})
    if said.pairs is not None:
        if said.data is None and said.pairs.kind not in WITH_IMAGES:
            raise RecipeError(f"{where}: data: pairs of kind {said.pairs.kind} name images; say where they lie")
        changes["pairs"] = said.pairs.model_copy(update={"path": _absolute(base, said.pairs.path)})
    return said.model_copy(update=changes)


def _absolute(base: Path, path: str) -> str:
    return str((base / Path(path).expanduser()).absolute())


def _fault(error: ValidationError) -> str:
    first = min(error.errors(), key=lambda one: one["type"] == "missing")  # most often a key that is misspelt
    path = [str(part) for part in first["loc"] if "[" not in str(part)]
    where = short(".".join(path))
    if first["type"] == "extra_forbidden":
        kind = str(first["loc"][-2]).strip("[]") if path[1:] else ""  # of the source
        known = list(SOURCES.classes.get(kind, Pairs if path[1:] else PartyFile).model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.0)[0]
        return f"{where} is not a key of a party's file; did you mean {near}? Known here: {', '.join(known)}"
    if first["type"] == "missing":
        return f"{where} is missing, as in {EXAMPLE}"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}; got {first['input']!r}"
