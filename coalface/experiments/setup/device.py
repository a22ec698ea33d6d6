"""The check of this machine for a recipe's device."""

from __future__ import annotations

import torch

from coalface.core.errors import RecipeError
from coalface.experiments.recipe.schema import Recipe


def check_device(recipe: Recipe) -> None:
    """Raise RecipeError where this machine has not got the recipe's device."""
    try:
        torch.zeros(1, device=recipe.engine.device)
    except (RuntimeError, AssertionError):
        gpus = [f"cuda:{place}" for place in range(torch.cuda.device_count())]
        raise RecipeError(
            f"{recipe.engine.device!r} is not available here; use {' or '.join(['cpu', *gpus])}", where="engine.device"
        ) from None
