"""One call from faces to a trained model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from coalface.core.errors import RecipeError
from coalface.core.method import Method
from coalface.experiments import run as runner
from coalface.experiments.api.faces import Faces, load_faces
from coalface.experiments.api.finished_run import FinishedRun
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.callbacks.progress import with_progress
from coalface.experiments.experiment import Experiment, as_plain
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.base import Section
from coalface.experiments.recipe.objects import changed
from coalface.experiments.recipe.schema import LOSS
from coalface.experiments.recipe.short_keys import CHOICES, full_key
from coalface.models import BACKBONES
from coalface.training.losses.base import CosineLoss


def fit(
    faces: Any = None,
    method: str | Method | type[Method] = "fedavg",
    *,
    out: str | os.PathLike[str],
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
    **settings: Any,
) -> FinishedRun:
    """Train a face recognition model over parties, into the new folder `out`.

    `faces` are what `load_faces` gives, or takes; without them they are synthetic. Settings are keys of a recipe by
    their last name, such as `lr=0.02` for `local.lr`, or whole sections: `partition=coalface.Dirichlet(parties=8)`,
    `engine={"workers": 2}`. A method, loss, partition or backbone is a name, a class or an object; a backbone is an
    `nn.Module`, or what makes one of (size, channels, embedding_size). With `hold_out`, so many people are kept out of
    training, and the model is evaluated on pairs of them. `callbacks` hear how the run goes, beside the `progress`
    that is shown, such as `coalface.MLflow()`.

    Raises RecipeError for a setting that a recipe cannot have, and RunFailed, from its cause, where a party fails.

    Examples:
        >>> run = fit(method="fedprox", parties=3, rounds=2, mu=0.1, out="runs/a")  # doctest: +SKIP
    """
    out = Path(out)
    if (out / "config.yaml").exists():
        raise RecipeError(
            f"{out} has a run already; continue it by coalface.resume({str(out)!r}), or give another folder",
            where="out",
        )
    tree: dict[str, Any] = {"name": out.absolute().name}
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    if isinstance(method, Method):
        tree |= Experiment(method=method).as_tree()
    elif isinstance(method, str):
        tree["method"] = method
    else:
        raise TypeError(f"method is {method!r}; give a name, a coalface.Method, or a class of one")
    if faces is not None:
        if not isinstance(faces, Faces):
            faces = load_faces(faces, **{key: settings.pop(key) for key in ("size", "grey") if key in settings})
        given = {"faces": as_plain(faces.source), "size": faces.size, "grey": faces.grey}
        tree = loader.merged(tree, {"data": given})
    sections = {**CHOICES, "data": "", "scenario": ""}  # first, as the other keys depend on what they choose
    for name, value in sorted(settings.items(), key=lambda setting: setting[0] not in sections):
        short = CHOICES[name] if name == "backbone" or (isinstance(value, str) and name in CHOICES) else name
        tree = _with(tree, full_key(short, tree), value)
    if tree.get("data", {}).get("hold_out") and "pairs" not in tree.get("evaluation", {}):
        tree = loader.merged(tree, {"evaluation": {"pairs": {"unseen": {"kind": "balanced", "pairs": None}}}})
    recipe = loader.parse(tree)
    with with_progress(callbacks, progress) as observers:
        return FinishedRun(runner.run(recipe, out, observers))


def resume(
    out: str | os.PathLike[str], *, callbacks: Callback | Sequence[Callback] = (), progress: bool = True
) -> FinishedRun:
    """Go on with a run from its last checkpoint; a finished one is evaluated and reported again.

    Objects that the run was given, and that no module has, must have been made in this program again.

    Raises RecipeError.
    """
    with with_progress(callbacks, progress) as observers:
        return FinishedRun(runner.resume(Path(out), observers))


def _with(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The recipe's tree with a setting, which may be an object, its class, or a mapping of keys below it."""
    if isinstance(value, type) and issubclass(value, CosineLoss | Section):
        value = value()
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
