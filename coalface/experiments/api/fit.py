"""One call from faces to a trained model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from coalface.core.method import Method
from coalface.experiments.api.faces import Faces, load_faces
from coalface.experiments.api.finished_run import FinishedRun
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.experiment import Experiment, as_plain, run_recipe
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.objects import changed
from coalface.experiments.recipe.schema import LOSS
from coalface.experiments.recipe.short_keys import CHOICES, full_key
from coalface.models import BACKBONES
from coalface.training.losses.base import CosineLoss


def fit(
    faces: Faces | Any = None,
    *,
    out: str | os.PathLike[str],
    method: str | Method | type[Method] = "fedavg",
    callbacks: Sequence[Callback] | None = None,
    **settings: Any,
) -> FinishedRun:
    """Train a face recognition model over parties, into the folder `out`.

    `faces` are what `load_faces` gives, or takes; without them they are synthetic. Settings are keys of a recipe by
    their last name, such as `lr=0.02` for `local.lr`, or whole sections: `partition=coalface.Dirichlet(parties=8)`,
    `engine={"workers": 2}`. A method, loss or backbone is a name, or an object: a `Method`, a `CosineLoss`, an
    `nn.Module`, or a function that makes one of (size, channels, embedding_size). With `hold_out`, so many people are
    kept out of training, and the model is evaluated on pairs of them.

    Raises RecipeError for a setting that a recipe cannot have.

    >>> run = fit(method="fedprox", parties=3, rounds=2, mu=0.1, out="runs/a")  # doctest: +SKIP
    """
    tree: dict[str, Any] = {"name": Path(out).name}
    if isinstance(method, type):
        method = method()
    if isinstance(method, str):
        tree["method"] = method
    else:
        tree |= Experiment(method=method).as_tree()
    if faces is not None:
        faces = faces if isinstance(faces, Faces) else load_faces(faces)
        given = {"faces": as_plain(faces.source), "size": faces.size, "grey": faces.grey}
        tree = loader.merged(tree, {"data": given})
    for name, value in settings.items():
        short = CHOICES[name] if name == "backbone" or (isinstance(value, str) and name in CHOICES) else name
        tree = _with(tree, full_key(short, tree), value)
    held_out = tree.get("data", {}).get("hold_out")
    if held_out and "pairs" not in tree.get("evaluation", {}):
        tree = loader.merged(tree, {"evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": None}}}})
    return FinishedRun(run_recipe(loader.parse(tree), out, callbacks))


def _with(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The recipe's tree with a setting, which may be an object or a mapping of keys below it."""
    if isinstance(value, CosineLoss):
        value = {"name": LOSS.name_of(value), **changed(value)}
    elif isinstance(value, nn.Module) or (key == "model.name" and callable(value)):
        key, value = "model.name", BACKBONES.name_of(value)
    else:
        value = as_plain(value)
    if isinstance(value, Mapping):
        nested: dict[str, Any] = dict(value)
        for part in reversed(key.split(".")):
            nested = {part: nested}
        return loader.merged(tree, nested)
    return loader.with_value(tree, key, value)
