"""Checks between the parts of a recipe: its data, method, lists and validators."""

from __future__ import annotations

from coalface.core.checks import nearest
from coalface.core.errors import RecipeError
from coalface.evaluation.metrics.pair_figures import find_figures
from coalface.experiments.recipe.own_data import PUBLIC
from coalface.experiments.recipe.partitions import FromFile
from coalface.experiments.recipe.scenarios import Assigned, Domains, Own, Partitioned
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import DRAWN, WITH_IMAGES, Pairs, Validator
from coalface.methods import METHODS
from coalface.models import BACKBONES
from coalface.privacy import secure
from coalface.privacy.dp import BATCHED, COUNTERSIGNED
from coalface.privacy.secure import SecureSettings

_DEFAULTS = dict(Validator())


def check(recipe: Recipe) -> None:
    """Raise RecipeError where two parts of a recipe do not agree, with what to change."""
    BACKBONES.find(recipe.model.name, "model.name")
    if recipe.own is not None:
        _check_own(recipe, recipe.own)
    if recipe.evaluation.personalised is not None and recipe.test is None:
        raise RecipeError(
            "it takes images of the clients' own people that nobody trained on: say how many of each identity's, as "
            "data.test={images: 4}",
            where="evaluation.personalised",
        )
    if isinstance(recipe.data, Assigned):
        _check_held_out(recipe, recipe.data)
    find_figures(recipe.evaluation.figures)
    _check_sides(recipe)
    _check_excluded(recipe)
    for name, pairs in recipe.evaluation.pairs.items():
        where = f"evaluation.pairs.{name}"
        if pairs.kind == "bin" and pairs.rank1 is not None:
            raise RecipeError("a .bin does not name the people in its images; remove this key", where=f"{where}.rank1")
        _check_part(recipe, pairs, where)
    if recipe.domains is not None:
        _check_domains(recipe, recipe.domains)
    elif METHODS[recipe.method].scenario == "domains":
        raise RecipeError(
            f"{recipe.method} adapts a model of one domain to another: write `scenario: domains`, and which part of "
            "joined faces is which, as `source_domain: PART, target_domain: PART`",
            where="data.scenario",
        )
    _check_validators(recipe)
    if recipe.faults.stages and recipe.secure is None:
        raise RecipeError(
            "only secure sums have stages; set privacy.secure=true, or remove this key", where="faults.stages"
        )


def check_private(recipe: Recipe) -> None:
    """Raise RecipeError where a setting of the engine goes against differential privacy by party.

    It is for recipes whose method can have that: of another, no setting is what to mend.
    """
    if recipe.dp is None:
        return
    engine = recipe.engine
    if engine.client_batch:
        raise RecipeError(BATCHED, where="engine.client_batch")
    if recipe.privacy.countersign:
        raise RecipeError(COUNTERSIGNED, where="privacy.countersign")
    for key in ("max_update_norm", "max_share", "oversized"):
        if getattr(engine, key):
            raise RecipeError(
                "by it a party's reply would change what another's counts, and privacy.dp promises that none does: its "
                "clip bounds every update, and each party counts the same. Remove this key",
                where=f"engine.{key}",
            )


def check_secure(recipe: Recipe) -> None:
    """Raise RecipeError where a setting needs the reply of each party by itself, which secure sums hide.

    It is for recipes whose method can have them, as `check_private`.
    """
    if recipe.secure is None:
        return
    engine = recipe.engine
    if engine.client_batch:
        raise RecipeError(secure.BATCHED, where="engine.client_batch")
    needs = {
        "engine.aggregator": (engine.aggregator, "a robust mean compares the parties' updates"),
        "engine.max_update_norm": (engine.max_update_norm, "it bounds each party's update by the others'"),
        "engine.max_share": (engine.max_share, "it bounds a party's images by the others': use most_images"),
        "engine.oversized": (engine.oversized, "it bounds each party's update by the others'"),
        "engine.update_dtype": (engine.update_dtype, "it encodes a single update, and a masked one is uniform"),
        "faults.corrupt": (recipe.faults.corrupt, "it changes a reply on its way, and a masked one cannot be read"),
    }
    for where, (value, why) in needs.items():
        if value:
            raise RecipeError(
                f"{why}, and with privacy.secure the server sees none singly. Remove this key, or privacy.secure",
                where=where,
            )
    if recipe.dp is not None:
        for key in ("clip", "fraction_bits"):
            if getattr(recipe.secure, key) != getattr(SecureSettings(), key):
                raise RecipeError(
                    "privacy.dp.clip bounds all of a party's numbers together, and the bits follow from it; remove "
                    "this key",
                    where=f"privacy.secure.{key}",
                )


