"""Evaluation of a finished model on pairs that it is given."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from coalface.core.errors import DataError, PluginError, RecipeError
from coalface.core.method import generator
from coalface.core.names import check_name
from coalface.core.parsing import parse_yaml, read_text
from coalface.core.text import first_few, several
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList, balanced_pairs, most_pairs, read_pairs
from coalface.data.readers.layouts import read_list, read_lists
from coalface.data.readers.pack import cached_pack, read_pack
from coalface.data.stores import open_store
from coalface.evaluation import membership
from coalface.evaluation.feature_file import QUIET, Show
from coalface.evaluation.figures import declare
from coalface.evaluation.membership import BY_NAME, STRANGER, Members
from coalface.evaluation.metrics.pair_figures import PairFigure, compute_all, find_figures
from coalface.evaluation.metrics.verification import (
    ACCURACY_TWO_LISTS,
    THRESHOLD,
    THRESHOLD_TWO_LISTS,
    evaluate_pairs,
    roc,
    score_pairs,
    two_list_accuracy,
)
from coalface.models import Backbone, branched, build
from coalface.models.embedding import embed, images_needed
from coalface.models.folder import ABOUT, locate, read_about, read_tensors, remedy
from coalface.models.pretrained.input import InputConvention, convention_of
from coalface.models.pretrained.onnx import SUFFIX, read_onnx

FARS = (0.1, 0.01, 0.001)
FOLDS = 10
"""Of accuracy, where a list has none."""
PAIRS = 3000
"""Genuine pairs that are drawn, and as many impostor pairs, where the images make as many."""


def read_model(
    place: Path, party: str | None = None, convention: InputConvention | None = None
) -> tuple[Backbone, dict[str, Any]]:
    """The network of a run folder, a model folder or an ONNX file, and `model.json` or what would stand there.

    `convention` is what an ONNX file expects of its input. Raises FileNotFoundError with what there is, and DataError
    where a file is not as it was written.
    """
    if place.suffix == SUFFIX:
        if party is not None:
            raise RecipeError(f"{place} holds one model: leave it out", where="--party")
        network, about = read_onnx(place, convention=convention)
        return Backbone(network), about
    if convention is not None:
        raise RecipeError(f"{place} says itself what it expects: leave it out", where="--input")
    if party is not None:
        check_name(party)
    if place.is_file():
        if (place.parent / ABOUT).exists():
            raise DataError(f"the tensors of a model alone; name its folder, {place.parent}", where=place)
        raise DataError(
            "a run folder, a model folder or an ONNX file is needed; of weights alone, "
            f"`coalface export {shlex.quote(str(place))} --backbone NAME --to safetensors` makes a model folder",
            where=place,
        )
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist; give a run folder, its folder `model`, or an ONNX file")
    folder = locate(place)
    if not (folder / ABOUT).exists():
        hint = (
            remedy(place / "model")
            if (place / "model").exists()
            else f"name the ONNX file, {graphs[0]}"
            if (graphs := sorted(place.glob(f"*{SUFFIX}")))
            else "give a run folder, its folder `model`, or an ONNX file"
        )
        raise FileNotFoundError(f"{place} holds no model: {folder / ABOUT} does not exist; {hint}")
    about = read_about(folder)
    name = "backbone.safetensors" if party is None else f"parties/{party}.safetensors"
    path = folder / name
    if party is not None and (folder / "backbone.safetensors").exists():
        raise RecipeError(f"{place} has one global model, and none of {party}'s own: leave it out", where="--party")
    if not path.exists():
        names = sorted(p.stem for p in folder.glob("parties/*.safetensors"))
        hint = f"each party has its own: --party takes {first_few(names, most=8)}" if names else remedy(folder)
        raise FileNotFoundError(f"{path} does not exist; {hint}")
    module = build(
        about["backbone"],
        size=about["size"],
        channels=about["channels"],
        embedding_size=about["embedding_size"],
        convention=convention_of(about),
        generator=generator(0, "replaced by the weights"),
    )
    backbone, tensors = Backbone(module), read_tensors(folder, name, about)
    branch = {name: tensors.pop(name) for name in branched.NAMES if name in tensors}
    try:
        backbone.load(tensors)
    except ValueError as error:
        raise DataError(f"it is not the {about['backbone']} that {ABOUT} describes: {error}", where=path) from None
    return Backbone(branched.Branched(module, branch)) if branch else backbone, about


def read_faces(place: Path, about: dict[str, Any], show: Show = QUIET) -> FaceSet:
    """Images of a pack, of identity folders, or in another of the field's forms, as the model takes them."""
    size, grey = about["size"], about["channels"] == 1
    if not (place / "meta.json").exists():
        store = open_store(place)
        with show("decoding", len(store)) as count:
            return cached_pack(store, size=size, grey=grey, progress=lambda number, total: count(number))
    faces = read_pack(place)
    check_shape(faces, about, place)
    return faces


