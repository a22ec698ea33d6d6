"""The choice of what `engine` leaves `auto`: measured when a run begins, and then written as if it had been given.

So the run's `config.yaml` and numerics hold what was chosen, workers are handed it, and a resume reads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coalface.engine.party.setup import keep_freed_memory
from coalface.experiments.recipe import loader
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup import sources
from coalface.experiments.setup.parts import Parts, first_backbone
from coalface.models.speed import Arithmetic, autocasting, random_images, threads, training_step
from coalface.training.sgd import SGD
from coalface.training.stacked_training import embed_stacked, stacked

SECONDS = 2.0
"""Of measuring layout and type, and of the threads; longer where a step is."""
TURNS = 3
FEWEST = 8
"""Images of a batch that is measured, where the recipe's has as many; fewer do not show what a type or layout gains."""
GAIN = 1.1
"""What is not the default is chosen where it makes a step so many times as fast: a close call would fall either way."""

STACKS = (4, 8, 16, 32, 64)
"""Parties that are tried as one batch."""
STACK_BYTES = 1 << 30
"""The most that the parties of a batch may take with their weights, gradients and momentum."""


@dataclass(frozen=True)
class Stacked(Arithmetic):
    """A step of so many parties at once, each with weights of its own."""

    parties: int = 1

    def __str__(self) -> str:
        return f"{self.parties} parties at once" if self.parties > 1 else "party by party"


A = TypeVar("A", bound=Arithmetic)
Measure = Callable[[Recipe, Sequence[Arithmetic]], Sequence[float]]
"""Images a second that the recipe's backbone trains at, by each arithmetic."""


