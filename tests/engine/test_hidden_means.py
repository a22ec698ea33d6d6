"""The vector of a hidden reply: its layout, its rounding, and the means that come back, against plain loops."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from toys import Moved, Moves, Values

from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Mean
from coalface.engine.sums.hidden import IMAGES, PARTIES, HiddenMeans, asked_for
from coalface.privacy.secure import SecureSettings, too_few

MEANS = [
    Mean("values", by="images"),
    Mean("values", by="images", of="differences", name="change"),
    Mean("values", name="alike"),
    Mean("delta", over="all", name="control"),
]
START = {"a": torch.tensor([0.5, -1.0, 2.0]), "b": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)}
STEP = Moves().steps["move"][1]


def hidden(settings: SecureSettings, parties: int = 5) -> HiddenMeans:
    like = codec.forms(Moved, [Values(values=START)])
    return HiddenMeans.of(settings, STEP, asked_for(MEANS), like, parties)


def replies(parties: int, *, wide: float = 0.5) -> list[Moved]:
    draws = torch.Generator().manual_seed(0)
    party_replies = []
    for place in range(parties):
        moved = {n: t + wide * torch.randn(t.shape, generator=draws, dtype=t.dtype) for n, t in START.items()}
        delta = {n: torch.randn(t.shape, generator=draws, dtype=t.dtype) for n, t in START.items()}
        party_replies.append(Moved(values=moved, delta=delta, images=3 + 7 * place, loss=1.0 + place))
    return party_replies


def naive(party_replies: list[Moved], mean: Mean, everyone: int) -> dict[str, np.ndarray]:
    """Σ w x / Σ w, number by number, in whole fractions."""
    result = {}
    for name, start in START.items():
        numbers = []
        for place in range(start.numel()):
            top = bottom = Fraction(0)
            for reply in party_replies:
                weight = Fraction(reply.images if mean.by == "images" else 1)
                value = Fraction(float(getattr(reply, mean.field)[name].reshape(-1)[place]))
                if mean.of == "differences":
                    value -= Fraction(float(start.reshape(-1)[place]))
                top, bottom = top + weight * value, bottom + weight
            numbers.append(float(top / (everyone if mean.over == "all" else bottom)))
        result[name] = np.array(numbers).reshape(start.shape)
    return result


@pytest.mark.parametrize("settings", [SecureSettings(), SecureSettings(fraction_bits=30, most_images=100)])
def test_the_means_are_those_of_a_plain_loop_but_for_the_rounding(settings: SecureSettings) -> None:
    means, party_replies = hidden(settings), replies(5)[1:]  # the first has dropped out
    total = sum(means.encode(reply) for reply in party_replies)
    opened = means.decode(total)
    assert opened.parties == 4 and opened.metrics["cut_off"] == 0.0
    assert opened.means[IMAGES][1] == sum(reply.images for reply in party_replies)
    for mean in MEANS:
        result = opened.mean(mean, everyone=5)
        weight = IMAGES if mean.by == "images" else PARTIES
        error = means.layout.error(weight, f"{mean.field}/a", 4, opened.means[weight][1])
        for name, expected in naive(party_replies, mean, 5).items():
            assert result[name].dtype == START[name].dtype
            bound = error + (2e-7 if START[name].dtype == torch.float32 else 1e-12)
            np.testing.assert_allclose(result[name].numpy(), expected, rtol=0, atol=bound)
    losses = opened.loss()
    assert losses[None] == pytest.approx(sum(r.loss for r in party_replies) / 4, abs=1e-3)
    weighted = sum(r.loss * r.images for r in party_replies) / sum(r.images for r in party_replies)
    assert losses["images"] == pytest.approx(weighted, abs=1e-3)


def test_the_stated_error_is_reached_within_a_half_and_never_passed() -> None:
    """Of many roundings the largest comes near the bound; it is stated for the tensors, and for what came."""
    means = hidden(SecureSettings(most_images=64), parties=8)
    worst, bound = 0.0, means.layout.error(IMAGES, "values/b", 1, 1)
    for seed in range(200):
        torch.manual_seed(seed)
        reply = replies(1)[0]
        values = {n: t + torch.rand(t.shape, dtype=t.dtype) for n, t in START.items()}
        opened = means.decode(means.encode(Moved(values=values, delta=reply.delta, images=1, loss=0.0)))
        result = opened.mean(MEANS[1], everyone=8)
        worst = max(worst, float((result["b"] - (values["b"] - START["b"])).abs().max()))
    assert bound / 2 < worst <= bound


@pytest.mark.parametrize(
    ("settings", "parties", "bits"),
    [
        (SecureSettings(), 52, 32),
        (SecureSettings(), 53, 64),
        (SecureSettings(most_images=1000), 524, 32),
        (SecureSettings(most_images=1000), 525, 64),
        (SecureSettings(most_images=10, fraction_bits=40), 3, 64),
    ],
)
def test_the_ring_is_as_narrow_as_the_page_says(settings: SecureSettings, parties: int, bits: int) -> None:
    means = hidden(settings, parties)
    assert means.layout.bits == bits
    clips = {path: s for m in means.layout.means.values() for path, s in m.tensors.items()}
    if settings.fraction_bits is None:  # as many steps up to the clip as there is room for, and one place more is none
        weight, summand = means.layout.means[IMAGES], clips["values/a"]
        largest = parties * weight.heaviest * summand.clip * 2.0**summand.fraction_bits
        room = 2.0 ** (bits - 1)
        assert largest < room and (2 * largest >= room * 0.99 or summand.fraction_bits >= 38)


def test_patterns_say_the_clip_and_the_longest_that_fits_counts() -> None:
    settings = SecureSettings(clip={"*": 1.0, "values/*": 2.0, "*running_var": 9.0}, fraction_bits={"*": 8, "*/b": 9})
    summands = hidden(settings).layout.means[PARTIES].tensors
    assert (summands["values/a"].clip, summands["delta/a"].clip) == (2.0, 1.0)
    assert (summands["values/a"].fraction_bits, summands["values/b"].fraction_bits) == (8, 9)
    assert settings.clip_of("values/layer.running_var") == 9.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"dropouts": 1.0},
        {"dropouts": -0.1},
        {"corrupt": 1.5},
        {"most_images": 0},
        {"clip": 0.0},
        {"clip": {"values": 1.0}},
        {"clip": {"*": 1e9}},
        {"fraction_bits": 60},
        {"fraction_bits": {"values": 3}},
        {"clip": "much"},
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as error:
        SecureSettings(**wrong)
    assert error.value.where == next(iter(wrong))


@pytest.mark.parametrize(("asked", "enough"), [(1, False), (2, False), (3, True), (4, True), (10, True), (100, True)])
def test_three_parties_are_enough_by_the_usual_settings(asked: int, enough: bool) -> None:
    assert (too_few(SecureSettings(), asked) == "") is enough
    assert too_few(SecureSettings(dropouts=0.6, corrupt=0.4), asked)


@pytest.mark.parametrize(
    ("asked", "dropouts", "corrupt", "enough"),
    [(6, 3, 1, False), (6, 2, 2, False), (6, 2, 1, True), (7, 3, 1, False), (8, 3, 1, True), (100, 45, 10, False)],
)
def test_two_sets_of_survivors_are_signed_by_no_parties_of_one_sum(
    asked: int, dropouts: int, corrupt: int, enough: bool
) -> None:
    """Each set needs asked - dropouts signatures; honest parties sign one, corrupt ones both."""
    assert (2 * (asked - dropouts) > asked + corrupt) is enough
    settings = SecureSettings(dropouts=dropouts / asked, corrupt=corrupt / asked)
    assert (too_few(settings, asked) == "") is enough
    means = hidden(settings, asked)
    with nullcontext() if enough else pytest.raises(ValueError, match="of survivors"):
        means.context(settings, "run", "train", 1, 1)


def test_the_bound_on_the_rounding_holds_for_one_image_each_and_tells_no_count() -> None:
    settings = SecureSettings(fraction_bits=10, most_images=100)
    means = hidden(settings)
    assert means.error == pytest.approx(2.0**-11, rel=1e-6)
    few = [dataclasses.replace(reply, images=1) for reply in replies(5)]
    result = means.decode(sum(means.encode(reply) for reply in few)).mean(MEANS[0], everyone=5)
    errors = [np.abs(result[n].numpy() - e).max() for n, e in naive(few, MEANS[0], 5).items()]
    assert means.error / 20 < max(errors) <= means.error + 2e-7
