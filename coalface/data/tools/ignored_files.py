"""What lies in a folder of images and is not read as one: other endings, other places, other parts."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from coalface.core.text import first_few, several, shown
from coalface.data.readers.folders import SUFFIXES

TEXTS = (".txt", ".csv", ".md", ".json", ".lst", ".mat", ".pdf", ".html", ".py", ".xml")
"""Endings of lists and descriptions: they lie beside images, and are taken for images by nobody."""


def passed_over(
    root: Path, used: Iterable[Path], *, parts: Sequence[str] = (), asked_part: str = "", layout: str = ""
) -> list[str]:
    """In sentences, with counts and the first few names, the files below `root` that are not among the `used` images.

    `parts` are the layout's: of one that is not used at all, only the number of images is said, and nothing where a
    part was asked for. Names that begin with a dot are not looked at, but for images in folders below the top; lists
    and descriptions are not mentioned at the top and in a `layout`. Links to folders are not followed, only named.
    """
    by_folder: dict[str, set[str]] = {}
    for path in used:
        by_folder.setdefault(os.path.dirname(path), set()).add(path.name)
    names: dict[str, set[str]] = {}
    for folder, file_names in by_folder.items():
        names.setdefault(os.path.relpath(folder, root), set()).update(file_names)
    parts_read = {part for part in parts if any(part in _parts(folder) for folder in names)}
    astray: list[str] = []
    other_files: list[str] = []
    links: list[str] = []
    dead_links: list[str] = []
    pipes: list[str] = []
    unused: collections.Counter[str] = collections.Counter()
    for folder, folders, files in os.walk(root):
        below = os.path.relpath(folder, root)
        folders[:] = sorted(name for name in folders if below != "." or not name.startswith("."))
        linked = [] if below == "." else [name for name in folders if os.path.islink(os.path.join(folder, name))]
        places = [os.path.join(below, name) for name in linked]
        links += [place for place in places if not any(f"{name}{os.sep}".startswith(place + os.sep) for name in names)]
        hidden = f"{os.sep}." in below
        images_here = names.get(below, set())
        part = next((part for part in parts if part in _parts(below)), None)
        for file in sorted(files, key=os.fsencode):
            if file.startswith(".") or file in images_here:
                continue
            place = os.path.join(below, file) if below != "." else file
            if not file.lower().endswith(SUFFIXES):
                described = hidden or (file.lower().endswith(TEXTS) and (below == "." or layout != ""))
                other_files += [] if described or (part is not None and part not in parts_read) else [place]
            elif part is not None and part not in parts_read:
                unused[part] += 1
            elif not os.path.exists(file_path := os.path.join(folder, file)):
                dead_links.append(place)
            elif not os.path.isfile(file_path):
                pipes.append(place)
            else:
                astray.append(place)
    sentences = []
    if not asked_part:
        sentences += [
            f"{several(n, 'image')} of the part {part}: `--part {part}`, in a recipe `part: {part}`, reads it"
            for part, n in unused.items()
        ]
    if astray:
        aside = "not directly in an identity's folder, as in NAME/photo.jpg"
        why = "that no list or place of the layout names" if layout else aside
        deep = [place for place in astray if place.count(os.sep) > 1]
        hint = ""
        if not layout and len(deep) > 2 * sum(map(len, names.values())):
            below = os.path.join(root.name, deep[0].partition(os.sep)[0])
            hint = f". Most images lie deeper: name the folder of the people, such as {below}, or join several by "
            hint += "`kind: joined`"
        sentences.append(f"{several(len(astray), 'image')} {why}: {first_few(astray)}{hint}")
    if dead_links:
        sentences.append(f"{several(len(dead_links), 'link')} to files that are not there: {first_few(dead_links)}")
    if pipes:
        kinds = several(len(pipes), "pipe or device", "pipes and devices")
        sentences.append(f"{kinds}, which are not read: {first_few(pipes)}")
    if links:
        sentences.append(f"{several(len(links), 'link')} to folders, which are not followed: {first_few(links)}")
    if other_files:
        endings = collections.Counter(os.path.splitext(place)[1].lower() or "none" for place in other_files)
        counts = ", ".join(f"{ending} {count:,}" for ending, count in endings.most_common(3))
        ellipsis = " …" if len(endings) > 3 else ""
        sentences.append(
            f"{several(len(other_files), 'file')} with other endings than images have ({counts}{ellipsis}): "
            f"{first_few(other_files)}"
        )
    return [shown(sentence) for sentence in sentences]


def _parts(below: str) -> list[str]:
    """The first two folders of a path: a part lies at the top, or one folder down."""
    return below.split(os.sep)[:2]
