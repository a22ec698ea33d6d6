"""The scores of the average of three parties' backbones over a grid of weightings, from the folder of a run.

Bai et al., "Federated Face Recognition", 2021, Fig. 3: how much there is for Federated Validation to find. A lab's
look at a run: in a deployment, only a server that is sent single backbones could take it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from coalface.core.checks import nearest
from coalface.core.codec import copied, decode, hints
from coalface.core.disk import write_json, write_text
from coalface.core.errors import RecipeError
from coalface.core.method import Backbone, Method, Tensors
from coalface.core.text import several
from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.engine import checkpoint
from coalface.engine.party.commits import REPLY, Commit
from coalface.evaluation.metrics.verification import score_pairs
from coalface.evaluation.verification import Verification
from coalface.experiments import provenance
from coalface.experiments import run as experiment
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.report import weightings
from coalface.experiments.setup.parts import Parts
from coalface.models.embedding import embed, images_needed
from coalface.training.federated_validation import FederatedValidation, Weighting, weighted_mean

NAME = "weighting-grid"
"""Of the files in the run folder."""
EQUAL, IMAGES, IN_USE = "equal weights", "shares of the images", "weighting in use"
FINEST = 100
"""Steps along a side of the triangle at most; that is 5,151 weightings."""


@dataclass(frozen=True)
class Point:
    """A weighting of the three parties and what the model that it makes scores."""

    weights: dict[str, float]
    """By party; they add up to 1, and every other party has 0."""
    scores: dict[str, float]
    """By scorer, higher is better; accuracy and TAR in percent."""
    name: str = ""
    """Of a weighting that is shown whether or not it lies on the grid."""

    @property
    def sum(self) -> float:
        """Σ over the scorers, as FV sums them, but not normalised."""
        return math.fsum(self.scores.values())


@dataclass(frozen=True)
class Grid:
    """The grid of one run."""

    run: str
    method: str
    rounds: dict[str, int]
    """The round in which each party's backbone was trained."""
    left_out: tuple[str, ...]
    """The other trainers, whose weights are 0."""
    steps: int
    """A side of the triangle has so many steps."""
    scored_by: str
    score: str
    pairs: dict[str, int]
    """How many pairs each scorer has."""
    points: tuple[Point, ...]
    marks: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    def best(self) -> list[Point]:
        """The weightings of the grid with the largest sum; rounding does not part equals."""
        top = max(point.sum for point in self.points)
        return [point for point in self.points if point.sum >= top - 1e-9]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""

        def shown(points: Iterable[Point]) -> list[dict[str, Any]]:
            return [
                ({"name": p.name} if p.name else {}) | {"weights": p.weights, "scores": p.scores, "sum": p.sum}
                for p in points
            ]

        whole = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return whole | {"points": shown(self.points), "marks": shown(self.marks), "best": shown(self.best())}


Score = Callable[[Tensors], dict[str, float]]


@dataclass(frozen=True)
class _Scorers:
    """Who scores a model."""

    what: str
    score: str
    pairs: dict[str, int]
    of: Score
    notes: tuple[str, ...] = ()


