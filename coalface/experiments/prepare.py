"""The preparation of a run: its objects, each built once from the recipe."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout
from torch import Tensor

from coalface.core import disk
from coalface.core.errors import RecipeError
from coalface.core.method import Method, Tensors
from coalface.data.cache import LOCKS, PRETRAINED, default_cache, open_cache, use
from coalface.data.faceset import FaceSet
from coalface.engine.party.setup import FederatedData
from coalface.engine.rounds import RoundPolicy
from coalface.engine.run_state import Numerics
from coalface.evaluation import membership
from coalface.evaluation.base import Evaluator
from coalface.evaluation.membership import Members
from coalface.experiments import model_folder, provenance
from coalface.experiments.callbacks.base import Callback
from coalface.experiments.plan import preflight, privacy_budget
from coalface.experiments.plan.messages import Plan
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.domains import NAMED_SOURCE
from coalface.experiments.setup.evaluators import make_evaluators
from coalface.experiments.setup.parts import Parts, imported_weights, make_data
from coalface.experiments.setup.sources import unseen
from coalface.models.folder import read_about, read_tensors

Make = Callable[[Recipe, Path, Callback], None]
"""Runs a recipe in a folder, or goes on where it was begun there."""
POLICY = (
    "min_reply_fraction max_abandoned_rounds checkpoint_every keep_checkpoints on_error "
    "max_update_norm oversized max_share retries aggregator"
).split()
"""Keys of `engine` that are as in `RoundPolicy` where they are not set, and then are no part of a recipe's digest."""
RETRIES = 1
"""Where three in ten of eight parties drop out each time, half of them answer in all but one round of 3,800."""
MAX_SHARE, MAX_UPDATE_NORM = 0.5, 5.0
"""Where each party brings its own images, and says itself how many: of a mean by images, and of an update's size."""


@dataclass(frozen=True)
class PreparedRun:
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
    test_images: FaceSet | None = None
    """Images of those who are trained on that nobody trains on, where the recipe keeps some: `data.test`."""
    held_out: FaceSet | None = None
    """People that nobody trains on; empty where the recipe holds none out."""
    find_members: Callable[[], Members | None] = lambda: None
    """Who is trained on; None where only the parties know. It hashes every image, so it is asked at the end."""
    notes: tuple[str, ...] = ()
    """What a person is told before the run begins."""
    weights_steps: tuple[str, ...] = ()
    """How the tensors of `model.weights` were matched to the network."""

    @property
    def first_model(self) -> Tensors:
        """All tensors of the backbone that the run starts from."""
        return {**self.data.backbone.shared(), **self.data.backbone.kept()}


def prepare(recipe: Recipe, callback: Callback, make: Make, *, elsewhere: bool) -> PreparedRun:
    """What the run of a recipe works with; `elsewhere` says that its parties are at nodes of their own.

    Where the recipe has a pre-training that is not in the cache, `make` runs it first.

    What cannot be run is found here, before anything is written. Raises RecipeError, ValueError or OSError.
    """
    played: tuple[str, ...] | None = () if recipe.own is not None and elsewhere else None
    parts = Parts(recipe, callback.packing, played=played, teaching=callback.teaching)
    if recipe.pretrain is not None or parts.method.taught:
        early = Parts(recipe, unseen, played=played)  # what is wrong is said before the images are packed and embedded
        _ = early.taught, early.pairs
    start, classifier, before = None, None, None
    steps: tuple[str, ...] = ()
    if recipe.pretrain is not None:
        _ = preflight.planned(early)
        start, classifier, before = _pretrained(parts, recipe.pretrain.recipe, callback, make)
        parts.start = start  # what parties keep of it as well, such as running statistics
        if recipe.domains is not None and not elsewhere:
            parts.source_classifier = classifier
    elif recipe.model.weights is not None:
        start, steps = imported_weights(recipe)
        parts.start, before = start, membership.read_beside(Path(recipe.model.weights) / "model")
        for line in (f"starts from {recipe.model.weights} (SHA-256 {recipe.model.sha256})", *steps):
            callback.note(line)
    callback.doing(f"reading the images{', and computing what the teacher gives for them' * parts.method.taught}")
    data, method, planned, notes = parts.data, parts.method, preflight.planned(parts), []
    if fresh := _fresh_source(parts, elsewhere):
        notes.append(fresh)
    numerics, evaluators = parts.numerics(parts.client_batch), make_evaluators(parts)
    if not parts.pairs and recipe.test is None:
        notes.append(preflight.nothing_evaluated(recipe))
    if not recipe.starts_trained and (wrong := method.untrained()):
        notes.append(wrong)
    if recipe.test is not None and parts.split.test is None:
        notes.append("data.test: the test images are the parties' own, so nobody is verified on them")
    if (recipe.unlabelled > 0) != method.uses_unlabelled:
        lacks = f"{recipe.method} trains on none of them" if recipe.unlabelled else "0, so no image can get a label"
        notes.append(f"data.unlabelled: {lacks}")
    if recipe.dp is not None:
        notes.append(privacy_budget.sentence(recipe, planned))
    if recipe.privacy.templates is not None:
        notes.append(privacy_budget.templates_sentence(recipe.privacy.templates, planned))
    return PreparedRun(
        recipe=recipe,
        method=method,
        data=data,
        make_data=functools.partial(make_data, recipe, start, played, parts.source_classifier),
        numerics=numerics,
        policy=round_policy(recipe),
        plan=planned,
        evaluators=evaluators,
        classifier=classifier if parts.public is not None else None,
        test_images=parts.split.test if recipe.test is not None else None,
        held_out=parts.split.held,
        find_members=functools.partial(parts.members, before),
        notes=tuple(notes),
        weights_steps=steps,
    )


