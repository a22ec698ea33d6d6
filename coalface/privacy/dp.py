"""Differential privacy by party: settings, clipping, and what of a method it can protect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coalface.core.checks import TypedSettings
from coalface.core.declarations import counterparts, resolved
from coalface.core.errors import RecipeError
from coalface.core.method import Mean, generator
from coalface.core.steps import StepDeclaration
from coalface.privacy.accountant import Drawing, Drawn, Mechanism

WHERE = "privacy.dp"
BATCHED = "a client batch makes no update of a single party, and privacy.dp clips each; set it to 0"
COUNTERSIGNED = (
    "a second party would sign a hash of all replies, as they are without noise; remove this key, or privacy.dp"
)
QUORUM = (
    "whether a round of drawn parties has enough replies tells who was drawn, so it counts with any number of them; "
    "remove this, or set privacy.dp.sampling to cyclic"
)
COUNTS_REPLIES = (
    "what the method keeps depends on how many parties answer, which tells how many were drawn; set the method's "
    "`sample` to null, so that all are asked, or sampling to cyclic"
)
POSTED = (
    "the method posts work beside its rounds, whose replies come singly, so noise on means does not protect them; "
    "choose a method without validators and labels, such as fedavg"
)
UNSHARED = "the method asks for no mean, so there is nothing that noise could protect; remove privacy.dp"
SMALLEST, LARGEST = 1e-30, 1e30
"""What a clip may be, so that sums of its squares and its fixed-point numbers are neither infinite nor nothing; and how
large `noise_multiplier`."""
SAID = ("images", "loss")
"""Numbers of a reply that the server may read singly, for its records; no model depends on them."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(TypedSettings):
    """C follows a quantile γ of the updates' norms: C ← C exp(−η (b̃ − γ)), b̃ the noised share of norms up to C.

    Andrew, Thakkar, McMahan & Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS 2021.
    """

    quantile: float = 0.5
    """γ, the share of the updates that shall be within C."""
    initial: float = 1.0
    """C in the first round."""
    rate: float = 0.2
    """η."""
    count_noise: float | None = None
    """σ_b, the standard deviation of the noise on the count; None: n / 20 of n parties asked, at least
    `noise_multiplier`."""

    def __post_init__(self) -> None:
        for name, allowed, within in (
            ("quantile", "a share above 0 and below 1", 0 < self.quantile < 1),
            ("initial", f"a number from {SMALLEST:g} to {LARGEST:g}", SMALLEST <= self.initial <= LARGEST),
            ("rate", "a number above 0", self.rate > 0),
            ("count_noise", "a number above 0", self.count_noise is None or self.count_noise > 0),
        ):
            if not within:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use {allowed}", where=name)

    def multipliers(self, noise_multiplier: float, asked: int) -> tuple[float, float]:
        """(z_Δ, σ_b): what the noise on the sum and on the count are, so that both together protect as z does alone.

        A party changes the count, of b − ½, by up to ½: so 1 / z² = 1 / z_Δ² + 1 / (2 σ_b)².

        Examples:
            >>> AdaptiveClip(count_noise=5 / 8).multipliers(1.0, 100)  # 1 / 1² = (3/5)² + (4/5)²
            (1.6666666666666667, 0.625)
        """
        if noise_multiplier == 0:
            return 0.0, 0.0
        count = max(asked / 20, noise_multiplier) if self.count_noise is None else self.count_noise
        if not noise_multiplier < 2 * count:
            raise RecipeError(
                f"{count} is not allowed; use more than half of noise_multiplier ({noise_multiplier}), or the count "
                "alone would take all of the protection",
                where="clip.count_noise",
            )
        return (noise_multiplier**-2 - (2 * count) ** -2) ** -0.5, count

    def following(self, clip: float, share: float) -> float:
        """C of the next sum."""
        return clip * math.exp(-self.rate * (share - self.quantile))


