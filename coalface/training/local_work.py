"""How much a party works in a round, on which images, at which learning rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coalface.core.checks import TypedSettings
from coalface.core.errors import RecipeError
from coalface.core.method import Party, private
from coalface.training.sgd import MOMENTUM, SGD, Momentum


@private
class Cursor:
    """Where a party stands in its data: the next image is `offset` of the permutation of `epoch`."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class LocalTraining(TypedSettings):
    """One round's work at a party: whole epochs, or iterations that go on where the last round stopped."""

    epochs: int = 1
    """Whole passes over a party's images in a round."""
    steps_per_round: int | None = None
    """K, steps a round; if given, it replaces `epochs`."""
    total_steps: int | None = None
    """All steps of a party over the stage: with K it says how many rounds there are."""
    batch_size: int = 32
    """Images of a step."""
    party_batch_size: Mapping[str, int] = field(default_factory=dict)
    """Party -> its images a step, where they are not `batch_size`; with `steps_per_round`, so all take as many."""
    lr: float = 0.1
    """η in the first round."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """How η falls from round to round; within a round it is constant."""
    lr_milestone_shares: tuple[float, ...] = (0.5, 0.75)
    """For `step`: the shares of the stage's rounds after which η is divided by 10."""
    lr_milestones: tuple[int, ...] = ()
    """For `step`, in place of `lr_milestone_shares`: the steps after which η is divided by 10. K must divide each."""
    momentum: float = 0.9
    """β of SGD."""
    weight_decay: float = 5e-4
    """The weight of ‖θ‖²/2 in the loss."""
    sample_rate: float | None = None
    """Share of the class embeddings that a step trains: those of its images and others drawn at random; None: all."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", *(["steps_per_round"] if self.steps_per_round is not None else [])):
            if getattr(self, name) < 1:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use 1 or more", where=name)
        if self.steps_per_round is not None and self.epochs != 1:
            raise RecipeError(
                f"{self.epochs} epochs, and steps_per_round={self.steps_per_round}, which takes their place; remove "
                "one of the two, or set epochs to 1",
                where="epochs",
            )
        if bad := [party for party, images in self.party_batch_size.items() if images < 1]:
            text = f"{self.party_batch_size[bad[0]]} is not allowed; use 1 or more"
            raise RecipeError(text, where=f"party_batch_size.{bad[0]}")
        if self.party_batch_size and self.steps_per_round is None:
            raise RecipeError(
                "it needs steps_per_round too: in an epoch it would change the steps of a round",
                where="party_batch_size",
            )
        for name, allowed, within in (
            ("lr", "a number above 0", self.lr > 0),
            ("momentum", "0 or more, and less than 1", 0 <= self.momentum < 1),
            ("weight_decay", "0 or more", self.weight_decay >= 0),
            ("sample_rate", "a share above 0 and up to 1", self.sample_rate is None or 0 < self.sample_rate <= 1),
        ):
            if not within:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use {allowed}", where=name)
        self._check_steps()

    def _check_steps(self) -> None:
        """Raise RecipeError where the steps of a round do not fit those of the schedule or of the whole training."""
        if self.lr_milestones and self.schedule != "step":
            raise RecipeError(
                f"they are for the schedule 'step', and the schedule is {self.schedule!r}", where="lr_milestones"
            )
        marks = [*self.lr_milestones, *([self.total_steps] if self.total_steps is not None else [])]
        if not marks:
            return
        if self.steps_per_round is None:
            raise RecipeError(
                "lr_milestones and total_steps count steps; set steps_per_round, the steps of a round",
                where="steps_per_round",
            )
        if min(marks) < 1 or (self.total_steps is not None and max(marks) > self.total_steps):
            raise RecipeError(
                f"{list(self.lr_milestones)} must lie within 1 and total_steps, {self.total_steps}",
                where="lr_milestones",
            )
        if any(mark % self.steps_per_round for mark in marks):
            fits = [k for k in range(1, min(marks) + 1) if not any(mark % k for mark in marks)]
            near = min(fits, key=lambda k: (abs(k - self.steps_per_round), -k))  # type: ignore[operator]
            raise RecipeError(
                f"{self.steps_per_round} does not divide the steps at which the learning rate changes or training ends "
                f"({', '.join(map(str, sorted(marks)))}), and within a round the rate is constant; the nearest K "
                f"that does is {near}",
                where="steps_per_round",
            )

    @property
    def rounds(self) -> int | None:
        """The rounds that `total_steps` and K make; None where the recipe gives the rounds."""
        if self.total_steps is None or self.steps_per_round is None:
            return None
        return self.total_steps // self.steps_per_round

    def lr_at(self, round_: int, rounds: int) -> float:
        """The learning rate η_r of round r of R (1-based).

        `step`: η · 10^(−number of shares m with m·R ≤ r − 1), or of milestones d with d ≤ (r − 1)·K;
        `cosine`: η · (1 + cos(π (r − 1) / R)) / 2.

        Examples:
            >>> LocalTraining(lr=0.1, schedule="step", lr_milestone_shares=(0.5,)).lr_at(6, 10)
            0.01
        """
        progress = (round_ - 1) / max(1, rounds)
        if self.lr_milestones and self.steps_per_round is not None:
            return self.lr / 10 ** bisect_right(sorted(self.lr_milestones), (round_ - 1) * self.steps_per_round)
        if self.schedule == "step":
            return self.lr / 10 ** bisect_right(sorted(self.lr_milestone_shares), progress + 1e-9)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * progress)) / 2
        return self.lr

    def sgd(self, party: Party, momentum: Momentum = MOMENTUM["reset"]) -> SGD:
        """The optimiser of the party's round under way: η_r, β where this kind of momentum has it, λ."""
        lr = self.lr_at(party.round, party.rounds)
        return SGD(lr=lr, momentum=momentum.factor(self.momentum), weight_decay=self.weight_decay)

    def in_epochs(self, epochs: int) -> LocalTraining:
        """The same work in so many whole epochs of all images, in place of K steps."""
        return replace(
            self,
            epochs=epochs,
            steps_per_round=None,
            total_steps=None,
            party_batch_size={},
            lr_milestones=(),
        )

    def count(self, images: int) -> int:
        """The local steps of a round at a party with so many images.

        Examples:
            >>> LocalTraining(epochs=2, batch_size=4).count(9), LocalTraining(steps_per_round=7).count(9)
            (4, 7)
        """
        if self.steps_per_round is not None:
            return self.steps_per_round
        return self.epochs * (len(_cuts(images, self.batch_size)) + 1)

    def work(self, party: str, images: int) -> tuple[int, int]:
        """The local steps of a round at a party with so many images, and how many images these see.

        Examples:
            >>> LocalTraining(epochs=2, batch_size=4).work("a", 9), LocalTraining(steps_per_round=7).work("a", 9)
            ((4, 18), (7, 63))
        """
        if self.steps_per_round is None:
            return self.count(images), self.epochs * images
        batch = min(self.party_batch_size.get(party, self.batch_size), images)
        return self.steps_per_round, self.steps_per_round * batch

    def batches(self, party: Party, cursor: Cursor) -> tuple[list[NDArray[np.int64]], Cursor]:
        """Batches of this round at a party, as indices into its data, and where the next round goes on."""

        def order(epoch: int) -> NDArray[np.int64]:
            return party.stream(party.stage, "epoch", epoch).permutation(len(party.data))

        if self.steps_per_round is not None:
            batch = self.party_batch_size.get(party.name, self.batch_size)
            return by_iterations(len(party.data), batch, self.steps_per_round, cursor, order)
        return by_epochs(len(party.data), self.batch_size, self.epochs, cursor, order)


