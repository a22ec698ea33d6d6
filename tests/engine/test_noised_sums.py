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
import worlds
from scipy import optimize, stats
from secure_runs import STAGES, away, changing, hidden_vectors, opened_totals, ring_sum, stage_of
from server_runs import controls, metrics, stopped_and_resumed
from toys import Control, Moved, Moves, Values

from coalface.core import codec
from coalface.core.errors import RecipeError
from coalface.core.method import Party, step
from coalface.core.steps import StepDeclaration
from coalface.engine.local import InProcess
from coalface.engine.party.commits import Commit
from coalface.engine.party.request import Request, SumStage, Unanswered
from coalface.engine.party.sums import SUM, PartySums, seeded_secret
from coalface.engine.sums.hidden import HiddenMeans
from coalface.engine.sums.opened import Opened
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import Tiny, run, workers
from coalface.experiments.plan import on_paper, privacy_budget
from coalface.privacy import noise
from coalface.privacy.dp import AdaptiveClip, PartyPrivacy
from coalface.privacy.noise_shares import noise_share
from coalface.privacy.secure import SecureSettings
from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.keys import derive

pytestmark = pytest.mark.usefixtures("toy_steps")

FIVE, TWENTY = Tiny(parties=5, each=3), Tiny(parties=20, each=3)
SECURE = SecureSettings(dropouts=0.3, corrupt=0.1)
"""Of five parties one may drop out and one be corrupt; of twenty six and two."""
NOISED = PartyPrivacy(noise_multiplier=1.0, clip=5.0)
SILENT = PartyPrivacy(noise_multiplier=0.0, clip=5.0)
LOSE: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.0, "max_abandoned_rounds": 9}
BITS = 21
"""Of a clip of 5 in a ring of 32 bits: 5 · 2^21 < 2^24."""


def spent(folder: Path) -> list[dict[str, Any]]:
    """The sums whose vectors were asked for."""
    return [*Opened(folder / "opened.jsonl").entries.values()]


def opened(folder: Path) -> list[dict[str, Any]]:
    """Those of them that were about to be opened."""
    return [entry for entry in spent(folder) if "sha256" in entry]


def kept_layout(folder: Path) -> bytes:
    """The digest of the layout of the parties' last sum."""
    commit = Commit.open(max((folder / "parties" / "silo-0").glob("*.commit")))
    return bytes.fromhex(json.loads(bytes(commit.read(SUM) or b"{}"))["context"]["layout"])


def rho(parties: int, sigma: int, size: int) -> float:
    """½ (Δ₂ / √h σ)² where a third may drop out and one be corrupt: of a share as wide as these none is too narrow."""
    honest = parties - math.floor(0.3 * parties) - math.ceil(0.1 * parties)
    return 0.5 * ((5 * 2**BITS + math.sqrt(size) / 2) / (math.sqrt(honest) * sigma)) ** 2


def epsilon_by_hand(total: float, delta: float = 1e-5) -> float:
    """The least of ρ α + ln(1 − 1/α) − (ln δ + ln α) / (α − 1), of all α (Canonne et al. 2020, Proposition 12)."""
    return float(
        optimize.minimize_scalar(
            lambda a: total * a + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1),
            bounds=(1.01, 300),
            method="bounded",
        ).fun
    )


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
    """560 numbers of sums over five: by standard deviation, and by Kolmogorov & Smirnov against √5 σ."""
    totals = opened_totals(monkeypatch)
    run(Replies(rounds=40, otherwise="still"), tmp_path, FIVE, secure=SECURE, privacy=NOISED)
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


def asked(**changes: Any) -> tuple[Request, StepDeclaration, codec.Forms]:
    """A request to a party, its step, and what the reply looks like."""
    start = {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}
    common = codec.encode(Values(values=start))
    stage = SumStage("advertise", 5, (("values", "images"), ("delta", "parties")))
    about: dict[str, Any] = {"run": "a", "party": "silo-1", "stage": "train", "round": 1, "rounds": 2, "ordinal": 1}
    about |= {"call": 1, "step": "move", "common": common, "each": None, "base": None, "horizon": (0, None)}
    request = Request(**about | {"sum": stage} | changes)
    return request, Moves().steps["move"][1], codec.forms(Moved, [Values(values=start)])


