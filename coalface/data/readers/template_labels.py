"""Labels of a list of template pairs: whether they contradict the templates' subjects, or each other."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import shown
from coalface.data.readers.text_lines import LARGEST


def check_labels(
    path: Path,
    templates: tuple[NDArray[np.int64], NDArray[np.int64]],
    subjects: tuple[NDArray[np.int32], NDArray[np.int32]],
    same: NDArray[np.bool_],
) -> None:
    """Checks the n pairs of the list at `path`, which has lines `template template label`.

    `templates` and their `subjects` are the two sides of the pairs, (n,) each, and a subject that no list tells is -1.
    A pair may stand there again, in either order. Time is some passes over the pairs, and a sort of those of which a
    subject is unknown. Raises ValueError with file and line for the label 0 of two templates of one subject, or of a
    template and itself, for the label 1 of two templates of two subjects, and for a pair with both labels.
    """
    (left, right), (first, second) = templates, subjects
    odd = np.flatnonzero((first == second) != same)
    odd = odd[((first[odd] >= 0) & (second[odd] >= 0)) | (left[odd] == right[odd])]
    if len(odd):
        row = int(odd[0])
        what = (
            f"template {left[row]} is paired with itself"
            if left[row] == right[row]
            else f"templates {left[row]} and {right[row]} are of subjects {first[row]} and {second[row]}, by the "
            "galleries and probes"
        )
        raise ValueError(
            f"{shown(path)}, line {_line(path, row):,}: the label is {same[row]:d}, but {what}; fetch the lists again, "
            "from one place"
        )
    # A label that is the subjects' own is the same wherever the pair stands: only the others can have both.
    rest = np.flatnonzero((first | second) < 0)
    pair = np.minimum(left[rest], right[rest]) * (LARGEST + 1) + np.maximum(left[rest], right[rest])
    coded = np.sort(2 * pair + same[rest])
    both = coded[1:][coded[1:] ^ coded[:-1] == 1]  # neighbours that differ in the label alone
    if len(both):
        places = rest[pair == both[0] >> 1]
        one, other = places[0], places[same[places] != same[places[0]]][0]
        raise ValueError(
            f"{shown(path)}, line {_line(path, int(other)):,}: templates {left[other]} and {right[other]} have the "
            f"label {same[other]:d}, and {same[one]:d} in line {_line(path, int(one)):,}; fetch the list again"
        )


def _line(path: Path, row: int) -> int:
    """The line of a row: blank lines, which count, are no rows."""
    with open(path, "rb") as file:
        filled = (number for number, line in enumerate(file, start=1) if line.strip())
        return next(itertools.islice(filled, row, None), 0)
