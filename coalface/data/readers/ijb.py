"""The lists of IJB-A, IJB-B and IJB-C: images, templates and media, template pairs, galleries and probes.

The readers take them as the field passes them on, in a folder `meta` (insightface, `recognition/_evaluation_/ijb`):

| list | a line |
|---|---|
| `ijbc_face_tid_mid.txt` | image, template, media |
| `ijbc_name_5pts_score.txt` | image, x1 y1 … x5 y5 of its five landmarks, score of the detector |
| `ijbc_template_pair_label.txt` | template, template, 1 for a genuine pair and 0 for an impostor pair |
| `ijbc_1N_gallery_G1.csv`, `…_G2.csv`, `ijbc_1N_probe_mixed.csv` | `TEMPLATE_ID,SUBJECT_ID,…`, with that header |

IJB-B's begin with `ijbb`, and its galleries are S1 and S2. IJB-A's `verify_metadata_1.csv` has the columns MEDIA_ID
and FILE as well, and its `verify_comparisons_1.csv`, like IJB-C's own `…_matches.csv`, is lines `template,template`.
Numbers are whole, from 0 to 999,999,999. None of the data sets is here, so these files were not seen. Sources: Klare et
al., CVPR 2015 (IJB-A); Whitelam et al., CVPRW 2017 (IJB-B); Maze et al., ICB 2018 (IJB-C).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.text import several, shown
from coalface.data.readers.template_labels import check_labels
from coalface.data.readers.text_lines import NUMBER, not_a_line, numbers_of, text_lines, whole_number

GALLERIES = {"ijbb": ("S1", "S2"), "ijbc": ("G1", "G2")}
"""What the two galleries are called."""

_SPLIT = re.compile(r"verify_metadata_([0-9]{1,4})\.csv")


@dataclass(frozen=True, eq=False)
class TemplateMedia:
    """Of which template and which media each of n images is; the images of a video are of one media."""

    files: tuple[str, ...]
    template: NDArray[np.int64]
    """(n,) the template's number."""
    media: NDArray[np.int64]
    """(n,) the media's number, which has a meaning within a template."""


@dataclass(frozen=True, eq=False)
class DetectedFaces:
    """What a detector said of each of n images."""

    files: tuple[str, ...]
    points: NDArray[np.float32]
    """(n, 5, 2) left eye as it is seen, right eye, nose, corners of the mouth: x, y in pixels."""
    score: NDArray[np.float32]
    """(n,) how sure it is of the face."""


@dataclass(frozen=True, eq=False)
class TemplatePairs:
    """n pairs of templates."""

    left: NDArray[np.int64]
    """(n,) a template's number."""
    right: NDArray[np.int64]
    same: NDArray[np.bool_]
    """(n,) True for a genuine pair."""

    def __len__(self) -> int:
        return len(self.same)


@dataclass(frozen=True, eq=False)
class TemplateSubjects:
    """The subject of each of t templates: a gallery, or the probes."""

    template: NDArray[np.int64]
    """(t,) the templates' numbers, each once, ascending."""
    subject: NDArray[np.int64]
    """(t,)"""

    def of(self, templates: NDArray[np.int64]) -> NDArray[np.int64]:
        """The subjects of some templates; ValueError for one that is not here."""
        return self.subject[rows_of(templates, self.template, "subject")]


@dataclass(frozen=True, eq=False)
class Ijb:
    """The lists of IJB-B or IJB-C, which belong together."""

    images: TemplateMedia
    faces: DetectedFaces
    """Of the same images in the same order."""
    pairs: TemplatePairs
    galleries: dict[str, TemplateSubjects]
    """By name: G1 and G2, or S1 and S2."""
    probes: TemplateSubjects
    name: str
    """IJB-B or IJB-C."""


@dataclass(frozen=True, eq=False)
class Split:
    """The lists of one of IJB-A's splits for 1:1."""

    images: TemplateMedia
    subjects: TemplateSubjects
    pairs: TemplatePairs


