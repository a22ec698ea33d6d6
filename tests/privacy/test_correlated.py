from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg

from coalface.core.errors import RecipeError
from coalface.privacy.accountant import Drawn, Mechanism, epsilon
from coalface.privacy.correlated import coefficients, inverse, squared_sensitivity
from coalface.privacy.dp import AdaptiveClip, Draws, PartyPrivacy


def matrix(bands: int, rounds: int) -> NDArray[np.float64]:
    """C, entry by entry: binomial(2k, k) / 4^k, k below its diagonal."""
    c = np.zeros((rounds, rounds))
    for row, column in itertools.product(range(rounds), repeat=2):
        if 0 <= (k := row - column) < bands:
            c[row, column] = math.comb(2 * k, k) / 4**k
    return c


@pytest.mark.parametrize(("bands", "rounds"), [(1, 4), (2, 7), (4, 7), (7, 7), (9, 7)])
def test_the_columns_are_those_of_the_matrix_and_of_its_inverse(bands: int, rounds: int) -> None:
    c = matrix(bands, rounds)
    np.testing.assert_allclose(c[:, 0], np.resize(np.pad(coefficients(bands), (0, rounds)), rounds))
    np.testing.assert_allclose(np.linalg.inv(c)[:, 0], inverse(bands, rounds), atol=1e-12)


def test_with_all_bands_it_is_the_root_of_the_prefix_sums() -> None:
    c = matrix(9, 9)
    np.testing.assert_allclose(c @ c, np.tril(np.ones((9, 9))), atol=1e-12)


def participations(rounds: int, separation: int) -> Iterator[tuple[int, ...]]:
    """Every set of rounds that are so far apart."""
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(rounds), n) for n in range(rounds + 1)):
        if all(b - a >= separation for a, b in itertools.pairwise(chosen)):
            yield chosen


@pytest.mark.parametrize("separation", [1, 2, 3, 5])
@pytest.mark.parametrize("bands", [1, 2, 4, 8])
def test_the_sensitivity_is_the_most_that_a_party_can_change(bands: int, separation: int) -> None:
    """Over every set of rounds, every choice of signs, and changes in the plane."""
    rounds, rng = 8, np.random.default_rng(0)
    c, most, turned = matrix(bands, rounds), 0.0, 0.0
    for chosen in participations(rounds, separation):
        for signs in itertools.product((1, -1), repeat=len(chosen)):
            most = max(most, float(np.sum((c[:, chosen] @ np.array(signs)) ** 2)) if chosen else 0.0)
        angles = rng.uniform(0, 2 * math.pi, len(chosen))
        turned = max(turned, float(np.sum((c[:, chosen] @ np.stack([np.cos(angles), np.sin(angles)], axis=1)) ** 2)))
    assert squared_sensitivity(rounds, separation, bands) == pytest.approx(most)
    assert turned <= most + 1e-9


def test_by_hand() -> None:
    """T = 3, b = 2, everybody each round: C 1 = (1, 3/2, 3/2). In turn of two: columns (1, 1/2, ·) and (·, ·, 1)."""
    assert squared_sensitivity(3, 1, 2) == pytest.approx(1 + 9 / 4 + 9 / 4)
    assert squared_sensitivity(3, 2, 2) == pytest.approx(1 + 1 / 4 + 1)


def error(rounds: int, separation: int, bands: int) -> float:
    """√ of the mean variance of the prefix sums A C⁻¹ z, of noise that protects as z = 1 does."""
    prefix = np.tril(np.ones((rounds, rounds))) @ linalg.toeplitz(inverse(bands, rounds), np.zeros(rounds))
    return math.sqrt(squared_sensitivity(rounds, separation, bands) * float((prefix**2).sum()) / rounds)


TABLE = {(40, 5): (12.81, 7.27), (100, 25): (14.21, 5.00), (200, 25): (28.35, 8.75), (10, 1): (7.42, 10.11)}
"""The page's: (T, s) -> the error without, and with as many bands as rounds in between (all ten, for everybody)."""


