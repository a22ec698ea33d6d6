"""What differential privacy by party costs: ε of a planned run, and how many of its rounds a target allows."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from coalface.core.errors import RecipeError
from coalface.core.text import several
from coalface.experiments.plan.messages import Plan
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.recipe.sections import Engine
from coalface.privacy.accountant import UNBOUNDED, Mechanism, concentrated_epsilon, epsilon, most
from coalface.privacy.correlated import squared_sensitivity
from coalface.privacy.dp import QUORUM, PartyPrivacy
from coalface.privacy.noise import load_ciphers
from coalface.privacy.templates import NONE_LEAVES, TemplateNoise, averaged_error


def spent(privacy: PartyPrivacy, planned: Plan, rounds: int) -> float:
    """ε after so many rounds of a plan, its stages one after the other."""
    mechanisms: Counter[Mechanism] = Counter()
    for stage, noised in zip(planned.stages, planned.noised, strict=True):
        mechanisms.update({m: count * min(rounds, stage.rounds) for m, count in Counter(noised).items()})
        rounds -= min(rounds, stage.rounds)
    if planned.sums:  # whose noise is in shares: ρ = 1 / 2z² of each that a party is asked for
        turns = {m: squared_sensitivity(count, m.separation, 1) for m, count in mechanisms.items() if count}
        rho = sum(count / 2 / m.noise_multiplier**2 if m.noise_multiplier else math.inf for m, count in turns.items())
        return concentrated_epsilon(rho, privacy.delta)
    return epsilon(mechanisms, privacy.delta)


def rounds_within(privacy: PartyPrivacy, planned: Plan) -> int:
    """How many rounds of a plan stay within `target_epsilon`; all of them where there is none."""
    target = privacy.target_epsilon
    return planned.rounds if target is None else most(lambda n: spent(privacy, planned, n) <= target, planned.rounds)


def check(recipe: Recipe, planned: Plan) -> None:
    """Raise RecipeError where not one round stays within `target_epsilon`, a quorum would tell who was drawn, or a
    package is not installed.
    """
    if recipe.dp is None:
        return
    load_ciphers()
    draws = {mechanism.drawn for noised in planned.noised for mechanism in noised}
    usual = Engine.model_fields["min_reply_fraction"].default  # it stands in every run's recipe
    secret = any(drawn is not None and drawn.is_secret for drawn in draws)
    if secret and recipe.secure is None and recipe.engine.min_reply_fraction not in (0, usual):
        raise RecipeError(QUORUM, where="engine.min_reply_fraction")
    if recipe.dp.target_epsilon is not None and not rounds_within(recipe.dp, planned):
        first = spent(recipe.dp, planned, 1)
        raise RecipeError(
            f"the first round alone makes ε = {first:.4g} at δ = {recipe.dp.delta:g}, which is above it; raise "
            "noise_multiplier, or the target",
            where="privacy.dp.target_epsilon",
        )


def check_templates(noise: TemplateNoise, planned: Plan) -> None:
    """Raise RecipeError where no template leaves singly, or not one release of it stays within the target."""
    load_ciphers()
    templates = [s for s in planned.sent if s.direction == "up" and s.content == "template"]
    if not templates:
        raise RecipeError(NONE_LEAVES, where="privacy.templates")
    for template in templates:
        if template.kind.endswith("aggregated"):
            raise averaged_error(template.step, template.field)
    fields = Counter(template.step for template in templates)
    if noise.target_epsilon is not None and (first := noise.epsilon(min(fields.values()))) > noise.target_epsilon:
        raise RecipeError(
            f"one reply alone makes ε = {first:.4g} at δ = {noise.delta:g}, which is above it; raise "
            "noise_multiplier, or the target",
            where="privacy.templates.target_epsilon",
        )


def templates_sentence(noise: TemplateNoise, planned: Plan) -> str:
    """What is promised to a person whose template leaves, and what is not."""
    fields = Counter(s.step for s in planned.sent if s.direction == "up" and s.content == "template")
    most = sum(stage.rounds * fields[step] for stage in planned.stages for step in stage.parties)
    ended = "" if noise.target_epsilon is None else f"; target_epsilon={noise.target_epsilon:g} ends the run before"
    return (
        f"templates leave with noise: ε = {noise.epsilon(1):.4g} at δ = {noise.delta:g} for each release, "
        f"{noise.epsilon(most):.4g} for a party that is asked in all rounds{ended}. What else it sends has no noise, "
        "and tells of the same images."
    )


def as_dict(privacy: PartyPrivacy, planned: Plan) -> dict[str, Any]:
    """ε of the planned run, None where it has no bound, and its rounds."""
    rounds = rounds_within(privacy, planned)
    value = spent(privacy, planned, rounds)
    return {"epsilon": value if math.isfinite(value) else None, "delta": privacy.delta, "rounds": rounds}


def sentence(recipe: Recipe, planned: Plan) -> str:
    """What is promised to a party, and what is not."""
    privacy = recipe.dp
    assert privacy is not None
    about = as_dict(privacy, planned)
    if about["epsilon"] is None:
        summed = "" if recipe.secure is None else "; secure sums hide what each party sends, and not what all sums tell"
        return f"privacy by party: {UNBOUNDED}{summed}."
    after = several(about["rounds"], "round")
    if about["rounds"] < planned.rounds:
        after += f", where target_epsilon={privacy.target_epsilon:g} ends the {planned.rounds:,} of the recipe"
    asked = max(planned.parties.values())
    wide = ""
    if privacy.delta * asked >= 1:
        wide = f" δ is not below one in {asked:,} parties: choose a smaller one."
    return (
        f"privacy by party: ε = {about['epsilon']:.4g} at δ = {privacy.delta:g} after {after}; "
        + (
            "the model is protected, and what leaves a party is not protected from the server."
            if recipe.secure is None
            else "from the server too, as long as it keeps to the protocol of secure sums; no loss is told."
        )
        + wide
    )