def read_ijb(folder: str | os.PathLike[str]) -> Ijb:
    """All lists in a folder `meta` of IJB-B or IJB-C.

    Raises FileNotFoundError for a list that is missing, and ValueError for what the readers below refuse, for lists of
    images that differ, for a template without images, and for lists that contradict themselves or each other: a
    template of two subjects, a label that its templates' subjects belie, a pair with both labels. What is only said
    twice is taken: a pair that is listed again with its label, and an image that a template has again, since that may
    be of another face in it.
    """
    folder = Path(folder)
    kind = next((name for name in GALLERIES if (folder / f"{name}_face_tid_mid.txt").is_file()), None)
    if kind is None:
        raise FileNotFoundError(
            f"{shown(folder)} holds neither {' nor '.join(f'{name}_face_tid_mid.txt' for name in GALLERIES)}: give the "
            "folder `meta` of IJB-B or IJB-C"
        )
    media = folder / f"{kind}_face_tid_mid.txt"
    points = folder / f"{kind}_name_5pts_score.txt"
    images, faces = read_media(media), read_faces(points)
    if images.files != faces.files:
        both = zip(images.files, faces.files, strict=False)
        place = next((n for n, (one, other) in enumerate(both) if one != other), None)
        raise ValueError(
            f"{shown(media)} and {shown(points)} do not list the same images in the same order: "
            + (
                f"{len(images.files):,} and {several(len(faces.files), 'image')}"
                if place is None
                else f"image {place + 1:,} is {shown(images.files[place][:80])} and {shown(faces.files[place][:80])}"
            )
            + "; fetch both again, from one place"
        )
    known = np.unique(images.template)
    lists = {name: folder / f"{kind}_1N_gallery_{name}.csv" for name in GALLERIES[kind]}
    probe = folder / f"{kind}_1N_probe_mixed.csv"
    pair = folder / f"{kind}_template_pair_label.txt"
    pairs = read_template_pairs(pair)
    galleries = {name: read_subjects(path) for name, path in lists.items()}
    probes = read_subjects(probe)
    told = {**{lists[name]: gallery for name, gallery in galleries.items()}, probe: probes}

    def places(path: Path, templates: NDArray[np.int64]) -> NDArray[np.int64]:
        try:
            return rows_of(templates, known, "image")
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}, by {shown(media)}; fetch both again, from one place") from None

    for path, some in told.items():
        places(path, some.template)
    who = _subjects(told)
    subject = np.array([who.get(template, -1) for template in known.tolist()], np.int32)
    left, right = (subject[places(pair, side)] for side in (pairs.left, pairs.right))
    check_labels(pair, (pairs.left, pairs.right), (left, right), pairs.same)
    return Ijb(images, faces, pairs, galleries, probes, {"ijbb": "IJB-B", "ijbc": "IJB-C"}[kind])


def read_media(path: str | os.PathLike[str]) -> TemplateMedia:
    """The list of images, `…_face_tid_mid.txt`.

    Raises FileNotFoundError where it is missing; ValueError with file and line for a line of another form.
    """
    files: list[str] = []
    numbers: list[tuple[int, int]] = []
    for where, line in text_lines(Path(path)):
        fields = line.split()
        if len(fields) != 3:
            raise not_a_line(where, line, "an image, its template and its media")
        files.append(fields[0])
        numbers.append((whole_number(fields[1], where), whole_number(fields[2], where)))
    template, media = np.array(numbers, np.int64).T
    return TemplateMedia(tuple(files), template.copy(), media.copy())


def read_faces(path: str | os.PathLike[str]) -> DetectedFaces:
    """The list of landmarks, `…_name_5pts_score.txt`; errors as for `read_media`, and ValueError for a score below 0.

    Scores may be above 1, as those of some detectors are.
    """
    files: list[str] = []
    lines: list[list[float]] = []
    for where, line in text_lines(Path(path)):
        name, *fields = line.split()
        try:
            numbers = [float(field) for field in fields]
        except ValueError:
            numbers = []
        if len(numbers) != 11 or not all(abs(number) < 1e9 for number in numbers[:10]):  # nor is NaN
            raise not_a_line(where, line, "an image, ten numbers for five points, and a score")
        if not 0 <= numbers[10] < 1e9:
            raise ValueError(
                f"{where}: the detector's score {fields[10][:80]} is not a number from 0 to below 1e9 (a feature is "
                "multiplied by it, and one below 0 would turn it round); fetch the list again, or bring the scores of "
                "a detector of your own into that range"
            )
        files.append(name)
        lines.append(numbers)
    found = np.array(lines, np.float32)
    return DetectedFaces(tuple(files), found[:, :10].reshape(-1, 5, 2).copy(), found[:, 10].copy())


