"""Whether the parts of a recipe agree with each other: its data, method, lists and validators."""

from __future__ import annotations

from collections.abc import Mapping

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.experiments.recipe import own_data
from coalface.experiments.recipe.scenarios import OfFaces
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Source, Validator
from coalface.methods import METHODS
from coalface.models import BACKBONES

_DEFAULTS = dict(Validator())


def check(recipe: Recipe) -> None:
    """Raise RecipeError where two parts of a recipe do not agree, with what to change."""
    nearest(recipe.model.name, BACKBONES, "model.name")
    _check_parts(recipe)
    _check_domains(recipe)
    _check_validators(recipe)


def _check_parts(recipe: Recipe) -> None:
    """Raise RecipeError unless parts, and what names parts, belong together."""
    data = recipe.data
    if recipe.own is not None:
        own_data.check(recipe, recipe.own)
    if recipe.evaluation.personalised is not None and recipe.test is None:
        raise RecipeError(
            "evaluation.personalised: clients are evaluated by images of their own people that nobody trained on: say "
            "how many of each identity's, as data.test={images: 4}"
        )
    _check_sides(recipe)
    if (partition := recipe.partition) is not None and (partition.kind == "shares") != bool(partition.shares):
        raise RecipeError("data.partition.shares: the kind 'shares' names each party with its share, and no other does")
    if isinstance(data, OfFaces) and (data.faces.kind == "joined") != bool(data.parts):
        raise RecipeError("data.faces.parts: faces of kind 'joined' have parts, and no others do")
    joined = {} if recipe.own is not None else data.parts
    for name, part in joined.items():
        if part.kind not in ("folder", "rec", "synthetic"):
            raise RecipeError(f"data.faces.parts.{name}.kind: a part is folder, rec or synthetic; got {part.kind!r}")
    _check_excluded(recipe, joined)
    for name, pairs in recipe.evaluation.pairs.items():
        where = f"evaluation.pairs.{name}"
        if pairs.kind == "bin" and pairs.rank1 is not None:
            raise RecipeError(f"{where}.rank1: a .bin does not say who is in its images; leave it out")
        if pairs.source is not None and pairs.source.kind == "joined":
            raise RecipeError(f"{where}.source: a list is evaluated on images of one source, not on joined ones")
        if pairs.part is not None:
            nearest(pairs.part, joined, f"{where}.part")
            if pairs.source is not None:
                raise RecipeError(f"{where}: give either a part of data.faces or a source, not both")
        elif joined and pairs.source is None and pairs.kind not in ("balanced", "bin", "layout"):
            raise RecipeError(f"{where}.part: say which part the pairs are of: {', '.join(joined)}")


def _check_sides(recipe: Recipe) -> None:
    """Raise RecipeError where a method cannot train on a side of the data."""
    if recipe.side == "both" and not METHODS[recipe.method].pools:
        raise RecipeError(
            "data.side: with `both` public people would be assigned to parties as well, and "
            f"{recipe.method} has parties: it is for a pooled method, as the upper bound"
        )
    if recipe.side == "public" and METHODS[recipe.method].scenario == "private-public":
        raise RecipeError(
            f"data.side: in {recipe.method} all parties hold the public images, so its clients are the private people: "
            "leave it out; a pre-training on the public ones is by a method such as centralized"
        )


def _check_excluded(recipe: Recipe, joined: Mapping[str, Source]) -> None:
    """Raise RecipeError unless it is clear whom each excluded list is of."""
    exclude, own = recipe.data.exclude, recipe.own
    if joined and exclude and not isinstance(exclude, dict):
        first = next(iter(joined))
        raise RecipeError(f"data.exclude: say which part each list is for, as `exclude: {{{first}: [{exclude[0]}]}}`")
    if isinstance(exclude, dict):
        known = list(joined)
        if own is not None:
            known = [*own.parties, *([own_data.PUBLIC] if own.public is not None else [])]
        for name in exclude:
            nearest(name, dict.fromkeys(known), "data.exclude")


