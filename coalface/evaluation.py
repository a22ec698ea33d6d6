"""Judging a finished model on pairs that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface import modelfolder
from coalface.core import generator
from coalface.data.faces import FaceSet
from coalface.data.layouts import has_lists, read_list, read_lists
from coalface.data.pack import cached_pack, read_pack
from coalface.data.pairs import PairList, balanced_pairs, read_pairs
from coalface.data.stores import open_store
from coalface.data.words import several
from coalface.evaluate.features import embed, images_needed
from coalface.evaluate.verification import judge, roc, score_pairs, two_list_accuracy
from coalface.models import Backbone, branched, build

FARS = (0.1, 0.01, 0.001)
PAIRS = 3000
"""Genuine pairs that are drawn, and as many impostor pairs."""


def read_model(place: Path, party: str | None = None) -> tuple[Backbone, dict[str, Any]]:
    """The network of a run folder or model folder, and `model.json`.

    Raises FileNotFoundError with what there is, and ValueError where a file is not as it was written.
    """
    folder = place / "model" if (place / "model" / modelfolder.ABOUT).exists() else place
    if not (folder / modelfolder.ABOUT).exists():
        raise FileNotFoundError(f"{place} holds no model: give a run folder, or the folder `model` in one")
    about = modelfolder.read_about(folder)
    name = "backbone.safetensors" if party is None else f"parties/{party}.safetensors"
    path = folder / name
    if party is not None and (folder / "backbone.safetensors").exists():
        raise ValueError(f"{place}: this run left one global model, and none of {party}'s own: leave --party out")
    if not path.exists():
        found = sorted(p.stem for p in folder.glob("parties/*.safetensors"))
        hint = (
            f"each party has its own: add --party with one of {', '.join(found[:8])}"
            if found
            else modelfolder.remedy(folder)
        )
        raise FileNotFoundError(f"{path} is not there; {hint}")
    module = build(
        about["backbone"],
        size=about["size"],
        channels=about["channels"],
        embedding_size=about["embedding_size"],
        generator=generator(0, "replaced by the weights"),
    )
    backbone, tensors = Backbone(module), modelfolder.read_tensors(folder, name, about)
    branch = {name: tensors.pop(name) for name in branched.NAMES if name in tensors}
    try:
        backbone.load(tensors)
    except ValueError as error:
        raise ValueError(f"{path} is no {about['backbone']} as {modelfolder.ABOUT} says it: {error}") from None
    return Backbone(branched.Branched(module, branch)) if branch else backbone, about


def read_faces(place: Path, about: dict[str, Any]) -> FaceSet:
    """Images of a pack, of identity folders, or in another of the field's forms, as the model takes them."""
    size, grey = about["size"], about["channels"] == 1
    if not (place / "meta.json").exists():
        return cached_pack(open_store(place), size=size, grey=grey)
    faces = read_pack(place)
    if faces.shape != (size, size, about["channels"]):
        raise ValueError(
            f"{place} holds images of {faces.shape}, the model takes {(size, size, about['channels'])}: "
            f"`coalface data pack FOLDER PACK --size {size}{' --grey' if grey else ''}` makes a pack that fits"
        )
    return faces


def judge_model(
    model: Path,
    on: Path,
    *,
    images: Path | None = None,
    party: str | None = None,
    threshold_from: Path | None = None,
    flip: bool = False,
    pairs: int | None = None,
    own: str | None = None,
) -> dict[str, Any]:
    """Figures of a model on a pair list over `images`, or on pairs drawn from a pack or from identity folders.

    Where `on` is a folder in one of the field's layouts that brings pair lists (`coalface.data.layouts`), the figures
    are those of each of its lists by name, in `lists`, or of the one that `own` names. `pairs`, if given, asks for so
    many drawn pairs nevertheless.

    Accuracy is ten-fold; with `threshold_from`, a second list, the threshold is the best on that one (LFW's View 1),
    and `people_in_both_lists` says how many people the two share: where it is not 0, the figure flatters the model.
    `roc` holds points of the curve as `far` and `tar` from 0 to 1, all other figures are in percent.
    Raises ValueError where the second list holds pairs of the first, and for `own` where there is no such list.
    """
    backbone, about = read_model(model, party)
    if not on.exists():
        raise FileNotFoundError(f"{on} is not there: give a pair list, a .bin, a pack, or identity folders")
    if own is not None and pairs is not None:
        raise ValueError("--list takes a list of the data set, and --pairs draws pairs: leave one of them out")
    faces, chosen = _chosen(on, images, about, pairs, own)
    figures: dict[str, Any] = {"model": str(model), "on": str(on)}
    if isinstance(chosen, PairList):
        return figures | _judged(backbone, faces, chosen, on, threshold_from, flip)
    lists = {name: _judged(backbone, faces, each, on, threshold_from, flip) for name, each in chosen.items()}
    return figures | {"lists": lists}


