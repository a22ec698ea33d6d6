"""Templates: several images of a person as one vector, and their comparison 1:1 over listed pairs.

This is how IJB-A, IJB-B and IJB-C are evaluated; `coalface.data.readers.ijb` reads their lists, and `open_set` looks
templates up 1:N. The conventions are those of `verification`: FAR is a count, thresholds are exact order statistics of
the scores T of `exact`, and ties go against the model. `docs/figures.md` has the definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coalface.evaluation.metrics.exact import Floats, Places, check_unit, exactly, scan, unit_rows
from coalface.evaluation.metrics.verification import Ranked, TarAtFar, ranks_asked, tars_of_ranked

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Those of the field's tables of IJB-B and IJB-C; of IJB-A it is 1e-3."""

IMAGES = 8192
"""Images that are pooled together, if no template has more."""

DENSE = 8
"""A list with one in so many of its templates' pairs, or more, is searched by blocks of products."""


# Template features


@dataclass(frozen=True, eq=False)
class Templates:
    """The features of t templates."""

    template: Places
    """(t,) their numbers, ascending."""
    features: Floats
    """(t, d) of length one; zeros where a template's images add up to nothing."""


def template_features(
    features: NDArray[np.floating],
    template: Places,
    media: Places,
    *,
    norm: bool = True,
    flip: bool = False,
    detector: NDArray[np.floating] | None = None,
) -> Templates:
    """Pool the features of n images, as the backbone gives them, into one of length one for each template.

    With x_i the feature of image i, M(t) the media of template t and I(t, m) its images in media m,

        f_t = Σ_{m ∈ M(t)} (1 / |I(t, m)|) Σ_{i ∈ I(t, m)} x_i,    and the template is f_t / |f_t|:

    the mean within a media, so that a video counts like a photograph, and the sum over the media. Before that, in this
    order, the options of the field's script (insightface, `ijb_11.py`):

    - `flip`: F1 is True: `features` (n, 2d) hold the feature of the image and that of its mirror, which are added. F0
      is False.
    - `norm`: N1 is True: x_i keeps its length, so that what the backbone is sure of weighs more. N0 is False: each x_i
      is brought to length one; one of length zero stays zero.
    - `detector`: D1 is the scores (n,) of the face detector, by which each x_i is multiplied. D0 is None.

    In float64, the images of a media in their order; the result is rounded to float32. Time grows with n d; beside
    the arguments there is memory for 8,192 images, or for those of the largest template.

    Raises ValueError where the shapes do not fit, and for features or scores that are not finite.
    """
    count, width = _shape(features, template, media, flip, detector)
    order = np.lexsort((media, template))
    owners, parts = template[order], media[order]
    first = np.concatenate([[True], owners[1:] != owners[:-1]])
    starts = np.flatnonzero(first | np.concatenate([[True], parts[1:] != parts[:-1]]))  # of each media of a template
    begins = np.flatnonzero(first)  # of each template
    pooled = np.empty((len(begins), width), np.float32)
    ends = np.append(begins[1:], count)
    at = 0
    while at < len(begins):
        stop = max(at + 1, int(np.searchsorted(ends, begins[at] + IMAGES, "right")))
        low, high = int(begins[at]), int(ends[stop - 1])
        places = order[low:high]
        images = features[places].astype(np.float64)
        if len(bad := np.flatnonzero(~np.isfinite(images).all(axis=1))):
            raise ValueError(
                f"the feature of image {places[bad[0]]:,} is not finite: the model has diverged, or its weights were "
                "not loaded whole"
            )
        images = images[:, :width] + images[:, width:] if flip else images
        images = images if norm else unit_rows(images)
        images = images if detector is None else images * detector[places, None]
        cuts = starts[np.searchsorted(starts, low) : np.searchsorted(starts, high)]
        means = np.add.reduceat(images, cuts - low, axis=0) / np.diff(cuts, append=high)[:, None]
        sums = np.add.reduceat(means, np.searchsorted(cuts, begins[at:stop]), axis=0)
        pooled[at:stop] = unit_rows(sums)
        at = stop
    return Templates(owners[begins], pooled)


