"""From a recipe to who takes part: the identities that are trained on, their deal to parties, network, arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coalface.core.checks import nearest
from coalface.core.method import Tensors, generator
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.data.partition import by_domain, by_shares, dirichlet, equal, one_identity
from coalface.engine.faults import SimulatedFaults
from coalface.engine.party.setup import FederatedData
from coalface.engine.run_state import Numerics
from coalface.evaluation import membership
from coalface.evaluation.membership import Members
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.own_data import placed
from coalface.experiments.recipe.schema import Recipe, RecipeError
from coalface.experiments.recipe.sections import OWN
from coalface.experiments.setup import domains, splits
from coalface.experiments.setup.pair_lists import judged, validator
from coalface.experiments.setup.sources import Packing, unseen
from coalface.methods import METHODS
from coalface.models import Backbone, build
from coalface.training.compute import Compute

VALIDATOR = "validator"
"""The role of the parties that score models."""

CLIENT_BATCH = 256
"""Images of a client batch where `engine.cohorts` is `auto`."""

POOLED = "pooled"
"""The name of the one party that holds everybody's data."""


def check_device(recipe: Recipe) -> None:
    """Raise RecipeError where this machine has not got the recipe's device."""
    try:
        torch.zeros(1, device=recipe.engine.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"engine.device: {recipe.engine.device!r} is not there ({reason}); take cpu") from None


def validating(
    recipe: Recipe,
    train: FaceSet,
    held: FaceSet,
    packing: Packing | None = None,
    played: Collection[str] | None = None,
) -> dict[str, tuple[FaceSet, PairList]]:
    """The images and pairs of each validator that is here, if the method has a step for validators.

    Where `played` says who is here, nothing of others is looked at. Raises RecipeError where an identity of theirs is
    also trained on or, but for halves of a judged list, judged, and where a validator is called as a trainer is.
    """
    if not validates(recipe):
        return {}
    if both := sorted(recipe.validators.keys() & deal(recipe, train).keys()):
        raise RecipeError(f"validators.{both[0]}: a trainer is called so as well; give the validator another name")
    here = [name for name, one in recipe.validators.items() if placed(one) and (played is None or name in played)]
    if played is not None:  # of the judge's lists, none but those that somebody here holds half of
        halves = {recipe.validators[name].half_of for name in here}
        lists = {name: one for name, one in recipe.judge.lists.items() if name in halves}
        recipe = recipe.model_copy(update={"judge": recipe.judge.model_copy(update={"lists": lists})})
    if not here:
        return {}
    aside, others = splits.split(recipe, packing).validators, judged(recipe, train, held, packing)
    return {name: validator(recipe, name, aside.get(name), train, others, packing) for name in here}