@dataclass(frozen=True, kw_only=True)
class PartyPrivacy(TypedSettings):
    """Central differential privacy by party: Δ̄ = (Σ Δ_p min(1, C / ‖Δ_p‖) + N(0, z² C²)) / n.

    Δ_p is all that party p sends to be averaged, as one vector of differences to what it was sent; a party that is
    asked and does not answer counts as zero. The server is trusted: it sees every Δ_p. Its mean Δ̄, and all that is made
    of it, tells of no party much more than ε says (Dwork & Roth 2014; McMahan et al., ICLR 2018). With secure sums the
    parties clip, and add discrete noise of at least z C together; then no server is trusted: see `docs/privacy.md`.
    """

    noise_multiplier: float = 1.0
    """z: the noise's standard deviation over C, the most that a party can add to the sum. 0: clipping alone."""
    clip: float | AdaptiveClip = 1.0
    """C, the norm that an update is brought down to; or how it is found, such as `{quantile: 0.5}`."""
    delta: float = 1e-5
    """δ, the probability with which the promise of ε may fail: well below one in the number of parties."""
    target_epsilon: float | None = None
    """The run ends before the round that would pass it. None: all rounds are run."""
    sampling: Drawing = "fixed"
    """How a method's `sample: n` is drawn: so many (`fixed`), or each with probability n / N (`poisson`), which has the
    far smaller ε; or nobody is drawn, and n are asked in turn (`cyclic`)."""
    bands: int | None = None
    """b: the noise of a round takes back what it can of the b − 1 rounds before, so that the model has less of it in
    all; up to N / n, for parties in turn. None: the noise of each sum is its own."""

    def __post_init__(self) -> None:
        fixed = self.clip if isinstance(self.clip, int | float) else 1.0
        for name, allowed, within in (
            ("noise_multiplier", f"a number from 0 to {LARGEST:g}", 0 <= self.noise_multiplier <= LARGEST),
            (
                "clip",
                f"a number from {SMALLEST:g} to {LARGEST:g}, or keys such as `{{quantile: 0.5}}`",
                SMALLEST <= fixed <= LARGEST,
            ),
            ("delta", "a number above 0 and below 1", 0 < self.delta < 1),
            ("target_epsilon", "a number above 0", self.target_epsilon is None or 0 < self.target_epsilon < math.inf),
            ("bands", "1 or more", self.bands is None or self.bands >= 1),
        ):
            if not within:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use {allowed}", where=name)
        if self.bands is not None and self.sampling != "cyclic":
            raise RecipeError(
                "noise is correlated over rounds of which it is known who takes part in them; set sampling to cyclic, "
                "or remove this key",
                where="bands",
            )
        if self.bands is not None and isinstance(self.clip, AdaptiveClip):
            raise RecipeError(
                "the noise of one round takes back that of others only at the same clip; give clip as a number",
                where="bands",
            )
        if self.target_epsilon is not None and self.noise_multiplier == 0:
            raise RecipeError("without noise ε has no bound; set noise_multiplier above 0", where="target_epsilon")
        self.noise(asked=1)

    def noise(self, asked: int) -> tuple[float, float]:
        """(σ of the sum over C, σ of the count), of a sum that so many are asked for."""
        if isinstance(self.clip, AdaptiveClip):
            return self.clip.multipliers(self.noise_multiplier, asked)
        return self.noise_multiplier, 0.0

    def check_bands(self, drawn: Drawn | None) -> None:
        """Raise RecipeError where the noise of a sum would be correlated over rounds that share parties.

        It then costs more than it saves: over ten rounds of everybody, b = 10 has 1.4 times the error of b = 1.
        """
        separation = 1 if drawn is None else drawn.separation
        if (self.bands or 1) > separation:
            when = "every round" if separation == 1 else f"every {separation} rounds"
            raise RecipeError(
                f"a party may take part in {when}, and with more bands than rounds between them correlated noise costs "
                f"more than it saves; use {separation}, or fewer parties a round",
                where=f"{WHERE}.bands",
            )

    def stage_mechanism(self, stage: str, draws: Iterable[Drawn | None], sums: int) -> Mechanism:
        """The mechanism of a round of a stage, of parties in turn, with so many sums over these draws.

        Where they are not all of one size, turns of one may meet those of another: then a party may be in every round.
        """
        drawn, *others = set(draws)
        return Mechanism(self.noise_multiplier / math.sqrt(sums), None if others else drawn, self.bands or 1, stage)


