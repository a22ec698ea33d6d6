"""Judging a finished model on IJB-A, IJB-B or IJB-C, from their lists and the folder of their images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.core.method import Backbone
from coalface.core.text import several, shown
from coalface.data.align import aligned_face
from coalface.data.readers.folders import read_file
from coalface.data.readers.ijb import Ijb, Split, is_ijba, read_ijb, read_splits, rows_of
from coalface.data.source import decode
from coalface.evaluation.feature_file import QUIET, Listed, Show, Stream, embed_all, find, folder_for
from coalface.evaluation.finished_model import read_model
from coalface.evaluation.metrics.open_set import mean_figures, search
from coalface.evaluation.metrics.templates import FARS, Templates, over_splits, template_features, verify_pairs
from coalface.evaluation.metrics.verification import TarAtFar

SPLIT_FARS = (1e-3, 1e-2, 1e-1)
"""Those of the field's tables of IJB-A; the first is the one that is quoted."""


def judge_ijb(
    model: Path,
    meta: Path,
    images: Path,
    *,
    party: str | None = None,
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
    before the first is embedded. Raises FileNotFoundError for images that are missing, ValueError for images that
    cannot be read, for landmarks of other images, for what the readers refuse, and for scores that are not there.
    """
    backbone, about = read_model(model, party)
    if is_ijba(meta):
        if detector:
            raise ValueError(f"{shown(meta)}: IJB-A's lists have no scores of a detector: give --no-detector-score")
        judged = _of_splits(backbone, about, read_splits(meta), images, (flip, norm), features, show)
    else:
        judged = _of_lists(
            backbone, about, read_ijb(meta), meta, images, (flip, norm, detector is not False), features, fars, show
        )
    return {"model": str(model), **judged}


def _of_lists(
    backbone: Backbone,
    about: dict[str, Any],
    lists: Ijb,
    meta: Path,
    folder: Path,
    options: tuple[bool, bool, bool],
    features: Path | None,
    fars: Sequence[float],
    show: Show,
) -> dict[str, Any]:
    flip, norm, detector = options
    size, grey = about["size"], about["channels"] == 1
    files, stamp = find(folder, lists.images.files, shown(meta))
    outside: set[int] = set()

    def read(i: int) -> NDArray[np.uint8]:
        face, inside = aligned_face(
            read_file(Path(files[i])), shown(files[i]), lists.faces.points[i], size=size, grey=grey
        )
        if not inside:
            outside.add(i)
        return face

    placed = hashlib.sha256(lists.faces.points.tobytes() + f"{stamp} aligned {size} {grey}".encode())

    def aligned_at_all() -> None:
        if 10 * len(outside) > len(files):
            raise ValueError(
                f"the landmarks of {len(outside):,} of {several(len(files), 'image')} lie outside of them, such as of "
                f"{shown(files[min(outside)])}: the list is of other images, or of these at another size"
            )

    with folder_for(features) as where:
        listed = Listed(lists.images.files, read, placed.hexdigest())
        rows = _embedded(backbone, listed, where, lists.name, flip, show, aligned_at_all)
        pooled = template_features(
            rows,
            lists.images.template,
            lists.images.media,
            norm=norm,
            flip=True if flip else None,
            detector=lists.faces.score if detector else None,
        )
    tars = _verified(pooled, lists.pairs.left, lists.pairs.right, lists.pairs.same, fars)
    probes = pooled.features[rows_of(lists.probes.template, pooled.template)]
    found = {
        name: search(probes, pooled.features[rows_of(one.template, pooled.template)], lists.probes.subject, one.subject)
        for name, one in lists.galleries.items()
    }
    return {
        "set": lists.name,
        "options": f"N{norm:d} D{detector:d} F{flip:d}",
        "images": len(files),
        "templates": len(pooled.template),
        "pairs": len(lists.pairs),
        "genuine": int(lists.pairs.same.sum()),
        **{f"tar@far={tar.far:g}": 100 * tar.tar for tar in tars if tar.carried},
        **{f"threshold@far={tar.far:g}": tar.threshold for tar in tars if tar.carried},
        "galleries": {name: result.figures() for name, result in found.items()},
        "mean": mean_figures(list(found.values())),
    }


def _of_splits(
    backbone: Backbone,
    about: dict[str, Any],
    splits: Sequence[Split],
    folder: Path,
    options: tuple[bool, bool],
    features: Path | None,
    show: Show,
) -> dict[str, Any]:
    flip, norm = options
    size, grey = about["size"], about["channels"] == 1
    names = _faces(splits)
    files, stamp = find(folder, names, "IJB-A's metadata")

    def read(i: int) -> NDArray[np.uint8]:
        return decode(read_file(Path(files[i])), files[i], size=size, grey=grey)

    place = {name: i for i, name in enumerate(names)}
    each = []
    with folder_for(features) as where:
        rows = _embedded(backbone, Listed(names, read, f"{stamp} {size} {grey}"), where, "IJB-A", flip, show)
        for split in splits:
            mine = rows[[place[file] for file in split.images.files]]
            pooled = template_features(
                mine, split.images.template, split.images.media, norm=norm, flip=True if flip else None
            )
            each.append(_verified(pooled, split.pairs.left, split.pairs.right, split.pairs.same, SPLIT_FARS))
    figures = over_splits(each)
    return {
        "set": "IJB-A",
        "options": f"N{norm:d} D0 F{flip:d}",
        "images": len(files),
        "splits": len(splits),
        "mean": {name: mean for name, (mean, _) in figures.items()},
        "sd": {name: sd for name, (_, sd) in figures.items()},
        "each": [{f"tar@far={tar.far:g}": 100 * tar.tar for tar in tars if tar.carried} for tars in each],
    }


def _faces(splits: Sequence[Split]) -> tuple[str, ...]:
    """The images of all splits, each once. Raises ValueError for one that shows two people: which face is meant?"""
    shows: dict[str, int] = {}
    for split in splits:
        who = split.subjects.of(split.images.template)
        for file, subject in zip(split.images.files, who.tolist(), strict=True):
            if shows.setdefault(file, subject) != subject:
                raise ValueError(
                    f"IJB-A's metadata has {shown(file[:200])} of subject {shows[file]} and of subject {subject}: cut "
                    "out each face into a file of its own, and name that in FILE"
                )
    return tuple(shows)


def _embedded(
    backbone: Backbone,
    images: Listed,
    where: Path,
    name: str,
    flip: bool,
    show: Show,
    looked: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    stream = Stream(where, name, backbone.module, images, "mirrored" if flip else "raw")
    embed_all([stream], show, looked)
    return stream.rows()


def _verified(
    pooled: Templates,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    same: NDArray[np.bool_],
    fars: Sequence[float],
) -> list[TarAtFar]:
    first, second = rows_of(left, pooled.template), rows_of(right, pooled.template)
    return verify_pairs(pooled.features, first, second, same, fars)
