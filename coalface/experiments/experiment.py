"""An experiment made of objects, with the names and the nesting of a recipe."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from coalface.core.disk import write_text
from coalface.core.method import Method
from coalface.engine.faults import SimulatedFaults
from coalface.experiments import run as runner
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.callbacks.progress import with_progress
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.base import Section
from coalface.experiments.recipe.objects import changed
from coalface.experiments.recipe.scenarios import Data
from coalface.experiments.recipe.schema import BY_NAME, LOSS, OPTIMIZER, Recipe
from coalface.experiments.recipe.sections import AGGREGATOR, Engine, Evaluation, Model, Validator
from coalface.training.server_optimizers import ServerOptimizer


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment; its recipe is the experiment written down.

    A method has its own `rounds`, `local` and `loss`, which a recipe has at its top, where methods share them. What is
    None is as in a recipe that leaves it out. What is your own stands where the package's does: `data` takes a
    partition, and what `load_faces` gives as `faces`; `model` also a backbone, as an `nn.Module` or what makes one of
    (size, channels, embedding_size).

    Examples:
        >>> from coalface.methods import FedAvg
        >>> experiment = Experiment(method=FedAvg(rounds=3), seed=1)
        >>> experiment.recipe.rounds, experiment.recipe.method, experiment.recipe.seed
        (3, 'fedavg', 1)
    """

    method: Method
    name: str | None = None
    seed: int | None = None
    server_optimizer: ServerOptimizer | None = None
    data: Data | None = None
    model: Model | str | Callable[..., Any] | None = None
    evaluation: Evaluation | None = None
    validators: Mapping[str, Validator] = field(default_factory=dict)
    fold_split: Literal["first", "second"] | None = None
    engine: Engine | None = None
    faults: SimulatedFaults | None = None
    pretrain: Experiment | None = None
    """Makes the model that this one starts from. What it leaves out, it takes from this one: see `Recipe.pretrain`."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"method is {self.method!r}; give an object, such as coalface.FedAvg(rounds=3)")

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The checked recipe. Raises RecipeError for what cannot be run, or has no name in recipes."""
        return loader.parse(self.as_tree())

    def as_tree(self) -> dict[str, Any]:
        """The keys of the recipe as plain values; those that are left out are not among them."""
        method, loss = BY_NAME.name_of(self.method), getattr(self.method, "loss", None)
        settings = {key: setting for key, setting in changed(self.method).items() if key not in BY_NAME.shared}
        tree = {
            "name": self.name,
            "seed": self.seed,
            "method": method,
            "rounds": getattr(self.method, "rounds", None),
            "local": as_plain(getattr(self.method, "local", None)),
            "loss": {"name": LOSS.name_of(loss), **changed(loss)} if loss is not None else None,
            "server_optimizer": as_plain(self.server_optimizer),
            "methods": {method: settings} if settings else None,
            "data": as_plain(self.data),
            "model": as_plain(Model(name=self.model) if callable(self.model) else self.model),
        }
        tree |= {
            key: as_plain(getattr(self, key)) for key in ("evaluation", "validators", "fold_split", "engine", "faults")
        }
        tree["pretrain"] = self.pretrain.as_tree() if self.pretrain is not None else None
        given_keys = {key: value for key, value in tree.items() if value not in (None, {})}
        return dict(json.loads(json.dumps(given_keys)))  # tuples become lists

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe as a file, which `coalface run` carries out to the same bytes."""
        loader.parse(tree := self.as_tree())
        write_text(Path(path), yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))

    def run(self, out: str | os.PathLike[str], callbacks: Callback | Sequence[Callback] = ()) -> Path:
        """Run it into a new folder, which is returned. Raises RecipeError.

        Its progress is shown beside the `callbacks`, unless there is a `Progress` among them.
        """
        with with_progress(callbacks) as observers:
            return runner.run(self.recipe, Path(out), observers)


def as_plain(value: Any) -> Any:
    """What was given of a section, and what tells its class: `scenario` or `kind`."""
    if isinstance(value, Section):
        told_by = {"scenario", "kind"} | value.model_fields_set
        return {name: as_plain(getattr(value, name)) for name in type(value).model_fields if name in told_by}
    for named in (AGGREGATOR, OPTIMIZER):
        if isinstance(value, named.cls):
            return {"name": named.name_of(value), **changed(value)}
    if is_dataclass(value):
        return changed(value)
    return {key: as_plain(below) for key, below in value.items()} if isinstance(value, Mapping) else value
