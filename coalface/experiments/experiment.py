"""An experiment: a recipe made into the objects that a run works with, each of them once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coalface.core.errors import RecipeError
from coalface.core.method import Method, Tensors
from coalface.engine.party.setup import FederatedData
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.evaluation import personalised
from coalface.evaluation.base import Evaluator, PublicImages
from coalface.evaluation.clustering import Clustering
from coalface.evaluation.enrolled import Enrolled
from coalface.evaluation.membership import Members
from coalface.evaluation.personalised import Personalised
from coalface.evaluation.verification import Verification
from coalface.experiments import preflight, pretraining
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.plan import Plan
from coalface.experiments.pretraining import Make
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.parts import Parts, make_data

POLICY = ("max_update_norm", "oversized", "max_share", "retries")
"""Keys of `engine` that are as in `RoundPolicy` where they are not set, and then are no part of a recipe's digest."""
RETRIES = 1
"""Where three in ten of eight parties drop out each time, half of them answer in all but one round of 3,800."""
MAX_SHARE, MAX_UPDATE_NORM = 0.5, 5.0
"""Where each party brings its own images, and says itself how many: of a mean by images, and of an update's size."""


@dataclass(frozen=True)
class Experiment:
    """What a run works with."""

    recipe: Recipe
    """As it is written into the run's folder."""
    method: Method
    data: FederatedData
    """Who takes part, with what images, network and arithmetic."""
    make_data: Callable[[], FederatedData]
    """Makes the same in a worker process."""
    numerics: Numerics
    policy: RoundPolicy
    plan: Plan
    """One round of every stage, as messages."""
    evaluators: tuple[Evaluator, ...]
    classifier: Tensor | None = None
    """(k, d) class embeddings of the public identities, where a pre-training left some."""
    find_members: Callable[[], Members | None] = lambda: None
    """Who is trained on; None where only the parties know. It hashes every image, so it is asked at the end."""
    notes: tuple[str, ...] = field(default=())
    """What a person is told before the run begins."""

    @property
    def first_model(self) -> Tensors:
        """All tensors of the backbone that the run starts from."""
        return {**self.data.backbone.shared(), **self.data.backbone.kept()}


def build(recipe: Recipe, callback: Callback, make: Make, *, elsewhere: bool) -> Experiment:
    """The experiment of a recipe; `elsewhere` says that its parties are at nodes of their own.

    Where the recipe has a pre-training that is not in the cache, `make` runs it first.

    What cannot be run is found here, before anything is written. Raises RecipeError, ValueError or OSError.
    """
    played: tuple[str, ...] | None = () if recipe.own is not None and elsewhere else None
    parts, start, classifier, before = Parts(recipe, callback.packing, played=played), None, None, None
    if recipe.pretrain is not None:
        pretrained = pretraining.pretrained(parts, callback, make)
        start, classifier, before = pretrained.tensors, pretrained.classifier, pretrained.members
        parts.backbone.load(start)
    callback.doing("reading the images")
    data, method, notes = parts.data, parts.method, []
    numerics, verification = parts.numerics(parts.client_batch), _verification(parts)
    if not verification.pairs:
        notes.append("evaluation.pairs is empty, so nothing will be evaluated")
    if recipe.pretrain is None and (wrong := method.untrained()):
        notes.append(wrong)
    evaluators: list[Evaluator] = [verification]
    if parts.split.test is not None:
        evaluators.append(_of_clients(parts))
    elif recipe.test is not None:
        notes.append("data.test: the test images are the parties' own, so nobody is verified on them")
    if method.scenario == "domains":
        evaluators.append(Clustering(parts.truth))
    if data.public is not None:
        evaluators.append(PublicImages(len(data.public)))
    return Experiment(
        recipe=recipe,
        method=method,
        data=data,
        make_data=functools.partial(make_data, recipe, start, played),
        numerics=numerics,
        policy=round_policy(recipe),
        plan=preflight.planned(parts),
        evaluators=tuple(evaluators),
        classifier=classifier,
        find_members=functools.partial(parts.members, before),
        notes=tuple(notes),
    )


def _verification(parts: Parts) -> Verification:
    evaluation, device = parts.recipe.evaluation, parts.recipe.engine.device
    return Verification(parts.pairs, parts.backbone, evaluation.flip, device, evaluation.parties, fars=evaluation.fars)


def _of_clients(parts: Parts) -> Evaluator:
    """Evaluates the test images of those who are trained on. Raises RecipeError where nobody could be told apart."""
    evaluation, test = parts.recipe.evaluation, parts.split.test
    assert test is not None
    if evaluation.personalised is None:
        return Enrolled(parts.data, parts.split.train, test)
    if len(served := personalised.tested(parts.clients, test)) < 2:
        raise RecipeError(
            f"evaluation.personalised: a client's people are told from those of others, and {len(served)} of the "
            "clients of data.partition has test images: deal to two or more, or take a smaller data.test.images"
        )
    return Personalised(parts.data, parts.clients, test, **dict(evaluation.personalised))


def round_policy(recipe: Recipe) -> RoundPolicy:
    """How the run is conducted."""
    engine = recipe.engine
    given: dict[str, Any] = {"retries": RETRIES}
    given |= {key: value for key in POLICY if (value := getattr(engine, key)) is not None}
    if recipe.own is not None:
        given.setdefault("max_share", MAX_SHARE)
        given.setdefault("max_update_norm", MAX_UPDATE_NORM)
    return RoundPolicy(
        run=recipe.name,
        seed=recipe.seed,
        min_reply_fraction=engine.min_reply_fraction,
        max_abandoned_rounds=engine.max_abandoned_rounds,
        checkpoint_every=engine.checkpoint_every,
        keep_checkpoints=engine.keep_checkpoints,
        evaluate_every=recipe.evaluation.every,
        on_error=engine.on_error,
        equal_steps=recipe.local.steps_per_round is not None,
        faults=recipe.faults,
        **given,
    )