def round_policy(recipe: Recipe) -> RoundPolicy:
    """How the run is conducted."""
    engine: dict[str, Any] = {"retries": RETRIES}
    engine |= {key: value for key in POLICY if (value := getattr(recipe.engine, key)) is not None}
    if recipe.own is not None and recipe.dp is None and recipe.secure is None:  # whose clips bound every party alike
        engine = {"max_share": MAX_SHARE, "max_update_norm": MAX_UPDATE_NORM} | engine
    return RoundPolicy(
        run=recipe.name,
        seed=recipe.seed,
        evaluate_every=recipe.evaluation.every,
        equal_steps=recipe.local.steps_per_round is not None,
        faults=recipe.faults,
        countersign=bool(recipe.privacy.countersign),
        server_optimizer=recipe.server_optimizer,
        templates=recipe.privacy.templates,
        **engine,
    )


def _pretrained(
    parts: Parts, inner: Recipe, callback: Callback, make: Make
) -> tuple[Tensors, Tensor | None, Members | None]:
    """(backbone, class embeddings, who was trained on).

    The class embeddings are of the public identities if parties share their images, of the source's if its client goes
    on with them. All is from the cache, if its recipe was run by the same code. Raises RecipeError where it leaves no
    class embeddings and the method needs them.
    """
    preflight.check_leaves_shared(inner)
    before = Parts(inner, unseen)  # its people alone are asked for
    made_of = [inner.digest(), before.content, provenance.code_behind(inner)]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]
    place = open_cache(default_cache()) / PRETRAINED / key
    model = place / "model" / "backbone.safetensors"
    needed = [model, place / membership.FILE]  # a version before left no people
    if model_folder.leaves_classifier(inner):
        needed.append(place / model_folder.CLASSIFIER)  # nor class embeddings of a source
    if not all(path.exists() for path in needed):
        with _turn(place.parent.with_name(LOCKS) / place.name, place, callback):
            if not all(path.exists() for path in needed):  # another process may have made it meanwhile
                callback.note(f"pre-training in {place}")
                _check_begun(place)
                place.parent.mkdir(mode=0o700, exist_ok=True)
                try:
                    make(inner, place, callback)
                except RecipeError as error:
                    raise loader.within_pretrain(error) from None
    use(place)
    tensors = read_tensors(model.parent, model.name, read_about(model.parent))
    classifier, names = None, before.split.train.names
    if parts.public is not None and not parts.method.public_at_server:  # where class embeddings of theirs are trained
        classifier = _classifier(parts.recipe, inner, place, alike=parts.public.names == names)
    elif parts.method.keeps_classifier:
        fits = model_folder.leaves_classifier(inner) and parts.recipe.loss.rows(2) == 2
        if fits and parts.trainers[NAMED_SOURCE].names == names:
            classifier = _classifier(parts.recipe, inner, place, alike=True)
    return tensors, classifier, membership.read(place)


def _fresh_source(parts: Parts, elsewhere: bool) -> str:
    """Why the source client begins with new class embeddings where it could go on with others; '' where it does.

    Raises RecipeError where the method asks for those that there were.
    """
    recipe, method = parts.recipe, parts.method
    if parts.source_classifier is not None or not method.keeps_classifier:
        return ""
    if recipe.pretrain is None:
        why = "model.weights holds none" if recipe.model.weights is not None else "the recipe has no `pretrain`"
    else:
        why = "its node is not sent them" if elsewhere else "`pretrain` leaves none that fit its people and the loss"
    if getattr(method, "head_init", None) == "pretrained":
        raise RecipeError(
            f"the source client cannot go on with trained class embeddings: {why}; leave the key out, or set it to "
            "mean or random",
            where=f"methods.{recipe.method}.head_init",
        )
    return f"the source client begins with new class embeddings: {why}" if recipe.starts_trained else ""


def _check_begun(place: Path) -> None:
    """Raise RecipeError where a pre-training was begun in the cache and cannot be gone on with."""
    if (place / "config.yaml").exists():
        try:
            provenance.recipe_of(place)
        except RecipeError as error:
            raise RecipeError(
                f"{error}. Or remove it with `coalface cache clear pretrained`; the next run that needs this "
                "pre-training makes it anew"
            ) from None


def _classifier(recipe: Recipe, inner: Recipe, place: Path, *, alike: bool) -> Tensor:
    """(k, d) class embeddings that a pre-training left; `alike` says that they are of the public identities."""
    if not (place / model_folder.CLASSIFIER).exists() or not alike:
        raise RecipeError(
            f"{recipe.method} starts from the class embeddings of all public identities, and {inner.method!r} leaves "
            "none, or trains on others; use centralized, a loss with one class embedding for each identity, and the "
            "data of this recipe",
            where="pretrain",
        )
    about = read_about(place / "model")
    return read_tensors(place / "model", f"../{model_folder.CLASSIFIER}", about)["class_embeddings"]


@contextlib.contextmanager
def _turn(lock: Path, place: Path, callback: Callback) -> Iterator[None]:
    """Hold the lock of a pre-training, after whoever has it: one process trains, the others wait for its model."""
    lock.parent.mkdir(mode=0o700, exist_ok=True)
    turn = disk.lock(lock)
    try:
        held = turn.acquire(blocking=False)
    except Timeout:
        callback.note(f"another process pre-trains in {place}; waiting for its model")
        held = turn.acquire()
    with held:
        yield