@dataclass(frozen=True)
class EpochPlan:
    """Whole epochs whose number differs from round to round, and η within a round."""

    work: LocalTraining
    epochs: tuple[int, ...] = ()
    """Of round 1, 2, …, the last for all rounds after; (): those of `work`."""
    decay_after: tuple[int, ...] = ()
    """Epochs of a round after which η is a tenth, as `epochs`; (): never."""
    drop_last: bool = False
    """Leave out the last batch of an epoch where it is not full."""

    def of_round(self, round_: int) -> LocalTraining:
        """A round's work, with the epochs that it has."""
        return replace(self.work, epochs=self.epochs[min(round_, len(self.epochs)) - 1]) if self.epochs else self.work

    def parts(self, round_: int, *, by_epoch: bool) -> list[tuple[LocalTraining, float]]:
        """A round's work in the parts between which something changes, and by what η is multiplied in each."""
        work, decay_after = self.of_round(round_), self.decay_after
        parts = [(work, 1.0)]
        if decay_after and (first := decay_after[min(round_, len(decay_after)) - 1]) < work.epochs:
            parts = [(replace(work, epochs=first), 1.0), (replace(work, epochs=work.epochs - first), 0.1)]
        return [(replace(part, epochs=1), lr) for part, lr in parts for _ in range(part.epochs)] if by_epoch else parts

    def batches(self, work: LocalTraining, party: Party, cursor: Cursor) -> tuple[list[NDArray[np.int64]], Cursor]:
        """The batches of a part, and where the next epoch goes on."""
        batches, cursor = work.batches(party, cursor)
        if self.drop_last and work.steps_per_round is None:
            # An image that alone was left over has joined the batch before it, and is left out too.
            full = [batch[: work.batch_size] for batch in batches if len(batch) >= work.batch_size]
            batches = full or batches  # a party with fewer images than a batch trains on what it has
        return batches, cursor

    def count(self, round_: int, party: str, images: int) -> tuple[int, int]:
        """The local steps of a round at a party with so many images, and how many images these see."""
        work = self.of_round(round_)
        if self.drop_last and work.steps_per_round is None and (full := images // work.batch_size):
            return work.epochs * full, work.epochs * full * work.batch_size
        return work.work(party, images)


@runtime_checkable
class WorksByRound(Protocol):
    """A method whose trainers do not all do `local` in every round."""

    def round_work(self, stage: str, round_: int, role: str, party: str, images: int) -> tuple[int, int] | None:
        """Local steps and images seen, with so many images to train on; None where these do not tell."""


Order = Callable[[int], NDArray[np.int64]]
"""epoch -> a permutation of the images."""


def by_epochs(
    images: int, batch: int, epochs: int, cursor: Cursor, order: Order
) -> tuple[list[NDArray[np.int64]], Cursor]:
    """Whole epochs. A last batch of one image joins the batch before it, since BatchNorm cannot train on one image."""
    batches = []
    for epoch in range(cursor.epoch, cursor.epoch + epochs):
        batches += np.split(order(epoch), list(_cuts(images, batch)))
    return batches, Cursor(epoch=cursor.epoch + epochs, offset=0)


def _cuts(images: int, batch: int) -> range:
    """Where batches end, but for the last; a range, since a party may say that it has any number of images."""
    cuts = range(batch, images, batch)
    return cuts[:-1] if cuts and images - cuts[-1] == 1 else cuts


def by_iterations(
    images: int, batch: int, iterations: int, cursor: Cursor, order: Order
) -> tuple[list[NDArray[np.int64]], Cursor]:
    """Full batches that go on across epochs and rounds; a party with fewer images than a batch uses all it has."""
    if images < 1:
        raise ValueError("a party without images cannot train: leave it out of the partition")
    batch = min(batch, images)
    stream, epoch = order(cursor.epoch)[cursor.offset :], cursor.epoch
    while len(stream) < iterations * batch:
        epoch += 1
        stream = np.concatenate([stream, order(epoch)])
    images_left = len(stream) - iterations * batch
    return np.split(stream[: iterations * batch], iterations), Cursor(epoch=epoch, offset=images - images_left)
