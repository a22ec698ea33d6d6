"""Evaluation of a finished model on IJB-A, IJB-B or IJB-C, from their lists and the folder of their images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.errors import DataError, RecipeError
from coalface.core.method import Backbone
from coalface.core.text import several, shown
from coalface.data.align import aligned_face
from coalface.data.readers.folders import read_file
from coalface.data.readers.ijb import Ijb, Split, TemplateMedia, TemplatePairs, is_ijba, read_ijb, read_splits, rows_of
from coalface.evaluation.feature_file import (
    QUIET,
    Listed,
    Show,
    Stream,
    embed_all,
    find_files,
    folder_for,
    listed_faces,
)
from coalface.evaluation.finished_model import read_model
from coalface.evaluation.metrics.open_set import mean_figures, search
from coalface.evaluation.metrics.templates import FARS, Templates, over_splits, template_features, verify_pairs
from coalface.evaluation.metrics.verification import TarAtFar
from coalface.models.pretrained.input import InputConvention

SPLIT_FARS = (1e-3, 1e-2, 1e-1)
"""Those of the field's tables of IJB-A; the first is the one that is quoted."""


def evaluate_ijb(
    model: Path,
    meta: Path,
    images: Path,
    *,
    party: str | None = None,
    convention: InputConvention | None = None,
    flip: bool = False,
    norm: bool = True,
    detector: bool | None = None,
    features: Path | None = None,
    fars: Sequence[float] = FARS,
    show: Show = QUIET,
) -> dict[str, Any]:
    """Figures of a model on the lists in `meta`, whose images lie below `images`; all but thresholds in percent.

    **IJB-B and IJB-C**: every image is aligned by its five landmarks to the model's size, and its features are pooled
    by media and template with the options of `template_features`; `detector` None is True. 1:1 at the top, 1:N in
    `galleries`, and in `mean` the mean of both galleries. **IJB-A**: images are taken as `coalface evaluate` takes
    them, faces already, since its lists have no five landmarks; `mean` and `sd` are over its splits.

    With `features`, a folder, what was embedded is kept there, and a stopped run goes on. All images are read once
    before the first is embedded. Raises DataError for images that cannot be read and for landmarks of other images,
    FileNotFoundError for missing ones, and RecipeError for scores that IJB-A does not have.
    """
    backbone, about = read_model(model, party, convention)
    run = _Ijb(backbone, about, images, norm, flip, detector is not False, features, show)
    if not is_ijba(meta):
        return {"model": str(model), **run.of_lists(read_ijb(meta), meta, fars)}
    if detector:
        raise RecipeError("IJB-A's lists have no scores of a detector", where="--detector-score")
    return {"model": str(model), **run.of_splits(read_splits(meta))}