def deal(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The parties and their images, as the method is to see them."""
    if METHODS[recipe.method].domains:
        return _domains(recipe, faces)
    if METHODS[recipe.method].pooled:
        return {POOLED: _marked(recipe, faces) if recipe.data.party_augment else faces}
    parties = silos_of(recipe, faces)
    own = recipe.data.source.kind == OWN
    if METHODS[recipe.method].one_identity and (more := [p for p, faces in parties.items() if len(faces.names) != 1]):
        remedy = "let it bring those of one person" if own else "set data.partition.kind=one-identity"
        raise RecipeError(
            f"data.{'source' if own else 'partition'}: {recipe.method} is for clients of one identity, and {more[0]} "
            f"would hold {len(parties[more[0]].names)}; {remedy}"
        )
    return parties


def clients(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """Who is served: the parties of the partition, whether or not the method pools them; public people are nobody's."""
    if recipe.data.side == "both" and recipe.data.private is not None:
        faces = faces.only(np.flatnonzero(splits.of_the_parties(recipe, faces.names)))
    return silos_of(recipe, faces)


def truth(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The parties of two domains with the identities of all their images, in the order in which `deal` gives them."""
    parties = domains.deal(recipe, faces, generator(splits.deal_seed(recipe), "deal"))
    return {POOLED: domains.pooled(parties)} if METHODS[recipe.method].pooled else parties


def members(recipe: Recipe, faces: FaceSet, here: FederatedData, before: Members | None) -> Members | None:
    """Who a run trains on, those of its pre-training included; None where only the parties know their people.

    They are those of all trainers together, also where each keeps a model of its own.
    """
    if recipe.data.source.kind == OWN:
        return None
    trainers = [held for party, held in here.data.items() if here.roles.get(party) != VALIDATOR]
    if METHODS[recipe.method].domains:
        trainers = list(truth(recipe, faces).values())  # targets are told no identities
    public = [here.public] if here.public is not None else []
    found = membership.of_faces([*trainers, *public], recipe.data.source.parts)
    return found if before is None else found.beside(before)


def _domains(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The same without the identities that the method is not told."""
    wanted, known = recipe.data.domains, truth(recipe, faces)
    if METHODS[recipe.method].uses_target_labels or wanted is None:
        return known
    return {name: domains.untold(party, wanted.source) for name, party in known.items()}


def _marked(recipe: Recipe, faces: FaceSet) -> FaceSet:
    """The faces with the number of the silo that each would be dealt to as its domain."""
    domains = np.zeros(len(faces.pixels), dtype=np.int64)
    for number, silo in enumerate(silos_of(recipe, faces).values()):
        domains[silo.rows] = number
    return replace(faces, domains=domains[faces.rows])


def silos_of(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    """The silos that the recipe's partition makes, whether or not the method pools them.

    Where parties bring images of their own, those that are played here.
    """
    if recipe.data.source.kind == OWN:
        return _bringing(recipe, faces)
    partition, rng = recipe.data.partition, generator(splits.deal_seed(recipe), "deal")
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


def _bringing(recipe: Recipe, faces: FaceSet) -> dict[str, FaceSet]:
    names = tuple(recipe.data.source.parts)
    there = set() if faces.domains is None else set(faces.domains.tolist())
    if empty := [name for number, name in enumerate(names) if number not in there]:
        raise RecipeError(
            f"{empty[0]}: none of its people has data.min_images={recipe.data.min_images} images or more, or "
            "data.exclude names them all, so nothing is left to train on: look at its folder, or lower data.min_images"
        )
    return by_domain(faces, names) if names else {}


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


def build_world(
    tree: Mapping[str, Any],
    initial: Tensors | None = None,
    packing: Packing | None = None,
    played: Collection[str] | None = None,
) -> FederatedData:
    """The world of a resolved recipe: what each worker process makes for itself, and a dry run with unseen images.

    Parties with images of their own, of which the recipe does not say where they lie, have none in it; where `played`
    says which parties are here, so have other validators.
    """
    recipe = loader.parse(tree)
    train, held = splits.training_faces(recipe, packing)
    parties = deal(recipe, train)
    network = backbone(recipe)
    if initial is not None:
        network.load(initial)
    engine = recipe.engine
    usual, own = Augment(**recipe.data.augment.model_dump()), {}
    pooled: tuple[Augment, ...] = ()
    if recipe.data.party_augment:
        silos = list(silos_of(recipe, train)) if POOLED in parties else [*recipe.data.source.parties, *parties]
        own = augments(recipe, silos)
        pooled = tuple(own.get(name, usual) for name in silos) if POOLED in parties else ()
    compute = Compute(
        augment=usual,
        by_domain=pooled,
        device=engine.device,
        autocast=engine.autocast,
        channels_last=engine.channels_last,
    )
    validators = validating(recipe, train, held, packing, played)
    asked = list(recipe.validators) if validates(recipe) else []
    elsewhere = {name: train.only([]) for name in [*sorted(recipe.data.source.parties), *asked]}
    return FederatedData(
        data=elsewhere | parties | {name: faces for name, (faces, _) in validators.items()},
        public=splits.public_faces(recipe, packing),
        augment=own,
        pairs={name: pairs for name, (_, pairs) in validators.items()},
        calibration_data=_calibration(recipe, parties, packing),
        roles=dict.fromkeys(asked, VALIDATOR) | domains.roles(recipe, parties),
        backbone=network,
        compute=compute,
    )


def _calibration(recipe: Recipe, parties: Mapping[str, FaceSet], packing: Packing | None) -> dict[str, FaceSet]:
    """What the source client chooses a threshold by, where it takes part and keeps some for it."""
    if domains.NAMED_SOURCE not in parties or recipe.data.domains is None or not recipe.data.domains.calibrate:
        return {}
    return {domains.NAMED_SOURCE: splits.split(recipe, packing).calibration}


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
        if size > 1 and method.domains and method.pooled and not method.uses_target_labels:
            raise RecipeError(
                f"engine.shards.{party}: a batch of two domains, as {recipe.method} has it, is not split over "
                f"{size} processes: leave engine.shards out"
            )
        if size > 1 and method.shares_public:
            raise RecipeError(
                f"engine.shards.{party}: the losses of {recipe.method} over one batch are not split over {size} "
                "processes: leave engine.shards out"
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
        held = recipe.validators if validates(recipe) else {}
        return [party for party in parties if party not in held]
    if recipe.engine.shards.keys() <= {POOLED, *recipe.validators}:
        return ()
    marked = bool(recipe.data.party_augment)  # then domains are no longer those that the partition looks at
    return silos_of(recipe, splits.training_faces(recipe, unseen)[0] if marked else parties[POOLED]).keys()


def _plays(recipe: Recipe, party: str) -> bool:
    """Whether a silo, a validator or `pooled` takes part in a run of the recipe's method."""
    if party in recipe.validators:
        return validates(recipe)
    return (party == POOLED) == METHODS[recipe.method].pooled


def validates(recipe: Recipe) -> bool:
    """Whether the recipe's method has a step for validators."""
    return any(declaration.role == VALIDATOR for _, declaration in recipe.build_method().steps.values())


def client_batch(recipe: Recipe, here: FederatedData) -> int:
    """Images of a client batch, 0 for none, among the parties of a world.

    Raises RecipeError where the recipe asks for client batches that cannot be.
    """
    wanted = recipe.engine.cohorts or 0
    if not wanted:
        return 0
    most = max(len(faces) for name, faces in here.data.items() if here.roles.get(name) != VALIDATOR)
    why = recipe.build_method().unbatchable_reason(most, here.backbone)
    if not why and recipe.data.source.kind == OWN and not recipe.data.source.parts:
        why = "the parties' images are their own, each at a node of its own"
    if not why and recipe.trouble != SimulatedFaults():
        why = "trouble is simulated party by party"
    if not why and recipe.data.party_augment:
        why = "data.party_augment changes the images of parties in different ways"
    if not why and any(size > 1 for size in recipe.engine.shards.values()):
        why = "engine.shards splits a party's work"
    if not why and recipe.engine.updates is not None:
        why = "engine.updates narrows what each party sends, and of a cohort no single replies are made"
    if wanted == "auto":
        return 0 if why else CLIENT_BATCH
    if why:
        raise RecipeError(f"engine.cohorts: {why}; set engine.cohorts=0, or auto to do without where it cannot be")
    return wanted


def numerics(recipe: Recipe, cohorts: int = 0) -> Numerics:
    """The record of what the bits depend on; `cohorts` as `client_batch` gives it."""
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
        updates=engine.updates,
    )
