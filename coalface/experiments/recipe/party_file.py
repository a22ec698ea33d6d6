"""A party's own file, `party.yaml`: who it is and where its images lie; and a recipe filled in from such files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from coalface.core.checks import nearest
from coalface.core.disk import from_home
from coalface.core.errors import RecipeError
from coalface.core.parsing import parse_yaml, read_text
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.base import Section, first_error
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import WITH_IMAGES, OnDisk, OneSource, PartyName

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
    return parse(_tree(path), str(path), path.parent)


def read_all(path: Path) -> dict[str, PartyFile]:
    """Several parties by name, in one file: each as in a file of its own, or the path of that. Raises RecipeError."""
    files = {}
    for name, entry in _tree(path).items():
        where = f"{path}, {name}"
        if not isinstance(entry, str | dict):
            raise RecipeError(f"give the keys of its party.yaml, such as {EXAMPLE}, or that file's path", where=where)
        files[name] = read(path.parent / entry) if isinstance(entry, str) else parse(entry, where, path.parent)
        if files[name].name not in (None, name):
            raise RecipeError(f"this file belongs to {files[name].name}; give the file of {name}", where=where)
    return files


def fill(recipe: Recipe, files: Mapping[str, PartyFile]) -> Recipe:
    """The recipe with where the images of some parties lie. Raises RecipeError for a party that brings none by it."""
    tree = recipe.model_dump(mode="json")
    data, validators = recipe.own, tree["validators"]
    bringing = [*(data.parties if data is not None else ()), *(n for n, v in recipe.validators.items() if v.own)]
    for name, party in files.items():
        nearest(name, dict.fromkeys(bringing), "a party with images of its own")
        role = "validator" if name in validators else "trainer"
        if party.role not in (None, role):
            raise RecipeError(
                f"a {party.role} by its own file and a {role} by the recipe; change one of them", where=name
            )
        if party.data is None and not (role == "validator" and party.pairs and party.pairs.kind in WITH_IMAGES):
            raise RecipeError(f"its file does not say where its images lie; write data, as in {EXAMPLE}", where=name)
        images = party.data.model_dump(mode="json") if party.data is not None else None
        if role == "trainer":
            tree["data"]["party_data"][name] = images
        else:
            pairs = party.pairs.model_dump() if party.pairs is not None else {"kind": "balanced", "path": None}
            validators[name] |= {"source": images, "list": None} | pairs
    if data is not None:  # in one order, whatever that of the files
        placed = tree["data"]["party_data"]
        tree["data"]["party_data"] = {name: placed[name] for name in data.parties if name in placed}
    return loader.parse(tree)


def _tree(path: Path) -> dict[str, Any]:
    try:
        tree = parse_yaml(read_text(path))
    except FileNotFoundError:
        raise RecipeError(f"does not exist; write a party's own file, such as {EXAMPLE}", where=path) from None
    except OSError as error:
        raise RecipeError(f"it cannot be read ({error.strerror}); give a party's own file", where=path) from None
    except ValueError as error:
        raise RecipeError(f"not YAML: {error}", where=path) from None
    if not isinstance(tree, dict):
        raise RecipeError(f"a party's file is a mapping of keys, such as {EXAMPLE}", where=path)
    return tree


def parse(tree: Mapping[str, Any], where: str, base: Path) -> PartyFile:
    """What a party's file says, with paths from `base` made absolute. Raises RecipeError at `where` and its key."""
    try:
        content = PartyFile.model_validate(tree)
    except ValidationError as error:
        fault = first_error(PartyFile, error, "a party's file")
        raise RecipeError(fault.text, where=f"{where}, {fault.where}" if fault.where else where) from None
    if content.role == "trainer" and content.pairs is not None:
        raise RecipeError("a trainer has no pairs; leave them out, or set role: validator", where=f"{where}, pairs")
    changes: dict[str, Any] = {}
    if isinstance(content.data, OnDisk):
        changes["data"] = content.data.model_copy(update={"path": _absolute(base, content.data.path)})
    if content.pairs is not None:
        if content.data is None and content.pairs.kind not in WITH_IMAGES:
            raise RecipeError(
                f"pairs of kind {content.pairs.kind} name images; say where these lie", where=f"{where}, data"
            )
        changes["pairs"] = content.pairs.model_copy(update={"path": _absolute(base, content.pairs.path)})
    return content.model_copy(update=changes)


def _absolute(base: Path, path: str) -> str:
    return str((base / from_home(path)).absolute())
