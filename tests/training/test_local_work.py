from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coalface.core.errors import RecipeError
from coalface.training.local_work import Cursor, LocalTraining, by_epochs, by_iterations


def order(epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng(epoch).permutation(IMAGES)


IMAGES = 11


def stream(numbers: int) -> list[int]:
    """The images of epoch 0, then of epoch 1, and so on."""
    return np.concatenate([order(epoch) for epoch in range(1 + numbers // IMAGES)])[:numbers].tolist()


@pytest.mark.parametrize(("batch", "iterations"), [(4, 1), (4, 5), (3, 2), (11, 1), (10, 3), (1, 7)])
def test_iterations_go_on_across_rounds_as_one_long_stream(batch: int, iterations: int) -> None:
    cursor, places = Cursor(), []
    for _ in range(6):
        batches, cursor = by_iterations(IMAGES, batch, iterations, cursor, order)
        assert [len(b) for b in batches] == [batch] * iterations
        places += np.concatenate(batches).tolist()
    assert places == stream(6 * iterations * batch)


def test_a_party_with_fewer_images_than_a_batch_uses_all_it_has() -> None:
    batches, cursor = by_iterations(IMAGES, 32, 3, Cursor(), order)
    assert [sorted(b.tolist()) for b in batches] == [list(range(IMAGES))] * 3
    assert by_iterations(IMAGES, 32, 1, cursor, order)[0][0].tolist() == order(3).tolist()


def test_epochs_take_every_image_once_and_go_on_with_the_next_order() -> None:
    first, cursor = by_epochs(IMAGES, 4, 2, Cursor(), order)
    assert [len(b) for b in first] == [4, 4, 3] * 2
    second, cursor = by_epochs(IMAGES, 4, 1, cursor, order)
    assert np.concatenate([*first, *second]).tolist() == stream(3 * IMAGES)
    assert (cursor.epoch, cursor.offset) == (3, 0)


@pytest.mark.parametrize(
    ("images", "batch", "sizes"),
    [(9, 4, [4, 5]), (5, 4, [5]), (4, 4, [4]), (1, 4, [1]), (6, 4, [4, 2]), (3, 1, [1, 2])],
)
def test_no_batch_of_one_image_is_left_over(images: int, batch: int, sizes: list[int]) -> None:
    batches, _ = by_epochs(images, batch, 1, Cursor(), lambda epoch: np.arange(images))
    assert [len(b) for b in batches] == sizes
    assert np.concatenate(batches).tolist() == list(range(images))


def test_the_learning_rate_falls_as_its_schedule_says() -> None:
    rounds = range(1, 11)
    assert {LocalTraining(lr=0.2).lr_at(r, 10) for r in rounds} == {0.2}
    steps = LocalTraining(lr=0.2, schedule="step", lr_milestone_shares=(0.75, 0.5))
    assert [steps.lr_at(r, 10) for r in rounds] == pytest.approx([0.2] * 5 + [0.02] * 3 + [0.002] * 2)
    cosine = LocalTraining(lr=0.2, schedule="cosine")
    assert [cosine.lr_at(r, 10) for r in rounds] == pytest.approx(
        [0.1 * (1 + math.cos(math.pi * (r - 1) / 10)) for r in rounds]
    )


def test_a_milestone_counts_the_rounds_that_are_over() -> None:
    """m·R ≤ r − 1: 0.3 of 10 rounds are over when round 4 begins, whatever 0.3 is in floating point."""
    for share in (0.1, 0.2, 0.3, 0.6, 0.7):
        work = LocalTraining(lr=1.0, schedule="step", lr_milestone_shares=(share,))
        assert [work.lr_at(r, 10) == 1.0 for r in range(1, 11)] == [r <= round(10 * share) for r in range(1, 11)]
    half = LocalTraining(lr=1.0, schedule="step", lr_milestone_shares=(0.5,))
    assert [half.lr_at(r, 5) for r in range(1, 6)] == [1.0, 1.0, 1.0, 0.1, 0.1]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 2, "steps_per_round": 3}, "epochs"),
        ({"steps_per_round": 0}, "steps_per_round"),
        ({"lr": 0.0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"party_batch_size": {"a": 0}}, "party_batch_size.a"),
    ],
)
def test_work_that_cannot_be_done_is_refused_at_its_key(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as error:
        LocalTraining(**changes)
    assert error.value.where == where


def test_a_party_may_have_a_batch_of_its_own() -> None:
    work = LocalTraining(steps_per_round=3, batch_size=4, party_batch_size={"big": 5})
    for name, batch in (("big", 5), ("other", 4)):
        party: Any = SimpleNamespace(name=name, stage="train", data=range(IMAGES), stream=lambda *names: order_rng())
        batches, _ = work.batches(party, Cursor())
        assert [len(b) for b in batches] == [batch] * 3


def test_steps_are_counted_whatever_number_of_images_a_party_says_it_has() -> None:
    """The server of `scaffold` counts them, of parties that may say 2⁴⁰; a list of so many batches has no room."""
    assert LocalTraining(epochs=2, batch_size=4).count(1 << 40) == 2 << 38
    assert LocalTraining(epochs=1, batch_size=4).count((1 << 40) + 1) == 1 << 38


def order_rng() -> np.random.Generator:
    return np.random.default_rng(0)