def check_shape(faces: FaceSet, about: dict[str, Any], where: str | Path) -> None:
    """Raise DataError for images of a pack that are not of the size and colour that the model takes."""
    size, grey = about["size"], about["channels"] == 1
    if faces.shape != (size, size, about["channels"]):
        raise DataError(
            f"the images are {faces.shape}, the model takes {(size, size, about['channels'])}: "
            f"`coalface data pack FOLDER PACK --size {size}{' --grey' if grey else ''}` makes a pack that fits; "
            f"in Python, load them with size={size}{', grey=True' if grey else ''}",
            where=where,
        )


def evaluate_model(
    model: Path,
    on: Path,
    *,
    images: Path | None = None,
    party: str | None = None,
    convention: InputConvention | None = None,
    threshold_from: Path | None = None,
    flip: bool = False,
    pairs: int | None = None,
    list_name: str | None = None,
    show: Show = QUIET,
) -> dict[str, Any]:
    """Figures of a model on a pair list over `images`, or on pairs drawn from a pack or from identity folders.

    Where `on` is a folder in one of the field's layouts that brings pair lists (`coalface.data.readers.layouts`), the
    figures are those of each of its lists by name, in `lists`, or of the one called `list_name`. With `pairs`, so
    many pairs are drawn nevertheless. `drawn` says how many genuine pairs were drawn, and as many impostor pairs.

    Accuracy is ten-fold; with `threshold_from`, a second list, the threshold is the best on that one (LFW's View 1),
    and `people_in_both_lists` says how many people the two share: where it is not 0, the figure flatters the model.
    `roc` holds points of the curve as `far` and `tar` from 0 to 1, all other figures are in percent.

    `trained_on` says how many of the evaluated people were trained on (`people` of `of`, `by_name_alone` where no image
    of theirs says so), and how many `pairs` show one; None where no run around the model says it.
    `threshold_trained_on` says it of the second list. If there are any, `others` has the figures on the pairs that show
    none, as far as these carry them, with the threshold chosen on such pairs alone.

    Of an ONNX file, `file` is the SHA-256 and `input` what it expects of its input.

    Figures of plug-ins that the run around the model names are computed too; `left_out` says why one cannot be.

    Raises RecipeError for an option that does not fit the others, and DataError where the second list holds pairs of
    the first.
    """
    backbone, about = read_model(model, party, convention)
    members = membership.read_beside(locate(model))
    options: dict[str, Any] = {"images": images, "threshold_from": threshold_from, "flip": flip, "pairs": pairs}
    named = named_beside(locate(model))
    figures = evaluate_network(backbone.module, about, on, members, named, **options, list_name=list_name, show=show)
    record = {key: about[key] for key in ("file", "input") if "file" in about}
    return {"model": str(model), **record, "on": str(on), **figures}


def named_beside(folder: Path) -> list[str]:
    """The figures of plug-ins that the recipe of the run around a model's folder names."""
    path = folder.resolve().parent / "config.yaml"
    recipe = parse_yaml(read_text(path)) if path.is_file() else None
    evaluation = recipe.get("evaluation") if isinstance(recipe, dict) else None
    return list(evaluation.get("figures") or ()) if isinstance(evaluation, dict) else []


def evaluate_network(
    network: nn.Module,
    about: dict[str, Any],
    on: Path | FaceSet,
    members: Members | None,
    named: Sequence[str] = (),
    *,
    images: Path | None = None,
    threshold_from: Path | None = None,
    flip: bool = False,
    pairs: int | None = None,
    list_name: str | None = None,
    show: Show = QUIET,
) -> dict[str, Any]:
    """The figures of `evaluate_model`, of a network that takes images as `about` says; `on` may be images too.

    `named` are the figures of plug-ins.
    """
    if isinstance(on, Path) and not on.exists():
        raise FileNotFoundError(f"{on} does not exist: give a pair list, a .bin, a pack, or identity folders")
    if list_name is not None and pairs is not None:
        raise RecipeError("it names a list, and --pairs draws pairs: leave one of them out", where="--list")
    faces, chosen, drawn = _chosen(on, images, about, pairs, list_name, show)
    place = Path("images") if isinstance(on, FaceSet) else on
    figures: dict[str, Any] = {"drawn": drawn} if drawn else {}
    pair_figures: list[PairFigure] = []
    for name in named:
        try:
            pair_figures += find_figures([name])
        except PluginError as error:  # the model is evaluated where its run's plug-ins are not installed, too
            figures["left_out"] = [*figures.get("left_out", ()), str(error)]
    for own in pair_figures:
        declare(own.figure)
    evaluation = _Evaluation(network, faces, images or place, members, pair_figures, flip, show)
    if isinstance(chosen, PairList):
        return figures | evaluation.figures(chosen, place, threshold_from)
    return figures | {
        "lists": {name: evaluation.figures(pair_list, place, threshold_from) for name, pair_list in chosen.items()}
    }


