"""The pair lists that a recipe evaluates on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coalface.core.checks import at_key, nearest
from coalface.core.errors import RecipeError
from coalface.core.method import generator
from coalface.core.text import first_few, several
from coalface.data.faceset import FaceSet
from coalface.data.pairs import (
    PairList,
    across_pairs,
    balanced_pairs,
    devtest_all,
    most_pairs,
    named_identities,
    read_pairs,
)
from coalface.data.partition import check_disjoint, first_images, identities_of
from coalface.data.readers.layouts import read_lists
from coalface.data.stores import open_store
from coalface.evaluation.metrics.identification import query_and_gallery
from coalface.evaluation.metrics.verification import tenths
from coalface.evaluation.verification import VerificationPairs
from coalface.experiments.recipe import sections
from coalface.experiments.recipe.scenarios import Assigned, Domains, OfFaces
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Pairs
from coalface.experiments.setup.sources import Packing, below_root, folder, open_source, origin, pixels
from coalface.models.embedding import images_needed

SPLIT_SEED = 2048
"""Held-out identities and evaluated pairs are drawn from it, so that runs of every seed are evaluated alike."""
MOST_PAIRS = 3000
"""Genuine pairs that are drawn, and as many impostor pairs, where the recipe leaves it to the images."""


def evaluation_pairs(
    recipe: Recipe, train: FaceSet, held: FaceSet, packing: Packing | None = None, public: FaceSet | None = None
) -> list[VerificationPairs]:
    """The recipe's pair lists; of a rehearsal those alone that are drawn among the people whom it sets aside.

    Raises RecipeError where an identity is both evaluated and trained on, or public.
    """
    lists = []
    halved = {validator.validates for validator in recipe.validators.values()}
    rehearsed = isinstance(recipe.data, Assigned | Domains) and recipe.data.rehearsal is not None
    for name, evaluated in recipe.evaluation.pairs.items():
        if rehearsed and (evaluated.kind not in sections.DRAWN or evaluated.source is not None):
            continue
        where = f"evaluation.pairs.{name}"
        faces, pairs = _list(recipe, name, evaluated, held, packing, where)
        people_shown = _shown(VerificationPairs(name, faces, pairs))
        trained = [(train, prefix) for prefix in _prefixes(recipe, evaluated)]
        if public is not None:
            trained += [(public, prefix) for prefix in _public_prefixes(recipe, evaluated)]
        try:
            for people, prefix in trained:
                check_disjoint(people, _called(people_shown, prefix))
        except ValueError as error:
            shared = str(error).partition(": ")[0].removeprefix("the two sets share ")
            raise RecipeError(
                f"the run would also train on {shared}, so the figures would not be of unseen people; keep "
                "them out of training by data.exclude or data.hold_out, or evaluate on other people",
                where=where,
            ) from None
        if name in halved:
            fold = _folds(pairs, where)
            half = _half(fold, recipe.fold_split != "first")
            chosen = VerificationPairs(name, faces, replace(pairs, fold=fold), half)
        else:
            looked_up = (None, None) if evaluated.rank1 is None else _looked_up(faces, pairs, name, evaluated.rank1)
            chosen = VerificationPairs(name, faces, pairs, None, *looked_up)
        lists.append(replace(chosen, pictured=_is_pictured(recipe, evaluated)))
    return lists


def _is_pictured(recipe: Recipe, evaluated: Pairs) -> bool:
    """Whether pictures of a list's pairs may be kept: where the recipe says so, or its faces are drawn."""
    if recipe.evaluation.pictures is not None:
        return recipe.evaluation.pictures
    if evaluated.kind in sections.WITH_IMAGES:
        return False
    source = evaluated.source
    if source is None and isinstance(recipe.data, OfFaces):
        source = recipe.data.parts[evaluated.part] if evaluated.part else recipe.data.faces
    return source is not None and source.is_synthetic


