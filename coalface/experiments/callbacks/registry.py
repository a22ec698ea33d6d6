"""The trackers that a recipe can name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalface.core import registry
from coalface.core.errors import RecipeError

if TYPE_CHECKING:
    from coalface.experiments.callbacks.tracker import Tracker
    from coalface.experiments.recipe.schema import Recipe

_HERE = "coalface.experiments.callbacks"
TRACKERS = {
    "tensorboard": f"{_HERE}.tensorboard:TensorBoard",
    "mlflow": f"{_HERE}.mlflow:MLflow",
    "wandb": f"{_HERE}.wandb:WandB",
}


def trackers_of(recipe: Recipe) -> list[Tracker]:
    """The trackers that a recipe names. Raises RecipeError where the package of one is not installed."""
    try:
        return [registry.load(TRACKERS[name])() for name in recipe.engine.trackers]
    except ImportError as error:
        raise RecipeError(f"{error}, or leave it out", where="engine.trackers") from None