def _shape(
    features: NDArray[np.floating],
    template: Places,
    media: Places,
    flip: bool,
    detector: NDArray[np.floating] | None,
) -> tuple[int, int]:
    """How many images there are, and the dimensions of a template."""
    if features.ndim != 2 or not len(features):
        raise ValueError(f"features {features.shape} of images: give (n, d), at least one")
    scores = [] if detector is None else [detector]
    if any(column.shape != (len(features),) for column in (template, media, *scores)):
        raise ValueError(
            f"{len(features):,} features with {template.shape} templates, {media.shape} media"
            + "".join(f" and {column.shape} scores" for column in scores)
            + ": give one of each for every image"
        )
    if any(not np.isfinite(column).all() for column in scores):
        raise ValueError("scores of the detector are not finite: read its list again")
    if not flip:
        return features.shape
    if features.shape[1] % 2:
        raise ValueError(
            f"features of {features.shape[1]} dimensions have no halves: give image and mirror side by side"
        )
    return len(features), features.shape[1] // 2


# 1:1 over listed pairs


def verify_pairs(
    features: Floats, left: Places, right: Places, same: NDArray[np.bool_], fars: Sequence[float] = FARS
) -> list[TarAtFar]:
    """TAR at each FAR over n listed pairs of t unit templates (t, d): `left` and `right` (n,) are their rows.

    The figures are those of `verification.tar_at_far` on the scores T. (IJB-A's TAR at 0.1 % FAR is that at 1e-3, of
    each of its ten splits; `over_splits` has their mean.)

    Raises ValueError where the shapes do not fit, unless there are pairs of both kinds, and for features of another
    length than 1 or 0.
    """
    check_unit(features, "template")
    _check_pairs(features, left, right, same)
    genuine, impostors = exactly(features, left[same], features, right[same]), int((~same).sum())
    ranked = _ranked_pairs(features, left[~same], right[~same], ranks_asked(fars, impostors))
    return tars_of_ranked(ranked, impostors, genuine, fars)


def _ranked_pairs(features: Floats, left: Places, right: Places, ranks: Sequence[int]) -> list[Ranked]:
    """T of listed pairs at some ranks: by `scan` where the list is dense and has no pair twice, else pair by pair."""
    rows, row = _numbered(left, len(features))
    columns, column = _numbered(right, len(features))
    if len(rows) * len(columns) <= DENSE * len(left):
        unlisted = np.ones((len(rows), len(columns)), dtype=bool)
        unlisted[row, column] = False
        if unlisted.size - np.count_nonzero(unlisted) == len(left):
            return scan(features[rows], features[columns], ranks=ranks, excluded=lambda *at: unlisted[at]).ranked
    scores = np.sort(exactly(features, left, features, right))[::-1]
    return [Ranked.of_sorted(scores, rank) for rank in ranks]


def _numbered(places: Places, count: int) -> tuple[Places, Places]:
    """Those of `count` rows that `places` (n,) name, ascending, and (n,) which of these each is."""
    rows = np.flatnonzero(np.bincount(places, minlength=count))
    number = np.zeros(count, np.int64)
    number[rows] = np.arange(len(rows))
    return rows, number[places]


def over_splits(splits: Sequence[Sequence[TarAtFar]]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation (n − 1), in percent, of each TAR that all splits carry; IJB-A has ten."""
    figures = {}
    for tars in zip(*splits, strict=True):
        if all(tar.carried for tar in tars):
            values = [100 * tar.tar for tar in tars]
            figures[f"tar@far={tars[0].far:g}"] = (float(np.mean(values)), float(np.std(values, ddof=len(values) > 1)))
    return figures


def _check_pairs(features: Floats, left: Places, right: Places, same: NDArray[np.bool_]) -> None:
    if left.shape != same.shape or right.shape != same.shape or same.ndim != 1 or same.dtype != np.bool_:
        raise ValueError(
            f"pairs {left.shape}, {right.shape} with same {same.dtype} {same.shape}: give two rows for each pair, and "
            "one bool that says whether it is genuine"
        )
    if not same.any() or same.all():
        raise ValueError(f"the list has no {'impostor' if same.any() else 'genuine'} pairs: give pairs of both kinds")
    low, high = min(left.min(), right.min()), max(left.max(), right.max())
    if low < 0 or high >= len(features):
        raise ValueError(
            f"pairs name rows {low:,} to {high:,}, and there are {len(features):,} features: look up the templates of "
            "the list with `coalface.data.readers.ijb.rows_of`"
        )
