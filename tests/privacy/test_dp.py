"""Settings, clipping, draws, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import worlds

from coalface.core.errors import RecipeError
from coalface.experiments.plan import on_paper
from coalface.methods import METHODS
from coalface.privacy.accountant import Drawn, Mechanism
from coalface.privacy.dp import AdaptiveClip, Draws, PartyPrivacy
from coalface.training.local_work import LocalTraining


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"clip": 0.0}, "clip"),
        ({"clip": 1e-310}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"target_epsilon": math.inf}, "target_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"noise_multiplier": 0.0, "target_epsilon": 1.0}, "target_epsilon"),
        ({"noise_multiplier": 2.0, "clip": AdaptiveClip(count_noise=1.0)}, "clip.count_noise"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        PartyPrivacy(**settings)
    assert caught.value.where == where


@pytest.mark.parametrize(("z", "asked", "count"), [(1.0, 8, None), (1.0, 1000, None), (0.5, 8, 3.0)])
def test_count_and_sum_together_protect_as_much_as_z(z: float, asked: int, count: float | None) -> None:
    """A party changes the count by up to ½ and the sum by up to C: 1/z² = 1/z_Δ² + (½ / σ_b)²."""
    sigma, sigma_b = AdaptiveClip(count_noise=count).multipliers(z, asked)
    assert sigma_b == (count or max(asked / 20, z))
    assert 1 / z**2 == pytest.approx(1 / sigma**2 + (0.5 / sigma_b) ** 2)


def test_the_clip_follows_the_quantile() -> None:
    """Without noise C comes to the quantile of the norms, from either side."""
    norms = np.random.default_rng(0).lognormal(size=999)
    for initial in (0.01, 100.0):
        adaptive, clip = AdaptiveClip(quantile=0.3, initial=initial), initial
        for _ in range(300):
            clip = adaptive.following(clip, float((norms <= clip).mean()))
        assert clip == pytest.approx(np.quantile(norms, 0.3), rel=0.02)


PARTIES = [f"p{i:03d}" for i in range(400)]


def test_poisson_draws_take_each_party_by_itself() -> None:
    rng, counts = np.random.default_rng(1), np.zeros((2000, 400))
    for row in counts:
        draws = Draws("poisson")
        chosen = draws.sample(lambda: pytest.fail("not of a fixed size"), PARTIES, 20, rng)
        row[[PARTIES.index(name) for name in chosen]] = 1
        assert draws.of(chosen) == (0, Drawn("poisson", 20, 400)) and draws.of(PARTIES) is None
    sizes, rates = counts.sum(axis=1), counts.mean(axis=0)
    assert sizes.mean() == pytest.approx(20, abs=0.4) and sizes.var() == pytest.approx(19, abs=2.5)
    assert abs(rates - 0.05).max() < 5 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_draw_of_nobody_is_a_draw() -> None:
    draws = Draws("poisson")
    assert draws.sample(tuple, PARTIES, 1, Never()) == ()  # type: ignore[arg-type]
    assert draws.are_secret and draws.of(()) == (0, Drawn("poisson", 1, 400))


def test_who_of_a_draw_can_be_asked_is_of_that_draw() -> None:
    draws, rng = Draws("poisson"), np.random.default_rng(3)
    first, second = (draws.sample(tuple, PARTIES, n, rng) for n in (200, 20))
    assert draws.of(first[1:]) == draws.of(first) == (0, Drawn("poisson", 200, 400))
    assert draws.of(second) == (1, Drawn("poisson", 20, 400)) and draws.of(PARTIES) is None


def test_parties_in_turn_are_no_secret() -> None:
    draws = Draws("cyclic")
    draws.sample(tuple, PARTIES, 20, np.random.default_rng(0))
    assert not draws.are_secret and not Draws("fixed").are_secret


class Never:
    """Draws nobody."""

    def random(self, n: int) -> Any:
        return np.ones(n)


def test_all_of_the_parties_are_no_draw() -> None:
    draws = Draws("poisson")
    assert draws.sample(lambda: ("a", "b"), ("a", "b"), 2, Never()) == ("a", "b")  # type: ignore[arg-type]
    assert draws.of(("a", "b")) is None


EVEN = {"weights": "equal", "local": LocalTraining(steps_per_round=2, batch_size=4)}
ACCEPTED: dict[str, dict[str, Any]] = {
    "fedavg": {}, "fedprox": {}, "slowmo": {}, "pfm": {}, "mime": {}, "mimelite": {}, "scaffold": EVEN, "feduv": {},
    "fedfr-joint": {}, "adafedfr": {}, "ss-fedfr": {}, "cl-fedfr": {}, "finetune": {}, "kd": {}, "moon": {},
    "feddyn": {"weights": "equal"}, "fedadam": {}, "fedyogi": {}, "fedadagrad": {},
    "ditto": {}, "fedrep": {}, "fedbabu": {},
}  # fmt: skip
"""Methods that send means alone, and what they need for it."""


def noised(name: str, **settings: Any) -> tuple[tuple[Mechanism, ...], ...]:
    method, build = worlds.recipe(name, **settings)
    world = build()
    return on_paper.plan(method, world.by_role(), world.backbone, world.at_server, privacy=PartyPrivacy()).noised


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_accepted_where_nothing_but_means_leaves(name: str) -> None:
    if name in ACCEPTED:
        assert noised(name, **ACCEPTED[name])[0] == (Mechanism(1 / math.sqrt(2) if name == "mime" else 1.0),)
        return
    with pytest.raises(
        RecipeError, match="comes to the server singly|asks for no mean|posts work|weights that differ"
    ) as caught:
        noised(name)
    assert caught.value.where == "privacy.dp"


def test_sums_over_one_draw_are_one_mechanism() -> None:
    draw = Drawn("fixed", 2, 3)
    assert noised("mime", sample=2) == ((Mechanism(1 / math.sqrt(2), draw),),)


@pytest.mark.parametrize("settings", [{}, {"weights": "equal"}, EVEN | {"weights": "images"}])
def test_weights_that_differ_from_party_to_party_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="weights that differ"):
        noised("scaffold", **settings)


def test_running_statistics_that_are_sent_are_refused() -> None:
    method, build = worlds.recipe("fedavg")
    for policy, accepted in (("average", False), ("parameters-only", True)):
        backbone = type(build)(norm=True, policy=policy)().backbone  # type: ignore[arg-type]
        if accepted:
            on_paper.plan(method, {"trainer": ["a", "b"]}, backbone, privacy=PartyPrivacy())
            continue
        with pytest.raises(RecipeError, match="norm.running_mean, which is not trained"):
            on_paper.plan(method, {"trainer": ["a", "b"]}, backbone, privacy=PartyPrivacy())