def _chosen(
    on: Path | FaceSet, images: Path | None, about: dict[str, Any], pairs: int | None, list_name: str | None, show: Show
) -> tuple[FaceSet, PairList | dict[str, PairList], int]:
    """The images, the pairs (one list, or by name those that a data set of the field brings), how many were drawn."""
    if isinstance(on, FaceSet):
        check_shape(on, about, "on")
        return on, *_drawn(on, pairs, "images")
    store = open_store(on) if on.suffix == ".bin" or (on.is_dir() and not (on / "meta.json").exists()) else None
    layout = store.layout if store is not None else ""
    if list_name is not None and not layout:
        raise RecipeError(f"{on} is not a data set with pair lists of its own: leave it out", where="--list")
    brings_images = on.is_dir() or on.suffix in (".rec", ".bin")
    if images is not None and brings_images:
        raise RecipeError(f"{on} holds images itself: leave it out, or give it with --on", where="--images")
    if pairs is not None and (not brings_images or (store is not None and store.pairs is not None)):
        raise RecipeError(f"{on} says which pairs are evaluated, so none are drawn: leave it out", where="--pairs")
    if layout and pairs is None:
        faces = read_faces(on, about, show)
        if list_name is not None:
            return faces, {list_name: read_list(on, faces, name=list_name)}, 0
        if lists := read_lists(on, faces):
            return faces, lists, 0
    if store is not None and store.pairs is not None:
        return read_faces(on, about, show), store.pairs, 0
    if brings_images:
        faces = read_faces(on, about, show)
        return faces, *_drawn(faces, pairs, on.name)
    if images is None:
        raise RecipeError(f"{on} names pairs of images: give their folder or pack", where="--images")
    faces = read_faces(images, about, show)
    return faces, read_pairs(on, faces, root=images), 0


def _drawn(faces: FaceSet, pairs: int | None, title: str) -> tuple[PairList, int]:
    drawn = min(PAIRS, most_pairs(faces)) if pairs is None else pairs
    return balanced_pairs(faces, pairs=drawn, rng=generator(2048, "pairs"), title=title), drawn


