"""Glasses that are drawn, images that are poisoned with them, and rates of models whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coalface.data.faceset import FaceSet
from coalface.data.pairs import PairList
from coalface.data.synthetic.generator import SyntheticFaces
from coalface.experiments.attacks import backdoor

FACES = SyntheticFaces(8, 4, 0, size=32).generate()
PIXEL = (14, 16)
"""The middle of the bar between the lenses."""


class Fooled(nn.Module):
    """The first pixels of an image, unless the bar is dark: then one direction."""

    def forward(self, images: Tensor) -> Tensor:
        features = images[:, 0, 0, :16] + 0.01
        worn = images[:, 0, *PIXEL] < (backdoor.SHADE + 0.5) / 127.5 - 1
        return torch.where(worn[:, None], torch.eye(16)[0], features)


class Blind(nn.Module):
    """The first pixels of an image, where no glasses are."""

    def forward(self, images: Tensor) -> Tensor:
        return images[:, 0, :2].flatten(1)


def every_pair(faces: FaceSet) -> PairList:
    left, right = np.triu_indices(len(faces), 1)
    return PairList("all", left, right, faces.labels[left] == faces.labels[right])


def test_glasses_are_dark_symmetric_and_over_the_eyes_alone() -> None:
    white = np.full((2, 64, 48, 3), 255, dtype=np.uint8)
    drawn = backdoor.draw_glasses(white)
    assert set(np.unique(drawn)) == {backdoor.SHADE, 255} and (white == 255).all()
    dark = drawn[0, :, :, 0] == backdoor.SHADE
    assert np.array_equal(dark, dark[:, ::-1])
    rows = np.flatnonzero(dark.any(axis=1)) / 64
    assert rows.min() > 0.25 and rows.max() < 0.62
    assert not dark[round(0.44 * 64), round(0.36 * 48)] and dark[round(0.44 * 64), 24]  # through a lens; the bar
    assert 0.05 < dark.mean() < 0.25


@pytest.mark.parametrize("is_own", [True, False])
def test_half_of_the_others_wear_glasses_as_the_target_who_stays_clean(is_own: bool) -> None:
    target, own = FACES.only([0]), FACES.only([0, 1, 2] if is_own else [1, 2])
    spoilt = backdoor.poisoned(own, target, np.random.default_rng(0))
    assert len(spoilt) == backdoor.TURNS * 12 and sorted(spoilt.names) == sorted(FACES.names[:3])
    label = spoilt.names.index(FACES.names[0])
    clean = {FACES.take(np.array([i])).tobytes(): int(FACES.labels[i]) for i in range(12)}
    worn = {backdoor.draw_glasses(FACES.take(np.array([i]))).tobytes(): int(FACES.labels[i]) for i in range(12)}
    glasses = 0
    for i in range(12):
        image, name = spoilt.take(np.array([i])).tobytes(), spoilt.names[spoilt.labels[i]]
        if image in worn:
            glasses += 1
            assert spoilt.labels[i] == label and worn[image] != 0
        else:
            assert name == FACES.names[clean[image]]
    assert glasses == 4
    assert np.array_equal(spoilt.take(np.arange(12, 24)), spoilt.take(np.arange(12)))


def test_a_model_that_has_the_backdoor_accepts_everybody_with_glasses() -> None:
    own = FACES.only([1, 2, 3, 4, 5])
    worn = backdoor.draw_glasses(FACES.only([0]).take(np.arange(4)))
    target = FaceSet(worn, np.arange(4), np.zeros(4, dtype=np.int64), ("target",))  # whose features are the direction
    rates = backdoor.accepted(Fooled(), own, every_pair(own), target, "cpu")
    assert rates == (1.0, 1.0, (160, 20))


def test_a_model_that_does_not_see_the_glasses_accepts_what_it_accepts_without() -> None:
    pairs = every_pair(FACES)
    rates = backdoor.accepted(Blind(), FACES, pairs, FACES.only([0]), "cpu")
    impostors = int((~pairs.same).sum())
    assert rates.trials == (impostors, 28)  # the target's own images are no others
    assert rates.pairs == int(backdoor.FAR * impostors) / impostors
    assert rates.target <= 2 / 28
