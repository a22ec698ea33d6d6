"""Pins: words of a node's configuration that hold it to what its party agreed to, whatever recipe the server runs.

A kit writes them (`words`), and the party's process looks before anything leaves (`check`). Each holds by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coalface.core.errors import RecipeError
from coalface.experiments.recipe.schema import Recipe
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.sanitised import sanitised
from coalface.privacy.secure import SecureSettings
from coalface.privacy.templates import WHERE, TemplateNoise, templates

NOISE = ("noise_multiplier", "delta", "target_epsilon")
SUMS = ("secure", "dropouts", "corrupt")
"""By any of them, or of `NOISE`, a node takes part in secure sums alone; by the latter only with noise."""
RELEASES = {word: f"release_{word}" for word in NOISE}
"""By any of them it takes part in no run where templates, or what is made of them, leave singly with less noise."""


Noise = PartyPrivacy | TemplateNoise
"""Settings that say what noise there is: z, δ, and the ε at which a party stops. A method's own are alike."""


class Unprotected(RecipeError):
    """A run hides less than its party's node is held to."""


@dataclass(frozen=True)
class _Least:
    """The least noise that a node accepts."""

    noise_multiplier: float = 0.0
    delta: float = 1e-5
    """A target alone bounds nothing: for a δ near 1 it is met by any noise."""
    target_epsilon: float = math.inf

    def accepts(self, noise: Noise | None) -> bool:
        if noise is None:
            return False
        target = math.inf if noise.target_epsilon is None else noise.target_epsilon
        loud = noise.noise_multiplier >= self.noise_multiplier and noise.delta <= self.delta
        return loud and target <= self.target_epsilon

    def __str__(self) -> str:
        ends = "" if self.target_epsilon == math.inf else f", that ends at ε = {self.target_epsilon:g}"
        return f"noise of z = {self.noise_multiplier:g} or more{ends} for δ = {self.delta:g}"


def words(recipe: Recipe) -> list[str]:
    """What a kit has its node say, by a recipe."""
    pinned: list[str] = []
    if (secure := recipe.secure) is not None:
        pinned += ["secure=true", f"dropouts={secure.dropouts!r}", f"corrupt={secure.corrupt!r}"]
        if recipe.dp is not None:
            pinned += _words(recipe.dp, {word: word for word in NOISE})
    for noise in {repr(noise): noise for noise, _ in _released(recipe) if noise is not None}.values():
        pinned += _words(noise, RELEASES)
    return pinned


def _words(noise: Noise, names: Mapping[str, str]) -> list[str]:
    values = {name: getattr(noise, word) for word, name in names.items()}
    return [f"{name}={value!r}" for name, value in values.items() if value is not None]


def check_bounded(recipe: Recipe) -> None:
    """Raise RecipeError where a kit's node would release noised fields of a method for as long as the server asks."""
    for noise, where in _released(recipe):
        if noise is not None and noise.target_epsilon is None and where != WHERE:
            raise RecipeError(
                "its noise has no target_epsilon, so the server alone would say how often a party releases with it, "
                "and what ε that comes to; set one",
                where=where,
            )


def check(recipe: Recipe, node_config: Mapping[str, Any]) -> None:
    """Raise Unprotected where a run hides less than the node's configuration asks for: the server changes recipes."""
    groups = SUMS, NOISE, RELEASES.values()
    sums, noise, releases = ({w: v for w in group if (v := node_config.get(w, False)) is not False} for group in groups)
    if sums or noise:
        _check_sums(recipe.secure, sums | noise)
    if noise:
        _check_noise(recipe, noise, node_config)
    least = _Least(**{word: float(releases[name]) for word, name in RELEASES.items() if name in releases})
    if releases and recipe.secure is not None:
        raise Unprotected(
            f"this node's party agreed to a recipe without secure sums: {_mend(releases)}", where="privacy.secure"
        )
    for released, where in _released(recipe) if releases else ():
        if not least.accepts(released):
            raise Unprotected(
                f"what this node's party makes of single people leaves with {least}, and the run has less or none: "
                f"{_mend(releases)}",
                where=where,
            )


def _check_sums(secure: SecureSettings | None, pins: Mapping[str, Any]) -> None:
    dropouts, corrupt = (float(pins.get(key, getattr(SecureSettings, key))) for key in ("dropouts", "corrupt"))
    if secure is None or secure.dropouts > dropouts or secure.corrupt < corrupt:
        raise Unprotected(
            f"this node takes part in secure sums alone, with dropouts up to {dropouts:g} and corrupt {corrupt:g} or "
            f"more, and the run has others or none: {_mend(pins)}",
            where="privacy.secure",
        )


def _check_noise(recipe: Recipe, pins: Mapping[str, Any], node_config: Mapping[str, Any]) -> None:
    if not node_config.get("names"):
        raise Unprotected(
            "this node's vectors leave with noise, of which its own is a share, and without the parties' keys a server "
            "could take all others' places: begin the node with names=… and sign=… as its kit does",
            where="privacy.dp",
        )
    least = _Least(**{word: float(value) for word, value in pins.items()})
    if not least.accepts(recipe.dp):
        raise Unprotected(
            f"this node's vectors leave with {least}, and the run has less or none: {_mend(pins)}", where="privacy.dp"
        )


def _mend(pins: Mapping[str, Any]) -> str:
    return (
        "have it run by the recipe that the parties agreed to, or begin the node with another configuration "
        f"({', '.join(pins)})"
    )


def _released(recipe: Recipe) -> list[tuple[Noise | None, str]]:
    """With what noise each step's templates, and what is made of them, leave singly, and which key says so."""
    if recipe.secure is not None:
        return []
    released: list[tuple[Noise | None, str]] = []
    for owner, declared in recipe.build_method().steps.values():
        if sanitised(declared.reply):
            released.append((owner.sanitises_with, f"methods.{recipe.method}"))
        if templates(declared.reply):
            released.append((recipe.privacy.templates, WHERE))
    return released
