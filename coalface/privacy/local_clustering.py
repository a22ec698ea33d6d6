r"""Differentially private local clustering (DPLC): mean directions of people who look alike, with noise, and what ε.

Of centres x_1 … x_k at length one, a person each, and directions p that do not depend on them, at most Q times:

    n_p = #{i left: ∠(x_i, p) ≤ ρ};  p chosen with probability ∝ e^{ε_s n_p}       (1) the densest cap, or nearly
    ñ = n_p + N(0, σ_n²);  the end where ñ < T                                      (2) is it dense
    S̃ = Σ_{i in the cap} (x_i − cos ρ · p) + N(0, σ_S² sin² ρ I)                    (3) where does it lie
    a sanitised centre: (ñ cos ρ · p + S̃) at length one; the members of the cap leave

With z the noise multiplier, ε_s = 1 / (z √Q), σ_n = 2 z and σ_S = √2 z. One release, of up to Q sanitised centres, has
ρ_CDP = 1 / 2z², as one Gaussian mechanism of z would. ρ adds up, also over releases of different z, and ε is that of
the sum (`concentrated_epsilon`).

Neighbours: with and without one centre x, of one identity; all else, and the directions p, as they are. Proof:

(1) With x the counts of the caps that hold it grow by 1, no other changes. So the log of p's probability changes by
    ε_s [x in the cap of p] less the same number for all p: its range is ε_s, which is ε_s² / 8 zero-concentrated
    (Cesar & Rogers, ALT 2021). All Q choices: Q ε_s² / 8 = 1 / 8z².
(2) A count changes by 1: 1 / 2σ_n² = 1 / 8z².
(3) A member has ⟨x, p⟩ ≥ cos ρ ≥ 0, so |x − cos ρ p|² = 1 − 2 cos ρ ⟨x, p⟩ + cos² ρ ≤ 1 − cos² ρ: the sum changes by
    sin ρ at the most, and 1 / 2σ_S² = 1 / 4z².
(4) x pays for (2) and (3) once. Take p as told: what was told so far decides who is left, and whether x is in the cap.
    Where it is not, count and sum are the same with and without x. Where it is, either the cap is released and x
    leaves, or the clustering ends. So along every path of what is told the costs add up to no more than
    1/8z² + 1/8z² + 1/4z², and so does their composition, though later steps depend on earlier ones (Feldman & Zrnic,
    NeurIPS 2021, Theorem 3.1). What is made of ñ, p and S̃ alone costs nothing more.

T promises nothing: it says from where on a mean is worth telling. The noise on the mean of ñ members is √2 z sin ρ / ñ
in each of d numbers, and so falls with the least ñ that is told, T. *Replacing* one centre by another is two steps, one
without and one with: four times ρ_CDP. Numbers are float64, rounded; the promise is for real ones.

After "Improving Federated Learning Face Recognition via Privacy-Agnostic Clusters" (PrivacyFace, ICLR 2022), which
takes the centres themselves for p. The choice among them would tell of the centres, and no noise on the mean covers it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coalface.core import codec
from coalface.core.checks import TypedSettings
from coalface.core.method import Party
from coalface.privacy.accountant import concentrated_epsilon
from coalface.privacy.noise import SecretNoise, digest


class TargetReached(Exception):
    """A party has released what its target allows."""


@dataclass(frozen=True, kw_only=True)
class LocalClustering(TypedSettings):
    """The settings of DPLC: see above. All are ours: no text at hand says the paper's."""

    angle: float = 1.3
    """ρ in radians, above 0 and up to π/2: how far from its direction a cap reaches."""
    members: float = 20.0
    """T: how many members a cap must have, by the noised count."""
    clusters: int = 4
    """Q: sanitised centres of a release, at most."""
    directions: int = 256
    """Directions that are drawn at random for each release, beside those that are known without looking at centres."""
    noise_multiplier: float = 1.0
    """z."""
    delta: float = 1e-5
    """δ, the probability with which the promise of ε may fail."""
    target_epsilon: float | None = None
    """A party releases nothing more once its next release would pass it, and trains on. None: it always releases."""

    def __post_init__(self) -> None:
        for name, allowed, within in (
            ("angle", "a number from 0.01 to π/2 (1.5707)", 0.01 <= self.angle <= math.pi / 2),
            ("members", "a number above 0", 0 < self.members < math.inf),
            ("clusters", "1 or more", self.clusters >= 1),
            ("directions", "0 or more", self.directions >= 0),
            ("noise_multiplier", "a number from 1e-9", 1e-9 <= self.noise_multiplier < math.inf),
            ("delta", "a number from 1e-12 to below 1", 1e-12 <= self.delta < 1),  # Gumbels of 53 bits have an end
            ("target_epsilon", "a number above 0", self.target_epsilon is None or self.target_epsilon > 0),
        ):
            if not within:
                raise ValueError(f"{name} is {getattr(self, name)}; use {allowed}")

    @property
    def selection_epsilon(self) -> float:
        """ε_s."""
        return 1 / (self.noise_multiplier * math.sqrt(self.clusters))

    @property
    def count_noise(self) -> float:
        """σ_n."""
        return 2 * self.noise_multiplier

    @property
    def sum_noise(self) -> float:
        """σ_S sin ρ, the standard deviation of each of a sum's numbers."""
        return math.sqrt(2) * self.noise_multiplier * math.sin(self.angle)

    @property
    def rho(self) -> float:
        """ρ_CDP of one release."""
        return 1 / (2 * self.noise_multiplier**2)

    def epsilon(self, rho: float) -> float:
        """ε at δ of releases whose ρ add up to `rho`, each of which may depend on those before it.

        Where there is next to no noise it is ρ + 2 √(ρ ln(1/δ)) (Bun & Steinke 2016), which is finite still.
        """
        return min(concentrated_epsilon(rho, self.delta), rho + 2 * math.sqrt(-rho * math.log(self.delta)))

    def check_target(self, rho: float) -> None:
        """Raise TargetReached where releases whose ρ add up to `rho` pass the target."""
        if self.target_epsilon is not None and self.epsilon(rho) > self.target_epsilon:
            raise TargetReached

    def protection(self, rho: float) -> str:
        """What a ledger says of a release with which all that has left adds up to `rho`: ε, rounded up."""
        epsilon = math.ceil(1e4 * self.epsilon(rho)) / 1e4
        spent = f"epsilon {epsilon:.10g} at delta {self.delta:g} for one identity"
        return f"DPLC, z = {self.noise_multiplier:g}: {spent}, by a rho of {rho:g} so far"


