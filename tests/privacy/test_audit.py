"""An audit in one run: canaries tell no more than ε allows, and more where there is no noise.

Steinke, Nasr & Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023: each of m canaries takes part by
the toss of a coin; from the models alone somebody guesses of r of them whether they did. Under (ε, 0)-differential
privacy the right guesses are no more than Binomial(r, e^ε / (1 + e^ε)); δ adds at most 2 m δ max_i P(≥ v − i) / i
(Theorem 5.2). The least ε that the guesses leave possible lies below the true one, in 95 of 100 audits at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cases import by_default
from scipy import stats

from coalface.core import codec
from coalface.core.method import Federation, Mean, Method, Models, Party, Tensors, message, state, step
from coalface.engine.sums.hidden import HiddenMeans
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run
from coalface.privacy.accountant import Mechanism, concentrated_epsilon, epsilon
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings

CANARIES, DELTA = 200, 1e-5


@message
class Point:
    x: Tensors


@state
class State:
    x: Tensors


@dataclass(frozen=True, kw_only=True)
class Canaries(Method):
    """Party i moves coordinate i by ±10, if its coin says that it takes part, and else nothing."""

    title: ClassVar[str] = "canaries"
    paper: ClassVar[str] = "Steinke et al. 2023"
    setting: ClassVar[str] = "any"

    rounds: int = 1
    coins: tuple[bool, ...] = ()

    def init(self, fed: Federation) -> State:
        return State(x={"x": torch.zeros(CANARIES)})

    def round(self, fed: Federation, state: State) -> State:
        answer = fed.ask(self.move, common=Point(x=state.x), aggregate=[Mean("x")])
        return State(x=answer.aggregated["x"])

    @step(role="trainer")
    def move(self, party: Party, common: Point) -> Point:
        place, moved = int(party.name.removeprefix("silo-")), common.x["x"].clone()
        moved[place] += 10.0 * self.coins[place]
        return Point(x={"x": moved})

    def models(self, fed: Federation, state: State) -> Models:
        return Models(shared=state.x)


def audited(folder: Path, rounds: int, *, privacy: PartyPrivacy | None, secret: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(coins, scores): what the last model says of each canary."""
    coins = np.random.default_rng(list(secret)).random(CANARIES) < 0.5
    method = Canaries(rounds=rounds, coins=tuple(coins.tolist()))
    build = Tiny(parties=CANARIES, one_identity=True, each=3)
    settings: dict[str, Any] = {"max_update_norm": 0.0, "min_reply_fraction": 0.0, "save_replies": False}
    ran: Ran = run(method, folder, build, privacy=privacy, secret=secret, checkpoint_every=10**6, **settings)
    return coins, ran.state.x["x"].numpy()


def least_epsilon(coins: np.ndarray, scores: np.ndarray, guesses: int) -> float:
    """The least ε that is possible, at 95 %, where the most and the least scores are guessed to be in and out."""
    order = np.argsort(scores)
    half = guesses // 2
    right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())

    def possible(value: float) -> float:
        """The probability of so many right guesses, or more, under (ε, δ)."""
        tail = stats.binom.sf(np.arange(right - 1, -2, -1), 2 * half, 1 / (1 + math.exp(-value)))  # of ≥ v, v − 1, …
        gaps = (tail[1:] - tail[0]) / np.arange(1, len(tail))
        return float(tail[0] + 2 * CANARIES * DELTA * max(0.0, gaps.max(initial=0.0)))

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) > 0.05 else (middle, high)
    return low


def test_the_bound_itself_on_randomised_response() -> None:
    """Coins that are told truly with probability e^ε / (1 + e^ε) leave about ε possible, and rarely less than all."""
    rng, true = np.random.default_rng(5), 1.5
    coins = rng.random((200, CANARIES)) < 0.5
    told = np.where(rng.random(coins.shape) < 1 / (1 + math.exp(-true)), coins, ~coins)
    scores = told + 1e-6 * rng.random(coins.shape)
    bounds = [least_epsilon(coin, score, 100) for coin, score in zip(coins, scores, strict=True)]
    assert np.mean(np.array(bounds) <= true) >= 0.95 and np.median(bounds) > 0.8


def audited_in_shares(rounds: int, z: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(coins, scores, ε) where each canary adds its share of the noise; the masks, which leave sums as they are, are
    left out. All shares are counted on, so there is no more noise than ε says.
    """
    rng, x = np.random.default_rng(3), np.zeros(CANARIES)
    coins = rng.random(CANARIES) < 0.5
    steps, secure = Canaries().steps["move"][1], SecureSettings(dropouts=0.0, corrupt=0.0)
    like, asked = codec.forms(Point, [Point(x={"x": torch.zeros(CANARIES)})]), (("x", "parties"),)
    hidden = HiddenMeans.of(secure, steps, asked, like, CANARIES, PartyPrivacy(noise_multiplier=z))
    for _ in range(rounds):
        total = 0
        for place in range(CANARIES):
            moved = torch.zeros(CANARIES)
            moved[place] = 10.0 * bool(coins[place])
            vector, void = hidden.encode_noised(Point(x={"x": moved}), lambda vector: rng)
            assert not void
            total = total + vector
        x = x + hidden.decode(np.asarray(total)).mean(Mean("x"), CANARIES)["x"].numpy()
    return coins, x, concentrated_epsilon(rounds * hidden.rho, DELTA)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("z", [0.7, 1.5])
def test_canaries_with_shares_of_noise_stay_under_epsilon(z: float) -> None:
    coins, scores, bound = audited_in_shares(2, z)
    assert 0.3 < least_epsilon(coins, scores, 40) < bound
    assert epsilon({Mechanism(z): 2}, DELTA) < bound < 1.15 * epsilon({Mechanism(z): 2}, DELTA)


def test_shares_that_are_left_out_are_found() -> None:
    coins, scores, _ = audited_in_shares(2, 0.0)
    assert least_epsilon(coins, scores, 150) > 2 * epsilon({Mechanism(4.0): 2}, DELTA)


@pytest.mark.parametrize("z", by_default(1, [0.7, 1.5]))
def test_canaries_stay_under_epsilon(tmp_path: Path, z: float) -> None:
    coins, scores = audited(tmp_path, 2, privacy=PartyPrivacy(noise_multiplier=z), secret=b"a" * 32)
    assert 0.3 < least_epsilon(coins, scores, 40) < epsilon({Mechanism(z): 2}, DELTA)


@pytest.mark.parametrize("noise", by_default(1, [0.05, 0.0]))
def test_less_noise_than_is_said_is_found(tmp_path: Path, noise: float) -> None:
    coins, scores = audited(tmp_path, 2, privacy=PartyPrivacy(noise_multiplier=noise), secret=b"a" * 32)
    assert least_epsilon(coins, scores, 150) > 2 * epsilon({Mechanism(4.0): 2}, DELTA)
