"""Whether the parts of a recipe agree with each other: its data, method, lists and validators."""

from __future__ import annotations

from typing import Any

from coalface.core.checks import RecipeError, nearest
from coalface.experiments.recipe import own_data
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import OWN, Validator
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
    own_data.check(recipe)
    source, exclude = recipe.data.faces, recipe.data.exclude
    mine = {} if source.kind == OWN else source.parts
    if (
        recipe.data.side is not None
        and (recipe.data.domains if recipe.data.side == "source" else recipe.data.private or recipe.data.public) is None
    ):
        other = "domains" if recipe.data.side == "source" else "private"
        raise RecipeError(f"data.side: without data.{other} there is one side only; leave it out")
    if recipe.evaluation.personalised is not None and recipe.data.test is None:
        raise RecipeError(
            "evaluation.personalised: clients are judged by images of their own people that nobody trained on: say "
            "how many of each identity's, as data.test={images: 4}"
        )
    if recipe.data.side == "both" and not METHODS[recipe.method].pooled:
        raise RecipeError(
            "data.side: with `both` public people would be dealt to parties as well, and "
            f"{recipe.method} has parties: it is for a pooled method, as the upper bound"
        )
    if recipe.data.side == "public" and METHODS[recipe.method].shares_public:
        raise RecipeError(
            f"data.side: in {recipe.method} all parties hold the public images, so its clients are the private people: "
            "leave it out; a pre-training on the public ones is by a method such as centralized"
        )
    if (recipe.data.partition.kind == "shares") != bool(recipe.data.partition.shares):
        raise RecipeError("data.partition.shares: the kind 'shares' names each party with its share, and no other does")
    if (source.kind == "joined") != bool(mine):
        raise RecipeError("data.faces.parts: a source of kind 'joined' has parts, and no other kind does")
    for name, part in mine.items():
        if part.kind not in ("folder", "rec", "synthetic"):
            raise RecipeError(f"data.faces.parts.{name}.kind: a part is folder, rec or synthetic; got {part.kind!r}")
    if mine and exclude and not isinstance(exclude, dict):
        first = next(iter(mine))
        raise RecipeError(f"data.exclude: say which part each list is for, as `exclude: {{{first}: [{exclude[0]}]}}`")
    if isinstance(exclude, dict):
        for name in exclude:
            public = (own_data.PUBLIC,) if recipe.data.public is not None else ()
            nearest(name, mine or dict.fromkeys((*source.parties, *public)), "data.exclude")
    for name, wanted in recipe.evaluation.pairs.items():
        if wanted.kind == "bin" and wanted.rank1 is not None:
            raise RecipeError(f"evaluation.pairs.{name}.rank1: a .bin does not say who is in its images; leave it out")
        if wanted.source is not None and wanted.source.kind in ("joined", OWN):
            raise RecipeError(
                f"evaluation.pairs.{name}.source: a list is judged on images of one source, not on a joined one or a "
                "party's"
            )
        if wanted.part is not None:
            nearest(wanted.part, mine, f"evaluation.pairs.{name}.part")
            if wanted.source is not None:
                raise RecipeError(f"evaluation.pairs.{name}: give either a part of data.faces or a source, not both")
        elif mine and wanted.source is None and wanted.kind not in ("balanced", "bin", "layout"):
            raise RecipeError(
                f"evaluation.pairs.{name}.part: say which part the pairs are of: {', '.join(source.parts)}"
            )


def _check_domains(recipe: Recipe) -> None:
    """Raise RecipeError unless the method and the data agree on whether there are two domains, and which."""
    wanted, adapts = recipe.data.domains, bool(METHODS[recipe.method].domains)
    fitting = ", ".join(name for name, method in METHODS.items() if method.domains)
    if wanted is None:
        if adapts:
            raise RecipeError(
                f"data.domains: {recipe.method} adapts a model of one domain to another, so say which part of a joined "
                "source is which, as `domains: {source: PART, target: PART}`"
            )
        return
    nearest(wanted.source, recipe.data.faces.parts, "data.domains.source")
    nearest(wanted.target, recipe.data.faces.parts, "data.domains.target")
    if wanted.source == wanted.target:
        raise RecipeError(f"data.domains: source and target are both {wanted.source}; name two parts")
    if not adapts and recipe.data.side != "source":
        raise RecipeError(
            f"data.domains: {recipe.method} would need the identities of the target, which nobody knows; take one of "
            f"{fitting}, or leave data.domains out"
        )
    if adapts and recipe.data.side is not None:
        raise RecipeError(
            f"data.side: {recipe.data.side!r} is for a pre-training, by a method that knows no domains such as "
            f"centralized, and not by {recipe.method}"
        )
    beside: dict[str, Any] = {
        "hold_out": recipe.data.hold_out,
        "private": recipe.data.private,
        "test": recipe.data.test,
    }
    beside |= {"max_identities": recipe.data.max_identities, "party_augment": recipe.data.party_augment}
    if set_ := [key for key, value in beside.items() if value]:
        raise RecipeError(f"data.{set_[0]}: it has no meaning beside data.domains; leave it out")
    for name, listed in recipe.evaluation.pairs.items():
        if listed.domain is None or listed.source is not None or listed.kind in ("bin", "layout"):
            continue
        shown = wanted.target if listed.part is None else listed.part  # the target's are held out, and nobody else's
        if shown != getattr(wanted, listed.domain):
            raise RecipeError(
                f"evaluation.pairs.{name}.domain: it says {listed.domain}, which is {getattr(wanted, listed.domain)}, "
                f"and the list shows people of {shown}: the gap between the domains would be told wrongly. Name the "
                "part, or give the list a source of its own"
            )
    if recipe.validators:
        raise RecipeError("validators: no method for two domains asks validators; leave them out")


def _check_validators(recipe: Recipe) -> None:
    """Raise RecipeError unless it is clear which pairs each validator holds."""
    halves: dict[str, str] = {}
    parts = recipe.data.faces.parts
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
        if validator.source is not None and validator.source.kind in ("joined", OWN):
            raise RecipeError(f"{where}.source: pairs are of images of one source; for its own, {where}.own: true")
        if validator.part is not None and (validator.kind == "balanced" or validator.source is not None):
            raise RecipeError(f"{where}.part: identities are set aside from every part alike; leave it out")
        if validator.part is not None:
            nearest(validator.part, parts, f"{where}.part")
        elif parts and validator.source is None and validator.kind not in ("balanced", "bin", "layout"):
            raise RecipeError(f"{where}.part: say which part the pairs are of: {', '.join(parts)}")
    if recipe.fold_split is not None and not halves:
        raise RecipeError("fold_split: no validator has `validates`, so there is nothing to split")