def read_template_pairs(path: str | os.PathLike[str]) -> TemplatePairs:
    """The list of pairs, `…_template_pair_label.txt`.

    Time grows with the length of the list alone: IJB-C's 15,658,489 lines take seconds. Memory is 17 bytes a line and
    some 100 MiB. Raises FileNotFoundError where it is missing; ValueError with file and line for a line that is not
    three numbers, the last 0 or 1.
    """
    fields = (NUMBER, NUMBER, b"[01]")
    parts = [
        (numbers[:, 0].copy(), numbers[:, 1].copy(), numbers[:, 2] == 1)
        for numbers in numbers_of(Path(path), fields, "two templates, and 1 if they are of one subject, else 0")
    ]
    left, right, same = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TemplatePairs(left, right, same)


def read_matches(path: str | os.PathLike[str], subjects: TemplateSubjects) -> TemplatePairs:
    """Pairs without labels, lines `template,template`: genuine where the subjects are the same.

    So are IJB-A's `verify_comparisons_1.csv` and IJB-C's `ijbc_11_G1_G2_matches.csv`. Time and errors are those of
    `read_template_pairs`; a template that `subjects` does not have is a ValueError.
    """
    meaning, separator = "two templates with a comma between them", rb"[ \t]*,[ \t]*"
    left, right = np.concatenate(list(numbers_of(Path(path), (NUMBER, NUMBER), meaning, separator=separator))).T.copy()
    try:
        same = subjects.of(left) == subjects.of(right)
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}; fetch it and the metadata again, from one place") from None
    return TemplatePairs(left, right, same)


def read_subjects(path: str | os.PathLike[str]) -> TemplateSubjects:
    """Templates and their subjects from a gallery, the probes, or metadata: a CSV with TEMPLATE_ID and SUBJECT_ID.

    A template has as many lines as images; its subject must be the same in all. Raises FileNotFoundError where the
    list is missing; ValueError with file and line for a column that is missing and for a line of another form.
    """
    found: dict[int, int] = {}
    for where, (template, subject) in _columns(Path(path), ("TEMPLATE_ID", "SUBJECT_ID")):
        number, who = whole_number(template, where), whole_number(subject, where)
        if found.setdefault(number, who) != who:
            raise ValueError(
                f"{where}: template {number} is of subject {who}, and further up of subject {found[number]}; fetch the "
                "list again"
            )
    templates = np.array(sorted(found), np.int64)
    return TemplateSubjects(templates, np.array([found[number] for number in templates.tolist()], np.int64))


def read_metadata(path: str | os.PathLike[str]) -> tuple[TemplateMedia, TemplateSubjects]:
    """The images of a split of IJB-A, `verify_metadata_1.csv`, with the subjects of their templates.

    It is a CSV with TEMPLATE_ID, SUBJECT_ID, MEDIA_ID, and FILE or FILENAME; errors as for `read_subjects`.
    """
    files: list[str] = []
    numbers: list[tuple[int, int]] = []
    for where, (template, media, file) in _columns(Path(path), ("TEMPLATE_ID", "MEDIA_ID", "FILE")):
        files.append(file)
        numbers.append((whole_number(template, where), whole_number(media, where)))
    of_template, of_media = np.array(numbers, np.int64).T
    return TemplateMedia(tuple(files), of_template.copy(), of_media.copy()), read_subjects(path)


