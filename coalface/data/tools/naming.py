"""What the images of a store are called where they become identity folders."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from coalface.core.text import shown
from coalface.data.readers.layouts import RACES
from coalface.data.stores import LONGEST, Store, check_names

NAMED = ("folder", "pack")
"""Forms in which an image has a file name of its own."""


def file_names(store: Store) -> Iterator[str]:
    """Where each image goes, `IDENTITY/file`, in order; without an ending where its kind must be looked at.

    A file keeps its name; one that did not lie in a folder of its identity, as in many a layout, takes with it the
    names of the folders that lay between: CFP's `Data/Images/001/frontal/01.jpg` is `001/frontal_01.jpg`.

    Raises DataError for a name that would lead out of the folder.
    """
    check_names(store.names, shown(store.path))
    folders = _folders(store.names)
    if store.kind not in NAMED:
        counts = [0] * len(store.names)
        for label in store.labels.tolist():
            counts[label] += 1
            folder = folders[label]
            yield f"{folder}/{folder.rpartition('/')[2]}_{counts[label]:04d}"
        return
    if store.kind == "pack":  # those of folders are checked when they are opened
        check_names(store.files, shown(store.path))
    files = _within(store.names, store.labels.tolist(), store.files)
    places = [f"{folders[label]}/{file}" for label, file in zip(store.labels.tolist(), files, strict=True)]
    if store.kind == "pack":  # all become PNG: x.jpg is x.png, unless x.jpeg is there as well
        png = [str(Path(place).with_suffix(".png")) for place in places]
        often = collections.Counter(png)
        places = [name if often[name] == 1 else f"{place}.png" for name, place in zip(png, places, strict=True)]
    yield from places


def _folders(names: Sequence[str]) -> Sequence[str]:
    """The folder of each identity: its name. Folders within folders are read again for races alone, as in BUPT.

    Of other names with a `/`, such as those of joined sources, it becomes `_`; DataError where two become one.
    """
    of_races = all(name.count("/") == 1 and name.partition("/")[0] in RACES for name in names)
    if of_races or not any("/" in name for name in names):
        return names
    flat = [name.replace("/", "_") for name in names]
    if len(set(flat)) < len(flat):
        twice = collections.Counter(flat).most_common(1)[0][0]
        first, second = [name for name, folder in zip(names, flat, strict=True) if folder == twice][:2]
        raise ValueError(
            f"the identities {shown(first)} and {shown(second)} would share the folder {shown(twice)}: rename one"
        )
    return flat


def _within(names: Sequence[str], labels: Sequence[int], files: Sequence[str]) -> list[str]:
    """The name of each file in the folder of its identity, different from the others there; long ones are numbers."""
    short_names = [_after(names[label], file) for label, file in zip(labels, files, strict=True)]
    for rename in (lambda file, _: file.replace("/", "_"), lambda file, number: f"{number:08d}{Path(file).suffix}"):
        often = collections.Counter(zip(labels, short_names, strict=True))
        short_names = [
            name if often[label, name] == 1 and len(os.fsencode(name)) <= LONGEST else rename(file, number)
            for number, (label, file, name) in enumerate(zip(labels, files, short_names, strict=True))
        ]
    return short_names


def _after(name: str, file: str) -> str:
    """What follows the identity's folder in a path, in one word; the file's own name where it lies in none."""
    folders, _, last = file.rpartition("/")
    above, separator, below = f"/{folders}/".rpartition(f"/{name}/")
    return "_".join([*below.strip("/").split("/"), last]) if separator and below.strip("/") else last
