"""The parts of a recipe as objects, each built once in a process, on first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalface.core.checks import at_key, nearest
from coalface.core.errors import DataError, RecipeError
from coalface.core.method import Method, Tensors, generator, plays
from coalface.data.augment import Augment
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.engine.party.setup import FederatedData
from coalface.engine.run_state import Numerics
from coalface.evaluation import membership
from coalface.evaluation.membership import Members
from coalface.evaluation.verification import VerificationPairs
from coalface.experiments.recipe.own_data import is_located
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import domains, partition, splits
from coalface.experiments.setup.client_batches import unbatchable_reason
from coalface.experiments.setup.device import check_device
from coalface.experiments.setup.pair_lists import evaluation_pairs, validator
from coalface.experiments.setup.partition import POOLED
from coalface.experiments.setup.sources import Packing, unseen
from coalface.experiments.setup.splits import Split
from coalface.experiments.setup.teachers import open_teacher, teach
from coalface.experiments.setup.weights import fit_backbone
from coalface.methods.distill import Distill
from coalface.models import Backbone, build
from coalface.models.groups import freeze_batchnorm
from coalface.models.pretrained.weights import read_weights
from coalface.training.compute import Compute

VALIDATOR = "validator"
"""The role of the parties that score models."""

CLIENT_BATCH, LARGE, LARGE_BATCH = 256, 64, 32
"""Images of a client batch where `engine.client_batch` is `auto`; on a CPU 32 of images larger than 64×64: of
those a step of 256 takes MobileFaceNet 1.6 times as long an image."""
MANY, SMALL = 20, 32
"""From so many parties on, of fewer images than that, client batches are worth a word."""


class Parts:
    """The method, images, parties, network, pairs and arithmetic of a recipe.

    `packing` is told how far images are packed, `teaching` how many of them a teacher has embedded. With
    `sources.unseen` as `packing`, images are listed and none is decoded. `played` are the parties with images of their
    own that are here, None for all whose place the recipe tells; nothing of others is opened. `start` are the weights
    that the network begins with, if not its own first ones, and `source_classifier` the class embeddings that the
    source client begins with.
    """

    def __init__(
        self,
        recipe: Recipe,
        packing: Packing | None = None,
        *,
        teaching: Packing | None = None,
        played: Collection[str] | None = None,
        start: Tensors | None = None,
        source_classifier: Tensor | None = None,
    ) -> None:
        self.recipe, self.packing, self.played, self.start = recipe, packing, played, start
        self.teaching, self.source_classifier = teaching, source_classifier

    @cached_property
    def method(self) -> Method:
        """The method with its settings."""
        return self.recipe.build_method()

    @cached_property
    def split(self) -> Split:
        """Who is trained on, held out, and set aside."""
        return splits.split(self.recipe, self.packing)

    @property
    def content(self) -> list[str]:
        """What names the images that are trained on: the source's fingerprint, and the identities that are taken."""
        return [splits.fingerprint(self.recipe), *self.split.train.names]

    @cached_property
    def public(self) -> FaceSet | None:
        """The public images that the server holds, and every party where the method shares them; None for most."""
        return splits.public_faces(self.recipe, self.split, self.packing)

    @cached_property
    def silos(self) -> dict[str, FaceSet]:
        """The silos of the partition, whether or not the method pools them."""
        return partition.silos(self.recipe, self.split.train)

    @cached_property
    def clients(self) -> dict[str, FaceSet]:
        """Who is served: the silos' own people, whether or not the method pools them; public people are nobody's."""
        of_parties = self.split.of_parties
        return self.silos if of_parties is self.split.train else partition.silos(self.recipe, of_parties)

    @cached_property
    def truth(self) -> dict[str, FaceSet]:
        """The parties of two domains with the identities of all their images, in the order of `trainers`."""
        rng = generator(splits.deal_seed(self.recipe), "deal")
        parties = domains.deal(self.recipe, self.split.train, rng)
        return {POOLED: domains.pooled(parties)} if self.method.pools else parties

    @cached_property
    def trainers(self) -> dict[str, FaceSet]:
        """The parties that train and their images, as the method is to see them."""
        if self.method.scenario == "domains":
            two = self.recipe.domains
            if two is None or self.method.pools == "images and labels":
                return self.truth
            return {name: domains.unlabelled(faces, two.source_domain) for name, faces in self.truth.items()}
        train = self.split.train
        if self.method.pools:
            if self.recipe.unlabelled:
                unknown = np.concatenate([faces.rows for faces in self._by_label[1].values()])
                train = train.select(np.flatnonzero(np.isin(train.rows, unknown, invert=True)))
            by_silo = self.recipe.party_augment or self.method.needs_silos
            return {POOLED: partition.marked_by_silo(train, self.silos) if by_silo else train}
        partition.check_one_identity(self.recipe, self.silos)
        return self._by_label[0]

    @cached_property
    def _by_label(self) -> tuple[dict[str, FaceSet], dict[str, FaceSet]]:
        """The clients' images whose identity they know, and their others."""
        return partition.without_some_labels(self.recipe, self.clients)

    @property
    def unlabelled(self) -> dict[str, FaceSet]:
        """Party -> its images of unknown identity, where the method trains on them."""
        return self._by_label[1] if self.method.uses_unlabelled else {}

    @property
    def own_parties(self) -> tuple[str, ...]:
        """The trainers that bring images of their own, be they here or not."""
        return self.recipe.own.parties if self.recipe.own is not None else ()

    @cached_property
    def has_validators(self) -> bool:
        """Whether the method has a step for validators."""
        return any(declaration.role == VALIDATOR for _, declaration in self.method.steps.values())

    @cached_property
    def pairs(self) -> list[VerificationPairs]:
        """The pair lists that are evaluated. Raises RecipeError where an identity is both evaluated and trained on."""
        return evaluation_pairs(self.recipe, self.split.train, self.split.held, self.packing, self.public)

    @cached_property
    def validators(self) -> dict[str, tuple[FaceSet, PairList]]:
        """The images and pairs of each validator that is here, if the method has a step for validators.

        Raises RecipeError where an identity of theirs is also trained on or, but for halves of an evaluated list,
        evaluated, and where a validator is called as a trainer is.
        """
        if not self.has_validators:
            return {}
        recipe, split = self.recipe, self.split
        if clash := sorted(recipe.validators.keys() & self.trainers.keys()):
            raise RecipeError("a trainer already has this name; rename the validator", where=f"validators.{clash[0]}")
        names = [n for n, v in recipe.validators.items() if is_located(v) and (self.played is None or n in self.played)]
        if not names:
            return {}
        pairs = self.pairs if self.played is None else self._halved(names)
        aside, train, packing = split.validators, split.train, self.packing
        return {name: validator(recipe, name, aside.get(name), train, pairs, packing) for name in names}

    def _halved(self, names: Collection[str]) -> list[VerificationPairs]:
        """Of the evaluated lists those alone that some validators hold half of."""
        halves = {self.recipe.validators[name].validates for name in names}
        pairs = {name: evaluated for name, evaluated in self.recipe.evaluation.pairs.items() if name in halves}
        evaluation = self.recipe.evaluation.model_copy(update={"pairs": pairs})
        recipe = self.recipe.model_copy(update={"evaluation": evaluation})
        return evaluation_pairs(recipe, self.split.train, self.split.held, self.packing)

    @cached_property
    def backbone(self) -> Backbone:
        """The network with its first weights, which follow from the seed, or with those that it starts from."""
        return first_backbone(self.recipe, self.start)

    @cached_property
    def data(self) -> FederatedData:
        """Who takes part, with what data, network and arithmetic.

        Parties with images of their own, of which the recipe does not say where they lie, have none in it; where
        `played` says which parties are here, so have other validators.
        """
        recipe, parties = self.recipe, self.trainers
        validators = list(recipe.validators) if self.has_validators else []
        usual_augment, own_augments, silo_augments = self._augments()
        arithmetic = recipe.engine.arithmetic
        compute = Compute(
            augment=usual_augment,
            by_domain=silo_augments,
            device=arithmetic.device,
            autocast=arithmetic.autocast,
            channels_last=arithmetic.channels_last,
        )
        elsewhere = {name: self.split.train.only([]) for name in [*sorted(self.own_parties), *validators]}
        calibrates = domains.NAMED_SOURCE in parties and recipe.domains and recipe.domains.calibrate
        at_server = self.method.public_at_server
        return FederatedData(
            data=elsewhere | parties | {name: faces for name, (faces, _) in self.validators.items()},
            public=None if at_server else self.public,
            server_public=self.public if at_server and not self.played else None,
            augment=own_augments,
            unlabelled=self.unlabelled,
            pairs={name: pairs for name, (_, pairs) in self.validators.items()},
            calibration_data={domains.NAMED_SOURCE: self.split.calibration} if calibrates else {},
            taught=self.taught,
            class_embeddings={} if self.source_classifier is None else {domains.NAMED_SOURCE: self.source_classifier},
            roles=dict.fromkeys(validators, VALIDATOR) | domains.roles(recipe, parties),
            backbone=self.backbone,
            compute=compute,
        )

    @cached_property
    def taught(self) -> dict[str, Any]:
        """Party -> its teacher's embeddings of its images, where the method has one; nothing of unseen images.

        Raises RecipeError for a teacher that cannot be read, or whose embeddings are of another size.
        """
        if not isinstance(self.method, Distill):
            return {}
        how = self.recipe.engine.arithmetic
        compute = Compute(device=how.device, autocast=how.autocast)
        teacher = open_teacher(self.method, compute)
        if teacher.embedding_size != self.backbone.embedding_size:
            raise RecipeError(
                f"the teacher's embeddings have {teacher.embedding_size} numbers, the student's "
                f"{self.backbone.embedding_size}; set model.embedding_size={teacher.embedding_size}",
                where="model.embedding_size",
            )
        if self.packing is unseen:
            return {}
        data = self.recipe.data.model_copy(update={"size": teacher.size, "grey": teacher.channels == 1})
        larger = splits.split(self.recipe.model_copy(update={"data": data}), self.packing).train
        return {POOLED: teach(self.method, larger, teacher, how, self.teaching)}

    def _augments(self) -> tuple[Augment, dict[str, Augment], tuple[Augment, ...]]:
        """(that of parties without their own, those of the others, those of the silos of a pooled party).

        Raises RecipeError for a party that there is not.
        """
        recipe = self.recipe
        usual = Augment(**recipe.data.augment.model_dump())
        if not recipe.party_augment:
            return usual, {}, ()
        pools = POOLED in self.trainers
        silos = list(self.silos) if pools else [*self.own_parties, *self.trainers]
        for name in recipe.party_augment:
            nearest(name, dict.fromkeys(silos), "data.party_augment")
        own_augments = {name: Augment(**augment.model_dump()) for name, augment in recipe.party_augment.items()}
        return usual, own_augments, tuple(own_augments.get(name, usual) for name in silos) if pools else ()

    @cached_property
    def client_batch(self) -> int:
        """Images of a client batch, 0 for none; also where it is `auto` and still to be measured.

        Raises RecipeError where the recipe asks for client batches that cannot be.
        """
        batch = self.recipe.engine.client_batch or 0
        if not batch or "client_batch" in self.left_open:
            return 0
        why = self._unbatchable_reason
        if why and batch != "auto":
            raise RecipeError(
                f"{why}; set engine.client_batch to 0, or to auto",
                where="engine.client_batch",
            )
        if why:
            return 0
        if batch != "auto":
            return batch
        large = self.recipe.data.size > LARGE and self.recipe.engine.device == "cpu"
        return LARGE_BATCH if large else CLIENT_BATCH

    @cached_property
    def left_open(self) -> tuple[str, ...]:
        """The keys of `engine` that are measured when a run begins.

        Of client batches it is their size, where they train in stacks of weights.
        """
        engine, keys = self.recipe.engine, self.recipe.engine.to_measure
        if engine.client_batch != "auto" or self._unbatchable_reason or self.one_step:
            return keys
        return (*keys, "client_batch")

    @property
    def would_batch(self) -> bool:
        """Whether the recipe says nothing of client batches, and they would pay: many parties take one small step."""
        if self.recipe.engine.client_batch is not None or len(self.trainers) < MANY or self._unbatchable_reason:
            return False
        return self.one_step and self.most_images < SMALL

    @property
    def one_step(self) -> bool:
        """Whether a batch goes through one backbone: each party takes one step, without momentum of rounds before."""
        return self.recipe.local.count(self.most_images) == 1 and getattr(self.method, "momentum", None) != "keep"

    @property
    def most_images(self) -> int:
        """Of a trainer."""
        members = self.data.members().values()
        return max(member.images for member in members if plays(member.role, "trainer"))

    @cached_property
    def _unbatchable_reason(self) -> str:
        return unbatchable_reason(self.recipe, self.method, self.backbone)

    def numerics(self, client_batch: int = 0) -> Numerics:
        """The record of what the bits depend on."""
        engine = self.recipe.engine
        return Numerics(
            **dataclasses.asdict(engine.arithmetic),
            flush_denormals=engine.flush_denormals,
            sum_block=engine.sum_block,
            client_batch=client_batch,
            processes_per_party={
                party: size for party, size in engine.processes_per_party.items() if size > 1 and self.plays(party)
            },
            update_dtype=engine.update_dtype,
        )

    def members(self, before: Members | None = None) -> Members | None:
        """Who a run trains on, those of its pre-training included; None where only the parties know their people.

        They are those of all trainers together, also where each keeps a model of its own.
        """
        if self.recipe.own is not None:
            return None
        trainers = self.truth if self.method.scenario == "domains" else self.trainers  # targets are told no identities
        public = [self.public] if self.public is not None else []
        people = membership.of_faces([*trainers.values(), *public], self.recipe.data.parts)
        return people if before is None else people.beside(before)

    def plays(self, party: str) -> bool:
        """Whether a silo, a validator or `pooled` takes part in a run of the recipe's method."""
        return self.has_validators if party in self.recipe.validators else (party == POOLED) == bool(self.method.pools)


