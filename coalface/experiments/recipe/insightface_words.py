"""insightface's configuration words, understood at the top of recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coalface.core.errors import RecipeError

WORDS = {
    "margin_list": "loss",
    "embedding_size": "model.embedding_size",
    "sample_rate": "local.sample_rate",
    "val_targets": "evaluation.pairs",
}
"""What a recipe may say at its top in insightface's words -> the key that it stands for."""
SCALE = 64.0
"""insightface's factor on the cosines, which its configurations do not name."""


def loss_of(margins: Any) -> dict[str, Any]:
    """The loss of a `margin_list` (m₁, m₂, m₃), which stands for cos(m₁ θ + m₂) − m₃ at scale 64.

    Raises RecipeError where more than one of the three margins is in use: that combination is no loss here.
    """
    try:
        first, second, third = (float(value) for value in margins)
    except (TypeError, ValueError):
        raise RecipeError(
            f"give three numbers, (m1, m2, m3) of cos(m1·θ + m2) − m3, as (1.0, 0.5, 0.0) for ArcFace; got {margins!r}",
            where="margin_list",
        ) from None
    if (first != 1) + (second != 0) + (third != 0) > 1 or first < 1 or first != int(first):
        raise RecipeError(
            f"no loss has the margins {margins!r}; give (m, 0, 0) for SphereFace with a whole number m, (1, m, 0) "
            "for ArcFace or (1, 0, m) for CosFace",
            where="margin_list",
        )
    if first != 1:
        return {"name": "sphereface", "scale": SCALE, "margin_factor": int(first)}
    if second or third:
        return {"name": "arcface" if second else "cosface", "scale": SCALE, "margin": second or third}
    return {"name": "softmax", "scale": SCALE}


def translate_words(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's tree with insightface's words at its top (`WORDS`) put where this project keeps them.

    Raises RecipeError where a word and the key that it stands for are both given, or a value has no counterpart.
    """
    recipe: dict[str, Any] = {key: value for key, value in tree.items() if key not in WORDS}
    for word, key in WORDS.items():
        if word not in tree:
            continue
        value = tree[word]
        if word == "margin_list":
            value = loss_of(value)
        elif word == "val_targets":
            value = _targets(value, tree)
        section, _, last = key.partition(".")
        below = recipe.get(section) or {}
        if section in recipe if not last else last in below:
            raise RecipeError(f"it means {key}, which the recipe also sets; keep one of the two", where=word)
        recipe[section] = {**below, last: value} if last else value
    return recipe


def _targets(names: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of pairs beside the training images."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f"give a list of names, as [lfw, cfp_fp, agedb_30]; got {names!r}", where="val_targets")
    folder = ((tree.get("data") or {}).get("faces") or {}).get("path")
    if names and folder is None:
        raise RecipeError(
            "the packs NAME.bin are searched beside the training images, but data.faces.path names no folder. Give "
            "data.faces: {kind: rec, path: FOLDER}, or evaluation.pairs instead of val_targets",
            where="val_targets",
        )
    return {name: {"kind": "bin", "path": f"{folder}/{name}.bin"} for name in names}
