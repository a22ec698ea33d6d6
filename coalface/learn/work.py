"""How much a party works in a round, on which images, at which learning rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coalface.core import Party, private


@private
class Cursor:
    """Where a party stands in its data: the next image is `offset` of the permutation of `epoch`."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class LocalWork:
    """One round's work at a party: whole epochs, or iterations that go on where the last round stopped."""

    epochs: int = 1
    iterations: int | None = None
    """Steps a round; if given, it replaces `epochs`."""
    batch: int = 32
    lr: float = 0.1
    """η in the first round."""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """How η falls from round to round; within a round it is constant."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """For `step`: the shares of the stage's rounds after which η is divided by 10."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    sample_rate: float | None = None
    """Share of the class embeddings that a step trains: those of its images and others drawn at random; None: all."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", *(["iterations"] if self.iterations is not None else [])):
            if getattr(self, name) < 1:
                raise ValueError(f"local.{name} is {getattr(self, name)}; give 1 or more")
        if not self.lr > 0 or not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise ValueError(
                f"local work needs lr > 0, 0 ≤ momentum < 1 and weight_decay ≥ 0; got lr={self.lr}, "
                f"momentum={self.momentum}, weight_decay={self.weight_decay}"
            )

        if self.sample_rate is not None and not 0 < self.sample_rate <= 1:
            raise ValueError(f"local.sample_rate is {self.sample_rate}; give a share above 0 and up to 1")

    def lr_at(self, round_: int, rounds: int) -> float:
        """The learning rate η_r of round r of R (1-based).

        `step`: η · 10^(−number of milestones m with m·R ≤ r − 1); `cosine`: η · (1 + cos(π (r − 1) / R)) / 2.

        >>> LocalWork(lr=0.1, schedule="step", milestones=(0.5,)).lr_at(6, 10)
        0.01
        """
        done = (round_ - 1) / max(1, rounds)
        if self.schedule == "step":
            return self.lr / 10 ** bisect_right(sorted(self.milestones), done + 1e-9)
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * done)) / 2
        return self.lr

    def batches(self, party: Party, cursor: Cursor) -> tuple[list[NDArray[np.int64]], Cursor]:
        """Batches of this round at a party, as indices into its data, and where the next round goes on."""

        def order(epoch: int) -> NDArray[np.int64]:
            return party.stream(party.stage, "epoch", epoch).permutation(len(party.data))

        if self.iterations is not None:
            return by_iterations(len(party.data), self.batch, self.iterations, cursor, order)
        return by_epochs(len(party.data), self.batch, self.epochs, cursor, order)


Order = Callable[[int], NDArray[np.int64]]
"""epoch -> a permutation of the images."""


def by_epochs(
    images: int, batch: int, epochs: int, cursor: Cursor, order: Order
) -> tuple[list[NDArray[np.int64]], Cursor]:
    """Whole epochs. A last batch of one image joins the batch before it, since BatchNorm cannot train on one image."""
    found = []
    for epoch in range(cursor.epoch, cursor.epoch + epochs):
        cuts = list(range(batch, images, batch))
        if cuts and images - cuts[-1] == 1:
            cuts.pop()
        found += np.split(order(epoch), cuts)
    return found, Cursor(epoch=cursor.epoch + epochs, offset=0)


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
    left = len(stream) - iterations * batch
    return np.split(stream[: iterations * batch], iterations), Cursor(epoch=epoch, offset=images - left)
