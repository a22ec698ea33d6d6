"""What a recipe can say whose parties bring images of their own, which it does not name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coalface.core.checks import RecipeError, nearest
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import OWN, Partition, Validator
from coalface.methods import METHODS

PUBLIC = "public"
"""What `data.exclude` calls the people of `data.public`."""
KINDS = ("folder", "rec", "pack", "synthetic")
"""What a party's own images can be."""
SHARED = ("root", "size", "grey", "min_images", "augment")
"""Keys of `data` that hold for a pre-training as well, which trains on people of its own."""

_ACROSS = {
    "hold_out": "nobody can set people of all parties aside: judge on lists with images of their own, and keep images "
    "of the parties' own people out of training by data.test",
    "private": "nobody can draw among the people of all parties: each party trains on its own",
    "side": "the people of the parties are all theirs",
    "domains": "whose identities are known is not known here; take a joined source",
    "max_identities": "nobody can draw among the people of all parties: let each party bring fewer",
}
"""Keys of `data` that hold for the people of all parties together, and why they cannot be."""


def check(recipe: Recipe) -> None:
    """Raise RecipeError unless a recipe of this kind says what is needed, and nothing that cannot be."""
    source = recipe.data.faces
    if source.kind != OWN:
        if recipe.data.public is not None and (recipe.data.side != "public" or recipe.data.public != source):
            raise RecipeError(
                "data.public: it is for parties that bring images of their own (data.faces.kind: own); else public "
                "people are those of data.faces whom data.private leaves. Leave it out"
            )
        if source.parties:
            raise RecipeError(
                f"data.faces.parties: a source of kind {source.kind!r} is dealt by data.partition; leave them out, or "
                "take kind own, where each party brings its images"
            )
        return
    if not source.parties:
        raise RecipeError(
            "data.faces.parties: each party brings images of its own, so say who they are, as "
            "`faces: {kind: own, parties: [silo-00, silo-01]}`"
        )
    if len({name.lower() for name in source.parties}) < len(source.parties):
        raise RecipeError("data.faces.parties: two of them have one name, or differ by capitals only; rename one")
    if both := sorted(set(source.parties) & recipe.validators.keys()):
        raise RecipeError(f"validators.{both[0]}: a trainer already has this name; rename the validator")
    for name, part in source.parts.items():
        nearest(name, dict.fromkeys(source.parties), "data.faces.parts: the party")
        if part.kind not in KINDS:
            raise RecipeError(f"data.faces.parts.{name}.kind: a party's images are {', '.join(KINDS)}")
    _check_method(recipe)
    _check_public(recipe)
    for key, why in _ACROSS.items():
        if getattr(recipe.data, key):
            raise RecipeError(f"data.{key}: with images of the parties' own (data.faces.kind: own) {why}")
    if recipe.data.partition != Partition():
        raise RecipeError("data.partition: parties that bring their own images are dealt none; leave it out")
    _check_lists(recipe)
    nobody = (None, OWN) if recipe.data.public is None else (OWN,)
    if recipe.pretrain is not None and _kind(recipe.pretrain) in nobody:
        raise RecipeError(
            "pretrain.data.faces: the server has none of the parties' images, so say on which others it pre-trains, "
            "as `data: {public: {kind: rec, path: ms1m}}`"
        )


def _check_method(recipe: Recipe) -> None:
    method = METHODS[recipe.method]
    why = ""
    if method.pooled:
        why = "one party would hold everybody's images. It is a bound for images that lie in one place; take solo"
    elif method.domains:
        why = "it needs a source and targets by data.domains, of a joined source"
    if why:
        raise RecipeError(f"method: {recipe.method} cannot be over parties with images of their own: {why}")
    if method.shares_public and recipe.data.public is None:
        raise RecipeError(
            f"data.public: in {recipe.method} the server and all parties hold images of public people as well, so say "
            "where they lie, as `public: {kind: rec, path: ms1m}`: below the data root of each"
        )


def _check_public(recipe: Recipe) -> None:
    public = recipe.data.public
    if public is None:
        return
    if public.kind == "synthetic" and public.path is not None:
        raise RecipeError("data.public.kind: say what lies at its path, one of folder, rec and pack")
    if public.kind not in KINDS:
        raise RecipeError(f"data.public.kind: images of public people are {', '.join(KINDS)}")
    if PUBLIC in recipe.data.faces.parties:
        raise RecipeError(f"data.faces.parties: {PUBLIC} is what data.exclude calls the people of data.public; rename")


def _check_lists(recipe: Recipe) -> None:
    """Every list and validator must say where its images are, as there is no training source to take them from."""
    for name, wanted in recipe.evaluation.pairs.items():
        if wanted.part is not None or (wanted.source is None and wanted.kind not in ("bin", "layout")):
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


def before(data: Mapping[str, Any], pretrain: Mapping[str, Any]) -> dict[str, Any]:
    """`data` of a pre-training, from that of a recipe of this kind as plain values: nothing of the parties' is in it.

    It is on `public`, unless the pre-training names a source of its own.
    """
    tree, public, exclude = {key: data[key] for key in SHARED}, data["public"], data["exclude"]
    if public is None or _kind(pretrain) is not None:
        return tree
    named = exclude.get(PUBLIC, ()) if isinstance(exclude, Mapping) else exclude
    return tree | {"faces": public, "public": public, "side": "public", "exclude": named}


def placed(one: Validator) -> bool:
    """Whether it is known here where the images of a validator lie, which may be its own."""
    return not one.own or one.source is not None or one.path is not None


def named(recipe: Recipe) -> list[str]:
    """The parties with images of their own of which the recipe says where they lie."""
    source = recipe.data.faces
    trainers = list(source.parts) if source.kind == OWN else []
    return trainers + [name for name, one in recipe.validators.items() if one.own and placed(one)]


def _kind(pretrain: Mapping[str, Any]) -> Any:
    """The kind of source that a pre-training names; None where it names none."""
    data = pretrain.get("data")
    source = data.get("faces") if isinstance(data, dict) else None
    return source.get("kind") if isinstance(source, dict) else None
