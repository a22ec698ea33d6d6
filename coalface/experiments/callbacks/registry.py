"""The trackers that a recipe can name."""

from __future__ import annotations

from coalface.core.errors import RecipeError
from coalface.experiments.callbacks.mlflow import MLflow
from coalface.experiments.callbacks.tensorboard import TensorBoard
from coalface.experiments.callbacks.tracker import Tracker
from coalface.experiments.callbacks.wandb import WandB
from coalface.experiments.recipe.schema import Recipe

TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def trackers_of(recipe: Recipe) -> list[Tracker]:
    """The trackers that a recipe names. Raises RecipeError where the package of one is not installed."""
    try:
        return [TRACKERS[name]() for name in recipe.engine.trackers]
    except ImportError as error:
        raise RecipeError(f"{error}, or leave it out", where="engine.trackers") from None