def build(
    run: Path,
    *,
    steps: int = 10,
    parties: tuple[str, ...] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Grid:
    """Score the grid of a stopped or finished run and write `weighting-grid.json`, `.csv` and `.html` into its folder.

    `parties` are the three that are weighted; they may be left out where there are three trainers. `progress` is told
    how many of the `models(steps)` are scored. Raises RecipeError, with what to do, where the run has not got their
    backbones.
    """
    if not 1 <= steps <= FINEST:
        raise RecipeError(f"give a step from {1 / FINEST:g} to 1", where="--step")
    recipe = provenance.recipe_of(run)
    method = recipe.build_method()
    _check(recipe, method)
    standing = checkpoint.load(run / "checkpoints")
    if standing is None:
        raise RecipeError(
            f"this run has no checkpoint yet; `coalface resume {quote(str(run))}` writes one after "
            f"{several(recipe.engine.checkpoint_every, 'round')}",
            where=run,
        )
    parts = Parts(recipe)
    trainers = parts.trainers
    accepted = {name: c for name, c in standing.record["accepted"].items() if name in trainers}
    chosen = _chosen(tuple(sorted(accepted)), parties, len(trainers))
    backbones, rounds = _replies(run, method, {name: accepted[name] for name in chosen})
    notes = []
    if len(set(rounds.values())) > 1:
        notes.append("the backbones are of different rounds: " + ", ".join(f"{p} {r}" for p, r in rounds.items()))
    if others := tuple(sorted(set(trainers) - set(chosen))):
        rest = f"{len(others)} trainers have" if len(others) > 1 else "trainer has"
        notes.append(f"weights and shares are among {', '.join(chosen)}; the other {rest} no weight")
    named = {EQUAL: dict.fromkeys(chosen, 1.0), IMAGES: {name: float(len(trainers[name])) for name in chosen}}
    if (weighting := _in_use(method, standing)) is not None:
        named[IN_USE] = {name: weighting.weights.get(name, 0.0) for name in chosen}
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.engine.threads)
    torch.set_flush_denormal(recipe.engine.flush_denormals)
    try:
        scorers = _scorers(parts)
        wanted = [("", dict(zip(chosen, weights, strict=True))) for weights in simplex(steps)]
        wanted += [(name, _scaled(weights)) for name, weights in named.items() if math.fsum(weights.values()) > 0]
        found: list[Point] = []
        for name, weights in wanted:
            progress(len(found))
            found.append(Point(weights, scorers.of(weighted_mean(backbones, weights)), name))
        progress(models(steps))
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    grid = Grid(
        run=recipe.name,
        method=recipe.method,
        rounds=rounds,
        left_out=others,
        steps=steps,
        scored_by=scorers.what,
        score=scorers.score,
        pairs=scorers.pairs,
        points=tuple(point for point in found if not point.name),
        marks=tuple(point for point in found if point.name),
        notes=(*notes, *scorers.notes),
    )
    write_json(run / f"{NAME}.json", grid.as_dict())
    write_text(run / f"{NAME}.csv", _csv(grid))
    write_text(run / f"{NAME}.html", weightings.render(grid.as_dict()))
    return grid


def models(steps: int) -> int:
    """How many models are scored at most: those of the grid and three that have a name."""
    return (steps + 1) * (steps + 2) // 2 + 3


def simplex(steps: int) -> list[tuple[float, float, float]]:
    """The weightings (i, j, k) / steps of three parties, (steps + 1)(steps + 2) / 2 of them.

    >>> simplex(1)
    [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
    """
    counts = [(i, j, steps - i - j) for i in range(steps, -1, -1) for j in range(steps - i, -1, -1)]
    return [(i / steps, j / steps, k / steps) for i, j, k in counts]


def steps_of(step: float) -> int:
    """How many steps a side has. Raises RecipeError where `step` does not divide 1."""
    steps = round(1 / step) if step > 0 else 0
    if not 1 <= steps <= FINEST or abs(steps * step - 1) > 1e-9:
        raise RecipeError(
            f"{step:g} does not divide 1; use 0.1 or 0.05, or another from {1 / FINEST:g} on", where="--step"
        )
    return steps


def _scaled(weights: Mapping[str, float]) -> dict[str, float]:
    whole = math.fsum(weights.values())
    return {name: w / whole for name, w in weights.items()}


def _check(recipe: Recipe, method: Method) -> None:
    """Raise RecipeError where a run with this recipe can have no grid."""
    if recipe.model.batchnorm != "average":
        raise RecipeError(
            f"with {recipe.model.batchnorm} a part of each backbone stays at its trainer, so there is no average to "
            "score; run with model.batchnorm=average",
            where="model.batchnorm",
        )
    component = _component(method)
    if component is not None and component.fv == "folded":
        raise RecipeError(
            "with fv=folded the server receives weighted means only, and a grid needs single backbones; run with "
            "validation.fv=kept if the server may see them",
            where="validation.fv",
        )
    if not _with_backbone(method):
        raise RecipeError(
            f"no reply of {recipe.method}'s trainers has a `backbone`, so there is nothing to weight; use a method "
            "that averages backbones, such as fedavg or pfm",
            where="method",
        )


def _component(method: Method) -> FederatedValidation | None:
    return next((part for part in vars(method).values() if isinstance(part, FederatedValidation)), None)


def _with_backbone(method: Method) -> dict[str, type]:
    """The replies of trainers that hold a backbone, by step."""
    replies = {name: d.reply for name, (_, d) in method.steps.items() if d.role == "trainer" and d.reply is not None}
    return {name: reply for name, reply in replies.items() if "backbone" in hints(reply)}


