"""What noise in shares adds up to: ε, its target, and what it cannot be had with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import worlds
from noised_runs import (
    FIVE,
    LOSE,
    NOISED,
    SECURE,
    SILENT,
    epsilon_by_hand,
    opened,
)
from secure_runs import opened_totals
from server_runs import metrics, stopped_and_resumed
from toys import Moves

from coalface.core.errors import RecipeError
from coalface.engine.local import InProcess
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.experiments.plan import on_paper, privacy_budget
from coalface.privacy.dp import AdaptiveClip, PartyPrivacy
from coalface.privacy.secure import SecureSettings

pytestmark = pytest.mark.usefixtures("toy_steps")


def test_epsilon_is_that_worked_by_hand_and_the_plan_says_it(tmp_path: Path) -> None:
    """Three rounds of z = 1 are ρ = 1.5 less what σ is rounded up by."""
    ran = run(Moves(rounds=3), tmp_path, FIVE, secure=SECURE, privacy=NOISED)
    assert [line["rho"] for line in opened(tmp_path)] == pytest.approx([0.5] * 3, rel=1e-6)
    assert ran.server.private is not None
    epsilon = ran.server.private.epsilon()
    assert epsilon == pytest.approx(epsilon_by_hand(1.5), rel=2e-3) and epsilon == pytest.approx(9.0099, abs=1e-3)
    assert metrics(tmp_path)[-1]["epsilon"] == epsilon
    world = FIVE()
    planned = on_paper.plan(Moves(rounds=3), world.by_role(), world.backbone, privacy=NOISED, secure=SECURE)
    assert privacy_budget.spent(NOISED, planned, 3) == pytest.approx(epsilon, rel=1e-9)


def test_a_party_in_turn_has_spent_what_it_was_asked_for(tmp_path: Path) -> None:
    """Six of twelve a round, in turn or drawn: ε is that of the party that was asked most often."""
    twelve, settings = Tiny(parties=12, each=3), SecureSettings(dropouts=0.2, corrupt=0.1)
    for sampling in ("cyclic", "fixed"):
        folder, privacy = tmp_path / sampling, dataclasses.replace(NOISED, sampling=sampling)
        ran = run(Moves(rounds=4, sample=6), folder, twelve, secure=settings, privacy=privacy)
        times = [sum(party in line["asked"] for line in opened(folder)) for party in ran.server.parties("trainer")]
        assert (max(times) == 2) if sampling == "cyclic" else (max(times) > 2)
        assert ran.server.private is not None
        assert ran.server.private.epsilon() == pytest.approx(epsilon_by_hand(0.5 * max(times)), rel=2e-3)
        world = twelve()
        planned = on_paper.plan(
            Moves(rounds=4, sample=6), world.by_role(), world.backbone, privacy=privacy, secure=settings
        )
        most = 2 if sampling == "cyclic" else 4  # of draws a plan knows that no party can be in more
        assert privacy_budget.spent(privacy, planned, 4) == pytest.approx(epsilon_by_hand(0.5 * most), rel=2e-3)


def test_the_target_ends_a_run_before_the_round_that_would_pass_it(tmp_path: Path) -> None:
    privacy = dataclasses.replace(NOISED, target_epsilon=epsilon_by_hand(1.0) * 1.01)
    ran = run(Moves(rounds=5), tmp_path, FIVE, secure=SECURE, privacy=privacy)
    assert len(opened(tmp_path)) == len(metrics(tmp_path)) == 2
    assert ran.server.ended.startswith("after round 2 of 5")


def test_of_drawn_parties_the_target_ends_a_run_before_the_sum_that_would_pass_it(tmp_path: Path) -> None:
    """Whom a round asks is known once they are drawn. In turn two rounds of six of twelve are one for each party."""
    twelve, settings = Tiny(parties=12, each=3), SecureSettings(dropouts=0.2, corrupt=0.1)
    for sampling in ("cyclic", "fixed"):
        folder = tmp_path / sampling
        privacy = dataclasses.replace(NOISED, sampling=sampling, target_epsilon=epsilon_by_hand(1.0) * 1.01)
        ran = run(Moves(rounds=9, sample=6), folder, twelve, secure=settings, privacy=privacy)
        times = [sum(party in line["asked"] for line in opened(folder)) for party in ran.server.parties("trainer")]
        assert max(times) == 2 and ran.server.ended and len(opened(folder)) == len(metrics(folder))
        assert len(metrics(folder)) == 4 or sampling == "fixed"


def test_two_sums_a_round_are_two_that_a_party_has_spent(tmp_path: Path) -> None:
    method, build = worlds.recipe("mime", rounds=1)
    ran = run(method, tmp_path, build, secure=SECURE, privacy=dataclasses.replace(NOISED, clip=1.0))
    assert len(opened(tmp_path)) == 2 and ran.server.private is not None
    assert ran.server.private.epsilon() == pytest.approx(epsilon_by_hand(1.0), rel=2e-3)


def test_a_resumed_run_knows_what_was_spent_and_a_line_that_is_gone_is_missed(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"secure": SECURE, "privacy": NOISED}
    resumed = stopped_and_resumed(Moves(rounds=3), tmp_path, 45, FIVE, **rules)
    assert resumed.server.private is not None
    assert resumed.server.private.epsilon() == pytest.approx(epsilon_by_hand(1.5), rel=2e-3)
    path = tmp_path / "opened.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(RunFailed, match="is not as it was written"):
        run(Moves(rounds=3), tmp_path, FIVE, **rules)


def test_ledgers_name_the_noise_of_what_leaves(tmp_path: Path) -> None:
    run(Moves(rounds=1), tmp_path, FIVE, secure=SECURE, privacy=NOISED)
    lines = [json.loads(line) for line in (tmp_path / "ledger" / "silo-0.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["sum"] == "mask" and line["name"] == "vector"]
    assert line["protection"] == "secure sum with noise" and line["rho"] == pytest.approx(0.5, rel=1e-6)
    run(Moves(rounds=1), tmp_path / "silent", FIVE, secure=SECURE, privacy=SILENT)
    silent = (tmp_path / "silent" / "ledger" / "silo-0.jsonl").read_text()
    assert "with noise" not in silent and "rho" not in silent


def test_a_call_without_a_mean_opens_a_number_of_parties_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedUV's clients enrol before they train."""
    totals = opened_totals(monkeypatch)
    method, build = worlds.recipe("feduv", rounds=1)
    ran = run(method, tmp_path, build, secure=SECURE, privacy=NOISED)
    assert [len(total) for total in totals].count(1) == 2 and totals[0].tolist() == [7]
    assert ran.server.private is not None and ran.server.private.summary()["sums"] == 1
    assert ran.server.private.epsilon() == pytest.approx(epsilon_by_hand(0.5), rel=2e-3)