def check_public_start(recipe: Recipe) -> None:
    """Raise RecipeError where a pre-training would tell of the parties' people what is hidden afterwards."""
    key = "privacy.dp" if recipe.dp is not None else "privacy.secure"
    if (recipe.dp is not None or recipe.secure is not None) and recipe.private is None and recipe.own is None:
        raise RecipeError(
            f"it would train on the parties' own people in the clear, and {key} would promise too much. Use "
            "data.scenario=private-public, whose pre-training is on public people, or model.weights from elsewhere",
            where="pretrain",
        )


def _check_held_out(recipe: Recipe, data: Assigned) -> None:
    """Raise RecipeError unless it is clear who is held out, and evaluated in a rehearsal."""
    if isinstance(data, Partitioned) and isinstance(data.partition, FromFile) and data.hold_out:
        raise RecipeError("the partition's file says with `-` who is held out; remove this key", where="data.hold_out")
    by_part = {"hold_out": data.hold_out if isinstance(data.hold_out, dict) else {}, "rehearsal": data.rehearsal or {}}
    for key, parts in by_part.items():
        if parts and not data.parts:
            raise RecipeError(
                "the images are of one source without parts: give a number, or join it as "
                "`faces: {kind: joined, parts: {NAME: …}}`",
                where=f"data.{key}",
            )
        for part in parts:
            nearest(part, data.parts, f"data.{key}")
    if data.rehearsal is not None and not by_part["hold_out"]:
        raise RecipeError(
            "it sets people aside beside those held out; say how many of each part these are, as "
            "`hold_out: {PART: 100}`",
            where="data.rehearsal",
        )


def _check_sides(recipe: Recipe) -> None:
    """Raise RecipeError where a method cannot train on a side of the data."""
    if recipe.side == "both" and not METHODS[recipe.method].pools:
        raise RecipeError(
            f"with `both` public people would be assigned to parties as well, and {recipe.method} has parties: it is "
            "for a pooled method, as the upper bound",
            where="data.side",
        )
    if recipe.side == "public" and METHODS[recipe.method].scenario == "private-public":
        raise RecipeError(
            f"in {recipe.method} all parties hold the public images, so its clients are the private people: leave it "
            "out; a pre-training on the public ones is by a method such as centralized",
            where="data.side",
        )


def _check_excluded(recipe: Recipe) -> None:
    """Raise RecipeError unless it is clear whom each excluded list is of."""
    exclude, own_data, names = recipe.data.exclude, recipe.own, list(recipe.data.parts)
    if own_data is not None:
        names = [*own_data.parties, *([PUBLIC] if own_data.public is not None else [])]
    elif names and exclude and not isinstance(exclude, dict):
        raise RecipeError(
            f"say which part each list is for, as `exclude: {{{names[0]}: [{exclude[0]}]}}`", where="data.exclude"
        )
    for name in exclude if isinstance(exclude, dict) else ():
        nearest(name, dict.fromkeys(names), "data.exclude")


def _check_part(recipe: Recipe, pairs: Pairs, where: str) -> None:
    """Raise RecipeError unless it is clear which part of joined faces pairs are of, if they are of one."""
    parts = {} if recipe.own is not None else recipe.data.parts
    if pairs.part is not None:
        nearest(pairs.part, parts, f"{where}.part")
        if pairs.source is not None:
            raise RecipeError("give either a part of data.faces or a source, not both", where=where)
    elif parts and pairs.source is None and pairs.kind not in (*DRAWN, *WITH_IMAGES):
        raise RecipeError(f"say which part the pairs are of: {', '.join(parts)}", where=f"{where}.part")


def _check_domains(recipe: Recipe, data: Domains) -> None:
    """Raise RecipeError unless the domains are two, and the method and the lists are for them."""
    nearest(data.source_domain, data.parts, "data.source_domain")
    nearest(data.target_domain, data.parts, "data.target_domain")
    if data.source_domain == data.target_domain:
        raise RecipeError(
            f"source and target are both {data.source_domain}; name two parts", where="data.target_domain"
        )
    if data.side is None and METHODS[recipe.method].scenario != "domains":
        fitting = ", ".join(name for name, method in METHODS.items() if method.scenario == "domains")
        raise RecipeError(
            f"with data.scenario=domains {recipe.method} would need the identities of the target, which nobody knows; "
            f"use one of {fitting}, or another scenario",
            where="method",
        )
    if data.side is not None and METHODS[recipe.method].scenario == "domains":
        raise RecipeError(
            f"{data.side!r} is for a pre-training, by a method that knows no domains such as centralized, and not by "
            f"{recipe.method}",
            where="data.side",
        )
    for name, pairs in recipe.evaluation.pairs.items():
        if pairs.domain is None or pairs.source is not None or pairs.kind in WITH_IMAGES:
            continue
        part = data.target_domain if pairs.part is None else pairs.part  # the target's are held out, and nobody else's
        domain = data.source_domain if pairs.domain == "source" else data.target_domain
        if part != domain:
            raise RecipeError(
                f"it says {pairs.domain}, which is {domain}, and the list shows people of {part}: name the part, or "
                "give the list a source of its own",
                where=f"evaluation.pairs.{name}.domain",
            )
    if recipe.validators:
        raise RecipeError("no method for two domains asks validators; remove them", where="validators")