@pytest.mark.parametrize(("rounds", "separation"), TABLE)
def test_at_the_same_protection_the_model_has_less_noise_in_turn_and_more_of_everybody(
    rounds: int, separation: int
) -> None:
    bands = rounds if separation == 1 else separation
    alone, together = error(rounds, separation, 1), error(rounds, separation, bands)
    assert (alone, together) == (
        pytest.approx(TABLE[rounds, separation][0], abs=6e-3),
        pytest.approx(TABLE[rounds, separation][1], abs=6e-3),
    )
    assert (together < alone) == (separation > 1)


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bands", "rounds"), [(1, 7), (1, 8), (1, 9), (3, 9), (4, 9)])
def test_parties_in_turn_are_one_gaussian_mechanism_of_the_sensitivity(bands: int, rounds: int) -> None:
    mechanism = Mechanism(3.0, Drawn("cyclic", 2, 9), bands, "train")
    expected = Mechanism(3.0 / math.sqrt(squared_sensitivity(rounds, 4, bands)))
    assert epsilon({mechanism: rounds}, 1e-5) == pytest.approx(epsilon({expected: 1}, 1e-5))
    if bands == 1:
        assert epsilon({mechanism: rounds}, 1e-5) == epsilon({Mechanism(3.0): math.ceil(rounds / 4)}, 1e-5)


def test_stages_are_apart() -> None:
    """A party may be in the last round of one and in the first of the next."""
    both = {Mechanism(3.0, Drawn("cyclic", 1, 5), 1, stage): 1 for stage in ("one", "two")}
    assert epsilon(both, 1e-5) == epsilon({Mechanism(3.0): 2}, 1e-5)


@pytest.mark.parametrize(("n", "parties"), [(1, 3), (2, 5), (3, 7), (4, 7), (5, 5)])
def test_in_turn_everybody_takes_part_as_often_and_never_sooner_than_said(n: int, parties: int) -> None:
    names, rounds = tuple(f"p{i}" for i in range(parties)), 4 * parties
    chosen = []
    for number in range(1, rounds + 1):
        draws = Draws("cyclic", number, seed=7)
        chosen.append(draws.sample(lambda: names, names, n, np.random.default_rng(number)))
        assert len(set(chosen[-1])) == n and list(chosen[-1]) == sorted(chosen[-1])
        if n < parties:
            assert draws.of(chosen[-1]) == (0, Drawn("cyclic", n, parties))
    for name in names:
        taken = [number for number, asked in enumerate(chosen) if name in asked]
        assert len(taken) == rounds * n // parties
        assert min(b - a for a, b in itertools.pairwise(taken)) >= Drawn("cyclic", n, parties).separation
    again = Draws("cyclic", 1, seed=7).sample(lambda: names, names, n, np.random.default_rng(1))
    assert again == chosen[0]


def test_draws_of_several_sizes_promise_no_separation() -> None:
    privacy = PartyPrivacy(sampling="cyclic")
    two, three = Drawn("cyclic", 2, 8), Drawn("cyclic", 3, 8)
    assert privacy.stage_mechanism("s", [two, two], 2) == Mechanism(1 / math.sqrt(2), two, 1, "s")
    assert privacy.stage_mechanism("s", [two, three], 1).separation == 1
    assert privacy.stage_mechanism("s", [two, None], 1).separation == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"bands": 0, "sampling": "cyclic"},
        {"bands": 2, "sampling": "poisson"},
        {"bands": 2},
        {"bands": 2, "sampling": "cyclic", "clip": AdaptiveClip()},
    ],
)
def test_bands_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(RecipeError) as caught:
        PartyPrivacy(**settings)  # type: ignore[arg-type]
    assert caught.value.where == "bands"


def test_more_bands_than_rounds_in_between_are_refused() -> None:
    privacy = PartyPrivacy(bands=4, sampling="cyclic")
    privacy.check_bands(Drawn("cyclic", 2, 9))
    for drawn in (Drawn("cyclic", 3, 9), None):
        with pytest.raises(RecipeError) as caught:
            privacy.check_bands(drawn)
        assert caught.value.where == "privacy.dp.bands"
