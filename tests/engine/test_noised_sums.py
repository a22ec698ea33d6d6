"""Differential privacy with secure sums: each party clips and adds noise, so that no server is trusted with either."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noised_runs import (
    BITS,
    FIVE,
    LOSE,
    NOISED,
    SECURE,
    SILENT,
    TWENTY,
    epsilon_by_hand,
    kept_layout,
    opened,
    rho,
    spent,
)
from scipy import stats
from secure_runs import STAGES, away, changing, hidden_vectors, opened_totals, ring_sum, stage_of
from server_runs import controls, metrics, stopped_and_resumed
from toys import Control, Moved, Moves, Values

from coalface.core import codec
from coalface.core.method import Party, step
from coalface.engine.local import InProcess
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request, Unanswered
from coalface.engine.party.sums import seeded_secret
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import run, workers
from coalface.privacy import noise
from coalface.privacy.noise_shares import noise_share
from coalface.privacy.secure_sums.keys import derive

pytestmark = pytest.mark.usefixtures("toy_steps")


# --- the formula, once more -------------------------------------------------------------------------------------------


def test_a_round_is_that_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip, rounding, noise of a known stream, sum modulo 2^32, mean over those asked: the same whole numbers."""
    totals, asked = opened_totals(monkeypatch), dict[str, Request]()

    def listen(request: Request, reply: Reply) -> Reply:
        if stage_of(request) == "advertise":
            asked[request.party] = request
        return reply

    class Both(changing(listen), away({"mask": ["silo-3"]})):  # type: ignore[misc]
        pass

    ran = run(Moves(rounds=1), tmp_path, FIVE, transport=Both, secure=SECURE, privacy=NOISED, **LOSE)
    sigma = math.ceil(1.0 * (5 * 2**BITS + math.sqrt(14) / 2) / math.sqrt(5 - 1 - 1))
    vectors = {}
    for place in range(5):
        party, move = f"silo-{place}", place + 1.0  # 14 numbers: 7 values and 7 deltas
        norm = math.sqrt(sum(move * move for _ in range(14)))
        vector = np.array([*(round(move * min(1.0, 5.0 / norm) * 2**BITS) for _ in range(14)), 1], np.int32)
        secret = derive(seeded_secret(0)(party), "shares of noise")
        content = noise.digest(secret, kept_layout(tmp_path), vector.tobytes())
        stream = noise.KeyStream(secret, json.dumps([0, *asked[party].work]), content)
        vector[:14] += noise_share(14, sigma, stream).astype(np.int32)
        vectors[party] = vector.view("<u4")
    own = hidden_vectors(tmp_path)
    for party, vector in own.items():  # silo-3 keeps none
        np.testing.assert_array_equal(vector, vectors[party])
    assert len(own) == 4
    np.testing.assert_array_equal(totals[0], ring_sum(v for party, v in vectors.items() if party != "silo-3"))
    means = [int(number) / 2**BITS / 5 for number in totals[0][:14]]  # of five asked, though four answered
    np.testing.assert_allclose(ran.state.values["b"].reshape(-1).numpy(), means[3:7], rtol=1e-14)
    np.testing.assert_allclose(ran.state.control["b"].reshape(-1).numpy(), 5 * np.array(means[10:]), rtol=1e-14)
    np.testing.assert_allclose(ran.state.values["a"].numpy(), means[:3], rtol=1e-7)


@pytest.mark.parametrize("gone", [{}, {"mask": ["silo-3"]}])
def test_without_noise_the_means_are_those_of_a_trusted_server(tmp_path: Path, gone: dict[str, list[str]]) -> None:
    """But for the rounding; who is away counts as zero in both."""
    ran = [
        run(
            Moves(rounds=2),
            tmp_path / str(secure is None),
            FIVE,
            transport=away(gone) if secure else away_singly(gone),
            secure=secure,
            privacy=SILENT,
            **LOSE,
        )
        for secure in (SECURE, None)
    ]
    assert metrics(ran[0].folder)[0]["arrived"] == 5 - len(gone)
    for part in ("values", "control"):
        for name, tensor in getattr(ran[0].state, part).items():
            torch.testing.assert_close(tensor, getattr(ran[1].state, part)[name], rtol=1e-6, atol=1e-6)
    assert ran[0].server.private is not None and ran[0].server.private.epsilon() == math.inf
    assert metrics(ran[0].folder)[-1]["epsilon"] is None


def away_singly(gone: dict[str, list[str]]) -> type[InProcess]:
    """As `away`, where replies come singly."""
    absent = {party for parties in gone.values() for party in parties}
    return changing(lambda request, reply: Unanswered("away") if request.party in absent else reply)