def is_ijba(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder, or one below it, holds a `verify_metadata_N.csv`."""
    return bool(_metadata_files(Path(folder)))


def read_splits(folder: str | os.PathLike[str]) -> list[Split]:
    """IJB-A's splits for 1:1 by their numbers: each `verify_metadata_N.csv` and the `verify_comparisons_N.csv` with it.

    They lie in the folder or below it, as `IJB-A_11_sets/split1/…`. Raises FileNotFoundError where there is none, and
    for a list of comparisons that is missing; ValueError for two of one number, for what the readers refuse, and for a
    template without images.
    """
    found = _metadata_files(Path(folder))
    if not found:
        raise FileNotFoundError(f"{shown(folder)} holds no verify_metadata_N.csv: give the folder of IJB-A's splits")
    if double := next(
        (number for (number, _), (other, _) in zip(found, found[1:], strict=False) if number == other), 0
    ):
        raise ValueError(f"{shown(folder)} holds verify_metadata_{double}.csv twice: give the folder of one protocol")
    splits = []
    for number, path in found:
        images, subjects = read_metadata(path)
        splits.append(
            Split(images, subjects, read_matches(path.with_name(f"verify_comparisons_{number}.csv"), subjects))
        )
    return splits


def _metadata_files(folder: Path) -> list[tuple[int, Path]]:
    named = [(_SPLIT.fullmatch(path.name), path) for path in folder.rglob("verify_metadata_*.csv")]
    return sorted((int(match[1]), path) for match, path in named if match)


def rows_of(templates: NDArray[np.int64], known: NDArray[np.int64], what: str = "feature") -> NDArray[np.int64]:
    """The places of templates (n,) among known ones (t,), which ascend.

    Raises ValueError, which says that one has no `what`, where a template is not among them.

    >>> rows_of(np.array([7, 3, 7]), np.array([3, 5, 7]))
    array([2, 0, 2])
    """
    templates = np.asarray(templates, np.int64)
    if not len(known):
        rows = np.full(len(templates), -1)
    elif known[0] >= 0 and known[-1] <= 2**26:  # a table: much faster than a search for each of millions
        table = np.full(int(known[-1]) + 2, -1, np.int64)
        table[known] = np.arange(len(known))
        rows = table[np.clip(templates, -1, known[-1] + 1)]  # what is below or above all finds the last entry
    else:
        rows = np.minimum(np.searchsorted(known, templates), len(known) - 1)
        rows[known[rows] != templates] = -1
    if len(lost := np.flatnonzero(rows < 0)):
        raise ValueError(
            f"template {templates[lost[0]]} has no {what} (so for {len(np.unique(templates[lost])):,} of "
            f"{several(len(np.unique(templates)), 'template')})"
        )
    return rows


# Subjects over several lists


def _subjects(told: dict[Path, TemplateSubjects]) -> dict[int, int]:
    """The subject of each template of some lists; ValueError for a template that two of them have of two subjects."""
    found: dict[int, tuple[int, Path]] = {}
    for path, some in told.items():
        for template, subject in zip(some.template.tolist(), some.subject.tolist(), strict=True):
            before, there = found.setdefault(template, (subject, path))
            if before != subject:
                raise ValueError(
                    f"{shown(path)}: template {template} is of subject {subject}, and of subject {before} in "
                    f"{shown(there)}; fetch both lists again, from one place"
                )
    return {template: subject for template, (subject, _) in found.items()}


def _columns(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """File and line, and the fields of some columns, of each line of a CSV; FILENAME does for FILE."""
    lines = list(text_lines(path))
    where, first = lines[0]
    header = [name.strip().upper().removeprefix("\ufeff") for name in next(csv.reader([first]))]
    header = ["FILE" if name == "FILENAME" else name for name in header]
    if missing := [name for name in wanted if name not in header]:
        raise ValueError(f"{where}: the header has no column {' nor '.join(missing)}; fetch the list again")
    places = [header.index(name) for name in wanted]
    for where, line in lines[1:]:
        fields = next(csv.reader([line]))
        if len(fields) <= max(places):
            raise not_a_line(where, line, f"a line of {several(len(header), 'column')}, as the header says")
        yield where, [fields[place].strip() for place in places]
    if len(lines) == 1:
        raise ValueError(f"{where}: there is nothing after the header; fetch the list again")
