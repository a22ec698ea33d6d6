"""The pre-training whose model a run starts from: made once, and kept by its content in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import Timeout

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.core.method import Tensors
from coalface.data.cache import LOCKS, PRETRAINED, default_cache, open_cache, use
from coalface.evaluation import membership
from coalface.evaluation.membership import Members
from coalface.experiments import model_folder, preflight, provenance
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import Parts
from coalface.models.folder import read_about, read_tensors

Make = Callable[[Recipe, Path, Callback], None]
"""Runs a recipe in a folder, or goes on where it was begun there."""


@dataclass(frozen=True)
class Pretrained:
    """What a pre-training leaves to start from."""

    tensors: Tensors
    """Of the backbone: those that are shared."""
    classifier: torch.Tensor | None
    """(k, d) class embeddings of the public identities, for a method whose parties share their images."""
    members: Members | None
    """Who it was trained on."""


def pretrained(parts: Parts, view: Callback, make: Make) -> Pretrained:
    """The model of an experiment's pre-training, from the cache where its recipe has been run by the same code.

    Raises RecipeError where it leaves no class embeddings and the method needs them.
    """
    inner = loader.pretraining(parts.recipe)
    preflight.check_leaves_shared(inner)
    before = Parts(inner, view.packing)
    made_of = [inner.digest(), before.content, provenance.code_behind(inner)]
    seen = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    place = open_cache(default_cache()) / PRETRAINED / seen[:24]
    model, people = place / "model" / "backbone.safetensors", place / membership.FILE
    if not (model.exists() and people.exists()):  # a version before left no people
        with _turn(place.parent.with_name(LOCKS) / place.name, place, view):
            if not (model.exists() and people.exists()):  # another process may have made it meanwhile
                view.note(f"pre-training in {place}")
                if (place / "config.yaml").exists():
                    try:
                        provenance.recipe_of(place)
                    except RecipeError as error:
                        raise RecipeError(
                            f"{error}. Or remove it with `coalface cache clear pretrained`: the next run that needs "
                            "this pre-training makes it anew"
                        ) from None
                else:
                    place.parent.mkdir(mode=0o700, exist_ok=True)
                make(inner, place, view)
    use(place)
    loaded = read_tensors(model.parent, model.name, read_about(model.parent))
    tensors = {name: loaded[name] for name in parts.backbone.shared()}
    classifier = None
    if parts.public is not None:
        alike = parts.public.names == before.split.train.names
        classifier = _classifier(parts.recipe, inner, place, alike=alike)
    return Pretrained(tensors, classifier, membership.read(place))


def _classifier(recipe: Recipe, inner: Recipe, place: Path, *, alike: bool) -> torch.Tensor:
    """(k, d) class embeddings that a pre-training left; `alike` says that they are of the public identities."""
    path = place / model_folder.CLASSIFIER
    if not path.exists() or not alike:
        raise RecipeError(
            f"pretrain: {recipe.method} starts from the class embeddings of all public identities, and "
            f"{inner.method!r} leaves none, or trains on others: take centralized, a loss with one class embedding for "
            "each identity, and the data of this recipe"
        )
    about = read_about(place / "model")
    return read_tensors(place / "model", f"../{model_folder.CLASSIFIER}", about)["class_embeddings"]


@contextlib.contextmanager
def _turn(lock: Path, place: Path, view: Callback) -> Iterator[None]:
    """Hold the lock of a pre-training, after whoever has it: one process trains, the others wait for its model."""
    lock.parent.mkdir(mode=0o700, exist_ok=True)
    turn = disk.lock(lock)
    try:
        held = turn.acquire(blocking=False)
    except Timeout:
        view.note(f"another process is pre-training in {place}; waiting for its model")
        held = turn.acquire()
    with held:
        yield