@dataclass(frozen=True)
class _Evaluation:
    """A network, the images of a set, and who the model was trained on, if that is known."""

    network: nn.Module
    faces: FaceSet
    root: Path
    """Where the images lie."""
    members: Members | None
    pair_figures: Sequence[PairFigure]
    flip: bool
    show: Show

    def figures(self, chosen: PairList, on: Path, threshold_from: Path | None) -> dict[str, Any]:
        """Those of a list, and those of the pairs in it that show nobody who was trained on."""
        threshold_pairs = None if threshold_from is None else self._threshold_list(threshold_from, chosen, on)
        trained_on, strangers = self._trained_on(chosen)
        evaluated = self._scored(chosen)
        figures: dict[str, Any] = _counts(chosen) | {"trained_on": trained_on} | self._figures_of(evaluated)
        on_strangers = evaluated.only(strangers)
        others_figures: dict[str, Any] = _counts(on_strangers.pairs)
        if _carries(on_strangers.pairs):
            others_figures |= self._figures_of(on_strangers)
        has_members = not strangers.all()
        if threshold_pairs is not None:
            figures["people_in_both_lists"] = len(np.intersect1d(self._people(chosen), self._people(threshold_pairs)))
            figures["threshold_trained_on"], strangers = self._trained_on(threshold_pairs)
            threshold_scored = self._scored(threshold_pairs)
            figures |= _by_threshold(threshold_scored, evaluated)
            if _has_both(on_strangers.pairs) and _has_both(threshold_scored.only(strangers).pairs):
                others_figures |= _by_threshold(threshold_scored.only(strangers), on_strangers)
            has_members = has_members or not strangers.all()
        if has_members:
            figures["others"] = others_figures
        return {**figures, "roc": roc(evaluated.scores[chosen.counted], chosen.same[chosen.counted])}

    def _figures_of(self, evaluated: _Scored) -> dict[str, float]:
        """Those of every evaluation, and those of plug-ins."""
        pairs, counted = evaluated.pairs, evaluated.pairs.counted
        result = evaluate_pairs(evaluated.scores, pairs.same, pairs.fold, pairs.headline, FARS)
        thresholds = {THRESHOLD.at(tar.far): tar.threshold for tar in result.tars if tar.carried}
        own = compute_all(self.pair_figures, evaluated.scores[counted], pairs.same[counted])
        return result.figures() | thresholds | own

    def _threshold_list(self, path: Path, chosen: PairList, on: Path) -> PairList:
        """The list that a threshold is chosen on. Raises DataError where it holds pairs that are evaluated."""
        faces, threshold_pairs = self.faces, read_pairs(path, self.faces, root=self.root)
        if shared := _image_pairs(chosen) & _image_pairs(threshold_pairs):
            first, second = (faces.files[faces.rows[image]] for image in min(shared)) if faces.files else min(shared)
            raise DataError(
                f"{several(len(shared), 'pair')} of it, such as {first} with {second}, are in {on} too: a threshold "
                "chosen on pairs that are evaluated flatters the model; give a list of others",
                where=path,
            )
        return threshold_pairs

    def _people(self, pairs: PairList) -> NDArray[np.int64]:
        return np.unique(self.faces.labels[np.concatenate([pairs.left, pairs.right])])

    def _trained_on(self, pairs: PairList) -> tuple[dict[str, int] | None, NDArray[np.bool_]]:
        """How many people of a list were trained on, if that is known; and (n,) which pairs show none of them."""
        if self.members is None:
            return None, np.ones(len(pairs), dtype=bool)
        people = self._people(pairs)
        membership_of = self.members.among(self.faces, people)
        met = membership_of != STRANGER
        strangers = ~(met[self.faces.labels[pairs.left]] | met[self.faces.labels[pairs.right]])
        by_name_alone = int((membership_of == BY_NAME).sum())
        counts = {"people": int(met.sum()), "of": len(people), "by_name_alone": by_name_alone}
        return counts | {"pairs": int((~strangers).sum())}, strangers

    def _scored(self, pairs: PairList) -> _Scored:
        needed, left, right = images_needed(pairs.left, pairs.right)
        with self.show("embedding", len(needed)) as count:
            features = embed(self.network, self.faces, needed, flip=self.flip, progress=count)
        return _Scored(score_pairs(features, left, right), pairs)


@dataclass(frozen=True, eq=False)
class _Scored:
    """Pairs and their scores."""

    scores: NDArray[np.float64]
    pairs: PairList

    def only(self, chosen: NDArray[np.bool_]) -> _Scored:
        columns = {name: getattr(self.pairs, name) for name in ("left", "right", "same", "fold", "headline")}
        remaining = {name: column[chosen] for name, column in columns.items() if column is not None}
        return _Scored(self.scores[chosen], replace(self.pairs, **remaining))


def _by_threshold(second: _Scored, evaluated: _Scored) -> dict[str, float]:
    accuracy = two_list_accuracy(second.scores, second.pairs.same, evaluated.scores, evaluated.pairs.same)
    return {ACCURACY_TWO_LISTS.name: 100 * accuracy.mean, THRESHOLD_TWO_LISTS.name: accuracy.thresholds[0]}


def _counts(pairs: PairList) -> dict[str, Any]:
    return {"pairs": len(pairs), "impostor_pairs": int((~pairs.same).sum())}


def _has_both(pairs: PairList) -> bool:
    """Whether there are genuine pairs that count, and impostor pairs."""
    return bool((pairs.same & pairs.counted).any() and not pairs.same.all())


def _carries(pairs: PairList) -> bool:
    """Whether what is left of a list carries its figures: pairs of both kinds, in two folds or more."""
    if pairs.headline is not None or pairs.fold is not None:
        return _has_both(pairs) and (pairs.fold is None or len(np.unique(pairs.fold)) > 1)
    return min(int(pairs.same.sum()), int((~pairs.same).sum())) >= FOLDS


def _image_pairs(pairs: PairList) -> set[tuple[int, int]]:
    """The pairs of a list, whichever of the two images it names first."""
    return {(min(pair), max(pair)) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)}
