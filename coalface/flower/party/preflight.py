"""What a party's own file and images come to, told at the party before it takes part."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coalface.core.errors import RecipeError
from coalface.core.names import check_party
from coalface.core.text import several, shown
from coalface.data.readers.headers import check_header
from coalface.data.stores import Store, open_store
from coalface.experiments.recipe import party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import party_data
from coalface.experiments.setup.sources import unseen

LOOKED_AT = 200
"""Images whose size is looked at, evenly spread over all."""
NAMED = 5
"""Identities and faults that are named; of more, how many."""


@dataclass(frozen=True)
class Found:
    """Lines for the party: none of them leaves its machine."""

    told: tuple[str, ...]
    faults: tuple[str, ...]
    """What keeps it from taking part, or its images from being its own."""


def check(file: Path, recipe: Recipe | None = None, name: str | None = None) -> Found:
    """What is found behind a party's file; with a recipe, also what of it counts there, and what the server is told.

    `name` is the party's, where the file does not say it. Raises RecipeError for a file that cannot be read, and for a
    name that no party can have.
    """
    if name is not None:
        try:
            check_party(name)
        except ValueError as error:
            raise RecipeError(f"--party: {error}") from None
    given, told, faults = party_file.read(file), list[str](), list[str]()
    paths = [Path(one.path) for one in (given.data, given.pairs) if one is not None and one.path is not None]
    if lacking := [path for path in paths if not path.exists()]:
        return Found((), tuple(f"{shown(path)} is not there: mend its path in {file}" for path in lacking))
    for path in paths:
        faults += _open_to_others(path)
    if given.data is not None and given.data.path is not None:
        _look(open_store(given.data.path, part=given.data.part or "", damaged="leave out"), recipe, told, faults)
    if recipe is not None:
        _against(recipe, given, file, name or given.name, told, faults)
    return Found(tuple(told), tuple(faults))


def _look(store: Store, recipe: Recipe | None, told: list[str], faults: list[str]) -> None:
    """How many images of whom there are, and how large."""
    told += [f"passed over: {said}" for said in store.passed_over()]
    counts = np.bincount(store.labels, minlength=len(store.names))
    images = several(len(store), "image")
    told.append(f"{shown(store.path)}: {images} of {several(len(store.names), 'identity', 'identities')}")
    wrong = [*store.faults, *store.broken]
    faults += [shown(fault) for fault in wrong[:NAMED]]
    if len(wrong) > NAMED:
        faults.append(f"and {len(wrong) - NAMED:,} more like these: `coalface data inspect` names them all")
    sides = []
    for i in np.unique(np.linspace(0, len(store) - 1, LOOKED_AT).astype(int)) if len(store) else ():
        try:
            header = check_header(store.encoded(int(i)), store.where(int(i)))
            sides.append(min(header.width, header.height))
        except (ValueError, OSError) as error:
            faults.append(shown(error))
    if sides:
        told.append(
            f"shorter sides of {min(sides)} to {max(sides)} pixels, of {several(len(sides), 'image')} looked at"
        )
    if recipe is None:
        return
    if small := sum(side < recipe.data.size for side in sides):
        told.append(f"{small:,} of those are smaller than the recipe's {recipe.data.size} pixels, and are enlarged")
    if len(few := np.flatnonzero(counts < recipe.data.min_images)):
        some = ", ".join(shown(store.names[n]) for n in few[:NAMED]) + (", …" if len(few) > NAMED else "")
        whose = several(len(few), "identity", "identities")
        told.append(f"{whose} of fewer images than data.min_images={recipe.data.min_images} left out: {some}")


def _against(
    recipe: Recipe, given: party_file.PartyFile, file: Path, name: str | None, told: list[str], faults: list[str]
) -> None:
    """Whether the party can take part by the recipe, and what the server would be told of it."""
    if name is None:
        raise RecipeError(f"{file} does not say which party it is of: write `name: NAME` in it, or give --party NAME")
    role = party_data.role(recipe, name)
    if given.role not in (None, role):
        faults.append(f"{name} is a {given.role} by {file}, and a {role} by the recipe: the server leaves it alone")
        return
    try:
        here = party_data.party_data(recipe, name, file, packing=unseen)
    except (ValueError, OSError) as error:
        faults.append(str(error))
        return
    if name not in here.data:
        faults.append(f"{name} is none of the recipe's parties: {', '.join(sorted(here.data)[:8])}")
        return
    member = here.members()[name]
    if name in here.pairs:
        told.append(f"{several(len(here.pairs[name]), 'pair')} of {several(member.images, 'image')}")
    images, people = several(member.images, "image"), several(member.identities, "identity", "identities")
    told.append(f"the server is told: {name}, {member.role}, {images}, {people}; no name and no image")
    if here.public is not None:
        images, people = several(len(here.public), "image"), several(len(here.public.names), "identity", "identities")
        told.append(f"public people: {images} of {people}; the server is told a digest of who they are")


def _open_to_others(path: Path) -> list[str]:
    """A line where everybody on this machine can look at what lies at a path."""
    if path.stat().st_mode & stat.S_IROTH and _reached(path):
        return [f"{shown(path)} can be read by everybody on this machine: chmod o-rwx {shown(path)}"]
    return []


def _reached(path: Path) -> bool:
    """Whether everybody can pass through the folders above a path."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
