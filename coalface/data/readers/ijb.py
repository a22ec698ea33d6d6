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
Numbers are whole, from 0 to 999,999,999. Of these files IJB-C's galleries were seen. Sources: Klare et
al., CVPR 2015 (IJB-A); Whitelam et al., CVPRW 2017 (IJB-B); Maze et al., ICB 2018 (IJB-C).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError
from coalface.core.text import several, shown
from coalface.data.readers.text_lines import (
    LARGEST,
    NUMBER,
    csv_fields,
    line_error,
    read_numbers,
    text_lines,
    whole_number,
)

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
        """The subjects of some templates. Raises ValueError for one that is not here."""
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

    Raises FileNotFoundError for a list that is missing, and DataError for what the readers below refuse, for lists of
    images that differ, for a template without images, and for lists that contradict themselves or each other: a
    template of two subjects, a label that its templates' subjects belie, a pair with both labels. What is only said
    twice is taken: a pair that is listed again with its label, and an image that a template has again, since that may
    be of another face in it.
    """
    folder = Path(folder)
    kind = next((name for name in GALLERIES if (folder / f"{name}_face_tid_mid.txt").is_file()), None)
    if kind is None:
        raise FileNotFoundError(
            f"{shown(folder)} has neither {' nor '.join(f'{name}_face_tid_mid.txt' for name in GALLERIES)}: give the "
            "folder `meta` of IJB-B or IJB-C"
        )
    media, points = folder / f"{kind}_face_tid_mid.txt", folder / f"{kind}_name_5pts_score.txt"
    images, faces = read_media(media), read_faces(points)
    for number, (image, detected) in enumerate(itertools.zip_longest(images.files, faces.files), start=1):
        if image != detected:
            differ = f"image {number:,} is {str(detected)[:80]} and {str(image)[:80]} in {media.name}"
            if None in (image, detected):
                differ = f"{several(len(faces.files), 'image')} and {len(images.files):,} in {media.name}"
            raise DataError(f"the lists are of different images: {differ}; fetch both again", where=points)
    image_templates = np.unique(images.template)
    pair = folder / f"{kind}_template_pair_label.txt"
    pairs = read_template_pairs(pair)
    lists = {name: folder / f"{kind}_1N_gallery_{name}.csv" for name in GALLERIES[kind]}
    galleries = {name: read_subjects(path) for name, path in lists.items()}
    probe = folder / f"{kind}_1N_probe_mixed.csv"
    probes = read_subjects(probe)
    listed = [*zip(lists.values(), galleries.values(), strict=True), (probe, probes)]

    def places(path: Path, templates: NDArray[np.int64]) -> NDArray[np.int64]:
        try:
            return rows_of(templates, image_templates, "image")
        except ValueError as error:
            raise DataError(f"{error}, by {media}; fetch both again, from one place", where=path) from None

    subject_of: dict[int, tuple[int, Path]] = {}
    for path, some in listed:
        places(path, some.template)
        for template, subject in zip(some.template.tolist(), some.subject.tolist(), strict=True):
            before, other_list = subject_of.setdefault(template, (subject, path))
            if before != subject:
                raise DataError(
                    f"template {template} is of subject {subject}, and of subject {before} in {other_list}; fetch both "
                    "lists again, from one place",
                    where=path,
                )
    subjects = np.array([subject_of.get(template, (-1,))[0] for template in image_templates.tolist()], np.int32)
    left, right = (subjects[places(pair, side)] for side in (pairs.left, pairs.right))
    check_labels(pair, pairs, left, right)
    return Ijb(images, faces, pairs, galleries, probes, {"ijbb": "IJB-B", "ijbc": "IJB-C"}[kind])


def check_labels(path: Path, pairs: TemplatePairs, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
    """Check the pairs of the list at `path` against the subjects of their two sides, −1 where no list tells it.

    Time is some passes over the pairs, and a sort of those of which a subject is unknown. Raises DataError with the
    line for the label 0 of two templates of one subject, or of a template and itself, for the label 1 of templates of
    two subjects, and for a pair with both labels, in either order.
    """
    left, right, same = pairs.left, pairs.right, pairs.same
    odd = np.flatnonzero((first == second) != same)
    odd = odd[((first[odd] >= 0) & (second[odd] >= 0)) | (left[odd] == right[odd])]
    if len(odd):
        row = int(odd[0])
        why = f"templates {left[row]} and {right[row]} are of subjects {first[row]} and {second[row]}, by the galleries"
        if left[row] == right[row]:
            why = f"template {left[row]} is paired with itself"
        text = f"the label is {same[row]:d}, but {why}; fetch the lists again, from one place"
        raise DataError(text, where=f"{path}, line {_line(path, row)}")
    # A label that is the subjects' own is the same wherever the pair stands: only the others can have both.
    unsettled = np.flatnonzero((first | second) < 0)
    pair = np.minimum(left[unsettled], right[unsettled]) * (LARGEST + 1) + np.maximum(left[unsettled], right[unsettled])
    coded = np.sort(2 * pair + same[unsettled])
    contradictory = coded[1:][coded[1:] ^ coded[:-1] == 1]  # neighbours that differ in the label alone
    if len(contradictory):
        places = unsettled[pair == contradictory[0] >> 1]
        place, opposite = places[0], places[same[places] != same[places[0]]][0]
        raise DataError(
            f"templates {left[opposite]} and {right[opposite]} have the label {same[opposite]:d}, and {same[place]:d} "
            f"in line {_line(path, int(place))}; fetch the list again",
            where=f"{path}, line {_line(path, int(opposite))}",
        )


def _line(path: Path, row: int) -> int:
    """The line of a row: blank lines, which count, are no rows."""
    with open(path, "rb") as file:
        filled = (number for number, line in enumerate(file, start=1) if line.strip())
        return next(itertools.islice(filled, row, None), 0)


def read_media(path: str | os.PathLike[str]) -> TemplateMedia:
    """The list of images, `…_face_tid_mid.txt`.

    Raises FileNotFoundError where it is missing; DataError with file and line for a line of another form.
    """
    rows = []
    for where, line in text_lines(Path(path)):
        fields = line.split()
        if len(fields) != 3:
            raise line_error(where, line, "an image, its template and its media")
        rows.append((fields[0], whole_number(fields[1], where), whole_number(fields[2], where)))
    return _template_media(rows)


def _template_media(rows: Sequence[tuple[str, int, int]]) -> TemplateMedia:
    files, template, media = zip(*rows, strict=True)
    return TemplateMedia(files, np.array(template, np.int64), np.array(media, np.int64))


def read_faces(path: str | os.PathLike[str]) -> DetectedFaces:
    """The list of landmarks, `…_name_5pts_score.txt`; errors as for `read_media`, and DataError for a score below 0.

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
            raise line_error(where, line, "an image, ten numbers for five points, and a score")
        if not 0 <= numbers[10] < 1e9:
            raise DataError(
                f"the detector's score {fields[10][:80]} is not a number from 0 to below 1e9 (a feature is multiplied "
                "by it, and one below 0 would turn it round); fetch the list again, or bring the scores of a detector "
                "of your own into that range",
                where=where,
            )
        files.append(name)
        lines.append(numbers)
    table = np.array(lines, np.float32)
    return DetectedFaces(tuple(files), table[:, :10].reshape(-1, 5, 2).copy(), table[:, 10].copy())


