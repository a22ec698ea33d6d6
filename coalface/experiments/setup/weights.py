"""Weights of a file matched to a backbone by its name, and which backbone they are of where they do not fit."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any, NamedTuple

from coalface.core.errors import DataError
from coalface.core.method import Tensors
from coalface.models import BACKBONES, sketch
from coalface.models.pretrained.weights import Weights, fit_weights

SIDES = (32, 48, 64, 80, 96, 112, 128, 160, 224)
"""Of images, which are tried where weights do not fit at the side that is named."""


class Keys(NamedTuple):
    """How the user says what a network of weights is."""

    backbone: str
    size: str
    colour: tuple[str, str]
    """What sets grey, and RGB."""

    def __str__(self) -> str:
        return f"{self.backbone}, {self.size} and {self.colour[0].partition('=')[0]}"


OF_MODEL = Keys(
    "model.name", "data.size", ("data.grey=true (in Python, grey=True)", "data.grey=false (in Python, grey=False)")
)


def fit_backbone(weights: Weights, name: str, keys: Keys = OF_MODEL, **options: Any) -> tuple[Tensors, tuple[str, ...]]:
    """What `fit_weights` gives for the backbone of this name; `options` are those of `sketch`, which `keys` set.

    Raises DataError, which names the backbones that the weights do fit, and the colour or the size at which they fit.
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
                f"{' and '.join(fitting)}: {backbone}set {keys.colour[0 if grey else 1]}"
            )
            raise DataError(text, where=weights.path) from error
        for side, channels in itertools.product(SIDES, (1, 3)):
            if _fits(weights, name, options | {"size": side, "channels": channels}):
                text = f"it fits {name} on {'grey' if channels == 1 else 'RGB'} images of {side}×{side}"
                settings = [f"{keys.size}={side}", keys.colour[channels // 2]][: 1 + (channels != options["channels"])]
                raise DataError(f"{text}: set {' and '.join(settings)}", where=weights.path) from error
        raise DataError(f"{error.text}. Check {keys}", where=weights.path) from None


def _fits(weights: Weights, name: str, options: dict[str, Any]) -> bool:
    with suppress(ValueError):
        fit_weights(weights, sketch(name, **options))
        return True
    return False
