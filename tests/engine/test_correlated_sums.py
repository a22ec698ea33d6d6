"""Sums of parties in turn whose noise is correlated: the noise as it comes to the model, ε, and a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from numpy.typing import NDArray
from scipy import linalg, stats
from server_runs import metrics, stopped_and_resumed
from toys import Moves

from coalface.core.errors import RecipeError
from coalface.engine.local import InProcess
from coalface.engine.party.executor import StepFailed
from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.privacy.accountant import Drawn, Mechanism, epsilon
from coalface.privacy.correlated import coefficients
from coalface.privacy.dp import PartyPrivacy

pytestmark = pytest.mark.usefixtures("toy_steps")

EIGHT = Tiny(parties=8)
SECRET = bytes(32)


def turns(bands: int | None, **settings: Any) -> PartyPrivacy:
    return PartyPrivacy(**{"noise_multiplier": 1.0, "clip": 1.0, "sampling": "cyclic", "bands": bands, **settings})


def opened(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "opened.jsonl").read_text().splitlines()]


def noise(folder: Path, bands: int | None, rounds: int, **rules: Any) -> NDArray[np.float64]:
    """(rounds, d) the noise of FedAvg's mean, two of eight in turn, times n / (z C): all else is nothing beside it."""
    method, build = worlds.recipe("fedavg", rounds=rounds, sample=2)[0], EIGHT
    states = [build().backbone.shared()]

    def look(server: Any, models: Any) -> dict[str, Any]:
        states.append(models.shared)
        return {}

    privacy = turns(bands, noise_multiplier=1e6, clip=1e-6)
    run(method, folder, build, privacy=privacy, observers=[look], evaluate_every=1, **rules)
    flat = torch.stack([torch.cat([t.double().flatten() for t in state.values()]) for state in states])
    return 2 * (flat[1:] - flat[:-1]).numpy()


def test_rounds_take_back_what_those_before_have_added(tmp_path: Path) -> None:
    """C w is independent and standard normal again, and the model has the less of it."""
    rounds, bands = 6, 4
    drawn = noise(tmp_path / "bands", bands, rounds)
    padded = np.pad(coefficients(bands), (0, rounds - bands))
    whole = linalg.toeplitz(padded, np.zeros(rounds)) @ drawn
    assert all(stats.kstest(row, "norm").pvalue > 1e-3 for row in whole)
    off = np.corrcoef(whole)[np.triu_indices(rounds, 1)]
    assert abs(off).max() < 0.08
    assert np.corrcoef(drawn)[1, 0] == pytest.approx(-0.5 / np.sqrt(1.25), abs=0.05)  # w_2 = z_2 − z_1 / 2
    alone = noise(tmp_path / "alone", None, rounds)
    assert drawn.sum(axis=0).std() < 0.7 * alone.sum(axis=0).std()


def test_epsilon_is_that_of_the_rounds_that_a_party_takes_part_in(tmp_path: Path) -> None:
    draw = Drawn("cyclic", 2, 8)
    for bands in (None, 1, 4):
        ran = run(Moves(rounds=6, sample=2), tmp_path / str(bands), EIGHT, privacy=turns(bands))
        for number, line in enumerate(metrics(ran.folder), start=1):
            assert line["epsilon"] == epsilon({Mechanism(1.0, draw, bands or 1, "train"): number}, 1e-5)
    assert metrics(ran.folder)[3]["epsilon"] == pytest.approx(
        epsilon({Mechanism(1 / np.linalg.norm(coefficients(4))): 1}, 1e-5)
    )


def test_the_target_ends_the_run_before_the_turn_that_passes_it(tmp_path: Path) -> None:
    target = epsilon({Mechanism(1.0): 1}, 1e-5) + 1e-9
    ran = run(Moves(rounds=9, sample=2), tmp_path, EIGHT, privacy=turns(None, target_epsilon=target))
    assert len(metrics(tmp_path)) == 4 and ran.server.ended  # all eight have had one turn


@pytest.mark.parametrize("after", [0, 5, 9])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, after: int) -> None:
    method, rules = Moves(rounds=6, sample=2), {"privacy": turns(4), "secret": SECRET}
    unbroken = run(method, tmp_path / "unbroken", EIGHT, **rules)
    resumed = stopped_and_resumed(method, tmp_path / "resumed", after, EIGHT, **rules)
    assert resumed.bytes() == unbroken.bytes() and opened(resumed.folder) == opened(unbroken.folder)


def test_noise_hangs_on_the_sums_before_it_so_that_it_never_cancels(tmp_path: Path) -> None:
    """The same secret over other sums has other noise from the first round on."""
    runs = [noise(tmp_path / str(i), 4, 2, secret=SECRET, seed=seed) for i, seed in enumerate((0, 1, 0))]
    np.testing.assert_array_equal(runs[0], runs[2])
    assert abs(np.corrcoef(np.vstack(runs[:2]))[:2, 2:]).max() < 0.08


class AwayOnce(InProcess):
    """Nobody answers in round 2 of the first run."""

    away = True

    def exchange(self, requests: Any) -> Any:
        for request, reply in super().exchange(requests):
            yield request, StepFailed("away") if AwayOnce.away and request.round == 2 else reply


def test_a_round_that_was_left_out_is_not_taken_in_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its noise counted as that of a round without a sum; with another one the covariance would be another."""
    rules: dict[str, Any] = {"privacy": turns(4), "secret": SECRET, "on_error": "exclude", "checkpoint_every": 9}
    method = Moves(rounds=4, sample=2)
    with monkeypatch.context() as patch:
        patch.setattr(AwayOnce, "away", True)
        stopped = stopped_before_the_end(method, tmp_path, rules)
    assert [line["round"] for line in stopped] == [1, 3]
    monkeypatch.setattr(AwayOnce, "away", False)
    run(method, tmp_path, EIGHT, transport=AwayOnce, **rules)
    told = metrics(tmp_path)
    assert [line["abandoned"] for line in told] == [False, True, False, False]
    assert "counts with a round without it" in told[1]["reason"]
    draw = Drawn("cyclic", 2, 8)
    assert told[-1]["epsilon"] == epsilon({Mechanism(1.0, draw, 4, "train"): 4}, 1e-5)


class Dies(BaseException):
    """The process is killed here."""


def stopped_before_the_end(method: Any, folder: Path, rules: dict[str, Any]) -> list[dict[str, Any]]:
    def look(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Dies

    with pytest.raises(Dies):
        run(method, folder, EIGHT, transport=AwayOnce, report=look, **rules)
    return opened(folder)


def test_bands_over_everybody_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        run(Moves(rounds=2), tmp_path, EIGHT, privacy=turns(2))
    assert caught.value.where == "privacy.dp.bands" and not (tmp_path / "opened.jsonl").exists()