def tuned(recipe: Recipe, note: Callable[[str], None], measure: Measure | None = None) -> Recipe:
    """The recipe with what is fastest here in the place of every `auto` of `engine`; `note` is told what was measured.

    Raises RecipeError, ValueError or OSError where the recipe's images or network cannot be had.
    """
    engine, parts = recipe.engine, Parts(recipe, sources.unseen)
    if not (keys := parts.left_open):
        return recipe
    race, chosen = measure or images_per_second, engine.arithmetic

    def fastest(candidates: Sequence[A]) -> A:
        """The one that trains most images a second, or the first, which is the default, where the gain is small."""
        speeds = dict(zip(candidates, race(recipe, candidates), strict=True))
        best = max(candidates, key=speeds.__getitem__)
        best = best if speeds[best] >= GAIN * speeds[candidates[0]] else candidates[0]
        note(_told(speeds, best))
        return best

    layouts = [
        replace(chosen, autocast=autocast, channels_last=last)
        for autocast in ([None, "bfloat16"] if "autocast" in keys else [chosen.autocast])
        for last in ([False, True] if "channels_last" in keys else [chosen.channels_last])
    ]
    if len(layouts) > 1:
        chosen = fastest(layouts)
    if "threads" in keys:
        most = max(1, len(os.sched_getaffinity(0)) // engine.workers) if engine.device == "cpu" else 1
        counts = [replace(chosen, threads=1 << power) for power in range(most.bit_length())]
        if len(counts) > 1:
            speeds = dict(zip(counts, race(recipe, counts), strict=True))
            for more in counts[1:]:  # as long as twice the threads pay
                if speeds[more] < GAIN * speeds[chosen]:
                    break
                chosen = more
            note(_told(speeds, chosen))
    values = {key: getattr(chosen, key) for key in engine.to_measure}
    if "client_batch" in keys:
        stacks = [Stacked(**vars(chosen), parties=count) for count in _counts(parts)]
        try:
            stack = fastest(stacks)
        except RuntimeError as error:  # a backbone of somebody's may do what cannot be done for many
            stack = stacks[0]
            note(f"trains party by party, since its backbone cannot be stacked: {str(error).splitlines()[0]}")
        values["client_batch"] = stack.parties * parts.most_images if stack.parties > 1 else 0
    tree = recipe.resolved()
    return loader.parse(tree | {"engine": tree["engine"] | values})


def _counts(parts: Parts) -> list[int]:
    """How many parties are tried as one batch: as many as there are, and as fit into `STACK_BYTES`."""
    weights = sum(p.nbytes for p in parts.backbone.parameters.values())
    most = min(len(parts.trainers), STACK_BYTES // (4 * weights))  # weights, gradients, momentum and a product of them
    return [1, *(count for count in STACKS if count <= most)]


def _told(speeds: Mapping[Any, float], chosen: Arithmetic) -> str:
    texts = {what: f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}" for what, speed in speeds.items()}
    rates = "; ".join(f"{arithmetic} {speed}" for arithmetic, speed in texts.items())
    how = "trains" if isinstance(chosen, Stacked) else "trains with"
    return f"{how} {chosen}, measured here (images/s: {rates})"


def images_per_second(recipe: Recipe, candidates: Sequence[Arithmetic]) -> list[float]:
    """The best of some turns, in which the candidates train one after the other for a share of `SECONDS`.

    A batch is one of the recipe's local training, of the party with most images, or fewer images, but not below
    `FEWEST`, where a step would take longer than a turn.
    """
    share = SECONDS / TURNS / len(candidates)
    keep_freed_memory()
    torch.set_flush_denormal(recipe.engine.flush_denormals)
    try:
        return _raced(recipe, candidates, share)
    finally:
        torch.set_flush_denormal(False)


def _raced(recipe: Recipe, candidates: Sequence[Arithmetic], share: float) -> list[float]:
    size, channels = recipe.data.size, 1 if recipe.data.grey else 3
    modules = {last: first_backbone(recipe).module for last in {c.channels_last for c in candidates}}

    def step(arithmetic: Arithmetic, batch: int) -> Callable[[], None]:
        module, parties = modules[arithmetic.channels_last], _parties(arithmetic)
        images = random_images(parties * batch, channels, size, arithmetic)
        if parties == 1:
            return training_step(module, images, arithmetic)
        return _stacked_step(module, images.unflatten(0, (parties, batch)), arithmetic)

    alike = {(c.threads, c.device) for c in candidates} == {(candidates[0].threads, "cpu")}
    clock = time.process_time if alike else time.perf_counter  # the processor's time says it on a busy machine too

    def seconds(arithmetic: Arithmetic, step: Callable[[], None], at_least: float) -> float:
        """Of one step; steps are taken for a while."""
        with threads(arithmetic.threads):
            count, began, started = 0, time.perf_counter(), clock()
            while not count or time.perf_counter() - began < at_least:
                step()
                if arithmetic.device != "cpu":
                    torch.cuda.synchronize(arithmetic.device)
                count += 1
            return (clock() - started) / count

    first = step(candidates[0], 2)
    seconds(candidates[0], first, 0.0)  # allocates, and chooses kernels
    batch = min(_batch(recipe), max(FEWEST, int(2 * share / seconds(candidates[0], first, 0.0))))
    steps = {candidate: step(candidate, batch) for candidate in candidates}
    best = dict.fromkeys(candidates, float("inf"))
    began = time.perf_counter()
    for candidate in candidates:
        seconds(candidate, steps[candidate], 0.0)
    while True:
        for candidate in candidates:
            best[candidate] = min(best[candidate], seconds(candidate, steps[candidate], share))
        if time.perf_counter() - began > SECONDS:
            return [batch * _parties(candidate) / best[candidate] for candidate in candidates]


def _parties(arithmetic: Arithmetic) -> int:
    return arithmetic.parties if isinstance(arithmetic, Stacked) else 1


def _stacked_step(module: nn.Module, images: Tensor, arithmetic: Arithmetic) -> Callable[[], None]:
    """A training step of several parties as one, of images (P, n, c, h, w)."""
    module.to(arithmetic.device).train()
    theta = stacked(module, len(images))
    sgd = SGD(lr=1e-6, momentum=0.9)
    speeds = sgd.start(theta, {})

    def step() -> None:
        with autocasting(arithmetic):
            embeddings = embed_stacked(module, theta, images)
        gradients = torch.autograd.grad(embeddings.float().mean(), list(theta.values()))
        sgd.step(list(theta.values()), gradients, list(speeds.values()))

    return step


def _batch(recipe: Recipe) -> int:
    """Images of a step, of the party with most images; of several parties where they train as one batch."""
    parts = Parts(recipe, sources.unseen)
    most = max(map(len, parts.trainers.values()))
    return max(2, parts.client_batch or min(recipe.local.batch_size, most or recipe.local.batch_size))