def _chosen(
    on: Path, images: Path | None, about: dict[str, Any], pairs: int | None, own: str | None
) -> tuple[FaceSet, PairList | dict[str, PairList]]:
    """The images, and the pairs: one list, or those that a data set in one of the field's layouts brings, by name."""
    store = open_store(on) if on.suffix == ".bin" or (on.is_dir() and not (on / "meta.json").exists()) else None
    layout = store.layout if store is not None else ""
    if own is not None and not layout:
        raise ValueError(f"{on} is no data set with pair lists of its own: leave --list out")
    if layout and pairs is None:
        faces = read_faces(on, about)
        if own is not None:
            return faces, {own: read_list(on, faces, layout=layout, name=own)}
        if has_lists(on, faces, layout=layout):
            return faces, read_lists(on, faces, layout=layout)
    if store is not None and store.pairs is not None:
        return read_faces(on, about), store.pairs
    if on.is_dir() or on.suffix == ".rec":
        faces, rng = read_faces(on, about), generator(2048, "pairs")
        return faces, balanced_pairs(faces, pairs=PAIRS if pairs is None else pairs, rng=rng, title=on.name)
    if images is None:
        raise ValueError(f"{on} names pairs of images: say where these lie with --images FOLDER (or a pack)")
    faces = read_faces(images, about)
    return faces, read_pairs(on, faces)


def _judged(
    backbone: Backbone, faces: FaceSet, chosen: PairList, on: Path, threshold_from: Path | None, flip: bool
) -> dict[str, Any]:
    features, left, right = _features(backbone, faces, chosen, flip)
    judged = judge(features, left, right, chosen.same, chosen.fold, chosen.headline, FARS)
    figures: dict[str, Any] = {"pairs": len(chosen), **judged.figures()}
    figures |= {f"threshold@far={tar.far:g}": tar.threshold for tar in judged.tars if tar.carried}
    scores = score_pairs(features, left, right)
    if threshold_from is not None:
        other = read_pairs(threshold_from, faces)
        if shared := _images(chosen) & _images(other):
            first, second = (faces.files[faces.rows[image]] for image in min(shared)) if faces.files else min(shared)
            raise ValueError(
                f"{threshold_from} and {on} share {several(len(shared), 'pair')}, such as {first} with "
                f"{second}: a threshold chosen on pairs that are judged flatters the model; give a list of others"
            )
        figures["people_in_both_lists"] = len(_people(chosen, faces) & _people(other, faces))
        chosen_on = score_pairs(*_features(backbone, faces, other, flip))
        found = two_list_accuracy(chosen_on, other.same, scores, chosen.same)
        figures |= {"accuracy_two_lists": 100 * found.mean, "threshold_two_lists": found.thresholds[0]}
    counted = chosen.headline | ~chosen.same if chosen.headline is not None else np.ones(len(chosen), dtype=bool)
    curve = roc(scores[counted], chosen.same[counted])
    return {**figures, "roc": {"far": curve.far.tolist(), "tar": curve.tar.tolist()}}


def _images(pairs: PairList) -> set[tuple[int, int]]:
    """The pairs of a list, whichever of the two images it names first."""
    return {(min(pair), max(pair)) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)}


def _people(pairs: PairList, faces: FaceSet) -> set[int]:
    return set(faces.labels[np.concatenate([pairs.left, pairs.right])].tolist())


def _features(
    backbone: Backbone, faces: FaceSet, chosen: PairList, flip: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    needed, left, right = images_needed(chosen.left, chosen.right)
    return embed(backbone.module, faces, needed, flip=flip), left, right