def hide(place: Path, reply: Moved, secret: bytes = b"a" * 32, z: float = 1.0, **changes: Any) -> Any:
    """What a party would keep of a reply; and the party's side."""
    privacy = PartyPrivacy(noise_multiplier=z, clip=5.0)
    sums = PartySums(SECURE, lambda party: secret, place, 0, place, privacy=privacy)
    request, declaration, like = asked(**changes)
    return sums, sums.hide(request, declaration, reply, like)


def moved(by: float) -> Moved:
    start = {"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}
    values = {name: tensor + by for name, tensor in start.items()}
    return Moved(values=values, delta=values, images=3, loss=0.0)


def noise_of(place: Path, by: float, **changes: Any) -> tuple[int, ...]:
    """The noise in a vector, and nothing else of it."""
    silent, noised = (hide(place, moved(by), **changes | {"z": z})[1].vector.view("<i4") for z in (0.0, 1.0))
    return tuple((noised - silent).tolist())


def test_no_noise_is_used_for_two_vectors_and_no_vector_has_two_noises(tmp_path: Path) -> None:
    """Of the same work, whatever the run is called, the noise is the same; any other vector, round, call, message or
    secret has its own."""
    first = noise_of(tmp_path, 0.5)
    assert first == noise_of(tmp_path, 0.5) == noise_of(tmp_path, 0.5, run="b", base="0000001.001-" + "0" * 24)
    others = [
        noise_of(tmp_path, 0.500001),
        noise_of(tmp_path, 0.5, round=2),
        noise_of(tmp_path, 0.5, call=2),
        noise_of(tmp_path, 0.5, stage="other"),
        noise_of(tmp_path, 0.5, secret=b"b" * 32),
        noise_of(tmp_path, 0.5, sum=SumStage("advertise", 6, (("values", "parties"), ("delta", "parties")))),
    ]
    assert len({first, *others}) == 7
    wide = hide(tmp_path, moved(0.5), z=2.0)[1].vector.view("<i4") - hide(tmp_path, moved(0.5), z=0.0)[1].vector.view(
        "<i4"
    )
    assert tuple((wide / 2).round().tolist()) != first and not np.allclose(wide, 2 * np.array(first), rtol=0.01)


def test_the_same_work_is_not_opened_again_with_other_noise(tmp_path: Path) -> None:
    """A new run's secret is another, and the mean of the two sums would have less noise than either."""
    names = [f"silo-{place}" for place in range(5)]
    sums, hidden = hide(tmp_path, moved(0.5))
    sums.bind(hidden, "silo-1", names)
    sums.bind(hidden, "silo-1", names)
    sums, again = hide(tmp_path, moved(0.5), secret=b"b" * 32, run="b")
    with pytest.raises(SecureSumError) as caught:
        sums.bind(again, "silo-1", names)
    assert caught.value.code == "answered"


def test_a_server_cannot_have_less_noise_by_what_it_asks_for(tmp_path: Path) -> None:
    """Means by images, or of one field twice, are the sum that counts each party once. More parties than there are
    would make each share narrower: then the sum needs answers of so many."""
    twice = SumStage("advertise", 5, (("values", "images"), ("values", "parties"), ("delta", "images")))
    assert noise_of(tmp_path, 0.5) == noise_of(tmp_path, 0.5, sum=twice)

    class Boasting(InProcess):
        def exchange(self, requests: Any) -> Any:
            for request in requests:
                grown = request.sum._replace(asked=50)
                yield from super().exchange([dataclasses.replace(request, sum=grown)])

    with pytest.raises(RunFailed):
        run(
            Moves(rounds=1),
            tmp_path / "run",
            FIVE,
            transport=Boasting,
            secure=SECURE,
            privacy=NOISED,
            **LOSE | {"max_abandoned_rounds": 1},
        )
    assert not (tmp_path / "run" / "opened.jsonl").exists()


# --- what it adds up to -----------------------------------------------------------------------------------------------


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


# --- the ring, and what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("parties", "size"), [(3, 10), (5, 310_768), (100, 310_768), (5_000, 44_000_000)])
def test_a_ring_has_room_for_the_sum_and_its_noise(z: float, parties: int, size: int) -> None:
    """All at the clip in one number, and ten standard deviations of the noise; rounding adds a hundredth at most."""
    start = {"a": torch.empty(size, device="meta")}
    like = codec.forms(Moved, [Values(values=start)])
    privacy = PartyPrivacy(noise_multiplier=z, clip=0.7)
    hidden = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, parties, privacy)
    assert hidden.noise is not None and list(hidden.layout.means) == ["parties"]
    (summand,) = hidden.layout.means["parties"].tensors.values()
    most = parties * 0.7 * 2.0**summand.fraction_bits + parties / 2 + 10 * math.sqrt(parties) * hidden.noise.sigma
    assert most < 2 ** (hidden.layout.bits - 1)
    assert hidden.layout.bits == 32 or parties > 100
    assert math.sqrt(size) / 2 < 0.011 * 0.7 * 2.0**summand.fraction_bits or hidden.layout.bits == 64
    honest = parties - math.floor(0.3 * parties) - math.ceil(0.1 * parties)
    total = hidden.noise.sigma * math.sqrt(honest) / 2.0**summand.fraction_bits
    assert z * 0.7 <= total < 1.03 * z * 0.7 + 2 * math.sqrt(honest) / 2.0**summand.fraction_bits


