"""Sums that are clipped and noised: the formula, the noise, what is spent, and a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from scipy import stats
from server_runs import metrics, stopped_and_resumed
from toys import Lagged, Moves, State, Values

from coalface.core.errors import RecipeError
from coalface.core.method import Federation, Mean
from coalface.engine import checkpoint
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request, StepFailed
from coalface.engine.run_state import Numerics
from coalface.engine.transport import Reply, RunFailed
from coalface.experiments.conformance.tiny_federation import Ran, Tiny, run, workers
from coalface.privacy.accountant import Drawn, Mechanism, epsilon
from coalface.privacy.dp import AdaptiveClip, PartyPrivacy

pytestmark = pytest.mark.usefixtures("toy_steps")

EIGHT = Tiny(parties=8)


def opened(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "opened.jsonl").read_text().splitlines()]


# --- the formula ------------------------------------------------------------------------------------------------------


class AwayTwo(InProcess):
    """`silo-2` never answers."""

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        for request, reply in super().exchange(requests):
            yield request, StepFailed("away") if request.party == "silo-2" else reply


@pytest.mark.parametrize("clip", [1e-3, 5.0, 12.0, 1e6])
@pytest.mark.parametrize("transport", [InProcess, AwayTwo])
def test_without_noise_it_is_the_mean_of_clipped_updates(tmp_path: Path, clip: float, transport: Any) -> None:
    """Party i moves 7 values by i + 1, and says so in 7 deltas: one vector of 14 numbers, clipped jointly. Who is away
    counts as zero, the images count nothing, and both means are of the same clipped vectors."""
    privacy = PartyPrivacy(noise_multiplier=0.0, clip=clip)
    ran = run(Moves(rounds=2), tmp_path, transport=transport, privacy=privacy, on_error="exclude")
    total = 0.0
    for party in range(3):
        by = party + 1.0
        if transport is InProcess or party != 2:
            total += by * min(1.0, clip / math.sqrt(sum(by * by for _ in range(14))))
    for name in ("a", "b"):
        torch.testing.assert_close(ran.state.values[name], torch.full_like(ran.state.values[name], 2 * total / 3))
        torch.testing.assert_close(ran.state.control[name], torch.full_like(ran.state.control[name], 2 * total))


def test_a_clip_that_nobody_reaches_leaves_the_mean_of_equal_weights(tmp_path: Path) -> None:
    method, build = worlds.recipe("fedavg", rounds=1)
    wide = run(method, tmp_path / "wide", build, privacy=PartyPrivacy(noise_multiplier=0.0, clip=1e9))
    replies = [run(method, tmp_path / n, build, transport=only(n), **ALONE).state.backbone for n in PARTIES]
    for name, tensor in wide.state.backbone.items():
        mean = sum(reply[name].double() for reply in replies) / 3
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-7)


PARTIES = ("silo-0", "silo-1", "silo-2")
ALONE: dict[str, Any] = {"on_error": "exclude", "min_reply_fraction": 0.0}


def only(party: str) -> type[InProcess]:
    class Only(InProcess):
        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request, reply in super().exchange(requests):
                yield request, reply if request.party == party else StepFailed("away")

    return Only


def drawn_noise(folder: Path, *, clip: float = 0.5, z: float = 2.0, **settings: Any) -> Any:
    """(Δ̄ with noise − Δ̄ without) n / (z C) of the first round of FedAvg over eight parties."""
    method, build = worlds.recipe("fedavg", rounds=1)[0], EIGHT
    both = [
        run(method, folder / str(noise), build, privacy=PartyPrivacy(noise_multiplier=noise, clip=clip), **settings)
        for noise in (0.0, z)
    ]
    flat = [torch.cat([t.double().flatten() for t in ran.state.backbone.values()]).numpy() for ran in both]
    return (flat[1] - flat[0]) * 8 / (z * clip)


def test_the_noise_is_normal_with_z_times_the_clip_on_the_sum(tmp_path: Path) -> None:
    drawn = drawn_noise(tmp_path)
    n = len(drawn)
    assert n > 4000 and stats.kstest(drawn, "norm").pvalue > 0.001
    assert abs(drawn.mean()) < 4 / math.sqrt(n) and abs(drawn.std() - 1) < 4 / math.sqrt(2 * n)


def test_the_noise_hangs_on_the_seed_or_on_the_secret_and_not_on_both(tmp_path: Path) -> None:
    """Also where the seed is the same, and with it all that the parties send: so the seed does not tell it."""
    secret, other = bytes(32), bytes([1] * 32)
    drawn = [drawn_noise(tmp_path / str(i), secret=s) for i, s in enumerate((None, secret, other, secret))]
    cosines = np.corrcoef(drawn)
    assert abs(cosines[np.triu_indices(3, 1)]).max() < 0.08
    np.testing.assert_array_equal(drawn[1], drawn[3])
    other_sum = drawn_noise(tmp_path / "other", secret=secret, clip=0.4)  # the same noise would cancel between the two
    assert abs(np.corrcoef(drawn[1], other_sum)[0, 1]) < 0.08


def test_rounds_have_noise_of_their_own(tmp_path: Path) -> None:
    privacy = PartyPrivacy(noise_multiplier=1.0, clip=1e-6)  # all else is nothing beside it
    method, build = worlds.recipe("fedavg", rounds=3)
    states = [build().backbone.shared()]

    def look(server: Any, models: Any) -> dict[str, Any]:
        states.append(models.shared)
        return {}

    run(method, tmp_path, build, privacy=privacy, observers=[look], evaluate_every=1, numerics=Numerics(threads=1))
    flat = [torch.cat([t.double().flatten() for t in state.values()]) for state in states]
    moves = torch.stack([after - before for before, after in zip(flat, flat[1:], strict=False)])
    assert abs(np.corrcoef(moves.numpy())[np.triu_indices(3, 1)]).max() < 0.08


@dataclass(frozen=True, kw_only=True)
class Twice(Moves):
    """The mean of one field, asked for three times: with two denominators, and as differences."""

    def round(self, fed: Federation, state: State) -> State:
        means = [
            Mean("values"),
            Mean("values", of="differences", name="change"),
            Mean("values", over="all", name="all"),
        ]
        answer = fed.ask(
            self.move, to=["silo-0", "silo-1"], common=Values(values=state.values), aggregate=[*means, Mean("delta")]
        ).aggregated
        for name, tensor in state.values.items():
            torch.testing.assert_close(answer["values"][name], tensor + answer["change"][name])
            torch.testing.assert_close(answer["all"][name] - tensor, answer["change"][name] * 2 / 3)
        assert not torch.equal(answer["delta"]["a"], answer["change"]["a"])
        return State(values=answer["values"], control=state.control)


def test_several_means_of_one_field_are_made_of_one_noised_sum(tmp_path: Path) -> None:
    """Else their difference would tell the noise."""
    ran = run(Twice(rounds=2), tmp_path, privacy=PartyPrivacy(noise_multiplier=3.0, clip=1.0))
    assert len(opened(ran.folder)) == 2 and ran.state.values["a"].abs().max() > 0


# --- the clip that follows --------------------------------------------------------------------------------------------


def test_the_adaptive_clip_is_that_of_the_noised_counts(tmp_path: Path) -> None:
    """By hand, without noise: three parties move by 1, 2, 3 in 14 numbers, so their norms are √14, 2 √14, 3 √14."""
    adaptive = AdaptiveClip(quantile=0.9, initial=5.0, rate=0.5)
    ran = run(Moves(rounds=6), tmp_path, privacy=PartyPrivacy(noise_multiplier=0.0, clip=adaptive))
    clip, clips, total = 5.0, [], 0.0
    for _ in range(6):
        norms = [by * math.sqrt(14) for by in (1.0, 2.0, 3.0)]
        total += sum(by * min(1.0, clip / norm) for by, norm in zip((1.0, 2.0, 3.0), norms, strict=True)) / 3
        clip *= math.exp(-0.5 * (sum(norm <= clip for norm in norms) / 3 - 0.9))
        clips.append(clip)
    assert [line["clip"] for line in metrics(tmp_path)] == pytest.approx(clips)
    assert ran.state.values["a"].tolist() == pytest.approx([total] * 3)


def test_the_count_is_noised(tmp_path: Path) -> None:
    adaptive = AdaptiveClip(count_noise=4.0)
    run(Moves(rounds=40), tmp_path, privacy=PartyPrivacy(noise_multiplier=1.0, clip=adaptive))
    shares = np.array([line["within"] for line in opened(tmp_path)])
    assert 0.7 < shares.std() / (4 / 3) < 1.3


# --- what is spent ----------------------------------------------------------------------------------------------------


def test_epsilon_so_far_stands_in_every_round(tmp_path: Path) -> None:
    ran = run(Moves(rounds=3), tmp_path, privacy=PartyPrivacy(noise_multiplier=2.0))
    expected = [epsilon({Mechanism(2.0): n}, 1e-5) for n in (1, 2, 3)]
    assert [line["epsilon"] for line in metrics(tmp_path)] == expected
    assert ran.server.private is not None and ran.server.private.summary()["epsilon"] == expected[-1]
    run(Moves(rounds=1), tmp_path / "none", privacy=PartyPrivacy(noise_multiplier=0.0))
    assert metrics(tmp_path / "none")[0]["epsilon"] is None


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_draws_are_accounted_as_they_are_made(tmp_path: Path, sampling: Any) -> None:
    privacy = PartyPrivacy(noise_multiplier=2.0, sampling=sampling, delta=1e-2)
    ran = run(Moves(rounds=4, sample=4), tmp_path, EIGHT, privacy=privacy)
    lines = opened(tmp_path)
    assert [line["drawn"] for line in lines] == [[0, sampling, 4, 8]] * 4
    sizes = {line["asked"] for line in metrics(tmp_path)}
    assert sizes == {4} if sampling == "fixed" else len(sizes) > 1
    expected = epsilon({Mechanism(2.0, Drawn(sampling, 4, 8)): 4}, 1e-2)
    assert ran.server.private is not None and ran.server.private.epsilon() == expected


def test_a_poisson_draw_divides_by_how_many_are_expected(tmp_path: Path) -> None:
    privacy = PartyPrivacy(noise_multiplier=0.0, clip=1e6, sampling="poisson")
    ran = run(Moves(rounds=1, sample=4), tmp_path, EIGHT, privacy=privacy)
    moved = sum(int(name[-1]) + 1 for name, s in ran.server.at.party_stats.items() if s.rounds)
    assert ran.state.values["a"].tolist() == pytest.approx([moved / 4] * 3)


def test_sums_over_one_draw_are_one_mechanism(tmp_path: Path) -> None:
    method, _ = worlds.recipe("mime", rounds=2, sample=4)
    ran = run(method, tmp_path, EIGHT, privacy=PartyPrivacy(noise_multiplier=2.0, sampling="poisson", delta=0.1))
    assert [(line["round"], line["call"]) for line in opened(tmp_path)] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    expected = epsilon({Mechanism(2.0 / math.sqrt(2), Drawn("poisson", 4, 8)): 2}, 0.1)
    assert ran.server.private is not None and ran.server.private.epsilon() == expected


@pytest.mark.parametrize(("name", "sums"), [("fedavg", 1), ("mime", 2)])
def test_the_run_ends_before_the_round_that_would_pass_the_target(tmp_path: Path, name: str, sums: int) -> None:
    target = epsilon({Mechanism(2.0): 3 * sums + sums - 1}, 1e-5)
    privacy = PartyPrivacy(noise_multiplier=2.0, target_epsilon=target)
    method, build = worlds.recipe(name, rounds=9)
    ran = run(method, tmp_path / "target", build, privacy=privacy, checkpoint_every=2)
    three = run(worlds.recipe(name, rounds=3)[0], tmp_path / "three", build, privacy=PartyPrivacy(noise_multiplier=2.0))
    assert ran.server.ended.startswith("after round 3 of 9: ε is ")
    assert [line["round"] for line in metrics(tmp_path / "target")] == [1, 2, 3]
    assert len(opened(tmp_path / "target")) == 3 * sums
    assert ran.bytes()["state"] == three.bytes()["state"]
    again = run(method, tmp_path / "target", build, privacy=privacy, checkpoint_every=2)  # a resume ends there too
    assert again.bytes() == ran.bytes() and again.server.ended == ran.server.ended


def test_a_stage_without_sums_still_follows_one_that_ended(tmp_path: Path) -> None:
    """Fine-tuning at the parties, whose models stay there. Killed in its midst, the run knows why it has few rounds."""
    method, build = worlds.recipe("finetune", rounds=5)
    privacy = PartyPrivacy(noise_multiplier=2.0, target_epsilon=epsilon({Mechanism(2.0): 2}, 1e-5))
    whole = run(method, tmp_path / "whole", build, privacy=privacy)
    stages = [line["stage"] for line in metrics(tmp_path / "whole")]
    assert len(set(stages)) == 2 and stages.count(stages[0]) == 2 and len(opened(tmp_path / "whole")) == 2
    resumed = stopped_and_resumed(method, tmp_path / "resumed", 3 * (len(stages) - 1) + 1, build, privacy=privacy)
    assert resumed.bytes() == whole.bytes() and resumed.server.ended == whole.server.ended != ""


def test_a_first_round_beyond_the_target_sends_nothing(tmp_path: Path) -> None:
    ran = run(Moves(rounds=3), tmp_path, privacy=PartyPrivacy(noise_multiplier=2.0, target_epsilon=0.1))
    assert ran.server.ended.startswith("after round 0 of 3") and metrics(tmp_path) == []
    assert ran.server.at.totals == {"down": 0, "up": 0}


# --- a resume ---------------------------------------------------------------------------------------------------------

ADAPTIVE = PartyPrivacy(noise_multiplier=1.0, clip=AdaptiveClip(initial=2.0, quantile=0.4))


@pytest.mark.parametrize("every", [1, 3])
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(tmp_path: Path, every: int) -> None:
    method, rules = Moves(rounds=5, sample=2), {"checkpoint_every": every, "privacy": ADAPTIVE}
    unbroken = run(method, tmp_path / "unbroken", **rules)
    for after in (0, 3, 8):
        resumed = stopped_and_resumed(method, tmp_path / f"{after}", after, **rules)
        assert resumed.bytes() == unbroken.bytes(), after
        assert (resumed.folder / "opened.jsonl").read_bytes() == (unbroken.folder / "opened.jsonl").read_bytes()


@pytest.mark.usefixtures("quick_workers")
def test_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    method = Moves(rounds=2)
    one = run(method, tmp_path / "one", privacy=ADAPTIVE)
    assert run(method, tmp_path / "two", transport=workers(2), privacy=ADAPTIVE).bytes() == one.bytes()


class Dies(BaseException):
    """The process is killed here."""


def killed_before_checkpoint(monkeypatch: pytest.MonkeyPatch, folder: Path, method: Any, **rules: Any) -> None:
    """Killed when the sum of round 2 is noised and given to the method, and no checkpoint tells of it."""
    save = checkpoint.save

    def dies(place: Path, current: Any, **settings: Any) -> None:
        if current.round == 2:
            raise Dies
        save(place, current, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", dies)
        with pytest.raises(Dies):
            run(method, folder, **rules)


def test_the_same_sum_has_the_same_noise_and_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, rules = Moves(rounds=4), {"privacy": ADAPTIVE, "secret": bytes(32)}
    unbroken = run(method, tmp_path / "unbroken", **rules)
    killed_before_checkpoint(monkeypatch, tmp_path / "killed", method, **rules)
    assert len(opened(tmp_path / "killed")) == 2
    assert run(method, tmp_path / "killed", **rules).bytes() == unbroken.bytes()
    assert opened(tmp_path / "killed") == opened(tmp_path / "unbroken")


def test_another_sum_of_the_same_round_is_not_opened_and_the_first_stays_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, rules = Moves(rounds=4), {"privacy": ADAPTIVE, "on_error": "exclude"}
    killed_before_checkpoint(monkeypatch, tmp_path, method, **rules)
    ran = run(method, tmp_path, transport=AwayTwo, **rules)
    lines = metrics(tmp_path)
    assert [line["abandoned"] for line in lines] == [False, True, False, False]
    assert "opened over other parties" in lines[1]["reason"]
    assert [line["epsilon"] for line in lines] == [epsilon({Mechanism(1.0): n}, 1e-5) for n in (1, 2, 3, 4)]
    assert ran.state.values["a"].isfinite().all()


@pytest.mark.parametrize("damage", ["cut", "other clip"])
def test_what_was_spent_cannot_be_taken_back(tmp_path: Path, damage: str) -> None:
    run(Moves(rounds=3), tmp_path, privacy=ADAPTIVE)
    path = tmp_path / "opened.jsonl"
    text = path.read_text()
    path.write_text(
        text[: text.index("\n") + 1] if damage == "cut" else text.replace('"within": ', '"within": 1e9, "was": ')
    )
    with pytest.raises(RunFailed, match="opened.jsonl is not as it was written"):
        run(Moves(rounds=4), tmp_path, privacy=ADAPTIVE)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_posted_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="posts work beside its rounds"):
        run(Lagged(), tmp_path, Tiny(validators=1), privacy=PartyPrivacy())


def test_tensors_that_come_singly_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="in step remember each party's drawn comes to the server singly"):
        run(Moves(note=True), tmp_path, privacy=PartyPrivacy())
    assert not any((tmp_path / "ledger").glob("*.jsonl")) or len(opened(tmp_path)) == 1


def test_client_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        run(Moves(), tmp_path, privacy=PartyPrivacy(), numerics=Numerics(threads=1, client_batch=8))
    assert caught.value.where == "engine.client_batch"


def test_countersignatures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        run(Moves(), tmp_path, privacy=PartyPrivacy(), countersign=True)
    assert caught.value.where == "privacy.countersign"


def test_one_party_does_not_change_what_another_counts(tmp_path: Path) -> None:
    """A bound by the median of all would: an update of a thousand times the others' is clipped, and is not refused."""
    privacy = PartyPrivacy(noise_multiplier=0.0, clip=1.0)
    ran: list[Ran] = [
        run(Moves(rounds=1), tmp_path / str(ratio), EIGHT, privacy=privacy, max_update_norm=ratio, max_share=share)
        for ratio, share in ((1.01, 0.2), (0.0, None))
    ]
    assert ran[0].bytes() == ran[1].bytes() and metrics(tmp_path / "1.01")[0]["failed"] == {}


def test_ledgers_say_that_what_leaves_is_not_protected(tmp_path: Path) -> None:
    run(Moves(rounds=1), tmp_path, privacy=PartyPrivacy())
    lines = [
        json.loads(line) for path in (tmp_path / "ledger").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    assert {line["protection"] for line in lines} == {"none"}
