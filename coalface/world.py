"""From a recipe to who takes part: the identities that are trained on, their deal to parties, network, arithmetic."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coalface import config, domains
from coalface.checking import nearest
from coalface.config import Recipe, RecipeError
from coalface.core import Tensors, generator
from coalface.data.augment import Augment
from coalface.data.faces import FaceSet
from coalface.data.pairs import PairList, named_identities
from coalface.data.partition import (
    by_domain,
    by_shares,
    dirichlet,
    equal,
    hold_out,
    minimum_images,
    one_identity,
    shares,
    without,
)
from coalface.data.testing import hold_back
from coalface.engines.local import World
from coalface.engines.standing import Numerics
from coalface.engines.trouble import Trouble
from coalface.learn.compute import Compute
from coalface.methods import METHODS
from coalface.models import Backbone, build
from coalface.pairlists import SPLIT_SEED, judged, validator
from coalface.sections import Private
from coalface.sources import Packing, below_root, folder, listed, open_source, unseen

VALIDATOR = "validator"
"""The role of the parties that score models."""

COHORT = 256
"""Images of a cohort where `engine.cohorts` is `auto`."""

POOLED = "pooled"
"""The name of the one party that holds everybody's data."""


def content(recipe: Recipe, packing: Packing | None = None) -> list[str]:
    """What names the images that a recipe trains on: the source's fingerprint, and the identities that are taken."""
    source = recipe.data.source
    if source.kind == "pack":
        fingerprint = hashlib.sha256((folder(recipe, source) / "meta.json").read_bytes()).hexdigest()
    else:
        fingerprint = listed(recipe, source).fingerprint()
    train, _ = training_faces(recipe, packing)
    return [fingerprint, *train.names]


def check_device(recipe: Recipe) -> None:
    """Raise RecipeError where this machine has not got the recipe's device."""
    try:
        torch.zeros(1, device=recipe.engine.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"engine.device: {recipe.engine.device!r} is not there ({reason}); take cpu") from None


def training_faces(recipe: Recipe, packing: Packing | None = None) -> tuple[FaceSet, FaceSet]:
    """(the identities that may be trained on, those held out for judging), disjoint by identity."""
    split = _split(recipe, packing)
    return _test_images(recipe, split.train)[0], split.held


def testing(recipe: Recipe, packing: Packing | None = None) -> FaceSet | None:
    """The test images of those who are trained on, who have the numbers that they have in training; None without.

    `coalface.data.testing.by_party` tells whose they are.
    """
    return _test_images(recipe, _split(recipe, packing).train)[1]


def _test_images(recipe: Recipe, faces: FaceSet) -> tuple[FaceSet, FaceSet | None]:
    """(those to train on, those to test on): disjoint images of the same identities."""
    wanted = recipe.data.test
    if wanted is None:
        return faces, None
    if np.count_nonzero(faces.counts()) < 2:
        raise RecipeError("data.test: one identity alone has nobody to be told apart from; take two or more")
    try:
        rest, test = hold_back(faces, wanted.images, lambda name: generator(SPLIT_SEED, "test", name))
    except ValueError as error:
        raise RecipeError(f"data.test.images: {error}") from None
    if recipe.data.side != "both" or recipe.data.private is None:
        return rest, test
    private = _private(faces, recipe.data.private)  # public people are nobody's clients and keep all images
    own = private[test.labels]
    kept = np.isin(faces.rows, test.rows[own], invert=True)
    return faces.select(np.flatnonzero(kept)), test.select(np.flatnonzero(own))


def public_faces(recipe: Recipe, packing: Packing | None = None) -> FaceSet | None:
    """The images that the server and every party hold, of the identities that are nobody's; None for most methods.

    They are those, in the same order, that a pre-training on the public identities trains on. Raises RecipeError where
    the method needs some and the recipe does not say which.
    """
    if not METHODS[recipe.method].shares_public:
        return None
    if recipe.data.private is None:
        raise RecipeError(
            f"data.private: in {recipe.method} all parties hold the public images beside their own, so say how many "
            "identities are the parties', as `private: {identities: 150}`; all others are public"
        )
    public = recipe.data.model_copy(update={"side": "public", "test": None})
    return _split(recipe.model_copy(update={"data": public}), packing).train


@dataclass(frozen=True)
class _Split:
    """The identities of a recipe, disjoint."""

    train: FaceSet
    """For training, and for tests of those who are trained on."""
    held: FaceSet
    """Held out for judging."""
    validators: dict[str, FaceSet]
    """Set aside for each validator."""
    calibration: FaceSet
    """Of the source domain, to choose a threshold by."""