class Draws:
    """The draws of a round under way, of its number; `seed` is for the order of parties that are asked in turn."""

    def __init__(self, drawing: Drawing, round: int = 0, seed: int = 0) -> None:
        self._drawing: Drawing = drawing
        self._round, self._seed = round, seed
        self._drawn: list[tuple[frozenset[str], Drawn]] = []

    def sample(
        self, fixed: Callable[[], tuple[str, ...]], parties: Sequence[str], n: int | None, rng: np.random.Generator
    ) -> tuple[str, ...]:
        """Who is drawn: `fixed()`, or with `poisson` each by itself, which may be nobody.

        In turn they are places r n, … of a fixed order that begins anew at its end: a party's rounds are
        ⌊N / n⌋ apart or more.
        """
        if n is None or self._drawing == "fixed" or not 0 < n < len(parties):
            chosen = fixed()
        elif self._drawing == "cyclic":
            order = generator(self._seed, "server", "turns").permutation(len(parties))
            places = order[(self._round * n + np.arange(n)) % len(parties)]
            chosen = tuple(parties[place] for place in sorted(places))
        else:
            heads = rng.random(len(parties)) < n / len(parties)
            chosen = tuple(party for party, drawn in zip(parties, heads, strict=True) if drawn)
        if n is not None and n < len(parties):
            self._drawn.append((frozenset(chosen), Drawn(self._drawing, n, len(parties))))
        return chosen

    @property
    def are_secret(self) -> bool:
        """Whether nobody may know who was drawn in this round, and so that nobody was or answered."""
        return any(how.is_secret for _, how in self._drawn)

    def of(self, asked: Iterable[str]) -> tuple[int, Drawn] | None:
        """(number of the draw in this round, how) that chose them; None where none did.

        If no draw chose just them it is one that chose them among others, who cannot be asked.
        """
        names = frozenset(asked)
        draws = sorted(enumerate(self._drawn), key=lambda draw: draw[1][0] != names)
        return next(((place, how) for place, (chosen, how) in draws if names <= chosen), None)


def check_tensors(parameters: Iterable[str], sent: Iterable[str]) -> None:
    """Raise RecipeError where the backbone sends tensors that are not trained, such as BatchNorm's statistics.

    They are in other units than weights, so that one clip cannot serve both, and a variance that is noised may come out
    below zero.
    """
    if other := sorted(set(sent) - set(parameters)):
        raise RecipeError(
            f"the backbone sends {other[0]}, which is not trained: noise would spoil it. Use a network without "
            "BatchNorm, such as cnn-small or vit-tiny, or keep the running statistics at the parties "
            "(model.batchnorm=parameters-only)",
            where=WHERE,
        )


def check_call(
    step: str,
    declaration: StepDeclaration,
    means: Sequence[Mean],
    everyone: Sequence[str],
    *,
    where: str = WHERE,
    why: str = "noise on a mean does not protect it",
) -> None:
    """Raise RecipeError unless the means of a call are all that the replies to it tell, and count each party alike.

    `where` is the key of the recipe that needs it, `why` what a single reply would do to it.
    """
    reply = declaration.reply
    assert reply is not None
    averaged = {mean.field for mean in means}
    single = [name for name in counterparts(reply) if name not in averaged]
    single += [name for name in resolved(reply, reply.__name__) if name not in {*averaged, *single, *SAID}]
    if single:
        raise RecipeError(
            f"in step {step} each party's {single[0]} comes to the server singly, so {why}; choose a "
            "method whose parties send nothing but means, such as fedavg",
            where=where,
        )
    for mean in means:
        weights = set(mean.by.get(party, 0.0) for party in everyone) if isinstance(mean.by, Mapping) else {1.0}
        if len(weights) > 1:
            raise RecipeError(
                f"step {step} asks for a mean of {mean.field} with weights that differ from party to party, and each "
                "party must count the same. Set `weights` of the method to equal if it has it (feddyn; scaffold with "
                "local.steps_per_round), or choose another method",
                where=where,
            )
        if declaration.each is not None and mean.field in resolved(declaration.each, declaration.each.__name__):
            raise RecipeError(
                f"step {step} sends each party a {mean.field} of its own and asks for the mean; it can only be of what "
                "all parties are sent alike",
                where=where,
            )


def summed(means: Sequence[Mean], changes: Callable[[str], bool]) -> list[Mean]:
    """One mean for each field of some, of differences where the field `changes` what was sent: what is summed."""
    fields = dict.fromkeys(mean.field for mean in means)
    return [Mean(field, of="differences" if changes(field) else "values") for field in fields]
