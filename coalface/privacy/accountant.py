"""The privacy accountant: what ε the noised sums of a run add up to, by `dp-accounting`."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coalface.core.errors import RecipeError
from coalface.privacy.correlated import squared_sensitivity

EXTRA = "pip install 'coalface[privacy]'"
UNBOUNDED = "ε has no bound, since no noise is added (noise_multiplier is 0), and clipping alone protects nobody"

_ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 96, 128)
"""α of the Rényi bound, which holds for any: those that are best where ε is from 0.1 to 100."""
_STEP = 1e-4
"""To whole multiples of which a privacy loss is rounded upwards."""

Drawing = Literal["fixed", "poisson", "cyclic"]
"""`fixed`: so many of the parties without replacement; `poisson`: each with the same probability, by itself; `cyclic`:
so many, in turn."""


@dataclass(frozen=True)
class Drawn:
    """How the parties of a sum were drawn: `asked` of `of`; with `poisson` so many are expected."""

    drawing: Drawing
    asked: int
    of: int

    @property
    def is_secret(self) -> bool:
        """Whether ε counts on nobody knowing who was drawn."""
        return self.drawing != "cyclic"

    @property
    def rate(self) -> float:
        """q, the probability that a party is drawn."""
        return self.asked / self.of

    @property
    def separation(self) -> int:
        """Rounds from one in which a party takes part to its next one, at the least."""
        return self.of // self.asked if self.drawing == "cyclic" else 1


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism: σ over the most that one party can change, and how its parties were drawn (None: all).

    Where several sums are over the parties of one draw, they are one mechanism of σ / √k. Of parties in turn all rounds
    of a stage belong together: so many of the mechanism are that many rounds, whose noise may be correlated.
    """

    noise_multiplier: float
    drawn: Drawn | None = None
    bands: int = 1
    """Those of `coalface.privacy.correlated`."""
    stage: str = ""
    """Rounds of another stage are another mechanism: a party may take part in the last of one and the first of the
    next."""

    @property
    def separation(self) -> int:
        """See `Drawn.separation`."""
        return 1 if self.drawn is None else self.drawn.separation


def epsilon(mechanisms: Mapping[Mechanism, int], delta: float) -> float:
    """ε of so many of each mechanism, one after the other, at δ = `delta`; two runs are neighbours where one party's
    replies are zero in one of them.

    Without draws all is one Gaussian mechanism of σ = (Σ 1/σ_t²)^(−1/2), whose ε is known exactly (Balle & Wang, ICML
    2018, Theorem 8). So it is for parties in turn, each of whom takes part in few of the rounds, also where the noise
    of these is correlated: Σ 1/σ_t² is `squared_sensitivity` / σ² then. Poisson draws are composed as privacy loss
    distributions (Koskela et al., AISTATS 2020; Doroshenko et al., PoPETs 2022), rounded upwards to 1e-4. Draws of a
    fixed size have no such distribution: the smaller of two bounds is taken, that of the run without draws, and the
    Rényi bound of Wang et al. (AISTATS 2019, Theorem 27). It is for the neighbours where one party's replies are
    *replaced* by others, which change a sum by up to twice the clip: so its σ is σ / 2. It holds for a reply of zero in
    their place too.

    Raises RecipeError where the package is not installed.

    Examples:
        >>> round(epsilon({Mechanism(4.0): 50}, 1e-5), 4)
        8.5959
    """
    return _epsilon(frozenset((m, count) for m, count in mechanisms.items() if count), delta)


@functools.lru_cache(256)
def _epsilon(mechanisms: frozenset[tuple[Mechanism, int]], delta: float) -> float:
    if not mechanisms:
        return 0.0
    if delta <= 0 or any(m.noise_multiplier == 0 for m, _ in mechanisms):
        return math.inf
    poisson = [(m, count) for m, count in mechanisms if m.drawn is not None and m.drawn.drawing == "poisson"]
    others = [(m, count) for m, count in mechanisms if (m, count) not in poisson]
    lost = sum(squared_sensitivity(n, m.separation, m.bands) / m.noise_multiplier**2 for m, n in others)
    sigma = lost**-0.5 if others else None
    if sigma is not None and not poisson:
        whole = float(_package("dp_accounting").get_epsilon_gaussian(sigma, delta))
        fixed = any(m.drawn is not None and m.drawn.drawing == "fixed" for m, _ in others)
        return min(whole, _replaced(others, delta)) if fixed else whole
    distributions = [_sampled(m).self_compose(count) for m, count in sorted(poisson, key=repr)]
    if sigma is not None:
        distributions.append(_distribution(sigma))
    return float(functools.reduce(lambda a, b: a.compose(b), distributions).get_epsilon_for_delta(delta))


@functools.lru_cache(256)
def concentrated_epsilon(rho: float, delta: float) -> float:
    """ε at δ of ρ-concentrated differential privacy: D_α ≤ ρ α for all orders α. ρ adds up over sums, such as those of
    `coalface.privacy.noise_shares`; draws of the parties take nothing from it.

    The conversion is that of Canonne, Kamath & Steinke (NeurIPS 2020), Proposition 12, at the best of some orders near
    1 + √(ln(1/δ) / ρ), where ρ α + ln(1/δ) / (α − 1) is least.
    Raises RecipeError where the package is not installed.
    """
    if rho in (0.0, math.inf):
        return rho
    package, rdp = _package("dp_accounting"), _package("dp_accounting.rdp")
    orders = [1 + place / 20 * math.sqrt(-math.log(delta) / rho) for place in range(10, 31)]
    return float(rdp.RdpAccountant(orders).compose(package.ZCDpEvent(rho)).get_epsilon(delta))


def _replaced(mechanisms: list[tuple[Mechanism, int]], delta: float) -> float:
    """The Rényi bound, where one party's replies are replaced by others."""
    package, rdp = _package("dp_accounting"), _package("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(_ORDERS, package.NeighboringRelation.REPLACE_ONE)
    for m, count in mechanisms:
        gaussian = package.GaussianDpEvent(m.noise_multiplier / 2)
        drawn = m.drawn
        event = package.SampledWithoutReplacementDpEvent(drawn.of, drawn.asked, gaussian) if drawn else gaussian
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


@functools.lru_cache(16)
def _sampled(mechanism: Mechanism) -> Any:
    assert mechanism.drawn is not None
    return _distribution(mechanism.noise_multiplier, sampling_prob=mechanism.drawn.rate)


def _distribution(sigma: float, **settings: float) -> Any:
    loss = _package("dp_accounting.pld.privacy_loss_distribution")
    return loss.from_gaussian_mechanism(sigma, value_discretization_interval=_STEP, **settings)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(f"it needs the package dp-accounting; run {EXTRA}", where="privacy.dp") from error


def most(fits: Callable[[int], bool], upto: int) -> int:
    """The largest number from 0 to `upto` that fits, where each fits that is below one that does."""
    low, high = 0, upto
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
