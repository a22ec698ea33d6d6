from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

from coalface.core.errors import RecipeError
from coalface.core.method import Mean, Tensors, content, free, message
from coalface.methods.fedface import FedFace
from coalface.methods.fedfr_joint import FedFRJoint
from coalface.privacy.accountant import Mechanism, epsilon
from coalface.privacy.templates import TemplateNoise, TemplateRelease, noised_rows, releases_templates, templates

SECRET = bytes(range(32))


@message
class Reply:
    centre: torch.Tensor = content("template")
    rows: torch.Tensor = free("template")
    others: Tensors
    images: int


def reply(**changes: Any) -> Reply:
    values = {"centre": torch.eye(3)[:1], "rows": torch.eye(3)[1:], "others": {"a": torch.ones(2)}, "images": 4}
    return Reply(**{**values, **changes})


def released(name: str = "a/1", secret: bytes = SECRET, z: float = 0.5, **changes: Any) -> Reply:
    sent: Reply = TemplateRelease(TemplateNoise(noise_multiplier=z), secret).protect(reply(**changes), name)
    return sent


def mean_resultant_length(sigma: float, d: int) -> float:
    """E cos of the projected normal: Γ((d+1)/2) / (√2 σ Γ(d/2+1)) · ₁F₁(½; d/2+1; −1/2σ²) (Mardia & Jupp 2000)."""
    ratio = math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2 + 1))
    return ratio / (math.sqrt(2) * sigma) * float(special.hyp1f1(0.5, d / 2 + 1, -1 / (2 * sigma**2)))


@pytest.mark.parametrize(("z", "d"), [(0.05, 3), (0.5, 3), (0.1, 16), (1.0, 64)])
def test_the_mean_cosine_is_the_closed_form(z: float, d: int) -> None:
    n = 20_000
    rows = torch.zeros(n, d)
    rows[:, 1] = 3.0  # of any length
    sent = released(z=z, rows=rows).rows
    torch.testing.assert_close(sent.norm(dim=1), torch.ones(n))
    cosines = sent[:, 1].double().numpy()
    expected = mean_resultant_length(2 * z, d)
    assert abs(cosines.mean() - expected) < 4 * cosines.std() / math.sqrt(n)
    if d >= 16:
        assert expected == pytest.approx(1 / math.sqrt(1 + 4 * z * z * d), rel=0.05)  # as the docstring says


def test_an_independent_sampler_draws_the_same_distribution() -> None:
    """In polar coordinates: the part along the template is normal around 1, the length across it chi with d − 1."""
    n, d, sigma, rng = 20_000, 8, 0.6, np.random.default_rng(0)
    along, across = rng.normal(1.0, sigma, n), sigma * np.sqrt(rng.chisquare(d - 1, n))
    rows = torch.zeros(n, d)
    rows[:, 0] = 1.0
    sent = released(z=sigma / 2, rows=rows).rows.numpy()
    assert stats.ks_2samp(sent[:, 0], along / np.hypot(along, across)).pvalue > 1e-3
    around = np.arctan2(sent[:, 2], sent[:, 1])  # no direction across it is before another
    assert stats.kstest(around / (2 * np.pi) + 0.5, "uniform").pvalue > 1e-3


def test_it_is_the_formula_row_by_row() -> None:
    rows, drawn = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    for row, g, sent in zip(rows.tolist(), drawn.tolist(), noised_rows(rows, 0.3, drawn).tolist(), strict=True):
        length = math.sqrt(sum(x * x for x in row))
        moved = [x / length + 2 * 0.3 * y for x, y in zip(row, g, strict=True)]
        assert sent == pytest.approx([x / math.sqrt(sum(y * y for y in moved)) for x in moved])


def test_by_hand_and_a_row_of_zeros_is_a_direction_of_chance() -> None:
    drawn = torch.tensor([[1.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    sent = noised_rows(torch.tensor([[0.0, 5.0], [0.0, 0.0]]), 0.5, drawn)
    assert sent.dtype == torch.float32
    torch.testing.assert_close(sent, torch.tensor([[math.sqrt(0.5), math.sqrt(0.5)], [0.6, 0.8]]))


def test_nothing_but_templates_changes() -> None:
    sent, before = released(), reply()
    assert templates(Reply) == ("centre", "rows")
    assert sent.images == 4 and torch.equal(sent.others["a"], before.others["a"])
    assert not torch.equal(sent.centre, before.centre) and not torch.equal(sent.rows, before.rows)


def test_noise_is_the_same_for_the_same_release_alone() -> None:
    """Of another secret, request, field or template it is another: else two releases would tell their difference."""
    same = torch.ones(1, 64)
    sent = [
        released(centre=same, rows=same),
        released(centre=same, rows=same, name="a/2"),
        released(centre=same, rows=same, secret=bytes(32)),
        released(centre=same + 1e-6, rows=same),
    ]
    noise = np.stack([r.flatten().numpy() for s in sent for r in (s.centre, s.rows)])
    assert torch.equal(released(centre=same, rows=same).centre, sent[0].centre)
    others = [i for i in range(8) if i != 7]  # the rows of the last one are those of the first
    np.testing.assert_array_equal(noise[7], noise[1])
    cosines = np.corrcoef(noise[others])
    assert abs(cosines[np.triu_indices(7, 1)]).max() < 0.6


def test_a_ledger_is_told_which_tensors_are_protected() -> None:
    protections = TemplateRelease(TemplateNoise(noise_multiplier=0.5), SECRET).protections(reply())
    assert protections == dict.fromkeys(("centre", "rows"), "noise on the sphere, z = 0.5")


def test_releases_are_one_gaussian_mechanism() -> None:
    """A template moves by 2 at most and the noise is 2 z, so T releases are one mechanism of z / √T."""
    noise = TemplateNoise(noise_multiplier=3.0)
    assert noise.epsilon(0) == 0 and noise.epsilon(4) == epsilon({Mechanism(1.5): 1}, 1e-5)


def test_the_likelihood_of_a_release_stays_within_the_promise() -> None:
    """On the circle, whose density is known: P(S) ≤ e^ε P'(S) + δ for the worst S and opposite templates."""
    noise = TemplateNoise(noise_multiplier=0.8, delta=1e-3)
    angles = np.linspace(-np.pi, np.pi, 20_001)
    sigma = 2 * noise.noise_multiplier

    def density(towards: float) -> np.ndarray:
        """Of the direction of N(μ, σ² I) in the plane (Mardia & Jupp 2000, 3.5.48)."""
        m = np.cos(angles - towards) / sigma
        return np.exp(-0.5 / sigma**2) / (2 * np.pi) * (1 + m * stats.norm.cdf(m) / stats.norm.pdf(m))

    one, other = density(0.0), density(np.pi)
    assert np.trapezoid(one, angles) == pytest.approx(1, abs=1e-6)
    hockey_stick = np.trapezoid(np.maximum(one - math.exp(noise.epsilon(1)) * other, 0), angles)
    assert 0 <= hockey_stick <= noise.delta
    assert np.trapezoid(np.maximum(one - math.exp(0.3 * noise.epsilon(1)) * other, 0), angles) > noise.delta


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"delta": 1.0}, "delta"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(RecipeError) as caught:
        TemplateNoise(**settings)
    assert caught.value.where == where


def test_a_mean_of_templates_is_refused() -> None:
    assert releases_templates("train", FedFace.own_steps["train"], [Mean("backbone")])
    with pytest.raises(RecipeError, match="mean of classifier") as caught:
        releases_templates("train", FedFRJoint.own_steps["train"], [Mean("classifier")])
    assert caught.value.where == "privacy.templates"
