"""The check of a party's own file and images, at the party, before it takes part."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coalface.core import disk
from coalface.core.checks import at_key
from coalface.core.errors import RecipeError
from coalface.core.names import check_party
from coalface.core.text import several, shown
from coalface.data.readers.headers import check_header
from coalface.data.stores import Store, open_store
from coalface.experiments.recipe import party_file
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Folder, OnDisk
from coalface.experiments.setup import party_data
from coalface.experiments.setup.sources import unseen

SAMPLED = 200
"""Images whose size is read, evenly spread over all."""
NAMED = 5
"""Identities and faults that are named; of more, how many."""


@dataclass(frozen=True)
class PartyReport:
    """Lines for the party: none of them leaves its machine."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What keeps it from taking part, or its images from being its own."""


def check(file: Path, recipe: Recipe | None = None, name: str | None = None) -> PartyReport:
    """What lies behind a party's file; with a recipe, also what of it counts there, and what the server is told.

    `name` is the party's, where the file does not say it. Raises RecipeError for a file that cannot be read, and for a
    name that no party can have.
    """
    if name is not None:
        with at_key("--party"):
            check_party(name)
    party, report = party_file.read(file), PartyReport()
    paths = [Path(source.path) for source in (party.data, party.pairs) if isinstance(source, OnDisk | party_file.Pairs)]
    report.faults.extend(
        f"{shown(path)} does not exist: mend its path in {file}" for path in paths if not path.exists()
    )
    if report.faults:
        return report
    report.faults.extend(
        f"{shown(path)} can be read by everybody on this machine: chmod o-rwx {shown(path)}"
        for path in paths
        if path.stat().st_mode & stat.S_IROTH and _is_reachable(path)
    )
    if isinstance(party.data, OnDisk):
        part = party.data.part if isinstance(party.data, Folder) else None
        _check_images(open_store(party.data.path, part=part or "", damaged="leave out"), recipe, report)
    if recipe is not None:
        if (name := name or party.name) is None:
            raise RecipeError(
                "the file does not name its party; write `name: NAME` in it, or use --party NAME", where=file
            )
        _check_part(recipe, party, name, file, report)
    return report


def _check_images(store: Store, recipe: Recipe | None, report: PartyReport) -> None:
    """The images: how many, of how many people, and how large."""
    lines, faults = report.lines, report.faults
    lines += [f"ignored: {ignored}" for ignored in store.passed_over()]
    lines.append(f"{shown(store.path)}: {_count(len(store), len(store.names))}")
    wrong = [*store.faults, *store.broken]
    faults += [shown(fault) for fault in wrong[:NAMED]]
    if len(wrong) > NAMED:
        faults.append(f"and {len(wrong) - NAMED:,} more like these: `coalface data inspect` names them all")
    sides = []
    for i in np.unique(np.linspace(0, len(store) - 1, SAMPLED).astype(int)) if len(store) else ():
        try:
            header = check_header(store.encoded(int(i)), store.where(int(i)))
            sides.append(min(header.width, header.height))
        except (ValueError, OSError) as error:
            faults.append(shown(disk.explained(error)))
    if sides:
        looked = several(len(sides), "image")
        lines.append(f"shorter sides of {min(sides)} to {max(sides)} pixels, of {looked} looked at")
    if recipe is None:
        return
    if small := sum(side < recipe.data.size for side in sides):
        lines.append(f"{small:,} of those are smaller than the recipe's {recipe.data.size} pixels, and are enlarged")
    counts = np.bincount(store.labels, minlength=len(store.names))
    if len(few := np.flatnonzero(counts < recipe.data.min_images)):
        names = ", ".join(shown(store.names[n]) for n in few[:NAMED]) + (", …" if len(few) > NAMED else "")
        people = several(len(few), "identity", "identities")
        lines.append(f"{people} of fewer images than data.min_images={recipe.data.min_images} left out: {names}")


def _check_part(recipe: Recipe, party: party_file.PartyFile, name: str, file: Path, report: PartyReport) -> None:
    """Whether the party can take part by the recipe, and what the server would be told of it."""
    role = party_data.role(recipe, name)
    if party.role not in (None, role):
        report.faults.append(f"{name} is a {party.role} by {file}, and a {role} by the recipe: mend one of them")
        return
    try:
        data = party_data.party_data(recipe, name, file, packing=unseen)
    except (ValueError, OSError) as error:
        report.faults.append(disk.explained(error))
        return
    if name not in data.data:
        report.faults.append(f"unknown party {name!r}; the recipe has {', '.join(sorted(data.data)[:8])}")
        return
    member = data.members()[name]
    if name in data.pairs:
        report.lines.append(f"{several(len(data.pairs[name]), 'pair')} of {several(member.images, 'image')}")
    counts = f", {_count(member.images, member.identities)}".replace(" of ", ", ") if recipe.secure is None else ""
    unsaid = "no name and no image" if recipe.secure is None else "no name, no image, and not how many there are"
    report.lines.append(f"the server is told: {name}, {member.role}{counts}; {unsaid}")
    if data.public is not None:
        counts = _count(len(data.public), len(data.public.names))
        report.lines.append(f"public people: {counts}; the server is told a digest of who they are")


def _count(images: int, identities: int) -> str:
    return f"{several(images, 'image')} of {several(identities, 'identity', 'identities')}"


def _is_reachable(path: Path) -> bool:
    """Whether everybody can pass through the folders above a path."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