@dataclass(frozen=True, kw_only=True)
class Replies(Moves):
    """`silo-1` replies otherwise, the others as ever; `still`: all reply zero; `diverges`: its loss is not finite."""

    otherwise: str = ""

    @step(role="trainer")
    def move(self, party: Party, own: Control | None, common: Values) -> tuple[Moved, Control]:
        moved, control = Moves.move(self, party, own, common)
        if self.otherwise == "still" or (self.otherwise == "zero" and party.name == "silo-1"):
            zeros = {name: torch.zeros_like(tensor) for name, tensor in moved.delta.items()}
            return dataclasses.replace(moved, values=common.values, delta=zeros), control
        if party.name == "silo-1" and self.otherwise == "diverges":
            raise FloatingPointError("the training loss is nan")
        if party.name == "silo-1":
            changes: dict[str, Any] = {
                "": {},
                "nan": {"delta": moved.delta | {"a": torch.full((3,), torch.nan)}},
                "shape": {"delta": moved.delta | {"a": torch.zeros(4)}},
                "large": {"delta": {name: tensor * 1e30 for name, tensor in moved.delta.items()}},
                "count": {"images": 0},
                "counts": {"images": 999},
                "loss": {"loss": math.nan},
                "losses": {"loss": 99.0},
            }
            moved = dataclasses.replace(moved, **changes[self.otherwise])
        return moved, control


def test_the_noise_of_an_opened_sum_is_that_of_all_shares_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """280 numbers of sums over five: by standard deviation, and by Kolmogorov & Smirnov against √5 σ."""
    totals = opened_totals(monkeypatch)
    run(Replies(rounds=20, otherwise="still"), tmp_path, FIVE, secure=SECURE, privacy=NOISED)
    drawn = np.concatenate([total[:14] for total in totals]).astype(float)
    sigma = math.sqrt(5) * math.ceil((5 * 2**BITS + math.sqrt(14) / 2) / math.sqrt(3))
    low, high = stats.chi2.ppf([0.0005, 0.9995], len(drawn)) / len(drawn)
    assert low < np.mean(drawn**2) / sigma**2 < high
    assert stats.kstest(drawn / sigma, "norm").pvalue > 1e-3
    assert stats.kstest(drawn / sigma * math.sqrt(5), "norm").pvalue < 1e-9  # it would see one share alone
    assert abs(np.corrcoef(drawn[:-14], drawn[14:])[0, 1]) < 0.2  # rounds have noise of their own


# --- nothing but the noised sum leaves --------------------------------------------------------------------------------


def test_nothing_that_the_server_has_but_the_model_tells_of_a_reply(tmp_path: Path) -> None:
    """Metrics, records of sums, who took part and how many bytes were sent are those of a run where silo-1 replies
    zero, whatever else it replies: also what is not finite, of a wrong shape, of no images, or no more than an error.
    """
    left = {}
    for otherwise in ("zero", "", "nan", "diverges", "shape", "large", "count", "counts", "loss", "losses"):
        folder = tmp_path / (otherwise or "usual")
        sizes: list[tuple[str, int]] = []

        def listen(request: Request, reply: Reply, sizes: list[tuple[str, int]] = sizes) -> Reply:
            assert isinstance(reply, codec.Encoded)
            sizes.append((request.party, len(reply.data)))
            return reply

        run(
            Replies(rounds=2, otherwise=otherwise),
            folder,
            FIVE,
            transport=changing(listen),
            secure=SECURE,
            privacy=NOISED,
        )
        left[otherwise] = ((folder / "metrics.jsonl").read_bytes(), (folder / "opened.jsonl").read_bytes(), sizes)
    assert all(files == left["zero"] for files in left.values())
    line = metrics(tmp_path / "usual")[0]
    assert line["loss"] is None and "cut_off" not in line and line["losses"] == {} and line["failed"] == {}


@pytest.mark.parametrize("otherwise", ["nan", "diverges", "shape", "loss"])
def test_a_reply_that_cannot_be_summed_counts_as_zero_and_its_party_keeps_its_state(
    tmp_path: Path, otherwise: str
) -> None:
    ran = run(Replies(rounds=2, otherwise=otherwise), tmp_path, FIVE, secure=SECURE, privacy=SILENT)
    zero = run(Replies(rounds=2, otherwise="zero"), tmp_path / "zero", FIVE, secure=SECURE, privacy=SILENT)
    assert codec.pack(ran.state).data == codec.pack(zero.state).data
    assert "silo-1" in ran.server.at.accepted
    for party in ("silo-0", "silo-1"):
        commit = Commit.open(max((tmp_path / "parties" / party).glob("*.commit")))
        assert ("Control" in commit.spans) is (party == "silo-0")