@dataclass(frozen=True)
class _Ijb:
    """A model, the folder of the images, and how their features are pooled."""

    backbone: Backbone
    about: dict[str, Any]
    folder: Path
    norm: bool
    flip: bool
    detector: bool
    features: Path | None
    show: Show

    def of_lists(self, lists: Ijb, meta: Path, fars: Sequence[float]) -> dict[str, Any]:
        images, check_landmarks = self._aligned(lists, meta)
        with folder_for(self.features) as place:
            rows = self._embedded(images, place, lists.name, check_landmarks)
            pooled = self._pooled(rows, lists.images, lists.faces.score if self.detector else None)
        tars = _verified(pooled, lists.pairs, fars)
        probes = pooled.features[rows_of(lists.probes.template, pooled.template)]
        searched = {}
        for name, gallery in lists.galleries.items():
            enrolled = pooled.features[rows_of(gallery.template, pooled.template)]
            searched[name] = search(probes, enrolled, lists.probes.subject, gallery.subject)
        return {
            "set": lists.name,
            "options": f"N{self.norm:d} D{self.detector:d} F{self.flip:d}",
            "images": len(images),
            "templates": len(pooled.template),
            "pairs": len(lists.pairs),
            "genuine": int(lists.pairs.same.sum()),
            **{f"tar@far={tar.far:g}": 100 * tar.tar for tar in tars if tar.carried},
            **{f"threshold@far={tar.far:g}": tar.threshold for tar in tars if tar.carried},
            "galleries": {name: result.figures() for name, result in searched.items()},
            "mean": mean_figures(list(searched.values())),
        }

    def of_splits(self, splits: Sequence[Split]) -> dict[str, Any]:
        names = _faces(splits)
        images = listed_faces(self.folder, names, self.about, "IJB-A's metadata")
        place_of = {name: i for i, name in enumerate(names)}
        with folder_for(self.features) as place:
            rows = self._embedded(images, place, "IJB-A")
            tars_of_splits = [
                _verified(
                    self._pooled(rows[[place_of[file] for file in split.images.files]], split.images),
                    split.pairs,
                    SPLIT_FARS,
                )
                for split in splits
            ]
        figures = over_splits(tars_of_splits)
        return {
            "set": "IJB-A",
            "options": f"N{self.norm:d} D0 F{self.flip:d}",
            "images": len(images),
            "splits": len(splits),
            "mean": {name: mean for name, (mean, _) in figures.items()},
            "sd": {name: sd for name, (_, sd) in figures.items()},
            "each": [{f"tar@far={tar.far:g}": 100 * tar.tar for tar in tars if tar.carried} for tars in tars_of_splits],
        }

    def _aligned(self, lists: Ijb, meta: Path) -> tuple[Listed, Callable[[], None]]:
        """The images aligned by their landmarks, and what raises DataError, when all were read, if these do not fit."""
        size, grey = self.about["size"], self.about["channels"] == 1
        files, stamp = find_files(self.folder, lists.images.files, shown(meta))
        outside: set[int] = set()

        def read(i: int) -> NDArray[np.uint8]:
            picture, points = read_file(Path(files[i])), lists.faces.points[i]
            face, inside = aligned_face(picture, shown(files[i]), points, size=size, grey=grey)
            if not inside:
                outside.add(i)
            return face

        def check_landmarks() -> None:
            if 10 * len(outside) > len(files):
                raise DataError(
                    f"the landmarks of {len(outside):,} of {several(len(files), 'image')} lie outside of them, such as "
                    f"of {shown(files[min(outside)])}: the list is of other images, or of these at another size",
                    where=shown(meta),
                )

        placed = hashlib.sha256(lists.faces.points.tobytes() + f"{stamp} aligned {size} {grey}".encode())
        return Listed(lists.images.files, read, placed.hexdigest()), check_landmarks

    def _embedded(
        self, images: Listed, place: Path, name: str, check: Callable[[], None] = lambda: None
    ) -> NDArray[np.float32]:
        stream = Stream(place, name, self.backbone.module, images, "mirrored" if self.flip else "raw")
        embed_all([stream], self.show, check)
        return stream.rows()

    def _pooled(
        self, rows: NDArray[np.float32], images: TemplateMedia, scores: NDArray[np.floating] | None = None
    ) -> Templates:
        return template_features(rows, images.template, images.media, norm=self.norm, flip=self.flip, detector=scores)


def _faces(splits: Sequence[Split]) -> tuple[str, ...]:
    """The images of all splits, each once. Raises DataError for one that shows two people: which face is meant?"""
    shows: dict[str, int] = {}
    for split in splits:
        subjects = split.subjects.of(split.images.template)
        for file, subject in zip(split.images.files, subjects.tolist(), strict=True):
            if shows.setdefault(file, subject) != subject:
                raise DataError(
                    f"{shown(file[:200])} is of subject {shows[file]} and of subject {subject}: cut out each face into "
                    "a file of its own, and name that in FILE",
                    where="IJB-A's metadata",
                )
    return tuple(shows)


def _verified(pooled: Templates, pairs: TemplatePairs, fars: Sequence[float]) -> list[TarAtFar]:
    left, right = (rows_of(side, pooled.template) for side in (pairs.left, pairs.right))
    return verify_pairs(pooled.features, left, right, pairs.same, fars)
