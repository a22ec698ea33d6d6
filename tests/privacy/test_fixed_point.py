"""Means as whole numbers: exact sums, the error that is stated, and rings that are wide enough."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.fixed_point import HiddenMean, Layout, Summand


def one(size: int = 3, clip: float = 1.0, bits: int = 16, parties: int = 4, **mean: Any) -> Layout:
    return Layout({"m": HiddenMean({"t": Summand(size, clip, bits)}, **mean)}, parties)


def vector(layout: Layout, numbers: Any, weight: int) -> Any:
    return layout.encode({"m": ({"t": np.asarray(numbers)}, weight)})[0]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_mean_is_within_its_error_of_the_exact_one(data: st.DataObject) -> None:
    """In fractions, for all clips, scales and weights that a ring holds."""
    clip = data.draw(st.floats(2.0**-10, 2.0**10, width=32))
    heaviest = data.draw(st.sampled_from([1, 7, 10**4, 10**9]))
    try:
        layout = one(2, clip, data.draw(st.integers(0, 30)), heaviest=heaviest)
    except ValueError:
        return
    floats = st.floats(-2 * clip, 2 * clip, width=data.draw(st.sampled_from([32, 64])))
    parties = data.draw(st.lists(st.tuples(floats, st.integers(0, heaviest)), min_size=1, max_size=4))
    weight = sum(w for _, w in parties)
    if not weight:
        return
    total = sum(vector(layout, [x, -x], w) for x, w in parties)
    (means, found) = layout.decode(total)["m"]
    cut = [(min(max(Fraction(x), -Fraction(clip)), Fraction(clip)), w) for x, w in parties]
    exact = sum(x * w for x, w in cut) / weight
    bound = layout.error("m", "t", len(parties), weight)
    assert found == weight
    assert abs(Fraction(float(means["t"][0])) - exact) <= bound
    assert abs(Fraction(float(means["t"][1])) + exact) <= bound


def test_the_error_is_reached() -> None:
    """Every party lies half a step beside a whole one, all on the same side."""
    layout = one(1, parties=4)
    total = sum(vector(layout, [2.0**-17 + 2.0**-15], 1) for _ in range(4))
    mean = layout.decode(total)["m"][0]["t"][0]
    assert abs(mean - (2.0**-17 + 2.0**-15)) == 2.0**-17 <= layout.error("m", "t", 4, 4)


def test_numbers_round_to_the_nearest_and_to_the_even_one_of_two() -> None:
    layout = one(6, clip=4.0, bits=0)
    assert vector(layout, [0.5, 1.5, -0.5, -1.5, 2.4, 2.6], 1).view("<i4").tolist() == [0, 2, 0, -2, 2, 3, 1]


@pytest.mark.parametrize("bits", [32, 64])
def test_the_ring_is_the_narrowest_that_holds_the_largest_sum(bits: int) -> None:
    """W·c·2^f + n/2 below 2^(bits-1), of both signs: the largest sum comes back, and twice its scale needs more."""
    parties, exponent = 4, bits - 1 - 2 - 20  # four parties of weight 2^20, clip just below 1
    layout = one(2, 1 - 2.0**-20, exponent, parties, heaviest=2**20)
    assert layout.bits == bits
    total = sum(vector(layout, [9.0, -9.0], 2**20) for _ in range(parties))
    mean = layout.decode(total)["m"][0]["t"]
    assert mean.tolist() == [1 - 2.0**-20, -1 + 2.0**-20]
    wider = {"size": 2, "clip": 1.0, "bits": exponent, "parties": parties, "heaviest": 2**20}
    if bits == 32:
        assert one(**wider).bits == 64
    else:
        with pytest.raises(ValueError, match="m.t: the sum may reach 9.22e.18, and 64 bits hold"):
            one(**wider)


def test_weights_alone_can_need_the_wider_ring() -> None:
    assert one(bits=0, clip=0.001, heaviest=2**29, total=2**29).bits == 64  # four could say 2^29 each
    assert one(bits=0, clip=0.001, heaviest=2**28).bits == 32
    assert one(bits=16, heaviest=2**20, total=2**20).bits == 64
    assert one(bits=10, heaviest=2**20, total=2**20).bits == 32 != one(bits=10, heaviest=2**20).bits


def test_what_was_cut_off_is_counted_and_the_rest_comes_back() -> None:
    layout = one(4, clip=0.5)
    encoded, clipped = layout.encode({"m": ({"t": np.array([[0.5, -0.6], [7, 0.25]], np.float32)}, 1)})
    assert clipped == 2 and layout.decode(encoded)["m"][0]["t"].tolist() == [0.5, -0.5, 0.5, 0.25]
    assert layout.decode(encoded, np.float32)["m"][0]["t"].dtype == np.float32


def test_several_means_lie_one_after_the_other_and_a_long_tensor_in_order() -> None:
    size = 100_001
    layout = Layout({"a": HiddenMean({"x": Summand(size, 1.0), "y": Summand(0, 1.0)}), "b": HiddenMean({})}, 3)
    assert layout.length == size + 2
    numbers = np.linspace(-1, 1, size)
    encoded, _ = layout.encode({"a": ({"x": numbers, "y": np.zeros(0)}, 1), "b": ({}, 1)})
    back = layout.decode(encoded)
    assert back["b"] == ({}, 1) and np.abs(back["a"][0]["x"] - numbers).max() <= layout.error("a", "x", 1, 1)


@pytest.mark.parametrize(
    ("numbers", "weight"),
    [
        ([0.0, np.nan, 0.0], 1),
        ([0.0, np.inf, 0.0], 1),
        ([0.0, 0.0], 1),
        ([0.0] * 3, 6),
        ([0.0] * 3, -1),
        ([0.0] * 3, 0.5),
    ],
)
def test_what_cannot_be_encoded_is_refused(numbers: list[float], weight: Any) -> None:
    with pytest.raises(SecureSumError) as caught:
        vector(one(heaviest=5), numbers, weight)
    assert caught.value.code == "vector"


def test_weights_that_add_up_to_nothing_or_to_too_much_give_no_mean() -> None:
    layout = one(heaviest=5, total=8)
    for weights, code in (((0, 0), "weight"), ((5, 5), "overflow")):
        with pytest.raises(SecureSumError) as caught:
            layout.decode(sum(vector(layout, [0.0] * 3, weight) for weight in weights))
        assert caught.value.code == code


def test_the_digest_tells_layouts_apart() -> None:
    layouts = [one(), one(clip=2.0), one(bits=15), one(parties=5), one(heaviest=2), one(size=4)]
    assert len({layout.digest for layout in layouts}) == len(layouts)
    assert one().digest == one().digest


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": np.inf}, {"heaviest": 0}, {"heaviest": 5, "total": 4}])
def test_a_layout_without_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"m.*: (clip must be|1 ≤ heaviest)"):
        one(**wrong)
