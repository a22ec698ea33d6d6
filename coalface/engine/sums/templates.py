"""Templates that leave with noise, at the server: which party released its own how often, and what that adds up to."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coalface.core import codec
from coalface.core.method import Mean
from coalface.core.steps import StepDeclaration
from coalface.engine.run_state import Call
from coalface.engine.sums.opened import Opened
from coalface.engine.sums.private import TargetReached
from coalface.privacy.templates import TemplateNoise, releases_templates, templates

FILE = "released.jsonl"


class TemplateReleases:
    """The releases of a run, which `released.jsonl` lists before they are asked for: ε follows from its lines alone.

    What a resumed run asks for once more in the same words, of parties in the same state, is the same release; where it
    would be another one the round is abandoned.
    """

    def __init__(self, settings: TemplateNoise, folder: Path, stages: Sequence[str]) -> None:
        self.settings = settings
        self.listed = Opened(
            folder / FILE, "templates of this round were released in another state: another time would tell more"
        )
        self._stages = stages

    def admit(
        self, call: Call, declaration: StepDeclaration, means: Sequence[Mean], bases: Mapping[str, str | None]
    ) -> None:
        """Write down a call that is about to be made; `bases` are the accepted commits that its parties start from.

        Raises RecipeError where it asks for a mean of templates, TargetReached, and Abandoned.
        """
        if not releases_templates(call.step, declaration, means):
            return
        target, key = self.settings.target_epsilon, (call.stage, call.round, call.call)
        releases = sorted([*call.to] * len(templates(declaration.reply)))  # one for each field
        if target is not None and key not in self.listed.entries:
            spent, so_far = (self.settings.epsilon(self._most(self.listed.calls, more)) for more in (releases, ()))
            if spent > target:
                raise TargetReached(
                    f"ε of a template is {so_far:.4g} at δ = {self.settings.delta:g}; the next release would make it "
                    f"{spent:.4g}, which is above privacy.templates.target_epsilon ({target:g})"
                )
        common = None if call.common is None else call.common.digest
        own = {p: codec.encode(m).digest for p, m in (call.each or {}).items()}
        asked = hashlib.sha256(json.dumps([common, own, dict(bases)], sort_keys=True).encode()).hexdigest()
        self.listed.record(call, (), call.to, asked, released=releases)

    def metrics(self, stage: str, number: int) -> dict[str, Any]:
        """What a round's line of the metrics says: ε so far, of the party with the most releases."""
        lines = self.listed.until(self._stages, stage, number)
        return {"template_epsilon": self.settings.epsilon(self._most(lines))}

    def summary(self) -> dict[str, Any]:
        """What `summary.json` says."""
        releases = self._most(self.listed.calls)
        return {
            "epsilon": self.settings.epsilon(releases),
            "delta": self.settings.delta,
            "noise_multiplier": self.settings.noise_multiplier,
            "target_epsilon": self.settings.target_epsilon,
            "releases": releases,
        }

    def _most(self, lines: Iterable[Mapping[str, Any]], more: Iterable[str] = ()) -> int:
        counts = Counter(party for line in lines for party in line["released"])
        counts.update(more)
        return max(counts.values(), default=0)
