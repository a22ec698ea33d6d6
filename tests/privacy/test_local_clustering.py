"""DPLC: by a plain loop, its sensitivities over neighbours, what its paths tell, ε, and an audit."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import torch
from cases import by_default
from dp_accounting import GaussianDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from coalface.core.method import Party
from coalface.experiments.conformance.tiny_federation import Tiny
from coalface.privacy.accountant import Mechanism, epsilon
from coalface.privacy.local_clustering import LocalClustering, capped_sum, release, sanitised_centres
from coalface.privacy.noise import KeyStream, SecretNoise
from coalface.privacy.sanitised import Releases

Array = NDArray[np.float64]


@dataclass
class Drawn:
    """Noise from a generator, which notes its draws by name."""

    rng: np.random.Generator
    drawn: dict[str, Array] = field(default_factory=dict)

    def normals(self, name: str, count: int) -> Array:
        self.drawn[name] = self.rng.standard_normal(count)
        return self.drawn[name]

    def gumbels(self, name: str, count: int) -> Array:
        self.drawn[name] = self.rng.gumbel(size=count)
        return self.drawn[name]


class Silence:
    """No noise at all."""

    def normals(self, name: str, count: int) -> Array:
        return np.zeros(count)

    gumbels = normals


def on_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def unit(rows: Array) -> Array:
    lengths: Array = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / lengths


Told = list[tuple[int, float, Array | None]]
"""Of each turn: the direction chosen, its noised count, and where the cap was dense enough the noised sum."""


def plainly(centres: Array, directions: Array, s: LocalClustering, drawn: dict[str, Array]) -> tuple[Told, list[Array]]:
    """The algorithm box, person by person."""
    told: Told = []
    found, left, cosines = [], list(range(len(centres))), (centres @ directions.T).tolist()
    for turn in range(s.clusters):
        caps = [[i for i in left if cosines[i][j] >= math.cos(s.angle)] for j in range(len(directions))]
        scores = [s.selection_epsilon * len(cap) + g for cap, g in zip(caps, drawn[f"{turn}/selection"], strict=True)]
        chosen = scores.index(max(scores))
        count = len(caps[chosen]) + 2 * s.noise_multiplier * float(drawn[f"{turn}/count"][0])
        if count < s.members:
            return [*told, (chosen, count, None)], found
        total = math.sqrt(2) * s.noise_multiplier * math.sin(s.angle) * drawn[f"{turn}/sum"]
        for i in caps[chosen]:
            total = total + centres[i] - math.cos(s.angle) * directions[chosen]
        told.append((chosen, count, total))
        mean = count * math.cos(s.angle) * directions[chosen] + total
        found.append(mean / np.linalg.norm(mean))
        left = [i for i in left if i not in caps[chosen]]
    return told, found


@pytest.mark.parametrize("angle", [0.4, 1.2, math.pi / 2])
@pytest.mark.parametrize("z", [0.1, 1.0])
def test_it_is_the_plain_loop(angle: float, z: float) -> None:
    rng = np.random.default_rng(0)
    many = 0
    for trial in range(20):
        centres, directions = rng.standard_normal((30, 3)), rng.standard_normal((12, 3))
        settings = LocalClustering(angle=angle, members=3.0, noise_multiplier=z)
        noise = Drawn(np.random.default_rng(trial))
        actual = sanitised_centres(torch.from_numpy(centres), torch.from_numpy(directions), settings, noise)
        _, expected = plainly(unit(centres), unit(directions), settings, noise.drawn)
        np.testing.assert_allclose(actual.numpy(), np.reshape(expected, (-1, 3)), atol=1e-12)
        many += len(expected) > 1
    assert many > 0


def test_by_hand_without_noise() -> None:
    """At 0, 10 and 20 degrees three people, at 90 two, at 180 one; caps of 15 degrees around 10, 90 and 180."""
    centres, directions = on_circle(0, 10, 20, 90, 90, 180), on_circle(10, 90, 180)
    settings = LocalClustering(angle=math.radians(15), members=2.0, clusters=4)
    found = sanitised_centres(3 * centres, 5 * directions, settings, Silence())
    torch.testing.assert_close(found, on_circle(10, 90))  # the third has one member, and ends it
    all_three = sanitised_centres(centres, directions, replace(settings, members=1.0), Silence())
    torch.testing.assert_close(all_three, on_circle(10, 90, 180))  # the fourth turn has nobody left
    one = sanitised_centres(centres, directions, replace(settings, clusters=1), Silence())
    torch.testing.assert_close(one, on_circle(10))
    assert sanitised_centres(centres, directions, replace(settings, members=4.0), Silence()).shape == (0, 2)


def test_the_members_of_a_cap_leave_with_it() -> None:
    """The second cap holds 20 and 30 degrees; 20 has left with the first, and the mean of the rest is 30."""
    settings = LocalClustering(angle=math.radians(11), members=1.0, clusters=2)
    found = sanitised_centres(on_circle(0, 10, 20, 30), on_circle(10, 25), settings, Silence())
    torch.testing.assert_close(found, on_circle(10, 30))


# --- sensitivity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [0.05, 0.4, 1.2, math.pi / 2])
@pytest.mark.parametrize("d", [2, 3, 16])
def test_no_neighbour_changes_a_capped_sum_by_more_than_the_sine(angle: float, d: int) -> None:
    """All of random data sets, and all of a grid of the cap, with and without each member; the edge attains it."""
    rng, direction = np.random.default_rng(1), torch.eye(d, dtype=torch.float64)[0]
    most = 0.0
    turns = np.concatenate([np.linspace(0, angle, 50), angle * rng.random(200)])
    across = unit(rng.standard_normal((len(turns), d - 1)))
    cap = torch.from_numpy(np.concatenate([np.cos(turns)[:, None], np.sin(turns)[:, None] * across], axis=1))
    whole = capped_sum(cap, direction, angle)
    for member in range(len(cap)):
        without = capped_sum(torch.cat([cap[:member], cap[member + 1 :]]), direction, angle)
        most = max(most, float((whole - without).norm()))
    assert math.sin(angle) * (1 - 1e-9) <= most <= math.sin(angle) * (1 + 1e-9)


def neighbours() -> list[tuple[Tensor, Tensor]]:
    """(with, without) each person, of all data sets of up to three people at eight places of the circle."""
    places = on_circle(*range(0, 360, 45))
    sets = [list(c) for n in (1, 2, 3) for c in itertools.combinations_with_replacement(range(8), n)]
    return [(places[s], places[[*s[:i], *s[i + 1 :]]]) for s in sets for i in range(len(s))]


def test_the_choice_of_the_cap_has_a_bounded_range_over_all_neighbours() -> None:
    """max − min over directions of log P / P′ is ε_s at the most, and D_α at the most α ε_s² / 8; the range is met."""
    settings, directions = LocalClustering(angle=1.0, noise_multiplier=0.5), on_circle(*range(10, 360, 60))
    eps, floor, widest = settings.selection_epsilon, math.cos(1.0), 0.0
    for whole, without in neighbours():
        p, q = (
            special.log_softmax(eps * (rows @ directions.T >= floor).sum(0).double().numpy())
            for rows in (whole, without)
        )
        widest = max(widest, float(np.ptp(p - q)))
        for a, b in ((p, q), (q, p)):
            for alpha in (1.01, 2.0, 8.0, 64.0):
                renyi = special.logsumexp(alpha * a + (1 - alpha) * b) / (alpha - 1)
                assert renyi <= alpha * eps**2 / 8 + 1e-12
    assert widest == pytest.approx(eps)


def test_caps_are_chosen_with_the_probabilities_that_are_accounted() -> None:
    settings = LocalClustering(angle=0.3, members=1e-9, clusters=1, noise_multiplier=1.0)
    centres, directions = on_circle(0, 0, 0, 90, 180), on_circle(0, 90, 180, 270)
    chosen = np.zeros(4)
    for seed in range(1000):
        noise = Drawn(np.random.default_rng(seed))
        sanitised_centres(centres, directions, settings, noise)
        chosen[plainly(centres.numpy(), directions.numpy(), settings, noise.drawn)[0][0][0]] += 1
    expected = special.softmax(settings.selection_epsilon * np.array([3, 1, 1, 0]))
    assert stats.chisquare(chosen, 1000 * expected).pvalue > 1e-3


def log_normal(values: Any, means: Any, sigma: float) -> float:
    return float(np.sum(-(((values - means) / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))))


def log_likelihood(told: Told, centres: Array, directions: Array, s: LocalClustering) -> float:
    """Of what the turns told, of some centres: from the definition, turn by turn."""
    total, left = 0.0, np.ones(len(centres), dtype=bool)
    for chosen, count, noised in told:
        within = (centres @ directions.T >= math.cos(s.angle)) & left[:, None]
        total += float(special.log_softmax(s.selection_epsilon * within.sum(0))[chosen])
        cap = within[:, chosen]
        total += log_normal(count, cap.sum(), s.count_noise)
        if noised is not None:
            mean = centres[cap].sum(0) - cap.sum() * math.cos(s.angle) * directions[chosen]
            total += log_normal(noised, mean, s.sum_noise)
            left &= ~cap
    return total


@pytest.mark.parametrize("place", by_default(1, [10, 80]))
def test_the_privacy_loss_along_whole_paths_stays_within_what_is_accounted(place: int) -> None:
    """E e^{(α−1) L} ≤ e^{(α−1) α ρ}, L the loss of all turns together, with and without one person, both ways."""
    rng = np.random.default_rng(3)
    others, directions = on_circle(*rng.uniform(0, 180, 8)).numpy(), on_circle(0, 40, 80, 120, 160).numpy()
    whole = np.concatenate([others, on_circle(place).numpy()])
    s = LocalClustering(angle=0.5, members=1.0, clusters=3, noise_multiplier=1.5)
    rho, alpha = 1 / (2 * s.noise_multiplier**2), 2.0
    for data, neighbour in ((whole, others), (others, whole)):
        losses = []
        for seed in range(400):
            noise = Drawn(np.random.default_rng(seed))
            for turn in range(s.clusters):
                (
                    noise.gumbels(f"{turn}/selection", 5),
                    noise.normals(f"{turn}/count", 1),
                    noise.normals(f"{turn}/sum", 2),
                )
            told, _ = plainly(data, directions, s, noise.drawn)
            losses.append(log_likelihood(told, data, directions, s) - log_likelihood(told, neighbour, directions, s))
        moments = np.exp((alpha - 1) * np.array(losses))
        assert moments.mean() - 4 * moments.std() / math.sqrt(len(losses)) <= math.exp((alpha - 1) * alpha * rho)
        assert np.std(losses) > 0.2  # the person shows at all


# --- epsilon ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("z", "clusters", "releases"), [(1.0, 4, 1), (0.5, 1, 3), (4.0, 9, 50)])
def test_epsilon_is_that_of_its_three_mechanisms(z: float, clusters: int, releases: int) -> None:
    """Composed by dp-accounting one by one: Q choices, a count and a sum each release."""
    s = LocalClustering(noise_multiplier=z, clusters=clusters, angle=0.7)
    accountant = RdpAccountant([1 + x / 100 for x in range(1, 1000)] + list(range(11, 512)))
    accountant.compose(ZCDpEvent(s.selection_epsilon**2 / 8), clusters * releases)
    accountant.compose(GaussianDpEvent(s.count_noise / 1.0), releases)
    accountant.compose(GaussianDpEvent(s.sum_noise / math.sin(s.angle)), releases)
    expected = accountant.get_epsilon(s.delta)
    assert s.epsilon(releases * s.rho) == pytest.approx(expected, rel=2e-3)
    exact = epsilon({Mechanism(z): releases}, s.delta)  # of one Gaussian mechanism, which has the same ρ
    assert exact < s.epsilon(releases * s.rho) < 1.2 * exact


def test_no_release_costs_nothing_and_what_a_ledger_says_is_rounded_up() -> None:
    s = LocalClustering(noise_multiplier=2.0)
    assert s.epsilon(0) == 0
    for rho in (1e-6, 0.125, 7.0, 5e9):
        said = float(s.protection(rho).partition("epsilon ")[2].partition(" ")[0])
        assert s.epsilon(rho) <= said <= s.epsilon(rho) * (1 + 1e-8) + 2e-4


def found_epsilon(settings: LocalClustering, runs: int = 500) -> float:
    """The least ε that is possible at 95 % after telling one person from nobody by whether, and where, a cap came."""
    directions, hits = on_circle(0, 180), []
    for rows in (on_circle(0), on_circle(0)[:0]):
        count = 0
        for seed in range(runs):
            noise = Drawn(np.random.default_rng([seed, len(rows)]))
            sent = sanitised_centres(rows, directions, settings, noise)
            count += any(row[0] > 0 for row in sent.tolist())
        hits.append(count)
    low = stats.beta.ppf(0.025, hits[0], runs - hits[0] + 1)
    high = stats.beta.ppf(0.975, hits[1] + 1, max(runs - hits[1], 1))
    return math.log(max(low - settings.delta, 1e-9) / high)


def test_an_audit_finds_less_than_is_claimed_and_more_where_noise_is_left_out() -> None:
    settings = LocalClustering(angle=0.3, members=0.5, clusters=1, noise_multiplier=0.5)
    assert 0.3 < found_epsilon(settings) < settings.epsilon(settings.rho)
    quiet = replace(settings, noise_multiplier=0.02)
    loud = replace(settings, noise_multiplier=2.0)
    assert found_epsilon(quiet) > 1.5 * loud.epsilon(loud.rho)


# --- what may come ----------------------------------------------------------------------------------------------------


def test_centres_and_directions_without_a_direction_are_in_no_cap() -> None:
    centres = torch.cat([on_circle(0, 0), torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]])])
    settings = LocalClustering(angle=math.pi / 2, members=2.0)
    found = sanitised_centres(centres, torch.cat([torch.full((1, 2), math.nan), on_circle(0)]), settings, Silence())
    torch.testing.assert_close(found, on_circle(0))
    assert not len(sanitised_centres(centres, on_circle(0)[:0], settings, Silence()))
    assert not len(sanitised_centres(centres[:0], on_circle(0), settings, Silence()))
    assert sanitised_centres(centres.float(), on_circle(0), settings, Silence()).dtype == torch.float32


@pytest.mark.parametrize("kind", ["normals", "gumbels"])
def test_secret_noise_has_its_distribution_and_is_anothers_under_another_name(kind: str) -> None:
    noise, law = SecretNoise(b"s" * 32, "a"), {"normals": "norm", "gumbels": "gumbel_r"}[kind]
    drawn = getattr(noise, kind)("x", 20_000)
    assert stats.kstest(drawn, law).pvalue > 1e-3
    np.testing.assert_array_equal(drawn, getattr(noise, kind)("x", 20_000))
    for other in (SecretNoise(b"t" * 32, "a"), SecretNoise(b"s" * 32, "b")):
        assert abs(np.corrcoef(drawn, getattr(other, kind)("x", 20_000))[0, 1]) < 0.04


def test_gumbels_of_the_highest_bits_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyStream, "bytes", lambda stream, length: b"\xff" * length)
    assert np.isfinite(SecretNoise(b"s" * 32, "a").gumbels("x", 3)).all()


def party(folder: Path, secret: bytes = b"s" * 32, **changes: Any) -> Party:
    return replace(naive.party("silo-0", Tiny()), releases=Releases(secret, folder / "silo-0.jsonl"), **changes)


def test_a_release_has_noise_of_its_own(tmp_path: Path) -> None:
    settings = LocalClustering(angle=1.5, members=1.0, noise_multiplier=0.2)
    centres, directions = on_circle(*range(0, 90, 3)), on_circle(10, 60)

    def sent(of: Tensor = centres, **changes: Any) -> Tensor:
        rows, _ = release(party(tmp_path, **changes), of, directions, settings)
        assert rows is not None and len(rows)
        return rows

    torch.testing.assert_close(sent(), sent(), rtol=0, atol=0)
    moved = centres.clone()
    moved[0, 0] += 1e-12
    for other in (sent(round=5), sent(secret=b"t" * 32), sent(name="silo-1"), sent(of=moved)):
        assert other.shape != sent().shape or (other - sent()).abs().max() > 1e-6
    wider, _ = release(party(tmp_path), centres, directions, replace(settings, noise_multiplier=0.2 + 1e-9))
    assert wider is not None  # less noise by a hair: of the same noise two releases would tell the sum
    assert wider.shape != sent().shape or (wider - sent()).abs().max() > 1e-6


def test_what_a_release_costs_adds_up_whatever_its_settings_and_ends_at_the_target(tmp_path: Path) -> None:
    """By hand: 1 / 2z² is 0.5 at z = 1, 2 at z = 1/2 and 1/18 at z = 3."""
    centres, directions = on_circle(0, 10), on_circle(5)

    def cost(round_: int, **settings: Any) -> float | None:
        return release(party(tmp_path, round=round_), centres, directions, LocalClustering(**settings))[1]

    first = [cost(1), cost(2, noise_multiplier=0.5), cost(3, noise_multiplier=3.0)]
    assert first == pytest.approx([0.5, 2.5, 2.5 + 1 / 18])
    assert cost(2, noise_multiplier=0.5) == 2.5  # made again, it is what had been spent then
    enough = LocalClustering().epsilon(3.0)
    assert cost(4, noise_multiplier=1.0, target_epsilon=enough) is None
    assert cost(4, noise_multiplier=3.0, target_epsilon=enough) == pytest.approx(2.5 + 2 / 18)
    assert (
        cost(5, noise_multiplier=30.0, target_epsilon=enough / 2) is None
    )  # though by itself it costs next to nothing


@pytest.mark.parametrize(
    "settings",
    [{"angle": 1.6}, {"angle": 1e-8}, {"members": 0.0}, {"clusters": 0}, {"directions": -1}, {"noise_multiplier": 0.0},
     {"noise_multiplier": math.nan}, {"noise_multiplier": 1e-170}, {"delta": 1.0}, {"delta": 1e-15},
     {"target_epsilon": 0.0}],
)  # fmt: skip
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        LocalClustering(**settings)
