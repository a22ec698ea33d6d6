"""The files of pair lists, line by line: LFW's format, lines of two paths and a label, CSV with a header."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coalface.core.text import several, shown

_FORMS = (
    "a pair list begins with its number of pairs, as in `500`, or with its numbers of folds and of pairs, as in "
    "`10 300` (LFW's format), or is lines `path path 1`, or a CSV with a header such as `left,right,same`"
)

HEADERS = {
    "left": ("left", "file1", "image1", "img1", "path1", "face1"),
    "right": ("right", "file2", "image2", "img2", "path2", "face2"),
    "same": ("same", "issame", "sameperson", "genuine", "match", "label"),
    "fold": ("fold",),
}
"""What the columns of a CSV of pairs may be called, in capitals or not, with `_`, `-` and spaces or without."""

_LABELS = {"1": True, "+1": True, "true": True, "0": False, "-1": False, "false": False}


@dataclass(frozen=True)
class Line:
    """A pair as a file names it."""

    number: int
    """Of its line, from 1."""
    left: str
    """An image's path, of LFW's format without the ending."""
    right: str
    names: tuple[str, str]
    """The two identities: of paths, the folders that they lie in, empty where they lie in none."""
    same: bool
    fold: int | None


def read_lines(path: Path) -> list[Line]:
    """The pairs of a list, its form told by its first line. Raises ValueError with file and line if it is malformed."""
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{shown(path)} is empty: {_FORMS}")
    first = lines[0][1].split()
    if len(first) < 3 and all(_counts(field) for field in first):
        return _parse_lfw(path, [(number, line.split()) for number, line in lines])
    header = lines[0][1]
    separator = max(",;\t", key=header.count)
    names = ["".join(c for c in name.lower() if c.isalnum()) for name in header.split(separator)]
    if all(any(name in names for name in HEADERS[key]) for key in ("left", "right", "same")):
        return _parse_csv(path, lines, separator, names)
    if len(first) == 3 and not (_counts(first[1]) and _counts(first[2])) and first[2].lower() in _LABELS:
        return [_path_line(path, number, line.split()) for number, line in lines]
    if len(lines) > 1 and all(len(fields) == 2 and fields[1].isdigit() for fields in (x.split() for _, x in lines[1:])):
        raise ValueError(
            f"{shown(path)} has two lines for a pair, as CALFW's and CPLFW's lists: call it pairs_CALFW.txt or "
            "pairs_CPLFW.txt, put it into the folder of its images, and judge on that folder"
        )
    raise ValueError(f"{shown(path)}, line {lines[0][0]}: {_FORMS}; found {header.strip()[:80]!r}")


def _parse_lfw(path: Path, lines: list[tuple[int, list[str]]]) -> list[Line]:
    header = lines[0][1]
    folds, size = (1, int(header[0])) if len(header) == 1 else (int(header[0]), int(header[1]))
    pairs = []
    for place, (number, fields) in enumerate(lines[1:]):
        fold, within = divmod(place, 2 * size)
        try:
            left, right = _genuine(fields) if within < size else _impostor(fields)
        except ValueError as error:
            where = f"pair {within % size + 1} of {size} of this kind" + (f" in fold {fold + 1}" if folds > 1 else "")
            found = " ".join(fields)[:80]
            raise ValueError(f"{shown(path)}, line {number}: {error} ({where}); found {found!r}") from None
        names, (one, other) = (left[0], right[0]), (f"{name}/{name}_{image:04d}" for name, image in (left, right))
        pairs.append(Line(number, one, other, names, within < size, fold if len(header) == 2 else None))
    if len(pairs) != 2 * folds * size:
        raise ValueError(
            f"{shown(path)}: the first line promises {2 * folds * size} pairs ({size} genuine and {size} impostor"
            f"{f' in each of {folds} folds' if folds > 1 else ''}), and {len(pairs)} follow: the file is cut short or "
            "its first line is wrong"
        )
    return pairs


def _path_line(path: Path, number: int, fields: list[str], fold: str | None = None) -> Line:
    """A pair of `left, right, label`."""
    where, found = f"{shown(path)}, line {number}", " ".join(fields)[:80]
    if len(fields) != 3 or not all(fields) or fields[2].lower() not in _LABELS:
        raise ValueError(f"{where}: expected two paths and 1 (one person) or 0 (two); found {found!r}")
    left, right = (str(PurePosixPath(field)) for field in fields[:2])
    if left == right:
        raise ValueError(f"{where}: a pair compares two images, and this names one twice; found {found!r}")
    if fold is not None and not (fold.isascii() and fold.isdigit() and len(fold) < 10):
        raise ValueError(f"{where}: {fold[:80]!r} is where the number of a fold belongs")
    names = (left.rpartition("/")[0], right.rpartition("/")[0])
    return Line(number, left, right, names, _LABELS[fields[2].lower()], None if fold is None else int(fold))


def _parse_csv(path: Path, lines: list[tuple[int, str]], separator: str, names: list[str]) -> list[Line]:
    """The pairs after a header that names these columns."""
    known = {key: [name for name in called if name in names] for key, called in HEADERS.items()}
    column = {key: names.index(found[0]) for key, found in known.items() if found}
    if len(lines) == 1:
        raise ValueError(f"{shown(path)} has a header and no pair after it: fetch it again")
    pairs = []
    for number, line in lines[1:]:
        try:
            (fields,) = csv.reader([line], delimiter=separator)
        except csv.Error as error:
            raise ValueError(f"{shown(path)}, line {number}: it is no line of a CSV ({error})") from None
        if len(fields) != len(names):
            raise ValueError(
                f"{shown(path)}, line {number}: the header names {several(len(names), 'column')}, and here are "
                f"{len(fields)}; found {line.strip()[:80]!r}"
            )
        of = {key: fields[place].strip() for key, place in column.items()}
        pairs.append(_path_line(path, number, [of["left"], of["right"], of["same"]], of.get("fold")))
    _check_folds(path, pairs)
    return pairs


def _check_folds(path: Path, pairs: list[Line]) -> None:
    """Raise ValueError for a fold of pairs of one kind, on which no accuracy could be taken."""
    kinds: dict[int, set[bool]] = {}
    for line in pairs:
        if line.fold is not None:
            kinds.setdefault(line.fold, set()).add(line.same)
    if wrong := [fold for fold, found in kinds.items() if len(found) == 1]:
        kind, first = ("genuine" if True in kinds[wrong[0]] else "impostor"), wrong[0]
        at = next(line.number for line in pairs if line.fold == first)
        raise ValueError(
            f"{shown(path)}, line {at}: fold {first} has only {kind} pairs, and each fold needs both kinds (so it is "
            f"with {len(wrong):,} of {several(len(kinds), 'fold')}): deal the pairs anew, or take the column `fold` out"
        )


def _counts(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) < 10 and int(field) > 0


def _genuine(fields: list[str]) -> tuple[tuple[str, int], tuple[str, int]]:
    if len(fields) != 3 or not _counts(fields[1]) or not _counts(fields[2]):
        raise ValueError("expected a genuine pair, `name a b`, with the numbers of two images, counted from 1")
    if int(fields[1]) == int(fields[2]):
        raise ValueError("a pair compares two images, and this names one twice")
    return (fields[0], int(fields[1])), (fields[0], int(fields[2]))


def _impostor(fields: list[str]) -> tuple[tuple[str, int], tuple[str, int]]:
    if len(fields) != 4 or not _counts(fields[1]) or not _counts(fields[3]):
        raise ValueError("expected an impostor pair, `name a name b`, with the numbers of two images, counted from 1")
    if fields[0] == fields[2]:
        raise ValueError("an impostor pair shows two people, and this names one")
    return (fields[0], int(fields[1])), (fields[2], int(fields[3]))