def make_data(
    recipe: Recipe,
    start: Tensors | None = None,
    played: Collection[str] | None = None,
    source_classifier: Tensor | None = None,
) -> FederatedData:
    """What each worker process makes for itself."""
    return Parts(recipe, played=played, start=start, source_classifier=source_classifier).data


def first_backbone(recipe: Recipe, start: Tensors | None = None) -> Backbone:
    """The network with its first weights, which follow from the seed, or are those of `start`.

    Raises RecipeError where this machine has not got the recipe's device, or frozen BatchNorm no start.
    """
    check_device(recipe)
    if recipe.model.batchnorm == "frozen" and start is None and not recipe.starts_trained:
        raise RecipeError(
            "'frozen' keeps the statistics of a model to start from, and there is none: give model.weights or pretrain",
            where="model.batchnorm",
        )
    module = build(recipe.model.name, **network_options(recipe), generator=generator(recipe.seed, "backbone"))
    if start is not None:
        module.load_state_dict(start, strict=False)
    if recipe.engine.arithmetic.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.model.batchnorm == "frozen":
        freeze_batchnorm(module)
    return Backbone(module.to(recipe.engine.device), recipe.model.policy)


def network_options(recipe: Recipe) -> dict[str, Any]:
    """What `build` and `sketch` take of a recipe's network beside its name."""
    model = recipe.model
    shape = {"size": recipe.data.size, "channels": 1 if recipe.data.grey else 3}
    return shape | {"embedding_size": model.embedding_size, "convention": model.input}


def imported_weights(recipe: Recipe) -> tuple[Tensors, tuple[str, ...]]:
    """(the tensors that `model.weights` starts the network with, how they were matched to it).

    Raises RecipeError where the file is not the one that the run began with, or does not fit.
    """
    assert recipe.model.weights is not None
    with at_key("model.weights", OSError, DataError):
        weights = read_weights(Path(recipe.model.weights), recipe.model.party)
        if weights.sha256 != recipe.model.sha256:
            raise DataError(f"its SHA-256 is {weights.sha256}, not model.sha256; put the file back", where=weights.path)
        return fit_backbone(weights, recipe.model.name, **network_options(recipe))