@torch.no_grad()
def sanitised_centres(centres: Tensor, directions: Tensor, settings: LocalClustering, noise: SecretNoise) -> Tensor:
    """(q, d) up to Q sanitised centres of (k, d) centres, in their dtype; `directions` (M, d) are the candidates p.

    Both may have any length but 0; a centre that is zero or not finite is in no cap, and neither is such a direction.
    The directions must not depend on the centres, but for what was released of them before. Takes O(k M) memory.
    """
    rows, candidates = (normalize(t.double().cpu()).nan_to_num(0.0) for t in (centres, directions))
    floor, released, left = math.cos(settings.angle), list[Tensor](), torch.ones(len(rows), dtype=torch.bool)
    within = rows @ candidates.T >= floor  # (k, M) who is in which cap
    within &= rows.any(1)[:, None] & candidates.any(1)[None, :]
    for turn in range(settings.clusters if len(candidates) else 0):
        counts = (within & left[:, None]).sum(0).double()
        gumbels = torch.from_numpy(noise.gumbels(f"{turn}/selection", len(candidates)))
        chosen = int((settings.selection_epsilon * counts + gumbels).argmax())  # ∝ e^{ε_s n_p}
        count = counts[chosen].item() + settings.count_noise * noise.normals(f"{turn}/count", 1).item()
        if count < settings.members:
            break
        cap, direction = within[:, chosen] & left, candidates[chosen]
        drawn = torch.from_numpy(noise.normals(f"{turn}/sum", rows.shape[1]))
        total = capped_sum(rows[cap], direction, settings.angle) + settings.sum_noise * drawn
        released.append(count * floor * direction + total)
        left &= ~cap
    return normalize(torch.stack(released) if released else rows[:0]).to(centres.dtype)


def capped_sum(members: Tensor, direction: Tensor, angle: float) -> Tensor:
    """(d,) Σ (x_i − cos ρ · p) of the members of a cap, which one of them changes by sin ρ at the most."""
    return (members - math.cos(angle) * direction).sum(0)


def release(
    party: Party, centres: Tensor, directions: Tensor, settings: LocalClustering
) -> tuple[Tensor | None, float | None]:
    """`sanitised_centres` with noise from the party's secret, and the ρ of all that it has released with them.

    (None, None) where the target allows no further release. The same centres, directions and settings in the same round
    have the same noise and count once, and others other noise: it would cancel.
    """
    secret, when = party.releases.secret, f"{party.name}/{party.stage}/{party.round}"
    of = codec.raw(centres.cpu().contiguous()), codec.raw(directions.cpu().contiguous()), repr(settings).encode()
    code = digest(secret, *of)
    try:
        rho = party.releases.spend(when, bytes.fromhex(code), settings.rho, settings.check_target)
    except TargetReached:
        return None, None
    return sanitised_centres(centres, directions, settings, SecretNoise(secret, f"{when}/{code}")), rho