def _check_domains(recipe: Recipe) -> None:
    """Raise RecipeError unless the method and the data agree on whether there are two domains, and which."""
    data, adapts = recipe.domains, METHODS[recipe.method].scenario == "domains"
    if data is None:
        if adapts:
            raise RecipeError(
                f"data.scenario: {recipe.method} adapts a model of one domain to another: write `scenario: domains`, "
                "and which part of joined faces is which, as `source_domain: PART, target_domain: PART`"
            )
        return
    nearest(data.source_domain, data.parts, "data.source_domain")
    nearest(data.target_domain, data.parts, "data.target_domain")
    if data.source_domain == data.target_domain:
        raise RecipeError(f"data.target_domain: source and target are both {data.source_domain}; name two parts")
    if not adapts and data.side != "source":
        fitting = ", ".join(name for name, method in METHODS.items() if method.scenario == "domains")
        raise RecipeError(
            f"method: with data.scenario=domains {recipe.method} would need the identities of the target, which nobody "
            f"knows; take one of {fitting}, or another scenario"
        )
    if adapts and data.side is not None:
        raise RecipeError(
            f"data.side: {data.side!r} is for a pre-training, by a method that knows no domains such as "
            f"centralized, and not by {recipe.method}"
        )
    for name, pairs in recipe.evaluation.pairs.items():
        if pairs.domain is None or pairs.source is not None or pairs.kind in ("bin", "layout"):
            continue
        shown = data.target_domain if pairs.part is None else pairs.part  # the target's are held out, and nobody else's
        named = data.source_domain if pairs.domain == "source" else data.target_domain
        if shown != named:
            raise RecipeError(
                f"evaluation.pairs.{name}.domain: it says {pairs.domain}, which is {named}, and the "
                f"list shows people of {shown}: the gap between the domains would be told wrongly. Name the part, "
                "or give the list a source of its own"
            )
    if recipe.validators:
        raise RecipeError("validators: no method for two domains asks validators; leave them out")


def _check_validators(recipe: Recipe) -> None:
    """Raise RecipeError unless it is clear which pairs each validator holds."""
    halves: dict[str, str] = {}
    parts = {} if recipe.own is not None else recipe.data.parts
    for name, validator in recipe.validators.items():
        where = f"validators.{name}"
        if validator.own:
            own_data.check_validator(name, validator)
            continue
        if validator.validates is not None:
            nearest(validator.validates, recipe.evaluation.pairs, f"{where}.validates")
            if other := sorted(key for key, value in validator if key != "validates" and value != _DEFAULTS[key]):
                raise RecipeError(f"{where}: it holds half of {validator.validates}, so {other[0]} means nothing here")
            if (first := halves.setdefault(validator.validates, name)) != name:
                raise RecipeError(f"{where}.validates: {first} already holds that half of {validator.validates}")
            if recipe.fold_split is None:
                raise RecipeError(f"{where}.validates: say which half with fold_split=first or fold_split=second")
            if recipe.evaluation.pairs[validator.validates].rank1 is not None:
                raise RecipeError(
                    f"evaluation.pairs.{validator.validates}.rank1: {name} holds half of its folds, and who is looked "
                    "up has no fold; leave it out, or give another list"
                )
            continue
        if validator.rank1 is not None:
            raise RecipeError(f"{where}.rank1: a validator scores pairs and looks nobody up; leave it out")
        if validator.kind != "balanced" and validator.identities is not None:
            raise RecipeError(f"{where}.identities: pairs of kind {validator.kind!r} name their own; leave it out")
        if validator.kind == "balanced" and (validator.source is None) != (validator.identities is not None):
            raise RecipeError(
                f"{where}: give either `identities`, how many of the trainable ones are set aside for it, or `source`"
            )
        if validator.source is not None and validator.source.kind == "joined":
            raise RecipeError(f"{where}.source: pairs are of images of one source; for its own, {where}.own: true")
        if validator.part is not None and (validator.kind == "balanced" or validator.source is not None):
            raise RecipeError(f"{where}.part: identities are set aside from every part alike; leave it out")
        if validator.part is not None:
            nearest(validator.part, parts, f"{where}.part")
        elif parts and validator.source is None and validator.kind not in ("balanced", "bin", "layout"):
            raise RecipeError(f"{where}.part: say which part the pairs are of: {', '.join(parts)}")
    if recipe.fold_split is not None and not halves:
        raise RecipeError("fold_split: no validator has `validates`, so there is nothing to split")