@pytest.mark.parametrize(
    ("privacy", "where"),
    [
        (PartyPrivacy(sampling="poisson"), "privacy.dp.sampling"),
        (PartyPrivacy(clip=AdaptiveClip()), "privacy.dp.clip"),
        (PartyPrivacy(sampling="cyclic", bands=2), "privacy.dp.bands"),
    ],
)
def test_what_shares_of_noise_cannot_be_had_with_is_refused_by_its_key(
    tmp_path: Path, privacy: PartyPrivacy, where: str
) -> None:
    world = FIVE()
    for refused in (
        lambda: run(Moves(rounds=1), tmp_path, FIVE, secure=SECURE, privacy=privacy),
        lambda: on_paper.plan(Moves(rounds=1), world.by_role(), world.backbone, privacy=privacy, secure=SECURE),
    ):
        with pytest.raises(RecipeError) as caught:
            refused()
        assert caught.value.where == where


def test_a_party_with_noise_of_its_own_takes_no_part_in_a_sum_without(tmp_path: Path) -> None:
    """Its server leaves the noise out, or has less of it: the two are different sums."""
    for other in (None, dataclasses.replace(NOISED, noise_multiplier=0.5)):
        with pytest.raises(RunFailed):
            run(
                Moves(rounds=1),
                tmp_path / str(other is None),
                FIVE,
                transport=lambda setup, world: InProcess(dataclasses.replace(setup, privacy=NOISED), world),
                secure=SECURE,
                privacy=other,
                **LOSE | {"max_abandoned_rounds": 1},
            )