def _check_own(recipe: Recipe, data: Own) -> None:
    """Raise RecipeError unless a recipe whose parties bring their own images says what is needed."""
    if len({name.lower() for name in data.parties}) < len(data.parties):
        raise RecipeError(
            "two parties have one name, or names that differ in case only; rename one", where="data.parties"
        )
    if PUBLIC in data.parties:
        raise RecipeError(
            f"{PUBLIC} is what data.exclude calls the people of data.public; rename the party", where="data.parties"
        )
    if clash := sorted(set(data.parties) & recipe.validators.keys()):
        raise RecipeError("a trainer already has this name; rename the validator", where=f"validators.{clash[0]}")
    for name in data.party_data:
        nearest(name, dict.fromkeys(data.parties), "data.party_data: the party")
    method = METHODS[recipe.method]
    if method.pools or method.scenario == "domains":
        lacks = "one party would hold everybody's images; use solo" if method.pools else "use data.scenario=domains"
        raise RecipeError(f"{recipe.method} does not run over parties with their own images: {lacks}", where="method")
    if method.scenario == "private-public" and data.public is None:
        holders = "the server holds" if method.public_at_server else "the server and all parties also hold"
        raise RecipeError(
            f"in {recipe.method} {holders} images of public people; say where these lie below each data root, as "
            "`public: {kind: rec, path: ms1m}`",
            where="data.public",
        )
    for name, pairs in recipe.evaluation.pairs.items():
        if pairs.part is not None or (pairs.source is None and pairs.kind not in WITH_IMAGES):
            raise RecipeError(
                "the server has none of the parties' images, so say where those of the list are, or use a list of kind "
                "bin or layout",
                where=f"evaluation.pairs.{name}.source",
            )
    for name, validator in recipe.validators.items():
        from_parties = validator.part is not None or validator.identities is not None
        has_images = validator.own or validator.source is not None or validator.kind in WITH_IMAGES
        if from_parties or not (has_images or validator.validates is not None):
            raise RecipeError(
                "its people cannot be taken from the parties; write `own: true` if it brings its own images and "
                "pairs, or name their source",
                where=f"validators.{name}",
            )


def _check_validators(recipe: Recipe) -> None:
    """Raise RecipeError unless it is clear which pairs each validator holds."""
    halves: dict[str, str] = {}
    for name, validator in recipe.validators.items():
        where = f"validators.{name}"
        set_keys = {key for key, value in validator if value != _DEFAULTS[key]}
        if validator.own:
            if extra := sorted(set_keys & {"validates", "identities", "part"}):
                raise RecipeError(
                    "this validator brings its own images and pairs; remove this key", where=f"{where}.{extra[0]}"
                )
        elif validator.validates is not None:
            nearest(validator.validates, recipe.evaluation.pairs, f"{where}.validates")
            if extra := sorted(set_keys - {"validates"}):
                raise RecipeError(
                    f"this validator holds half of {validator.validates}; remove this key", where=f"{where}.{extra[0]}"
                )
            if (first := halves.setdefault(validator.validates, name)) != name:
                raise RecipeError(
                    f"{first} already holds that half of {validator.validates}", where=f"{where}.validates"
                )
            if recipe.fold_split is None:
                raise RecipeError(
                    "say which half with fold_split=first or fold_split=second", where=f"{where}.validates"
                )
            if recipe.evaluation.pairs[validator.validates].rank1 is not None:
                raise RecipeError(
                    f"{name} holds half of its folds, and who is looked up has no fold; remove it",
                    where=f"evaluation.pairs.{validator.validates}.rank1",
                )
        else:
            drawn = validator.kind in DRAWN
            if (validator.identities is not None) != (drawn and validator.source is None):
                raise RecipeError(
                    "give `identities`, how many of the trainable ones are set aside for it, or `source`, or a list of "
                    "another kind, which names its own",
                    where=where,
                )
            if drawn and validator.part is not None:
                raise RecipeError("identities are set aside from every part alike; remove it", where=f"{where}.part")
            _check_part(recipe, validator, where)
    if recipe.fold_split is not None and not halves:
        raise RecipeError("no validator has `validates`, so there is nothing to split", where="fold_split")