def _chosen(known: tuple[str, ...], wanted: tuple[str, ...], trainers: int) -> tuple[str, ...]:
    """The three parties. Raises RecipeError where there are others than three, or they are not known."""
    if len(known) < 3:
        raise RecipeError(
            f"a triangle needs three trainers with a backbone, and of {trainers} trainers of this run {len(known)} "
            f"have one{': ' + ', '.join(known) if known else ''}; resume it, or use a run over three or more"
        )
    for name in wanted:
        nearest(name, dict.fromkeys(known), "--parties")
    if len(set(wanted)) != 3 and (wanted or len(known) > 3):
        raise RecipeError(
            f"name three of the {len(known)} trainers, such as {','.join(known[:3])}; they are "
            f"{', '.join(known[:24])}{' …' if len(known) > 24 else ''}",
            where="--parties",
        )
    return wanted or known


def _replies(run: Path, method: Method, accepted: Mapping[str, str]) -> tuple[dict[str, Tensors], dict[str, int]]:
    """θ'_i of each party and the round that made it, from the reply that its last accepted commit holds."""
    replies, backbones, rounds = _with_backbone(method), dict[str, Tensors](), dict[str, int]()
    with experiment.alone(run):  # a run that goes on would write over the commits
        for name, commit in accepted.items():
            found = Commit.open(run / "parties" / name / f"{commit}.commit")
            data = found.read(REPLY)
            if data is None:
                raise RecipeError(
                    "its last reply was not saved; run or resume with engine.save_replies=true, which saves those of "
                    "the rounds from then on",
                    where=name,
                )
            about = json.loads(found.lines()[-1])
            if about["step"] not in replies:
                raise RecipeError(
                    f"its last reply is that of step {about['step']}, which has no backbone; use a method whose "
                    "rounds end with the training of the backbone",
                    where=name,
                )
            reply: Any = decode(data, replies[about["step"]])
            backbones[name], rounds[name] = copied(reply.backbone), about["round"]
    return backbones, rounds


def _in_use(method: Method, standing: checkpoint.Checkpoint) -> Weighting | None:
    """FV's weighting in the server's state, where the method has one."""
    state = checkpoint.unpack_state(standing.state, method.stages()[standing.stage].state)
    return next((part for part in vars(state).values() if isinstance(part, Weighting)), None)


def _scorers(parts: Parts) -> _Scorers:
    """The recipe's validators, with the run's score setting; where there are none, the evaluation pairs."""
    recipe, method, backbone, device = parts.recipe, parts.method, parts.backbone, parts.recipe.engine.device
    if recipe.validators:
        # Under a method without FV they take no part: they are those that FedAvg with FV would have.
        other = recipe if _component(method) else recipe.model_copy(update={"method": "fedavg-fv"})
        validation = _component(other.build_method()) or FederatedValidation()
        theirs = parts.validators_here()
        score = f"TAR at FAR {validation.far:g}" if validation.score == "tar" else validation.score
        counts = {name: len(pairs) for name, (_, pairs) in theirs.items()}
        notes = (
            ()
            if _component(method)
            else (f"the validators of the recipe score the grid, which {recipe.method} does not ask",)
        )
        return _Scorers("validators", score, counts, _by_validators(validation, theirs, backbone, device), notes)
    lists = [one for one in parts.pairs if one.pairs.headline is None]
    if not lists:
        raise RecipeError(
            "nothing can score the grid; give the recipe validators, or evaluation.pairs with an accuracy",
            where="evaluation.pairs",
        )
    verification = Verification(lists, backbone, recipe.evaluation.flip, device)

    def of(model: Tensors) -> dict[str, float]:
        return {name: figures["accuracy"] for name, figures in verification.models([model]).items()}

    counts = {one.name: len(one.pairs) for one in lists}
    note = "the recipe has no validators: the evaluation pairs score the grid, so that choosing by it would fit them"
    return _Scorers("evaluation pairs", "accuracy", counts, of, (note,))


def _by_validators(
    validation: FederatedValidation, theirs: Mapping[str, tuple[FaceSet, PairList]], backbone: Backbone, device: str
) -> Score:
    def of(model: Tensors) -> dict[str, float]:
        backbone.load(model)
        found = {}
        for name, (faces, pairs) in theirs.items():
            images, left, right = images_needed(pairs.left, pairs.right)
            features = embed(backbone.module, faces, images, device=device)
            found[name] = validation.graded(score_pairs(features, left, right), pairs.same, pairs.fold)
        return found

    return of


def _csv(grid: Grid) -> str:
    """A line for each weighting; `name` is empty for those of the grid."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = grid.points[0]
    writer.writerow(["name", *(f"weight/{p}" for p in first.weights), *(f"score/{s}" for s in first.scores), "sum"])
    for point in (*grid.points, *grid.marks):
        writer.writerow([point.name, *point.weights.values(), *point.scores.values(), point.sum])
    return text.getvalue()
