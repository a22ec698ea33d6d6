from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from coalface.privacy.accountant import Mechanism, concentrated_epsilon, epsilon
from coalface.privacy.noise import KeyStream
from coalface.privacy.noise_shares import MOST, NoiseShares, _all_exp, _below, noise_share, rounded_norm


def pmf(y: np.ndarray, sigma: float) -> np.ndarray:
    """exp(−y² / 2σ²) / Σ, over all whole numbers that count."""
    support = np.arange(-40 * math.ceil(sigma), 40 * math.ceil(sigma) + 1)
    return np.exp(-(y**2) / (2 * sigma**2)) / np.exp(-(support**2) / (2 * sigma**2)).sum()


def chi_square(drawn: np.ndarray, sigma: float) -> float:
    """The p of the counts, numbers that are expected fewer than ten times being one cell."""
    span = np.arange(drawn.min(), drawn.max() + 1)
    expected = len(drawn) * pmf(span, sigma)
    kept = expected >= 10
    counts = np.array([np.count_nonzero(drawn == y) for y in span[kept]])
    rest = len(drawn) - expected[kept].sum()
    return float(stats.chisquare([*counts, len(drawn) - counts.sum()], [*expected[kept], rest]).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_shares_have_the_probabilities_of_the_discrete_gaussian(sigma: int) -> None:
    drawn = noise_share(200_000, sigma, np.random.default_rng(sigma))
    assert chi_square(drawn, sigma) > 1e-3
    assert chi_square(drawn, sigma * 1.02) < 1e-3  # it would see one part in fifty


def naive_draw(sigma: int, rng: np.random.Generator) -> int:
    """Algorithm 3 of Canonne et al. as it stands, number by number, with t = ⌊σ⌋ + 1."""

    def bernoulli_exp(gamma: float) -> bool:
        while gamma > 1:
            if not bernoulli_exp(1.0):
                return False
            gamma -= 1
        k = 1
        while rng.random() < gamma / k:
            k += 1
        return k % 2 == 1

    t = sigma + 1
    while True:
        u = int(rng.integers(t))
        if not bernoulli_exp(u / t):
            continue
        v = 0
        while bernoulli_exp(1.0):
            v += 1
        size, negative = u + t * v, rng.random() < 0.5
        if not (negative and size == 0) and bernoulli_exp((size - sigma**2 / t) ** 2 / (2 * sigma**2)):
            return -size if negative else size


def test_another_sampler_draws_the_same_distribution() -> None:
    rng = np.random.default_rng(5)
    naive = np.array([naive_draw(4, rng) for _ in range(8_000)])
    drawn = noise_share(8_000, 4, rng)
    assert chi_square(naive, 4) > 1e-3 and stats.ks_2samp(naive, drawn).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [1000, MOST - 1])
def test_a_large_sigma_is_normal_and_does_not_overflow(sigma: int) -> None:
    drawn = noise_share(100_000, sigma, np.random.default_rng(0))
    assert stats.kstest(drawn / sigma, "norm").pvalue > 1e-3


@pytest.mark.parametrize(("numerator", "denominator", "times"), [(0, 1, 3), (1, 1, 1), (1, 2, 9), (3, 7, 2), (5, 6, 0)])
def test_tries_come_true_as_often_as_the_exponential_says(numerator: int, denominator: int, times: int) -> None:
    n, p = 100_000, math.exp(-times * numerator / denominator)
    true = _all_exp(np.full(n, numerator), denominator, np.full(n, times), np.random.default_rng(2)).sum()
    assert stats.binomtest(int(true), n, p).pvalue > 1e-3 if 0 < p < 1 else true == n


