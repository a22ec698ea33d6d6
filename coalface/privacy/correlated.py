"""Correlated noise: each round takes back a part of what the rounds before it added, so that their sum has less.

The sums x_1 … x_T of T rounds are released as x + C⁻¹ z, z independent and C lower triangular: Gaussian noise on C x
("DP-FTRL", "matrix factorisation"; Kairouz et al., ICML 2021; Denisov et al., NeurIPS 2022, also where x_t depends on
the rounds before it). C is Toeplitz with b bands, the first coefficients of (1 − x)^(−1/2), which is the square root of
the prefix sums (Fichtenberger, Henzinger & Upadhyay, ICML 2023; banded: Choquette-Choo et al., NeurIPS 2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def coefficients(bands: int) -> NDArray[np.float64]:
    """(b,) the first column of C: c_0 = 1, c_j = c_{j−1} (2j − 1) / 2j.

    Examples:
        >>> coefficients(4).tolist()  # 1, 1/2, 3/8, 5/16
        [1.0, 0.5, 0.375, 0.3125]
    """
    places = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * places - 1) / (2 * places))])


def inverse(bands: int, rounds: int) -> NDArray[np.float64]:
    """(T,) the first column of C⁻¹, by C C⁻¹ = I: what the noise of a round has of z of so many rounds ago.

    Examples:
        >>> inverse(2, 4).tolist()  # C takes half of the round before
        [1.0, -0.5, 0.25, -0.125]
    """
    ours, column = coefficients(bands), np.zeros(rounds)
    column[:1] = 1.0
    for t in range(1, rounds):
        reach = min(t, bands - 1)
        column[t] = -(ours[1 : reach + 1] @ column[t - reach : t][::-1])
    return column


def squared_sensitivity(rounds: int, separation: int, bands: int) -> float:
    """The most of ‖C x‖² where one party changes each x_t that it takes part in by a vector of length one.

    It takes part in T rounds at the most, each at least `separation` after the last. C has no negative entry, so no
    change is worse than the same one each time; and columns fall, so no rounds are worse than 1, 1 + s, 1 + 2s, …
    (Kalinin & Lampert, NeurIPS 2024, Theorem 2). Without bands beyond the first it is the number of rounds: ⌈T / s⌉.

    Examples:
        >>> squared_sensitivity(5, 2, 1), squared_sensitivity(4, 2, 2)  # 3 rounds; 2 · (1 + 1/4)
        (3.0, 2.5)
    """
    ours, total = coefficients(bands), np.zeros(rounds)
    for start in range(0, rounds, separation):
        reach = min(bands, rounds - start)
        total[start : start + reach] += ours[:reach]
    return float(total @ total)