def test_a_vector_that_is_above_its_clip_after_all_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proven of the noise rests on the norm of the whole numbers, so it is looked at."""
    from coalface.engine.sums import hidden as module

    monkeypatch.setattr(module.math, "sqrt", lambda number: 1.0)
    with pytest.raises(SecureSumError) as caught:
        hide(Path(), moved(100.0))
    assert caught.value.code == "vector"


def test_a_norm_whose_square_leaves_64_bits_is_above_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^16 numbers of 2^24: their squares add up to 2^64, which is 0 there."""
    from coalface.engine.sums import hidden as module

    size = 1 << 16
    like = codec.forms(Moved, [Values(values={"a": torch.zeros(size)})])
    means = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, 5, PartyPrivacy(clip=1.0))
    monkeypatch.setattr(module.math, "sqrt", lambda number: 1.0)
    values = {"a": torch.ones(size)}
    with pytest.raises(SecureSumError) as caught:
        means.encode_noised(Moved(values=values, delta=values, images=1, loss=0.0), np.random.default_rng)
    assert caught.value.code == "vector"


def test_a_change_that_no_number_can_hold_counts_as_zero() -> None:
    """1.7e308 is finite, and its difference to −1.7e308 is not. What can be held is scaled, however large."""
    start = {"a": torch.zeros(3), "b": torch.full((2, 2), -1.7e308, dtype=torch.float64)}
    like = codec.forms(Moved, [Values(values=start)])
    means = HiddenMeans.of(SECURE, Moves().steps["move"][1], (("values", "images"),), like, 5, SILENT)
    for number, void in ((1.7e308, True), (-1.6e308, False)):
        values = {"a": torch.ones(3), "b": torch.full((2, 2), number, dtype=torch.float64)}
        vector, why = means.encode_noised(Moved(values=values, delta=values, images=1, loss=0.0), np.random.default_rng)
        assert bool(why) is void and (not vector[:-1].any() or not void)


@pytest.mark.parametrize(("parties", "dropouts"), [(2, 0.0), (3, 0.0), (5, 0.3)])
def test_a_share_less_is_counted_on_where_no_party_helps_the_server(parties: int, dropouts: float) -> None:
    """Towards another party the ε is to hold as well, and that one can take its own share off."""
    like = codec.forms(Moved, [Values(values={"a": torch.zeros(7)})])
    secure = SecureSettings(dropouts=dropouts, corrupt=0.0)
    means = HiddenMeans.of(secure, Moves().steps["move"][1], (("values", "images"),), like, parties, NOISED)
    others = parties - math.floor(dropouts * parties) - 1
    assert means.noise is not None and means.noise.honest == others
    without_one = means.noise.sensitivity / (math.sqrt(others) * means.noise.sigma)
    assert 0.5 * without_one**2 <= 0.5 and means.rho == pytest.approx(0.5, rel=1e-6)


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