def test_an_update_is_within_the_clip_whatever_it_was(tmp_path: Path) -> None:
    """Its whole numbers have the norm Δ₂ at most; of 10³⁰ as well, and one image counts as 999 do."""
    for otherwise in ("large", "count", "counts"):
        run(Replies(rounds=1, otherwise=otherwise), tmp_path / otherwise, FIVE, secure=SECURE, privacy=SILENT)
        for vector in hidden_vectors(tmp_path / otherwise).values():
            whole = vector.view("<i4")[:-1].astype(object)
            assert sum(number * number for number in whole) <= (5 * 2**BITS + math.sqrt(14) / 2) ** 2
            assert vector[-1] == 1


# --- dropouts, kills, and one noise for one vector --------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_parties_that_drop_out_at_a_stage_leave_noise_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Six of twenty: the sum is exact, of the vectors with noise of all others, twelve of which are counted on."""
    totals = opened_totals(monkeypatch)
    gone = [f"silo-{place}" for place in range(6)]
    run(Moves(rounds=1), tmp_path, TWENTY, transport=away({stage: gone}), secure=SECURE, privacy=NOISED, **LOSE)
    counted = [name for name in hidden_vectors(tmp_path) if stage == "unmask" or name not in gone]
    assert len(counted) == (20 if stage == "unmask" else 14)
    vectors = hidden_vectors(tmp_path)
    np.testing.assert_array_equal(totals[0], ring_sum(vectors[name] for name in counted))
    sigma = math.ceil((5 * 2**BITS + math.sqrt(14) / 2) / math.sqrt(12))
    assert opened(tmp_path)[0]["rho"] == pytest.approx(rho(20, sigma, 14), rel=1e-12)


def test_with_one_dropout_more_nothing_is_opened_and_what_was_masked_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose keys come too seldom is asked for no vector."""
    totals = opened_totals(monkeypatch)
    for stage, sums in (("share", 0), ("mask", 1), ("unmask", 1)):
        folder = tmp_path / stage
        transport = away({stage: ["silo-0", "silo-1"]}, rounds=[1])
        ran = run(Moves(rounds=2), folder, FIVE, transport=transport, secure=SECURE, privacy=NOISED, **LOSE)
        assert [line["abandoned"] for line in metrics(folder)] == [True, False]
        assert len(totals) == 1 and len(spent(folder)) == 1 + sums
        assert [line["epsilon"] for line in metrics(folder)] == pytest.approx(
            [epsilon_by_hand(0.5) if sums else 0, epsilon_by_hand(0.5 * (1 + sums))], rel=1e-2
        )
        assert controls(ran)["silo-2"].rounds == 1
        totals.clear()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("after", range(0, 41, 5))
def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_bytes(tmp_path: Path, after: int) -> None:
    rules: dict[str, Any] = {"secure": SECURE, "privacy": NOISED, "checkpoint_every": 2}
    unbroken = run(Moves(rounds=4), tmp_path / "unbroken", FIVE, **rules)
    resumed = stopped_and_resumed(Moves(rounds=4), tmp_path / "resumed", after + 10, FIVE, **rules)
    assert resumed.bytes() == unbroken.bytes()
    assert opened(tmp_path / "resumed") == opened(tmp_path / "unbroken")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("stage", ["advertise", "mask", "unmask"])
def test_a_process_that_is_killed_goes_on_to_the_same_bytes(tmp_path: Path, stage: str) -> None:
    rules: dict[str, Any] = {"secure": SECURE, "privacy": NOISED}

    def die(request: Request, reply: Reply) -> Reply:
        if (request.round, request.party, stage_of(request)) == (2, "silo-2", stage):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    unbroken = run(Moves(rounds=3), tmp_path / "unbroken", FIVE, **rules)
    if (child := os.fork()) == 0:
        run(Moves(rounds=3), tmp_path / "killed", FIVE, transport=changing(die), **rules)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert run(Moves(rounds=3), tmp_path / "killed", FIVE, **rules).bytes() == unbroken.bytes()


@pytest.mark.slow
@pytest.mark.ci
def test_the_same_bytes_from_one_worker_and_from_several(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"secure": SECURE, "privacy": NOISED, **LOSE}
    ran = [
        run(Moves(rounds=3), tmp_path / str(n), FIVE, transport=transport, **rules)
        for n, transport in enumerate((InProcess, workers(2)))
    ]
    assert ran[0].bytes() == ran[1].bytes()