def _split(recipe: Recipe, packing: Packing | None) -> _Split:
    data = recipe.data
    faces = open_source(recipe, data.source, packing)
    faces = without(faces, _excluded(recipe))
    faces = minimum_images(faces, data.min_images)
    held = calibration = faces.only([])
    if data.domains is not None:
        faces, held, calibration = domains.apart(recipe, faces)
    if data.hold_out:
        faces, held = _held_out(faces, data.hold_out, tuple(data.source.parts))
    aside = {}
    for name, wanted in recipe.validators.items():
        if wanted.identities is not None:
            rng = generator(SPLIT_SEED, "validator", name)
            try:
                faces, aside[name] = hold_out(faces, rng, identities=wanted.identities)
            except ValueError as error:
                raise RecipeError(f"validators.{name}.identities: {error}") from None
    if data.private is not None:
        faces = faces if data.side == "both" else _side(faces, data.private, public=data.side == "public")
    if data.max_identities is not None and data.max_identities < len(faces.names):
        deal = generator(_deal_seed(recipe), "identities").permutation(len(faces.names))[: data.max_identities]
        faces = faces.only(np.sort(deal))
    if len(faces) == 0:
        raise RecipeError("no image is left to train on: lower data.min_images or data.hold_out, or check data.exclude")
    return _Split(faces, held, aside, calibration)


def _side(faces: FaceSet, private: Private, *, public: bool) -> FaceSet:
    """The images of the parties, or those of nobody's party, disjoint by identity."""
    return faces.only(np.flatnonzero(_private(faces, private) != public))


def _private(faces: FaceSet, private: Private) -> NDArray[np.bool_]:
    """(len(names),) which identities are the parties'."""
    eligible = np.flatnonzero(faces.counts() >= private.min_images)
    if len(eligible) < private.identities:
        raise RecipeError(
            f"data.private.identities: {private.identities:,} are wanted of those with {private.min_images} images or "
            f"more, and there are {len(eligible):,}; lower it, or data.private.min_images"
        )
    chosen = np.zeros(len(faces.names), dtype=bool)
    chosen[generator(SPLIT_SEED, "private").permutation(eligible)[: private.identities]] = True
    return chosen


def validating(
    recipe: Recipe, train: FaceSet, held: FaceSet, packing: Packing | None = None
) -> dict[str, tuple[FaceSet, PairList]]:
    """Each validator's images and pairs, if the method has a step for validators.

    Raises RecipeError where an identity of theirs is also trained on or, but for halves of a judged list, judged, and
    where a validator is called as a trainer is.
    """
    if not _validates(recipe):
        return {}
    if both := sorted(recipe.validators.keys() & deal(recipe, train).keys()):
        raise RecipeError(f"validators.{both[0]}: a trainer is called so as well; give the validator another name")
    aside, lists = _split(recipe, packing).validators, judged(recipe, train, held, packing)
    return {name: validator(recipe, name, aside.get(name), train, lists, packing) for name in recipe.validators}


def _held_out(faces: FaceSet, wanted: int, parts: tuple[str, ...]) -> tuple[FaceSet, FaceSet]:
    """(rest, held): so many identities are held; of a joined source, of each part its share by number of identities."""
    present = faces.only(np.flatnonzero(faces.counts())) if parts else faces
    if not parts or not 0 < wanted < len(present.names):
        return hold_out(faces, generator(SPLIT_SEED, "hold out"), identities=wanted)
    faces = present
    belongs = np.array([parts.index(name.partition("/")[0]) for name in faces.names])
    counts = np.bincount(belongs, minlength=len(parts))
    chosen = np.zeros(len(faces.names), dtype=bool)
    for number, share in enumerate(shares(counts.tolist(), wanted)):
        rng = generator(SPLIT_SEED, "hold out", parts[number])
        chosen[rng.permutation(np.flatnonzero(belongs == number))[:share]] = True
    return faces.only(np.flatnonzero(~chosen)), faces.only(np.flatnonzero(chosen))


def _excluded(recipe: Recipe) -> set[str]:
    """The identities that `data.exclude` names, as the training source calls them."""
    wanted = recipe.data.exclude
    by_prefix = {f"{part}/": paths for part, paths in wanted.items()} if isinstance(wanted, dict) else {"": wanted}
    return {
        prefix + name
        for prefix, paths in by_prefix.items()
        for path in paths
        for name in named_identities(below_root(recipe, path))
    }


def _deal_seed(recipe: Recipe) -> int:
    own = recipe.data.partition.seed
    return recipe.seed if own is None else own