def _looked_up(faces: FaceSet, pairs: PairList, name: str, rank1: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries and the gallery of a list: images of the people in its pairs. Raises RecipeError without any."""
    people = np.unique(faces.labels[np.concatenate([pairs.left, pairs.right])])
    images = np.flatnonzero(np.isin(faces.labels, people))
    with at_key(f"evaluation.pairs.{name}.rank1"):
        chosen, remaining = query_and_gallery(faces.labels[images], generator(SPLIT_SEED, "queries", name))
    if rank1 == "one-query":
        return images[chosen], images[remaining]
    enrolled = np.isin(faces.labels[images[remaining]], faces.labels[images[chosen]])  # not those who have one image
    return images[remaining[enrolled]], images[np.sort(np.concatenate([chosen, remaining[~enrolled]]))]


def _folds(pairs: PairList, where: str) -> NDArray[np.int64]:
    """The folds of a list that is split in halves. Raises RecipeError where they do not make two halves."""
    if pairs.headline is not None:
        raise RecipeError("this list has no folds, so it cannot be split in halves", where=where)
    try:
        fold = pairs.fold if pairs.fold is not None else tenths(pairs.same)
    except ValueError as error:
        raise RecipeError(f"this list cannot be split in halves: {error}", where=where) from None
    if (count := len(np.unique(fold))) < 4:
        raise RecipeError(
            f"a validator chooses the threshold of each fold on its others, so a half needs two or more, and the list "
            f"has {count} folds in all: split a list of ten",
            where=where,
        )
    return fold


def _half(fold: NDArray[np.int64], first: bool) -> tuple[int, ...]:
    """The lower half of a list's folds, or the upper one."""
    folds = tuple(np.unique(fold).tolist())
    return folds[: len(folds) // 2] if first else folds[len(folds) // 2 :]


def validator(
    recipe: Recipe,
    name: str,
    aside: FaceSet | None,
    train: FaceSet,
    lists: Sequence[VerificationPairs],
    packing: Packing | None = None,
) -> tuple[FaceSet, PairList]:
    """The images and pairs of a validator; `aside` are the identities that were set aside for it.

    Raises RecipeError where it would share an identity with the trainers or, but for half of an evaluated list, with
    those who are evaluated.
    """
    settings, where = recipe.validators[name], f"validators.{name}"
    if settings.validates is not None:
        whole = next(evaluated for evaluated in lists if evaluated.name == settings.validates)
        assert whole.pairs.fold is not None  # made when the list was split
        own_folds = np.isin(whole.pairs.fold, _half(whole.pairs.fold, recipe.fold_split == "first"))
        faces, pairs = _held(whole.faces, whole.pairs, own_folds)
        people = _people(recipe, recipe.evaluation.pairs[whole.name], faces)
        _apart(recipe, where, people, [evaluated for evaluated in lists if evaluated.evaluated_folds is None])
        return faces, pairs
    if aside is not None:
        settings = settings.model_copy(update={"source": None})
    faces, pairs = _list(recipe, name, settings, train.only([]) if aside is None else aside, packing, where)
    faces, pairs = _held(faces, pairs, np.ones(len(pairs), dtype=bool))
    _apart(recipe, where, _people(recipe, settings, faces), lists, train)
    return faces, pairs


People = set[tuple[str, str]]
"""Identities, each as (where it is from unless it may be of the training source, name)."""


def _apart(
    recipe: Recipe, where: str, held: People, lists: Sequence[VerificationPairs], train: FaceSet | None = None
) -> None:
    """Raise RecipeError where a validator holds people of the trainers or of an evaluated list."""
    people_of = {"the trainers": {("", identity) for identity in train.names}} if train is not None else {}
    for evaluated in lists:
        people_of[f"evaluation.pairs.{evaluated.name}"] = _people(
            recipe, recipe.evaluation.pairs[evaluated.name], _shown(evaluated)
        )
    for group, people in people_of.items():
        if shared := sorted(identity for _, identity in held & people):
            raise RecipeError(
                f"it would hold {several(len(shared), 'identity', 'identities')} of {group} "
                f"({first_few(shared, 5)}), so that figures would say nothing of unseen people: give it others, or say "
                "by `validates` which list it holds a half of",
                where=where,
            )


def _people(recipe: Recipe, settings: Pairs, faces: FaceSet) -> People:
    """The identities of a list or a validator."""
    if settings.kind == "bin" and settings.path is not None:  # nothing but the file tells its people
        place, identities = str(below_root(recipe, settings.path).resolve()), (n.partition("/")[2] for n in faces.names)
        return {(place, name) for name in identities}
    if prefixes := _prefixes(recipe, settings):
        return {("", prefix + name) for prefix in prefixes for name in faces.names}
    source = _own_source(settings)
    assert source is not None  # else the prefixes hold ""
    return {(str(origin(recipe, source)), name) for name in faces.names}


def _shown(chosen: VerificationPairs) -> FaceSet:
    """The identities that a list's pairs show."""
    faces, pairs = chosen.faces, chosen.pairs
    return faces.only(np.unique(faces.labels[np.concatenate([pairs.left, pairs.right])]))


def _held(faces: FaceSet, pairs: PairList, chosen: NDArray[np.bool_]) -> tuple[FaceSet, PairList]:
    """Some pairs and only the images that they name: what a validator holds."""
    images, left, right = images_needed(pairs.left[chosen], pairs.right[chosen])
    fold = None if pairs.fold is None else pairs.fold[chosen]
    view = faces.select(images)
    faces_held = view.only(np.flatnonzero(view.counts()))  # the images stay in their order
    return faces_held, replace(pairs, left=left, right=right, same=pairs.same[chosen], fold=fold, headline=None)


def _prefixes(recipe: Recipe, settings: Pairs) -> list[str]:
    """What the training source may put before the names of a list's identities.

    A list with images of its own is held against every part of a joined source that may show the same people: of the
    same folder, or synthetic of the same seed.
    """
    parts, source = recipe.data.parts, _own_source(settings)
    if source is None or not parts:
        return [""]
    return [f"{name}/" for name, part in parts.items() if origin(recipe, part) == origin(recipe, source)]


def _public_prefixes(recipe: Recipe, settings: Pairs) -> list[str]:
    """The same for public people, who have a source of their own where the parties have."""
    source = _own_source(settings)
    if recipe.own is None or (public := recipe.own.public) is None:
        return _prefixes(recipe, settings)
    return [""] if source is None or origin(recipe, source) == origin(recipe, public) else []


def _called(faces: FaceSet, prefix: str) -> FaceSet:
    return replace(faces, names=tuple(prefix + identity for identity in faces.names))


def _own_source(settings: Pairs) -> sections.Source | None:
    """Where a list takes its images from, if not from the training source."""
    if settings.kind == "layout" and settings.source is None and settings.path is not None:
        return sections.Folder(path=settings.path)
    return settings.source


def _list(
    recipe: Recipe, name: str, settings: Pairs, held: FaceSet, packing: Packing | None, where: str
) -> tuple[FaceSet, PairList]:
    """The images and the pairs of a list; the identities are called as in the source that it takes them from."""
    prefix = f"{settings.part}/" if settings.part else ""
    if settings.kind in sections.DRAWN:
        return _drawn_pairs(recipe, name, settings, held, packing, where)
    if settings.path is None:
        raise RecipeError(f"a list of kind {settings.kind!r} needs a file of pairs", where=f"{where}.path")
    if settings.kind == "bin":
        return _of_bin(recipe, name, settings.path, packing, where)
    if settings.kind == "layout":
        own = _own_source(settings)
        assert own is not None  # a layout without a source is one itself
        faces = open_source(recipe, own, packing)
        lists = read_lists(below_root(recipe, settings.path), faces)
        if settings.list is None and len(lists) != 1:
            known = ", ".join(lists) or "none"
            raise RecipeError(f"choose a list of {settings.path}; it has {known}", where=f"{where}.list")
        chosen = nearest(settings.list, lists, f"{where}.list") if settings.list else next(iter(lists))
        return faces, lists[chosen]
    source = recipe.data.parts[settings.part] if settings.part else settings.source or _faces(recipe)
    faces, path = open_source(recipe, source, packing), below_root(recipe, settings.path)
    if settings.kind == "lfw":
        root = folder(recipe, source) if isinstance(source, sections.Folder) else None
        return _called(faces, prefix), read_pairs(path, faces, root=root)
    pairs = devtest_all(faces, named_identities(path))
    return _called(faces, prefix), pairs


def _drawn_pairs(
    recipe: Recipe, name: str, settings: Pairs, held: FaceSet, packing: Packing | None, where: str
) -> tuple[FaceSet, PairList]:
    """Pairs drawn among identities held out, or all of a source. Raises RecipeError where there are too few."""
    faces = held if settings.source is None else open_source(recipe, settings.source, packing)
    if settings.part:
        faces = faces.only(identities_of(faces, settings.part))
    if settings.most_images is not None:
        faces = first_images(faces, settings.most_images)
    if len(faces) == 0:
        of_part = f" of part {settings.part}" if settings.part else ""
        raise RecipeError(
            f"no identity{of_part} is held out; set data.hold_out, or give this list a `source`", where=where
        )
    rng = generator(SPLIT_SEED, "pairs", name)
    with at_key(where):
        if settings.kind == "across":
            if settings.folders is None:
                raise ValueError("name two folders, as `folders: [frontal, profile]`")
            return faces, across_pairs(faces, folders=settings.folders, each=settings.each or 7, rng=rng, title=name)
        count = min(MOST_PAIRS, most_pairs(faces)) if settings.pairs is None else settings.pairs
        return faces, balanced_pairs(faces, pairs=count, rng=rng, title=name)


def _faces(recipe: Recipe) -> sections.Source:
    """The faces that are trained on; a list names others where parties bring their own."""
    assert isinstance(recipe.data, OfFaces)
    return recipe.data.faces


def _of_bin(recipe: Recipe, name: str, path: str, packing: Packing | None, where: str) -> tuple[FaceSet, PairList]:
    """The images and pairs of a `.bin`. Who is in them is not known, so its identities are named after the list."""
    store = open_store(below_root(recipe, path))
    if store.pairs is None:
        raise RecipeError(f"{path} is not a .bin of pairs", where=f"{where}.path")
    faces = pixels(recipe, store, packing)
    return replace(faces, names=tuple(f"{name}/{identity}" for identity in faces.names)), store.pairs
