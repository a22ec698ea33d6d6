"""Noise on the sphere for templates that must leave a party singly: class embeddings, rows of length one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coalface.core import codec
from coalface.core.checks import TypedSettings
from coalface.core.declarations import contents
from coalface.core.errors import RecipeError
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.privacy import ledger, noise
from coalface.privacy.accountant import Mechanism, epsilon

WHERE = "privacy.templates"
ON_SPHERE = "noise on the sphere, z = "
"""What a ledger says of a template, before z."""
FARTHEST = 2.0
"""How far two vectors of length one can lie apart."""
TOGETHER = "in a client batch no template leaves its party by itself, and privacy.templates noises each; set it to 0"
NONE_LEAVES = "no template leaves a party singly, so there is nothing to put noise on; remove this key"


@dataclass(frozen=True, kw_only=True)
class TemplateNoise(TypedSettings):
    """Each template leaves as t̃ = (u + g) / ‖u + g‖, with u = t / ‖t‖ and g ~ N(0, (2 z)² I).

    Proof of (ε, δ): u moves by 2 at most, whatever a person's images are, so u + g is a Gaussian mechanism of
    multiplier z, and its direction is made of u + g alone. T releases, each of which may depend on those before it, are
    one of z / √T, whose ε is known exactly (Dong, Roth & Su 2022; Balle & Wang 2018). Two templates of cosine c
    differ by √(2 − 2c) < 2 only, and are hidden the better from each other. Nobody is trusted: the noise is drawn
    where the template is made. Of d numbers, the cosine of t̃ to t is about 1 / √(1 + 4 z² d).
    """

    noise_multiplier: float = 1.0
    """z: the noise's standard deviation over 2, the most that a template of length one can change."""
    delta: float = 1e-5
    """δ, the probability with which the promise of ε may fail."""
    target_epsilon: float | None = None
    """The run ends before a party would release templates once more than stays within it. None: all rounds are run."""

    def __post_init__(self) -> None:
        for name, allowed, within in (
            ("noise_multiplier", "a number above 0", self.noise_multiplier > 0),
            ("delta", "a number above 0 and below 1", 0 < self.delta < 1),
            ("target_epsilon", "a number above 0", self.target_epsilon is None or self.target_epsilon > 0),
        ):
            if not within:
                raise RecipeError(f"{getattr(self, name)} is not allowed; use {allowed}", where=name)

    def epsilon(self, releases: int) -> float:
        """ε of so many releases of a person's template, one after the other."""
        return epsilon({Mechanism(self.noise_multiplier): releases}, self.delta)

    @property
    def protection(self) -> str:
        """What a ledger says of such a template."""
        return f"{ON_SPHERE}{self.noise_multiplier:g}"


@dataclass(frozen=True)
class TemplateRelease:
    """What a party does with its replies before they leave; `secret` is what its noise is drawn from."""

    settings: TemplateNoise
    secret: bytes

    def protect(self, reply: Any, name: str) -> Any:
        """The reply with noise on its templates; `name` is of the request that it answers.

        The same templates for the same request have the same noise, and others other noise: it would cancel.
        """
        return replace(reply, **{field: self._noised(reply, field, name) for field in templates(type(reply))})

    def protects(self, reply: type | None) -> bool:
        """Whether a reply has templates."""
        return bool(templates(reply))

    def check_target(self, reply: type | None, path: Path) -> None:
        """Raise ValueError where a reply would release templates once more than the target allows, by the ledger.

        So a party need not rely on the server to count.
        """
        target = self.settings.target_epsilon
        if target is None or not self.protects(reply) or not path.exists():
            return
        lines = ((line["name"], line["protection"]) for _, line in ledger.lines(path))
        by_field: Counter[tuple[str, str]] = Counter()
        for (name, how), count in Counter(line for line in lines if line[1].startswith(ON_SPHERE)).items():
            field = name.partition("/")[0], how
            by_field[field] = max(count, by_field[field])
        releases = Counter({Mechanism(self.settings.noise_multiplier): len(templates(reply))})
        for (_, how), count in by_field.items():  # with whatever noise the server has asked for
            releases[Mechanism(float(how.removeprefix(ON_SPHERE)))] += count
        if epsilon(releases, self.settings.delta) > target:
            raise ValueError(
                f"its templates have left {by_field.total()} times; once more would pass {WHERE}.target_epsilon "
                f"({target:g})"
            )

    def protections(self, reply: Any) -> dict[str, str]:
        """Name of a tensor in the encoded reply -> how it is protected."""
        paths = [path for field in templates(type(reply)) for path in codec.by_path(field, getattr(reply, field))]
        return dict.fromkeys(paths, self.settings.protection)

    def _noised(self, reply: Any, field: str, name: str) -> Any:
        value = getattr(reply, field)
        if isinstance(value, Tensor):
            return self._rows(value, f"{name}/{field}")
        return value and {key: self._rows(rows, f"{name}/{field}/{key}") for key, rows in value.items()}

    def _rows(self, rows: Tensor, name: str) -> Tensor:
        content = noise.digest(self.secret, name, codec.raw(rows))
        drawn = torch.from_numpy(noise.normals(self.secret, f"template/{name}/{content}", rows.numel()))
        return noised_rows(rows, self.settings.noise_multiplier, drawn.view(rows.shape))


def noised_rows(rows: Tensor, noise_multiplier: float, drawn: Tensor) -> Tensor:
    """(…, d) rows of length one, from (…, d) rows of any length and standard normal numbers: see `TemplateNoise`."""
    directions = torch.nn.functional.normalize(rows.double(), dim=-1)
    moved = directions + FARTHEST * noise_multiplier * drawn
    return torch.nn.functional.normalize(moved, dim=-1).to(rows.dtype)


def templates(reply: type | None) -> tuple[str, ...]:
    """The fields of a reply that hold templates; none of a step that has no reply."""
    return tuple(field for field, content in contents(reply).items() if content == "template") if reply else ()


def releases_templates(step: str, declaration: StepDeclaration, means: Sequence[Mean]) -> bool:
    """Whether a call has templates come singly. Raises RecipeError where it asks for a mean of templates."""
    fields = templates(declaration.reply)
    if averaged := {mean.field for mean in means} & {*fields}:
        raise averaged_error(step, min(averaged))
    return bool(fields)


def averaged_error(step: str, field: str) -> RecipeError:
    """What a mean of templates is refused with."""
    return RecipeError(
        f"step {step} asks for the mean of {field}, which needs less noise than each by itself; use privacy.dp in its "
        "place",
        where=WHERE,
    )
