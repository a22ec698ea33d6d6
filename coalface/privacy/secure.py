"""Secure sums of a run: settings, and what of a method they can hide."""

from __future__ import annotations

import fnmatch
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coalface.core.checks import TypedSettings
from coalface.core.errors import RecipeError
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.privacy import dp
from coalface.privacy.secure_sums.context import unsafe

Number = TypeVar("Number", int, float)

WHERE = "privacy.secure"
BATCHED = "a client batch makes no vector of a single party, and privacy.secure masks each; set it to 0"
POSTED = (
    "the method posts work beside its rounds, whose replies come singly, and a secure sum hides single replies; "
    "choose a method without validators and labels, such as fedavg"
)
NOISED = "secure sum with noise"
"""What a ledger says of a vector that has a share of noise in it."""
CLIPS = {"*": 4.0, "*running_mean": 16.0, "*running_var": 64.0}
LARGEST_CLIP = 1 << 15
FEWEST_BITS, MOST_BITS = 12, 40
"""Binary places below the clip, where the recipe says nothing: as many as fit into 32 bits, or else into 64."""


@dataclass(frozen=True, kw_only=True)
class SecureSettings(TypedSettings):
    """The server learns the sum of the parties' replies, and no part of it (Bonawitz et al. 2017, Bell et al. 2020).

    See `docs/secure-sums.md`. Of n parties asked ⌊n · `dropouts`⌋ may drop out on the way, and ⌈n · `corrupt`⌉ may show
    the server all that they know.
    """

    dropouts: float = 0.3
    """The share of the parties asked that may drop out; with more the round is abandoned, and nothing is learned."""
    corrupt: float = 0.1
    """The share of the parties asked that may help a curious server."""
    most_images: int = 10_000
    """The most images that a party counts. It stands for the parties' numbers, which the server is not told."""
    clip: float | Mapping[str, float] = field(default_factory=lambda: dict(CLIPS))
    """What lies beyond ± clip is cut off there: of all tensors, or by patterns of their names (`backbone/*`), of which
    the longest that fits counts. Tensors are differences to what was sent, where they are a changed form of it."""
    fraction_bits: int | Mapping[str, int] | None = None
    """Numbers are rounded to whole multiples of 2^-fraction_bits: of all tensors, or by patterns. None: 12 places below
    the clip at least, and as many more as a ring of 32 bits holds; where it does not hold 12, one of 64."""

    def __post_init__(self) -> None:
        for name, allowed, within in (
            ("dropouts", "a share from 0 to below 1", 0 <= self.dropouts < 1),
            ("corrupt", "a share from 0 to below 1", 0 <= self.corrupt < 1),
            ("most_images", "a whole number from 1 to 2^40", 1 <= self.most_images <= 1 << 40),
            (
                "clip",
                f"numbers above 0, up to {LARGEST_CLIP}, one of them for `*`",
                all(0 < clip <= LARGEST_CLIP for clip in _values(self.clip)) and _says_all(self.clip),
            ),
            (
                "fraction_bits",
                "whole numbers from 0 to 48, one of them for `*`",
                self.fraction_bits is None
                or (all(0 <= bits <= 48 for bits in _values(self.fraction_bits)) and _says_all(self.fraction_bits)),
            ),
        ):
            if not within:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use {allowed}", where=name)

    def bounds(self, asked: int) -> tuple[int, int]:
        """How many of so many parties may drop out, and how many may be corrupt.

        Examples:
            >>> SecureSettings().bounds(3), SecureSettings().bounds(100)
            ((0, 1), (30, 10))
        """
        return math.floor(asked * self.dropouts + 1e-9), math.ceil(asked * self.corrupt - 1e-9)

    def clip_of(self, tensor: str) -> float:
        """The clip of a tensor, by its name in an encoding."""
        return _value_of(self.clip, tensor)

    def bits_of(self, tensor: str) -> int | None:
        """The fraction bits that the settings say of a tensor."""
        return None if self.fraction_bits is None else _value_of(self.fraction_bits, tensor)


def _values(setting: Number | Mapping[str, Number]) -> Iterator[Number]:
    yield from setting.values() if isinstance(setting, Mapping) else (setting,)


def _says_all(setting: float | Mapping[str, float]) -> bool:
    return not isinstance(setting, Mapping) or "*" in setting


def _value_of(setting: Number | Mapping[str, Number], tensor: str) -> Number:
    if not isinstance(setting, Mapping):
        return setting
    return setting[max((pattern for pattern in setting if fnmatch.fnmatchcase(tensor, pattern)), key=len)]


def check_installed() -> None:
    """Raise RecipeError where nothing can be masked."""
    try:
        importlib.import_module("cryptography")
    except ModuleNotFoundError:
        raise RecipeError("cryptography is needed: pip install 'coalface[privacy]'", where=WHERE) from None


def check_call(step: str, declaration: StepDeclaration, means: Sequence[Mean], everyone: Sequence[str]) -> None:
    """Raise RecipeError unless a sum hides all that the replies to a call tell of a party."""
    dp.check_call(step, declaration, means, everyone, where=WHERE, why="a sum does not hide it")


def check_shares(privacy: dp.PartyPrivacy) -> None:
    """Raise RecipeError for what of `privacy.dp` cannot be had where each party adds its share of the noise."""
    for name, present, why in (
        (
            "sampling",
            privacy.sampling == "poisson",
            "a secure sum tells its parties who takes part, so that no draw is a secret that ε could count on; set it "
            "to cyclic, or leave it out",
        ),
        (
            "clip",
            isinstance(privacy.clip, dp.AdaptiveClip),
            "parties would need to be told each round how many norms lay within the clip; give a number",
        ),
        (
            "bands",
            privacy.bands is not None,
            "a party would have to take back its noise of rounds that it may have dropped out of; remove this key",
        ),
    ):
        if present:
            raise RecipeError(f"with privacy.secure {why}", where=f"{dp.WHERE}.{name}")


def too_few(settings: SecureSettings, asked: int) -> str:
    """Why a call to so many parties cannot be summed; empty where it can."""
    if why := unsafe(asked, *settings.bounds(asked)):
        return f"{why}. Ask more parties a round, or allow fewer: lower privacy.secure.dropouts or corrupt"
    return ""
