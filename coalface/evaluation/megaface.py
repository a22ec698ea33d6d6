"""Evaluation of a finished model on MegaFace: the probes of FaceScrub against up to a million distractors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coalface.core.errors import DataError, RecipeError
from coalface.core.text import shown
from coalface.data.readers.megaface import distractor_lists, read_distractors, read_noises, read_probes
from coalface.evaluation.feature_file import QUIET, Show, Stream, embed_all, folder_for, listed_faces
from coalface.evaluation.finished_model import read_model
from coalface.evaluation.metrics.megaface import evaluate_probes
from coalface.models.pretrained.input import InputConvention

PROBES = "facescrub_features_list.json"
"""The kit's list of probes."""
FARS = (1e-6,)


def evaluate_megaface(
    model: Path,
    lists: Path,
    probes: Path,
    distractors: Path,
    *,
    size: int = 1_000_000,
    number: int = 1,
    facescrub_noises: Path | None = None,
    megaface_noises: Path | None = None,
    party: str | None = None,
    convention: InputConvention | None = None,
    flip: bool = False,
    features: Path | None = None,
    fars: Sequence[float] = FARS,
    show: Show = QUIET,
) -> dict[str, Any]:
    """Rank-1 and TAR at FAR of a model, in percent, with the probes and the `number`-th list of `size` distractors.

    `lists` is the kit's folder `templatelists`; `probes` and `distractors` are the folders that its lists' paths start
    from. Images are taken as `coalface evaluate` takes them: aligned already. Noises are left out of both, so there are
    as many distractors fewer. `coalface.evaluation.metrics.megaface` has the definitions.

    Features, 4 d bytes an image, lie in a file of a temporary folder, or in the folder `features`, where a stopped run
    finds them again; pixels are held a batch at a time. All images are read once before the first is embedded. Raises
    FileNotFoundError for lists and images that are missing, RecipeError for a size that the kit does not have, and
    DataError for images that cannot be read and for probes of which no identity has two.
    """
    backbone, about = read_model(model, party, convention)
    probe_list = read_probes(lists / PROBES)
    if facescrub_noises is not None:
        probe_list, _ = probe_list.without(read_noises(facescrub_noises, "facescrub"))
    lists_by_size = distractor_lists(lists, number)
    if size not in lists_by_size:
        sizes = ", ".join(map(str, lists_by_size))
        raise RecipeError(
            f"{shown(lists)} has no list of {size:,} distractors of set {number}; it has {sizes}", where="--size"
        )
    crowd = read_distractors(lists_by_size[size])
    if megaface_noises is not None:
        noisy = read_noises(megaface_noises, "megaface").among(crowd)
        crowd = tuple(file for file, wrong in zip(crowd, noisy.tolist(), strict=True) if not wrong)
    if not crowd or np.bincount(probe_list.identity, minlength=1).max() < 2:
        missing = "no distractor" if not crowd else "no identity with two probes"
        raise DataError(f"without the noises there is {missing}: check that the lists belong together", where=lists)
    sides = (
        ("facescrub", probes, probe_list.files, lists / PROBES),
        (f"megaface-{size}-{number}", distractors, crowd, lists_by_size[size]),
    )
    with folder_for(features) as place:
        streams = []
        for name, folder, files, where in sides:
            images = listed_faces(folder, files, about, shown(where), spellings=True)
            streams.append(Stream(place, name, backbone.module, images, "flipped" if flip else "unit"))
        embed_all(streams, show)
        evaluated = evaluate_probes(np.asarray(streams[0].rows()), probe_list.identity, streams[1].rows(), fars=fars)
    return {
        "model": str(model),
        "probes": len(probe_list.files),
        "identities": len(np.unique(probe_list.identity)),
        "pairs": evaluated.pairs,
        "distractors": evaluated.distractors,
        "set": number,
        **evaluated.figures(),
        **{f"threshold@far={tar.far:g}": tar.threshold for tar in evaluated.tars if tar.carried},
    }
