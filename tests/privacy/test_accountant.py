from __future__ import annotations

import math
import sys

import pytest
from scipy import optimize, stats

from coalface.core.errors import RecipeError
from coalface.privacy import accountant
from coalface.privacy.accountant import Drawn, Mechanism, epsilon, most

DELTA = 1e-5


def poisson(sigma: float, q: float) -> Mechanism:
    return Mechanism(sigma, Drawn("poisson", round(1000 * q), 1000))


@pytest.mark.parametrize(
    ("mechanism", "rounds", "expected"),
    [
        (poisson(1.0, 0.01), 1000, 1.8282),
        (poisson(1.0, 0.1), 100, 7.0466),
        (Mechanism(0.8), 20, 38.7255),
        (Mechanism(4.0), 50, 8.5959),
    ],
)
def test_published_values(mechanism: Mechanism, rounds: int, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accountant, "_STEP", 1e-4)
    accountant._sampled.cache_clear()
    assert round(epsilon({mechanism: rounds}, DELTA), 4) == expected


def test_without_draws_it_is_the_closed_form_of_the_gaussian_mechanism() -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ² = Σ 1/σ_t² (Balle & Wang 2018; Dong et al. 2022)."""
    mu = math.sqrt(3 / 2.0**2 + 2 / 5.0**2)

    def delta(e: float) -> float:
        return float(stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu))

    expected = optimize.brentq(lambda e: delta(e) - DELTA, 0.1, 50)
    assert epsilon({Mechanism(2.0): 3, Mechanism(5.0): 2}, DELTA) == pytest.approx(expected, rel=1e-6)


def test_a_fixed_size_is_never_accounted_as_poisson() -> None:
    """The bound for draws without replacement is above that of Poisson draws, and never above that of no draws."""
    for asked, z, rounds in ((50, 1.0, 100), (100, 4.0, 200), (900, 1.0, 20)):
        fixed = epsilon({Mechanism(z, Drawn("fixed", asked, 1000)): rounds}, DELTA)
        assert epsilon({Mechanism(z, Drawn("poisson", asked, 1000)): rounds}, DELTA) < fixed
        assert fixed <= epsilon({Mechanism(z): rounds}, DELTA)
    assert epsilon({Mechanism(0.5, Drawn("fixed", 20, 1000)): 200}, DELTA) == epsilon({Mechanism(0.5): 200}, DELTA)


def test_replacing_a_party_counts_twice() -> None:
    """At q = 1 the Rényi bound of draws without replacement is that of a Gaussian of half the noise."""
    q1 = accountant._replaced([(Mechanism(6.0, Drawn("fixed", 10, 10)), 5)], DELTA)
    assert q1 == accountant._replaced([(Mechanism(6.0), 5)], DELTA)
    assert q1 == pytest.approx(epsilon({Mechanism(3.0): 5}, DELTA), rel=0.2) and q1 > epsilon(
        {Mechanism(3.0): 5}, DELTA
    )


def test_more_sums_and_less_noise_cost_more_and_nothing_costs_nothing() -> None:
    draw = Drawn("poisson", 20, 1000)
    costs = [epsilon({Mechanism(1.0, draw): n}, DELTA) for n in (0, 1, 2, 10)]
    assert costs[0] == 0 and costs == sorted(set(costs))
    both = epsilon({Mechanism(1.0, draw): 10, Mechanism(3.0): 1}, DELTA)
    assert costs[-1] < both < costs[-1] + epsilon({Mechanism(3.0): 1}, DELTA)
    assert math.isinf(epsilon({Mechanism(0.0): 1}, DELTA)) and math.isinf(epsilon({Mechanism(1.0): 1}, 0.0))


@pytest.mark.parametrize("limit", [0, 1, 6, 7, 9])
def test_most_finds_the_last_that_fits(limit: int) -> None:
    assert most(lambda n: n <= limit, 7) == min(limit, 7)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(RecipeError, match=r"pip install 'coalface\[privacy\]'") as caught:
        epsilon({Mechanism(1.234): 1}, DELTA)
    assert caught.value.where == "privacy.dp"
