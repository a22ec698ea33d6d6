"""Weights of a file matched to a backbone by its name, and which backbone they are of where they do not fit."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from coalface.core.errors import DataError
from coalface.core.method import Tensors
from coalface.models import BACKBONES, sketch
from coalface.models.pretrained.weights import Weights, fit_weights


def fit_backbone(weights: Weights, name: str, **options: Any) -> tuple[Tensors, tuple[str, ...]]:
    """What `fit_weights` gives for the backbone of this name; `options` are those of `sketch`.

    Raises DataError, which names the backbones that the weights do fit, and the other colour where they fit by it.
    """
    network = sketch(name, **options)
    try:
        return fit_weights(weights, network)
    except DataError as error:
        if fitting := [other for other in BACKBONES if other != name and _fits(weights, other, options)]:
            text = f"it does not fit {name}; it fits {' and '.join(fitting)}: name that backbone"
            raise DataError(text, where=weights.path) from error
        grey = options["channels"] == 3  # what the images are not
        if fitting := [other for other in BACKBONES if _fits(weights, other, options | {"channels": 1 if grey else 3})]:
            colours = ("RGB", "grey") if grey else ("grey", "RGB")
            backbone = "" if name in fitting else "name that backbone, and "
            text = (
                f"it does not fit {name} with {colours[0]} images; with {colours[1]} ones it fits "
                f"{' and '.join(fitting)}: {backbone}set data.grey={str(grey).lower()} (in Python, grey={grey})"
            )
            raise DataError(text, where=weights.path) from error
        raise


def _fits(weights: Weights, name: str, options: dict[str, Any]) -> bool:
    with suppress(ValueError):
        fit_weights(weights, sketch(name, **options))
        return True
    return False