def read_template_pairs(path: str | os.PathLike[str]) -> TemplatePairs:
    """The list of pairs, `…_template_pair_label.txt`.

    Time grows with the length of the list alone: IJB-C's 15,658,489 lines take seconds. Memory is 17 bytes a line and
    some 100 MiB. Errors as for `read_media`; the label is 0 or 1.
    """
    fields = (NUMBER, NUMBER, b"[01]")
    parts = [
        (numbers[:, 0].copy(), numbers[:, 1].copy(), numbers[:, 2] == 1)
        for numbers in read_numbers(Path(path), fields, "two templates, and 1 if they are of one subject, else 0")
    ]
    return TemplatePairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def read_matches(path: str | os.PathLike[str], subjects: TemplateSubjects) -> TemplatePairs:
    """Pairs without labels, lines `template,template`: genuine where the subjects are the same.

    So are IJB-A's `verify_comparisons_1.csv` and IJB-C's `ijbc_11_G1_G2_matches.csv`. Time and errors are those of
    `read_template_pairs`; a template that `subjects` does not have is a DataError.
    """
    path = Path(path)
    meaning, separator = "two templates with a comma between them", rb"[ \t]*,[ \t]*"
    left, right = np.concatenate(list(read_numbers(path, (NUMBER, NUMBER), meaning, separator=separator))).T.copy()
    try:
        same = subjects.of(left) == subjects.of(right)
    except ValueError as error:
        raise DataError(f"{error}; fetch it and the metadata again, from one place", where=path) from None
    return TemplatePairs(left, right, same)