def deal(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The parties and their images, as the method is to see them."""
    if METHODS[recipe.method].domains:
        return _domains(recipe, faces)
    if METHODS[recipe.method].pooled:
        return {POOLED: _marked(recipe, faces) if recipe.data.party_augment else faces}
    parties = silos_of(recipe, faces)
    if METHODS[recipe.method].one_identity and (more := [p for p, own in parties.items() if len(own.names) != 1]):
        raise RecipeError(
            f"data.partition: {recipe.method} is for clients of one identity, and {more[0]} would hold "
            f"{len(parties[more[0]].names)}; set data.partition.kind=one-identity"
        )
    return parties


def clients(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """Who is served: the parties of the partition, whether or not the method pools them; public people are nobody's."""
    if recipe.data.side == "both" and recipe.data.private is not None:
        faces = _side(faces, recipe.data.private, public=False)
    return silos_of(recipe, faces)


def truth(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The parties of two domains with the identities of all their images, in the order in which `deal` gives them."""
    parties = domains.deal(recipe, faces, generator(_deal_seed(recipe), "deal"))
    return {POOLED: domains.pooled(parties)} if METHODS[recipe.method].pooled else parties


def _domains(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The same without the identities that the method is not told."""
    wanted, known = recipe.data.domains, truth(recipe, faces)
    if METHODS[recipe.method].told or wanted is None:
        return known
    return {name: domains.untold(party, wanted.source) for name, party in known.items()}


def _marked(recipe: Recipe, faces: FaceSet) -> FaceSet:
    """The faces with the number of the silo that each would be dealt to as its domain."""
    domains = np.zeros(len(faces.pixels), dtype=np.int64)
    for number, silo in enumerate(silos_of(recipe, faces).values()):
        domains[silo.rows] = number
    return replace(faces, domains=domains[faces.rows])


def silos_of(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The silos that the recipe's partition makes, whether or not the method pools them."""
    partition, rng = recipe.data.partition, generator(_deal_seed(recipe), "deal")
    if partition.kind == "equal":
        return equal(faces, partition.parties, rng)
    if partition.kind == "dirichlet":
        return dirichlet(faces, partition.parties, partition.alpha, rng)
    if partition.kind == "by-domain":
        source = recipe.data.source
        names = _domain_names(faces) if source.kind == "folder" else tuple(source.parts) or source.domains
        return _split_further(by_domain(faces, names), partition.split, rng)
    if partition.kind == "shares":
        return by_shares(faces, partition.shares, rng)
    return one_identity(faces)


def _split_further(parties: dict[str, FaceSet], split: int | None, rng: np.random.Generator) -> dict[str, FaceSet]:
    """Each party's identities dealt equally over so many, NAME-a, NAME-b and so on."""
    if split is None or split == 1:
        return parties
    return {
        f"{name}-{chr(ord('a') + number)}": part
        for name, faces in parties.items()
        for number, part in enumerate(equal(faces, split, rng).values())
    }


def augments(recipe: Recipe, parties: Iterable[str]) -> dict[str, Augment]:
    """Each party's own augmentation, where it has one. Raises RecipeError for a party that there is not."""
    for name in recipe.data.party_augment:
        nearest(name, dict.fromkeys(parties), "data.party_augment")
    return {name: Augment(**own.model_dump()) for name, own in recipe.data.party_augment.items()}


def _domain_names(faces: FaceSet) -> tuple[str, ...]:
    """What the domains of a data set of several are called: the first part of their identities' names."""
    if faces.domains is None:
        return ()
    firsts = np.unique(faces.domains, return_index=True)[1]
    return tuple(faces.names[faces.labels[i]].partition("/")[0] for i in firsts)


def backbone(recipe: Recipe) -> Backbone:
    """The network with its first weights, which follow from the seed."""
    channels, model = 1 if recipe.data.grey else 3, recipe.model
    module = build(
        model.name,
        size=recipe.data.size,
        channels=channels,
        embedding_size=model.embedding_size,
        generator=generator(recipe.seed, "backbone"),
    )
    if recipe.engine.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Backbone(module.to(recipe.engine.device), model.batchnorm)


def build_world(tree: Mapping[str, Any], initial: Tensors | None = None, packing: Packing | None = None) -> World:
    """The world of a resolved recipe: what each worker process makes for itself, and a dry run with unseen images."""
    recipe = config.parse(tree)
    train, held = training_faces(recipe, packing)
    parties = deal(recipe, train)
    network = backbone(recipe)
    if initial is not None:
        network.load(initial)
    engine = recipe.engine
    usual, own = Augment(**recipe.data.augment.model_dump()), {}
    pooled: tuple[Augment, ...] = ()
    if recipe.data.party_augment:
        silos = list(silos_of(recipe, train)) if POOLED in parties else list(parties)
        own = augments(recipe, silos)
        pooled = tuple(own.get(name, usual) for name in silos) if POOLED in parties else ()
    compute = Compute(
        augment=usual,
        by_domain=pooled,
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
    )
    validators = validating(recipe, train, held, packing)
    return World(
        data=parties | {name: faces for name, (faces, _) in validators.items()},
        public=public_faces(recipe, packing),
        augment=own,
        pairs={name: pairs for name, (_, pairs) in validators.items()},
        aside=_calibration(recipe, parties, packing),
        roles=dict.fromkeys(validators, VALIDATOR) | domains.roles(recipe, parties),
        backbone=network,
        compute=compute,
    )


def _calibration(recipe: Recipe, parties: Mapping[str, FaceSet], packing: Packing | None) -> dict[str, FaceSet]:
    """What the source client chooses a threshold by, where it takes part and keeps some for it."""
    if domains.NAMED_SOURCE not in parties or recipe.data.domains is None or not recipe.data.domains.calibrate:
        return {}
    return {domains.NAMED_SOURCE: _split(recipe, packing).calibration}


def check_shards(recipe: Recipe, parties: Mapping[str, Any]) -> None:
    """Raise RecipeError where `engine.shards` names no party, or one of this run more processes than there are GPUs.

    It may name silos, validators and `pooled` whatever the method, so that one recipe serves all methods of a sweep.
    """
    engine = recipe.engine
    silos = _silos_beside(recipe, parties)
    known = dict.fromkeys([*silos, *recipe.validators, POOLED])
    for party, size in engine.shards.items():
        nearest(party, known, "engine.shards: the party")
        if (party in silos) + (party in recipe.validators) + (party == POOLED) > 1:
            raise RecipeError(
                f"engine.shards.{party}: it could be two parties, of a silo, a validator and {POOLED!r}, which holds "
                "everybody's images in centralised training: give the silo or the validator another name"
            )
        if not _plays(recipe, party):
            continue
        method = METHODS[recipe.method]
        if size > 1 and method.domains and method.pooled and not method.told:
            raise RecipeError(
                f"engine.shards.{party}: a batch of two domains, as {recipe.method} has it, is not split over "
                f"{size} processes: leave engine.shards out"
            )
        if size > 1 and METHODS[recipe.method].one_identity:
            raise RecipeError(
                f"engine.shards.{party}: a client of {recipe.method} has one class embedding, which cannot lie over "
                f"{size} processes: leave engine.shards out"
            )
        if size > 1 and engine.device != "cpu" and (engine.device != "cuda" or torch.cuda.device_count() < size):
            raise RecipeError(
                f"engine.shards.{party}: {size} processes take engine.device cpu, or cuda where there are {size} GPUs; "
                f"it is {engine.device!r}, with {torch.cuda.device_count()}"
            )


def _silos_beside(recipe: Recipe, parties: Mapping[str, Any]) -> Collection[str]:
    """The silos among a run's parties; of a pooled method those that others deal, where `engine.shards` names any."""
    if not METHODS[recipe.method].pooled:
        held = recipe.validators if _validates(recipe) else {}
        return [party for party in parties if party not in held]
    if recipe.engine.shards.keys() <= {POOLED, *recipe.validators}:
        return ()
    marked = bool(recipe.data.party_augment)  # then domains are no longer those that the partition looks at
    return silos_of(recipe, training_faces(recipe, unseen)[0] if marked else parties[POOLED]).keys()


def _plays(recipe: Recipe, party: str) -> bool:
    """Whether a silo, a validator or `pooled` takes part in a run of the recipe's method."""
    if party in recipe.validators:
        return _validates(recipe)
    return (party == POOLED) == METHODS[recipe.method].pooled


def _validates(recipe: Recipe) -> bool:
    """Whether the recipe's method has a step for validators."""
    return any(declaration.role == VALIDATOR for _, declaration in recipe.build_method().steps.values())


def cohorts(recipe: Recipe, here: World) -> int:
    """Images of a cohort, 0 for none, among the parties of a world.

    Raises RecipeError where the recipe asks for cohorts that cannot be.
    """
    wanted = recipe.engine.cohorts or 0
    if not wanted:
        return 0
    most = max(len(faces) for name, faces in here.data.items() if here.roles.get(name) != VALIDATOR)
    why = recipe.build_method().why_not_together(most, here.backbone)
    if not why and recipe.build_trouble() != Trouble():
        why = "trouble is simulated party by party"
    if not why and recipe.data.party_augment:
        why = "data.party_augment changes the images of parties in different ways"
    if not why and any(size > 1 for size in recipe.engine.shards.values()):
        why = "engine.shards splits a party's work"
    if wanted == "auto":
        return 0 if why else COHORT
    if why:
        raise RecipeError(f"engine.cohorts: {why}; set engine.cohorts=0, or auto to do without where it cannot be")
    return wanted


def numerics(recipe: Recipe, cohorts: int = 0) -> Numerics:
    """The record of what the bits depend on; `cohorts` as the function of that name gives it."""
    engine = recipe.engine
    return Numerics(
        threads=engine.threads,
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
        flush_denormals=engine.flush_denormals,
        block=engine.block,
        cohorts=cohorts,
        shards={party: size for party, size in engine.shards.items() if size > 1 and _plays(recipe, party)},
    )
