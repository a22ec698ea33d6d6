"""The files of pair lists, line by line: LFW's format, lines of two paths and a label, CSV with a header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.text_lines import csv_fields, line_error, whole_number

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

Lines = list[tuple[str, str]]
"""File and line number, for errors, and the text of each line that is not blank."""


@dataclass(frozen=True)
class ListedPair:
    """A pair as a file names it."""

    where: str
    """File and line, for errors."""
    left: str
    """An image's path, of LFW's format without the ending."""
    right: str
    same: bool
    fold: int | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The two identities: the folders that the images lie in, empty where they lie in none."""
        return self.left.rpartition("/")[0], self.right.rpartition("/")[0]


def read_pair_lines(path: Path) -> list[ListedPair]:
    """The pairs of a list, its form told by its first line. Raises DataError with file and line if it is malformed."""
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    lines = [(f"{shown(path)}, line {n}", line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise DataError(f"it is empty: {_FORMS}", where=path)
    where, header = lines[0]
    first = header.split()
    if len(first) < 3 and all(map(_counts, first)):
        return _parse_lfw(path, lines)
    separator = max(",;\t", key=header.count)
    names = ["".join(c for c in name.lower() if c.isalnum()) for name in header.split(separator)]
    if all(any(name in names for name in HEADERS[key]) for key in ("left", "right", "same")):
        return _parse_csv(path, lines, separator, names)
    if lacking := [key for key in ("left", "right", "same") if not any(name in names for name in HEADERS[key])]:
        if len(lacking) < 3 and len(names) > 1:
            called = "; ".join(f"{key} ({', '.join(HEADERS[key])})" for key in lacking)
            raise DataError(f"its header {header.strip()[:80]!r} has no column for {called}", where=where)
    if len(first) == 3 and not (_counts(first[1]) and _counts(first[2])) and first[2].lower() in _LABELS:
        return [_path_pair(where, line.split()) for where, line in lines]
    if len(lines) > 1 and all(len(fields) == 2 and fields[1].isdigit() for fields in (x.split() for _, x in lines[1:])):
        raise DataError(
            "it has two lines for a pair, as CALFW's and CPLFW's lists: put it, called pairs_CALFW.txt or "
            "pairs_CPLFW.txt, into the folder of its images, and evaluate on that folder",
            where=path,
        )
    raise DataError(f"{_FORMS}; found {header.strip()[:80]!r}", where=where)


def lfw_pair(where: str, fields: Sequence[str], *, same: bool, fold: int | None = None) -> ListedPair:
    """A pair of LFW's format, `name a b` of one person or `name a name b` of two; image 7 is `name/name_0007`."""
    kind, form = ("genuine", "name a b") if same else ("impostor", "name a name b")
    ends = [fields[:2], [*fields[:1], *fields[2:]] if same else fields[2:]]
    if len(fields) != len(form.split()) or not all(_counts(number) for _, number in ends):
        meaning = f"the {kind} pair that is expected, `{form}`, with the numbers of two images, counted from 1"
        raise line_error(where, " ".join(fields), meaning)
    left, right = (f"{name}/{name}_{int(number):04d}" for name, number in ends)
    if left == right or (not same and ends[0][0] == ends[1][0]):
        meaning = "a pair: it names one image twice" if same else "an impostor pair: it names one person twice"
        raise line_error(where, " ".join(fields), meaning)
    return ListedPair(where, left, right, same, fold)


def _parse_lfw(path: Path, lines: Lines) -> list[ListedPair]:
    *some, size = map(int, lines[0][1].split())
    folds = some[0] if some else 1
    pairs = []
    for place, (where, line) in enumerate(lines[1:]):
        fold, within = divmod(place, 2 * size)
        pairs.append(lfw_pair(where, line.split(), same=within < size, fold=fold if some else None))
    if len(pairs) != 2 * folds * size:
        raise DataError(
            f"the first line promises {2 * folds * size} pairs ({size} genuine and {size} impostor"
            f"{f' in each of {folds} folds' if folds > 1 else ''}), and {len(pairs)} follow: the file is cut short or "
            "its first line is wrong",
            where=path,
        )
    return pairs


def _path_pair(where: str, fields: list[str], fold: str | None = None) -> ListedPair:
    """A pair of `left, right, label`."""
    text = " ".join(fields)[:80]
    if len(fields) != 3 or not all(fields) or fields[2].lower() not in _LABELS:
        raise DataError(f"expected two paths and 1 (one person) or 0 (two); found {text!r}", where=where)
    left, right = (str(PurePosixPath(field)) for field in fields[:2])
    if left == right:
        raise DataError(f"a pair compares two images, and this names one twice; found {text!r}", where=where)
    number = None if fold is None else whole_number(fold, where)
    return ListedPair(where, left, right, _LABELS[fields[2].lower()], number)


def _parse_csv(path: Path, lines: Lines, separator: str, names: list[str]) -> list[ListedPair]:
    """The pairs after a header that names these columns."""
    column = {
        key: names.index(spellings[0])
        for key, headers in HEADERS.items()
        if (spellings := [name for name in headers if name in names])
    }
    if len(lines) == 1:
        raise DataError("it has a header but no pairs; fetch it again", where=path)
    pairs = []
    for where, line in lines[1:]:
        fields = csv_fields(where, line, separator)
        if len(fields) != len(names):
            raise line_error(where, line, f"a line of {several(len(names), 'column')}, as the header says")
        of = {key: fields[place].strip() for key, place in column.items()}
        pairs.append(_path_pair(where, [of["left"], of["right"], of["same"]], of.get("fold")))
    kinds = {(pair.fold, pair.same) for pair in pairs}
    for pair in pairs:
        if pair.fold is not None and (pair.fold, not pair.same) not in kinds:
            raise DataError(
                f"fold {pair.fold} has only {'genuine' if pair.same else 'impostor'} pairs, and each "
                "fold needs both kinds: assign the pairs to folds again, or remove the column `fold`",
                where=pair.where,
            )
    return pairs


def _counts(field: str) -> bool:
    return field.isascii() and field.isdigit() and len(field) < 10 and int(field) > 0
