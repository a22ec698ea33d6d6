"""A recipe's settings for parties that bring their own images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coalface.core.errors import RecipeError
from coalface.experiments.recipe.scenarios import Own
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Validator

PUBLIC = "public"
"""What `data.exclude` calls the people of `data.public`."""
SHARED = ("root", "size", "grey", "min_images", "augment")
"""Keys of `data` that hold for a pre-training as well, which trains on people of its own."""


def pretraining_data(data: Own, tree: Mapping[str, Any], pretrain: Mapping[str, Any]) -> dict[str, Any]:
    """`data` of a pre-training, from this one and its plain values: nothing of the parties' is in it.

    It is on the public people, unless the pre-training names faces of its own. Raises RecipeError where there are
    neither.
    """
    shared = {key: tree[key] for key in SHARED}
    if data.public is None and not _has_faces(pretrain):
        raise RecipeError(
            "the server has none of the parties' images; give it others to pre-train on, as `data: {public: "
            "{kind: rec, path: ms1m}}`",
            where="pretrain.data.faces",
        )
    if data.public is None or _has_faces(pretrain):
        return shared | {"scenario": "silos"}
    exclude = data.exclude.get(PUBLIC, ()) if isinstance(data.exclude, Mapping) else data.exclude
    return shared | {"scenario": "public", "faces": tree["public"], "exclude": exclude}


def _has_faces(pretrain: Mapping[str, Any]) -> bool:
    """Whether a pre-training names faces of its own."""
    data = pretrain.get("data")
    return isinstance(data, Mapping) and isinstance(data.get("faces"), Mapping) and "kind" in data["faces"]


def is_located(validator: Validator) -> bool:
    """Whether it is known here where the images of a validator lie, which may be its own."""
    return not validator.own or validator.source is not None or validator.path is not None


def located_parties(recipe: Recipe) -> list[str]:
    """The parties with images of their own of which the recipe says where they lie."""
    trainers = list(recipe.own.party_data) if recipe.own is not None else []
    return trainers + [name for name, validator in recipe.validators.items() if validator.own and is_located(validator)]
