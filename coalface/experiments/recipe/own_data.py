"""What a recipe can say whose parties bring images of their own, which it does not name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.experiments.recipe.scenarios import Own
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Validator
from coalface.methods import METHODS

PUBLIC = "public"
"""What `data.exclude` calls the people of `data.public`."""
KINDS = ("folder", "rec", "pack", "synthetic")
"""What a party's own images can be."""
SHARED = ("root", "size", "grey", "min_images", "augment")
"""Keys of `data` that hold for a pre-training as well, which trains on people of its own."""


def check(recipe: Recipe, data: Own) -> None:
    """Raise RecipeError unless a recipe whose parties bring their own images says what is needed."""
    if not data.parties:
        raise RecipeError(
            "data.parties: each party brings images of its own, so say who they are, as `parties: [silo-00, silo-01]`"
        )
    if len({name.lower() for name in data.parties}) < len(data.parties):
        raise RecipeError("data.parties: two of them have one name, or differ by capitals only; rename one")
    if PUBLIC in data.parties:
        raise RecipeError(f"data.parties: {PUBLIC} is what data.exclude calls the people of data.public; rename")
    if both := sorted(set(data.parties) & recipe.validators.keys()):
        raise RecipeError(f"validators.{both[0]}: a trainer already has this name; rename the validator")
    for name, part in data.party_data.items():
        nearest(name, dict.fromkeys(data.parties), "data.party_data: the party")
        if part.kind not in KINDS:
            raise RecipeError(f"data.party_data.{name}.kind: a party's images are {', '.join(KINDS)}")
    _check_method(recipe, data)
    if (public := data.public) is not None:
        if public.kind == "synthetic" and public.path is not None:
            raise RecipeError("data.public.kind: say what lies at its path, one of folder, rec and pack")
        if public.kind not in KINDS:
            raise RecipeError(f"data.public.kind: images of public people are {', '.join(KINDS)}")
    _check_lists(recipe)
    if recipe.pretrain is not None and data.public is None and not _has_faces(recipe.pretrain):
        raise RecipeError(
            "pretrain.data.faces: the server has none of the parties' images, so say on which others it pre-trains, "
            "as `data: {public: {kind: rec, path: ms1m}}`"
        )


def _check_method(recipe: Recipe, data: Own) -> None:
    method = METHODS[recipe.method]
    why = ""
    if method.pools:
        why = "one party would hold everybody's images. It is a bound for images that lie in one place; take solo"
    elif method.scenario == "domains":
        why = "it needs a source and targets, which the scenario domains has"
    if why:
        raise RecipeError(f"method: {recipe.method} cannot be over parties with images of their own: {why}")
    if method.scenario == "private-public" and data.public is None:
        raise RecipeError(
            f"data.public: in {recipe.method} the server and all parties hold images of public people as well, so say "
            "where they lie, as `public: {kind: rec, path: ms1m}`: below the data root of each"
        )


def _check_lists(recipe: Recipe) -> None:
    """Every list and validator must say where its images are, as there are no faces to take them from."""
    for name, pairs in recipe.evaluation.pairs.items():
        if pairs.part is not None or (pairs.source is None and pairs.kind not in ("bin", "layout")):
            raise RecipeError(
                f"evaluation.pairs.{name}.source: the server has none of the parties' images, so say where those of "
                "the list are, or take a list of kind bin or layout"
            )
    for name, one in recipe.validators.items():
        nowhere = one.source is None and one.kind not in ("bin", "layout") and one.validates is None
        if one.part is not None or one.identities is not None or (nowhere and not one.own):
            raise RecipeError(
                f"validators.{name}: nobody can set people of the parties aside for it: write `own: true`, and it "
                "brings its images and pairs, or name their source"
            )


def check_validator(name: str, one: Validator) -> None:
    """Raise RecipeError where a validator that brings its own pairs is told others."""
    said = {"validates": one.validates, "identities": one.identities, "part": one.part, "rank1": one.rank1}
    if told := [key for key, value in said.items() if value is not None]:
        raise RecipeError(f"validators.{name}.{told[0]}: it brings images and pairs of its own; leave it out")
    if one.source is not None and one.source.kind not in KINDS:
        raise RecipeError(f"validators.{name}.source.kind: a party's images are {', '.join(KINDS)}")


def before(data: Own, tree: Mapping[str, Any], pretrain: Mapping[str, Any]) -> dict[str, Any]:
    """`data` of a pre-training, from this one and its plain values: nothing of the parties' is in it.

    It is on the public people, unless the pre-training names faces of its own.
    """
    shared = {key: tree[key] for key in SHARED} | {
        "scenario": "silos" if data.public is None or _has_faces(pretrain) else "public"
    }
    if data.public is None or _has_faces(pretrain):
        return shared
    exclude = data.exclude.get(PUBLIC, ()) if isinstance(data.exclude, Mapping) else data.exclude
    return shared | {"faces": tree["public"], "exclude": exclude}


def placed(one: Validator) -> bool:
    """Whether it is known here where the images of a validator lie, which may be its own."""
    return not one.own or one.source is not None or one.path is not None


def named(recipe: Recipe) -> list[str]:
    """The parties with images of their own of which the recipe says where they lie."""
    trainers = list(recipe.own.party_data) if recipe.own is not None else []
    return trainers + [name for name, one in recipe.validators.items() if one.own and placed(one)]


def _has_faces(pretrain: Mapping[str, Any]) -> bool:
    """Whether a pre-training names faces of its own."""
    data = pretrain.get("data")
    return isinstance(data, Mapping) and isinstance(data.get("faces"), Mapping) and "kind" in data["faces"]