def read_subjects(path: str | os.PathLike[str]) -> TemplateSubjects:
    """Templates and their subjects from a gallery, the probes, or metadata: a CSV with TEMPLATE_ID and SUBJECT_ID.

    A template has as many lines as images; its subject must be the same in all. Errors as for `read_media`.
    """
    subject_of: dict[int, int] = {}
    for where, fields in _columns(Path(path), ("TEMPLATE_ID", "SUBJECT_ID")):
        template, subject = (whole_number(field, where) for field in fields)
        if (before := subject_of.setdefault(template, subject)) != subject:
            text = (
                f"template {template} is of subject {subject}, and further up of subject {before}; fetch the list again"
            )
            raise DataError(text, where=where)
    templates = sorted(subject_of)
    subjects = [subject_of[template] for template in templates]
    return TemplateSubjects(np.array(templates, np.int64), np.array(subjects, np.int64))


def read_metadata(path: str | os.PathLike[str]) -> tuple[TemplateMedia, TemplateSubjects]:
    """The images of a split of IJB-A, `verify_metadata_1.csv`, with the subjects of their templates.

    It is a CSV with TEMPLATE_ID, SUBJECT_ID, MEDIA_ID, and FILE or FILENAME; errors as for `read_media`.
    """
    rows = [
        (file, whole_number(template, where), whole_number(media, where))
        for where, (template, media, file) in _columns(Path(path), ("TEMPLATE_ID", "MEDIA_ID", "FILE"))
    ]
    return _template_media(rows), read_subjects(path)


def is_ijba(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder, or one below it, holds a `verify_metadata_N.csv`."""
    return bool(_metadata_files(Path(folder)))


def read_splits(folder: str | os.PathLike[str]) -> list[Split]:
    """IJB-A's splits for 1:1 by their numbers: each `verify_metadata_N.csv` and the `verify_comparisons_N.csv` with it.

    They lie in the folder or below it, as `IJB-A_11_sets/split1/…`. Raises FileNotFoundError where there is none, and
    for a list of comparisons that is missing; DataError for two of one number, and for what the readers refuse.
    """
    folder = Path(folder)
    files = _metadata_files(folder)
    if not files:
        raise FileNotFoundError(f"{shown(folder)} holds no verify_metadata_N.csv: give the folder of IJB-A's splits")
    splits: dict[int, Split] = {}
    for number, path in files:
        if number in splits:
            raise DataError(
                f"it holds verify_metadata_{number}.csv twice: give the folder of one protocol", where=folder
            )
        images, subjects = read_metadata(path)
        matches = read_matches(path.with_name(f"verify_comparisons_{number}.csv"), subjects)
        splits[number] = Split(images, subjects, matches)
    return list(splits.values())


def _metadata_files(folder: Path) -> list[tuple[int, Path]]:
    matches = [(_SPLIT.fullmatch(path.name), path) for path in folder.rglob("verify_metadata_*.csv")]
    return sorted((int(match[1]), path) for match, path in matches if match)


def rows_of(templates: NDArray[np.int64], known: NDArray[np.int64], kind: str = "feature") -> NDArray[np.int64]:
    """The places of templates (n,) among known ones (t,), which ascend.

    Raises ValueError, which says that one has no `kind`, where a template is not among them.

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
            f"template {templates[lost[0]]} has no {kind} (so for {len(np.unique(templates[lost])):,} of "
            f"{several(len(np.unique(templates)), 'template')})"
        )
    return rows


def _columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """File and line, and the fields of some columns, of each line of a CSV; FILENAME does for FILE."""
    lines = list(text_lines(path))
    where, first = lines[0]
    header = [name.strip().upper().removeprefix("\ufeff") for name in csv_fields(where, first)]
    header = ["FILE" if name == "FILENAME" else name for name in header]
    if missing := [name for name in columns if name not in header]:
        raise DataError(f"the header lacks the column {' nor '.join(missing)}; fetch the list again", where=where)
    places = [header.index(name) for name in columns]
    for where, line in lines[1:]:
        fields = csv_fields(where, line)
        if len(fields) <= max(places):
            raise line_error(where, line, f"a line of {several(len(header), 'column')}, as the header says")
        yield where, [fields[place].strip() for place in places]
    if len(lines) == 1:
        raise DataError("the list is empty after its header; fetch it again", where=where)
