"""What lies in a folder of images and is not read as one: other endings, other places, other parts."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from coalface.data.folder import SUFFIXES
from coalface.data.words import several, shown

_FEW = 3
"""Files that a sentence names."""
_TEXTS = (".txt", ".csv", ".md", ".json", ".lst", ".mat", ".pdf", ".html", ".py", ".xml")
"""Endings of lists and descriptions: they lie beside images, and are taken for images by nobody."""


def passed_over(
    root: Path, used: Iterable[Path], *, parts: Sequence[str] = (), asked: str = "", layout: str = ""
) -> list[str]:
    """In sentences, with counts and the first few names, the files below `root` that are not among the `used` images.

    `parts` are the layout's: of one that is not used at all, only the number of images is said, and nothing where a
    part was `asked` for. Names that begin with a dot are not looked at, and lists and descriptions are not mentioned at
    the top and in a `layout`. Links to folders are not followed.
    """
    by_folder: dict[str, set[str]] = {}
    for path in used:
        by_folder.setdefault(os.path.dirname(path), set()).add(path.name)
    names: dict[str, set[str]] = {}
    for folder, held in by_folder.items():
        names.setdefault(os.path.relpath(folder, root), set()).update(held)
    taken = {part for part in parts if any(part in _parts(folder) for folder in names)}
    astray: list[str] = []
    others: list[str] = []
    unused: collections.Counter[str] = collections.Counter()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = os.path.relpath(folder, root)
        here = names.get(below, set())
        part = next((part for part in parts if part in _parts(below)), None)
        for file in sorted(files, key=os.fsencode):
            if file.startswith(".") or file in here:
                continue
            place = os.path.join(below, file) if below != "." else file
            if not file.lower().endswith(SUFFIXES):
                described = file.lower().endswith(_TEXTS) and (below == "." or layout != "")
                others += [] if described or (part is not None and part not in taken) else [place]
            elif part is None or part in taken:
                astray.append(place)
            else:
                unused[part] += 1
    said = []
    if not asked:
        said += [
            f"{several(n, 'image')} of the part {part}: `--part {part}`, in a recipe `part: {part}`, reads it"
            for part, n in unused.items()
        ]
    if astray:
        why = "that no list or place of the layout names" if layout else "in no identity's folder of its own"
        said.append(f"{several(len(astray), 'image')} {why}: {_first(astray)}")
    if others:
        endings = collections.Counter(os.path.splitext(place)[1].lower() or "none" for place in others)
        counts = ", ".join(f"{ending} {count:,}" for ending, count in endings.most_common(_FEW))
        more = " …" if len(endings) > _FEW else ""
        said.append(
            f"{several(len(others), 'file')} with other endings than images have ({counts}{more}): {_first(others)}"
        )
    return [shown(sentence) for sentence in said]


def _parts(below: str) -> list[str]:
    """The first two folders of a path: a part lies at the top, or one folder down."""
    return below.split(os.sep)[:2]


def _first(places: Sequence[str]) -> str:
    return ", ".join(places[:_FEW]) + (", …" if len(places) > _FEW else "")
