"""A gallery: people who are enrolled by images, and the search for whom an image shows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalface.core.checks import build
from coalface.core.errors import DataError, RecipeError
from coalface.core.text import several
from coalface.data.detection import Detector
from coalface.evaluation.feature_file import QUIET, Show
from coalface.experiments.api.face_model import FaceModel
from coalface.experiments.gallery.file import Enrolled, GalleryFile, read_secret
from coalface.experiments.gallery.images import ImageFile, Refusal, embed_images, find_images
from coalface.experiments.gallery.nearest import Faiss, Product, Search
from coalface.models.calibration import Threshold, choose

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

MOST_STRANGERS = 0.1
"""The share of strangers who are taken for somebody from which on a threshold is warned of."""
COMPARED = 1000
"""Enrolled people whose templates are compared with each other, at least where there are as many."""
UNLIKE = 3
"""So many times as many of their pairs as a FAR promises, and so many pairs, may reach a threshold."""


@dataclass(frozen=True)
class Match:
    """Whom an image is taken for."""

    file: str
    person: str
    """The person whose template is nearest."""
    similarity: float
    """The cosine to that template."""
    accepted: bool
    """Whether it reaches the threshold; if not, the image shows a stranger."""


@dataclass
class Enrolment:
    """What became of images that were to be enrolled."""

    images: int = 0
    people: list[str] = field(default_factory=list)
    already: int = 0
    """Images that were enrolled before, which are passed over."""
    refused: list[Refusal] = field(default_factory=list)


@dataclass
class Identified:
    """Whom images show, and which were refused."""

    threshold: Threshold
    matches: list[Match] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class Gallery:
    """The file of a gallery, and the model by which it was made.

    The embedding of every image is kept, and a person's template is their mean at length one, as everywhere in this
    package: it averages out what is particular to one image, and a person stays one trial for an impostor, however
    many images are enrolled. The highest cosine with any image would be a trial for each.

    Examples:
        >>> gallery = Gallery.create("people.gallery", FaceModel.from_run("runs/a"))  # doctest: +SKIP
        >>> gallery.enroll("faces/")  # doctest: +SKIP
        >>> gallery.identify("new.jpg").matches  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: FaceModel | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        faiss: bool = False,
    ) -> None:
        """Open a gallery; without a `model` its people can be listed and removed.

        `key` is the file of its key, if it is encrypted. `faiss` searches by an index of faiss (`coalface[faiss]`).
        Raises DataError for another model's gallery, and for a file that is none or damaged; RecipeError for a wrong
        key.
        """
        self.file = GalleryFile(Path(path), None if key is None else read_secret(key))
        self.model = model
        self._templates: tuple[tuple[int, bytes], list[str], NDArray[np.float32]] | None = None
        self._make_search: Callable[[NDArray[np.float32]], Search] = Faiss if faiss else Product
        self._search: tuple[NDArray[np.float32], Search] | None = None
        about = self.file.about
        if model is not None and (fingerprint := model.fingerprint) != about["model"]:
            raise DataError(
                f"it was made by the model {about['model'][:16]} ({about['made_by']}), and {model.folder} is the model "
                f"{fingerprint[:16]}: embeddings of two models cannot be compared; name that model, or enroll anew",
                where=path if isinstance(path, Path) else str(path),
            )

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        model: FaceModel,
        *,
        key: str | os.PathLike[str] | None = None,
        far: float | None = None,
        threshold: float | None = None,
    ) -> Gallery:
        """A new gallery without people, which decides by the model's threshold at `far`, or by a `threshold` of yours.

        With neither it is the threshold at 0.001. With `key`, the file of a secret of 32 random bytes or more, all
        names and embeddings are encrypted. Raises DataError where the model has no threshold at this FAR, and
        RecipeError where both are given.
        """
        chosen = choose_threshold(model, far, threshold)
        return cls.with_thresholds(
            path, model, [chosen, *(other for other in model.thresholds if other != chosen)], key
        )

    @classmethod
    def with_thresholds(
        cls,
        path: str | os.PathLike[str],
        model: FaceModel,
        thresholds: Iterable[Threshold],
        key: str | os.PathLike[str] | None = None,
    ) -> Gallery:
        """A new gallery that decides by the first of these thresholds, unless another is asked for."""
        about = {
            "model": model.fingerprint,
            "made_by": os.path.relpath(model.folder, Path(path).absolute().parent),
            "party": model.party,
            "input": model.about["input"] if "file" in model.about else None,
            "embedding_size": model.embedding_size,
            "thresholds": [asdict(threshold) for threshold in thresholds],
        }
        GalleryFile.create(Path(path), about, None if key is None else read_secret(key))
        return cls(path, model, key=key)

    @property
    def thresholds(self) -> list[Threshold]:
        """The thresholds that it was made with; the first is what it decides by."""
        return [build(Threshold, kept, str(self.file.path)) for kept in self.file.about["thresholds"]]

    @property
    def people(self) -> dict[str, int]:
        """Images of each person, in the order of the names."""
        counts = Counter(image.person for image in self.images())
        return {person: counts[person] for person in sorted(counts)}

    def images(self) -> list[Enrolled]:
        """Whom each enrolled image shows, its file and the SHA-256 of that."""
        return self.file.read()[0]

    def enroll(
        self, images: Paths, person: str | None = None, *, detector: Detector | None = None, show: Show = QUIET
    ) -> Enrolment:
        """Enroll images of one `person`, or, without a name, each under the name of its folder.

        They are aligned faces, or photographs in which `detector` finds the face, such as `YuNet.find()`.
        Images that cannot be used are refused, and the others are enrolled. What is enrolled already is passed over, so
        that work which was stopped goes on. An image that is enrolled as another person's is refused. Raises DataError
        where two folders have one name.
        """
        chosen = find_images(_paths(images))
        if person is None:
            _check_folders(chosen)
        known = {image.sha256: image.person for image in self.images()}
        result = Enrolment()
        for batch in embed_images(self._needed_model(), chosen, show, detector):
            rows, places = [], []
            for i, (image, sha256) in enumerate(zip(batch.images, batch.sha256, strict=True)):
                name = image.person if person is None else person
                if sha256 not in known:
                    known[sha256] = name
                    rows.append(Enrolled(name, image.file, sha256))
                    places.append(i)
                elif known[sha256] == name:
                    result.already += 1
                else:
                    result.refused.append(Refusal(image.file, f"the same image is enrolled as {known[sha256]}"))
            self.add(rows, batch.embeddings[places])
            result.images += len(rows)
            result.people += [row.person for row in rows]
            result.refused += batch.refused
        result.people = sorted(set(result.people))
        return result

    def add(self, enrolled: Sequence[Enrolled], embeddings: NDArray[np.float32]) -> None:
        """Enroll embeddings (n, d) that were made elsewhere by the gallery's model.

        Raises ValueError unless there is one for each, of its size, finite and of length one.
        """
        rows = self._checked(embeddings, len(enrolled))
        if any(not image.person for image in enrolled):
            raise ValueError("an embedding has no person; name whom each is of")
        if len(enrolled):
            self.file.add(enrolled, rows)

    def _checked(self, embeddings: NDArray[np.float32], count: int | None = None) -> NDArray[np.float32]:
        """(n, d) embeddings of the gallery's model. Raises ValueError for any others."""
        rows, size = np.asarray(embeddings), self.file.about["embedding_size"]
        fits = rows.ndim == 2 and rows.shape[1] == size and count in (None, len(rows))
        if not fits or rows.dtype.kind not in "fiu":
            needed = f"({'n' if count is None else count}, {size})"
            raise ValueError(f"the embeddings are {rows.shape} of {rows.dtype}, and {needed} real numbers are needed")
        lengths = np.linalg.norm(rows, axis=1)
        if len(bad := np.flatnonzero(~(np.abs(lengths - 1) < 1e-3))):
            raise ValueError(f"embedding {bad[0]} has length {lengths[bad[0]]:g}; give embeddings of length one")
        return rows.astype(np.float32, copy=False)

    def remove(self, person: str) -> int:
        """Remove a person: names and embeddings are gone from the bytes of the file. How many images there were.

        Raises RecipeError for somebody who is not enrolled.
        """
        if not (count := self.file.remove(person)):
            raise RecipeError(
                f"{person!r} is not enrolled in {self.file.path}; `coalface gallery list` names who is", where="NAME"
            )
        return count

    def templates(self) -> tuple[list[str], NDArray[np.float32]]:
        """The people, sorted, and (n, d) the template of each: the mean of their embeddings, at length one."""
        state = self.file.state()  # taken before what is read: a later change is seen
        if self._templates is None or self._templates[0] != state:
            enrolled, embeddings = self.file.read()
            people, labels = np.unique([image.person for image in enrolled], return_inverse=True)
            templates = _by_column(_means(embeddings, labels, len(people)))
            self._templates = state, [str(person) for person in people], templates
        return self._templates[1:]

    def search(self, embeddings: NDArray[np.float32], top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` nearest people of each unit embedding (q, d), with their cosines, the nearest first; exactly.

        Raises DataError where nobody is enrolled, and ValueError as `add` does.
        """
        return self._nearest(self._checked(embeddings), top)

    def _nearest(self, embeddings: NDArray[np.float32], top: int) -> list[list[tuple[str, float]]]:
        if top < 1:
            raise ValueError(f"top is {top}; give 1 or more")
        people, templates = self.templates()
        top = min(top, len(people))
        if not top:
            raise DataError("nobody is enrolled; `coalface gallery enroll` adds people", where=self.file.path)
        if self._search is None or self._search[0] is not templates:
            self._search = templates, self._make_search(templates)
        rows = zip(*self._search[1](embeddings, top), strict=True)
        return [[(people[i], float(cosine)) for cosine, i in zip(*row, strict=True)] for row in rows]

    def identify(
        self,
        images: Paths,
        *,
        far: float | None = None,
        fpir: float | None = None,
        threshold: float | None = None,
        top: int = 1,
        detector: Detector | None = None,
        show: Show = QUIET,
    ) -> Identified:
        """Whom images show, `top` candidates each; images that cannot be used are refused.

        They are aligned faces, or photographs in which `detector` finds the face.

        Decides by the gallery's own threshold, unless a FAR, an FPIR or a `threshold` is given. With N people, a
        stranger is accepted in about N · FAR of all cases.
        """
        result = Identified(self.threshold(far=far, fpir=fpir, threshold=threshold))
        for batch in embed_images(self._needed_model(), find_images(_paths(images)), show, detector):
            result.refused += batch.refused
            candidates = self._nearest(batch.embeddings, top) if len(batch.images) else []
            for image, nearest in zip(batch.images, candidates, strict=True):
                for person, cosine in nearest:
                    result.matches.append(Match(image.file, person, cosine, cosine >= result.threshold.cosine))
        return result

    def threshold(
        self, *, far: float | None = None, fpir: float | None = None, threshold: float | None = None
    ) -> Threshold:
        """What it decides by. Raises DataError where it has no threshold at this rate, RecipeError for two rules."""
        check_one_rule(far, fpir, threshold)
        if threshold is not None:
            return given(threshold)
        thresholds = self.thresholds
        if far is None and fpir is None and thresholds:
            return thresholds[0]
        kind, rate = ("FPIR", fpir) if fpir is not None else ("FAR", far)
        remedy = "decide by a cosine, --threshold 0.42, or calibrate its model on more pairs and make the gallery anew"
        if kind == "FPIR":
            remedy = (
                "decide by a cosine, --threshold 0.42, or by a FAR; galleries of `coalface export-client` alone "
                "have thresholds at FPIRs"
            )
        return choose(thresholds, rate or 0, kind, where=str(self.file.path), remedy=remedy)

    def warnings(self, threshold: Threshold) -> list[str]:
        """Why a threshold tells nobody apart, or takes strangers for somebody enrolled more often than its FAR says."""
        if threshold.collapsed:
            return [threshold.collapsed]
        if threshold.kind != "FAR" or threshold.rate is None:
            return []
        people, templates = self.templates()
        rate, problems = threshold.rate, []
        if (share := min(1.0, len(people) * rate)) >= MOST_STRANGERS:
            problems.append(
                f"FAR {rate:g} is large for {several(len(people), 'person', 'people')}: about {100 * share:.2g} % of "
                "strangers are taken for somebody; choose a smaller FAR, or a cosine"
            )
        some = templates[:: max(1, len(people) // COMPARED)]
        cosines = (some @ some.T)[np.triu_indices(len(some), 1)]
        accepted, expected = int((cosines >= threshold.cosine).sum()), rate * len(cosines)
        if accepted > UNLIKE * (expected + 1):
            problems.append(
                f"{accepted:,} of {len(cosines):,} pairs of enrolled people reach the threshold, about {expected:.2g} "
                f"should at FAR {rate:g}: their images are unlike those that it was chosen on (photographs that nobody "
                "aligned?), or people are enrolled twice; calibrate the model on images like these"
            )
        return problems

    def _needed_model(self) -> FaceModel:
        if self.model is None:
            raise RecipeError("this embeds images; give the gallery's model", where="model")
        return self.model


def choose_threshold(model: FaceModel, far: float | None, cosine: float | None) -> Threshold:
    """A model's threshold at a FAR, 0.001 where none is named, or the cosine that a person chose."""
    check_one_rule(far, cosine)
    return model.threshold(0.001 if far is None else far) if cosine is None else given(cosine)


def given(cosine: float) -> Threshold:
    """A threshold that a person chose. Raises RecipeError for what no cosine can be."""
    if not -1 <= cosine <= 1:
        raise RecipeError(f"{cosine:g} is not a cosine; give a number from -1 to 1", where="--threshold")
    return Threshold(cosine)


def check_one_rule(*rules: float | None) -> None:
    """Raises RecipeError where more than one of a FAR, an FPIR and a cosine is to decide."""
    if sum(rule is not None for rule in rules) > 1:
        raise RecipeError("a FAR, an FPIR or a cosine decides alone: give one of them", where="--threshold")


def _check_folders(images: Iterable[ImageFile]) -> None:
    """Two people may not become one: Ann/2020 and Bob/2020 are not one person called 2020."""
    folders: dict[str, Path] = {}
    for image in images:
        folder = Path(image.file).parent
        if folders.setdefault(image.person, folder) != folder:
            raise DataError(
                f"{folders[image.person]} is called {image.person} too, and images are enrolled by the name of their "
                "folder: enroll each person's images with a name",
                where=folder,
            )


def _paths(images: Paths) -> list[Path]:
    return [Path(path) for path in ([images] if isinstance(images, str | os.PathLike) else images)]


def _by_column(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same, column after column in memory: the product with one probe takes half the time of that by row."""
    columns = np.empty(rows.shape[::-1], np.float32)
    for start in range(0, len(rows), 256):  # a whole transposition at once takes ten times as long
        columns[:, start : start + 256] = rows[start : start + 256].T
    return columns.T


def _means(embeddings: NDArray[np.float32], labels: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """(count, d) the mean of each label's rows at length one."""
    if count == len(embeddings):  # one image each: no second copy beside the sorted one
        return embeddings[np.argsort(labels)]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(count))
    sums = np.add.reduceat(embeddings[order], starts, axis=0) if count else embeddings
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