def test_a_bound_that_does_not_divide_the_words_favours_nobody() -> None:
    """Words that lie beyond the last whole multiple are drawn anew: of these three the first two."""

    class Words:
        def __init__(self) -> None:
            self.left = [2**64 - 1, 2**63 + 5, 4]

        def bytes(self, length: int) -> bytes:
            return b"".join(self.left.pop(0).to_bytes(8, "little") for _ in range(length // 8))

    assert _below(2**62 + 2**61, 1, Words()).tolist() == [2**63 + 5 - (2**62 + 2**61)]
    assert np.bincount(_below(3, 90_000, np.random.default_rng(0))).tolist() == pytest.approx([30_000] * 3, rel=0.02)


def test_the_same_secret_draws_the_same_share_and_another_name_another_one() -> None:
    shares = [noise_share(50, 1000, KeyStream(bytes(32), "share", name)).tolist() for name in ("a", "a", "b")]
    assert shares[0] == shares[1] != shares[2]
    assert noise_share(0, 1, np.random.default_rng(0)).tolist() == []


@pytest.mark.parametrize("sigma", [0, -1, 2.5, MOST])
def test_a_sigma_that_cannot_be_drawn_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="whole number from 1"):
        noise_share(1, sigma, np.random.default_rng(0))


# --- what it adds up to -----------------------------------------------------------------------------------------------


def test_the_shares_of_the_honest_are_enough_by_themselves() -> None:
    """Ten are asked, two may drop out, one is corrupt: seven are left, and 7 σ² ≥ (z Δ)²."""
    shares = NoiseShares.planned(1.5, 20.0, 10 - 2 - 1, 100)
    assert shares.sigma == math.ceil(30 / math.sqrt(7)) == 12
    assert shares.rho <= 0.5 / 1.5**2
    with pytest.raises(ValueError, match="0 honest"):
        NoiseShares.planned(1.0, 20.0, 0, 100)


def test_rho_by_hand() -> None:
    """Two shares of σ = 1 over 4 numbers with Δ = 2: τ = 10 e^(−π²), ρ = ½ (2 / √2 + 2 τ)²."""
    tau = 10 * math.exp(-(math.pi**2))
    assert NoiseShares(1, 2, 4, 2.0).rho == pytest.approx(0.5 * (math.sqrt(2) + 2 * tau) ** 2)
    assert NoiseShares(5, 1, 4, 10.0).rho == pytest.approx(0.5 * 2.0**2)


@pytest.mark.parametrize(("sigma", "honest", "shift"), [(1, 2, 1), (1, 3, 2), (2, 2, 3), (1, 5, 4)])
def test_rho_bounds_the_renyi_divergence_of_the_sum_of_shares(sigma: int, honest: int, shift: int) -> None:
    """The exact distribution of one number's sum, by convolution, beside itself moved by `shift`."""
    span = np.arange(-60 * sigma, 60 * sigma + 1)
    one = total = pmf(span, sigma)
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    upper = NoiseShares(sigma, honest, 1, shift).rho
    p, q = total[shift:], total[:-shift]
    both = (p > 1e-280) & (q > 1e-280)
    for alpha in (1.5, 2, 4, 8):
        terms = alpha * np.log(p[both]) + (1 - alpha) * np.log(q[both])
        divergence = float(special.logsumexp(terms)) / (alpha - 1)
        assert 0.9 * alpha * upper < divergence + 2e-2 and divergence <= alpha * upper + 1e-9


def test_rounding_counts_to_the_norm() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 10, 1000):
        x = rng.normal(size=size)
        x *= 1.5 / np.linalg.norm(x)
        assert np.linalg.norm(np.rint(x * 64)) <= rounded_norm(1.5, 64, size)
    assert rounded_norm(1.0, 8.0, 4) == 9.0 and np.linalg.norm(np.rint([0.5000001] * 4)) <= rounded_norm(1.0, 1.0, 4)


@pytest.mark.parametrize("rho", [0.01, 0.5, 8.0])
def test_concentrated_privacy_is_converted_as_the_paper_has_it(rho: float) -> None:
    """δ = exp((α − 1)(α ρ − ε)) / (α − 1) · (1 − 1/α)^α, at the best α; beside it the Gaussian of the same ρ."""
    delta = 1e-5

    def needed(alpha: float) -> float:
        return alpha * rho + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)

    best = optimize.minimize_scalar(needed, bounds=(1.01, 500), method="bounded").fun
    assert concentrated_epsilon(rho, delta) == pytest.approx(best, rel=0.02)
    assert epsilon({Mechanism(math.sqrt(0.5 / rho)): 1}, delta) <= concentrated_epsilon(rho, delta)
