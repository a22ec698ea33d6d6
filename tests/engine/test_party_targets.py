"""What a party counts of its own noised vectors, over all its runs, so that no server need be believed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from noised_runs import FIVE, LOSE, NOISED, SECURE, asked, epsilon_by_hand, hide, moved, opened, spent
from secure_runs import away, opened_totals, stage_of
from server_runs import metrics, stopped_and_resumed
from toys import Moves

from coalface.core import codec
from coalface.engine.local import InProcess
from coalface.engine.party.request import Request
from coalface.engine.party.sums import answer
from coalface.engine.sums.hidden import HiddenMeans
from coalface.engine.transport import Reply
from coalface.experiments.conformance.tiny_federation import Stop, Tiny, run, stopping
from coalface.privacy.dp import PartyPrivacy
from coalface.privacy.secure import SecureSettings
from coalface.privacy.secure_sums import messages
from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.guard import Answers

pytestmark = pytest.mark.usefixtures("toy_steps")


def targeted(sums: float) -> PartyPrivacy:
    """One that so many sums of z = 1 fit into."""
    return dataclasses.replace(NOISED, target_epsilon=epsilon_by_hand(0.5 * sums) * 1.01)


def left(folder: Path, party: str) -> list[float]:
    """ρ of each vector that a party has written down."""
    entries = [json.loads(line) for line in (folder / f"{party}.jsonl").read_text().splitlines()]
    return [entry["rho"] for entry in entries if "rho" in entry]


def test_a_round_by_another_name_of_its_number_is_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1, 1.0 and true are equal to Python; a server that calls its rounds so opens no more than the party allows."""
    aliases: dict[tuple[int, int], tuple[Any, Any]] = {(2, 1): (1.0, 1), (3, 1): (True, 1), (4, 1): (1, True)}
    totals, first = opened_totals(monkeypatch), dict[tuple[str, int], str]()
    context = HiddenMeans.context

    def call_otherwise(self: HiddenMeans, settings: Any, run: str, stage: str, number: Any, call: Any) -> Any:
        if type(number) is int and type(call) is int:
            number, call = aliases.get((number, call), (number, call))
        return context(self, settings, run, stage, number, call)

    monkeypatch.setattr(HiddenMeans, "context", call_otherwise)

    class Lying(InProcess):
        def __init__(self, setup: Any, world: Any) -> None:
            super().__init__(dataclasses.replace(setup, privacy=targeted(1)), world)

        def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
            for request in requests:
                number, call = aliases.get((request.round, request.call), (request.round, request.call))
                told = dataclasses.replace(request, round=number, call=call)
                assert told.sum is not None
                if stage_of(request) != "advertise":
                    told = dataclasses.replace(told, sum=told.sum._replace(request=first[request.party, request.round]))
                for answered, reply in super().exchange([told]):
                    if stage_of(request) == "advertise":
                        first[request.party, request.round] = answered.id
                    yield request, reply

    run(Moves(rounds=4), tmp_path, FIVE, transport=Lying, secure=SECURE, privacy=NOISED, **LOSE)
    assert [line["abandoned"] for line in metrics(tmp_path)] == [False, True, True, True] and len(totals) == 1
    assert left(tmp_path / "answers" / "every-run", "silo-0") == pytest.approx([0.5], rel=1e-6)


def test_a_target_holds_over_all_runs_of_a_party(tmp_path: Path) -> None:
    """Runs of other names, and of another seed, are counted together; the same vector with the same noise once."""
    two = targeted(2)

    def leave(name: str, by: float, privacy: PartyPrivacy = two, **changes: Any) -> None:
        sums, hidden = hide(tmp_path, moved(by), run=name)
        sums = dataclasses.replace(sums, privacy=privacy, folder=tmp_path / name)
        sums.spend(dataclasses.replace(hidden, **changes), "silo-1")

    leave("a", 0.5)
    leave("b", 0.5)
    leave("c", 0.25)
    with pytest.raises(SecureSumError) as caught:
        leave("d", 0.125)
    assert caught.value.code == "target"
    leave("e", 0.5)  # has left before
    leave("f", 0.125, NOISED)  # of a run without a target
    assert left(tmp_path, "silo-1") == pytest.approx([0.5] * 3, rel=1e-6)
    leave("g", 0.75, NOISED, rho=math.inf)  # clipped alone
    with pytest.raises(SecureSumError):
        leave("h", 1.0, targeted(1000))


def _spend(path: Path, start: Any, number: int) -> None:
    def check(rho: float) -> None:
        if rho > 3:
            raise ValueError("too much")

    start.wait()
    try:
        Answers(path).spend("work", bytes([number]), 1.0, check)
    except ValueError:
        return


def test_processes_of_one_party_spend_no_more_than_its_target_together(tmp_path: Path) -> None:
    """Each looks and writes while no other one can."""
    path, context = tmp_path / "silo-0.jsonl", get_context("fork")
    start = context.Barrier(8)
    processes = [context.Process(target=_spend, args=(path, start, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert left(tmp_path, "silo-0") == [1.0] * 3 and Answers(path).spent(but="") == 3.0


def test_a_party_that_has_nothing_left_does_not_train(tmp_path: Path) -> None:
    """The server knows no target; a party looks before its step runs, so no state moves and nothing leaves."""

    class Targeted(InProcess):
        def __init__(self, setup: Any, world: Any) -> None:
            super().__init__(dataclasses.replace(setup, privacy=targeted(2)), world)

    run(Moves(rounds=4), tmp_path, FIVE, transport=Targeted, secure=SECURE, privacy=NOISED, **LOSE)
    assert [line["abandoned"] for line in metrics(tmp_path)] == [False, False, True, True]
    assert "target_epsilon" in metrics(tmp_path)[2]["failed"]["silo-3"] and len(opened(tmp_path)) == 2
    lines = [json.loads(line) for line in (tmp_path / "ledger" / "silo-3.jsonl").read_text().splitlines()]
    assert {line["round"] for line in lines} == {1, 2}


def test_the_same_work_comes_again_though_it_was_the_last_that_the_target_allows(tmp_path: Path) -> None:
    """As in a resume: it was counted."""
    sums, hidden = hide(tmp_path, moved(0.5))
    sums = dataclasses.replace(sums, privacy=targeted(1))
    sums.spend(hidden, "silo-1")
    sums.check_target(*asked())
    with pytest.raises(SecureSumError) as caught:
        sums.check_target(*asked(round=2))
    assert caught.value.code == "target"


def test_a_party_that_knows_the_others_keys_takes_part_with_nobody_else(tmp_path: Path) -> None:
    """On a sparse graph it would see no signature of one that is no neighbour."""
    names = [f"silo-{place}" for place in range(5)]
    request, *_ = asked()
    sums, hidden = hide(tmp_path, moved(0.5))
    assert request.sum is not None
    later = dataclasses.replace(
        request,
        sum=request.sum._replace(stage="share", request=request.id),
        common=codec.encode(messages.Parties(names=messages.pack_names(names))),
        each=codec.encode(messages.Neighbours(adverts=messages.pack_rows(names[:1] + names[2:], {}))),
    )
    member = hidden.member("silo-1", b"a" * 32, None)
    for known, code in ((names[:4], "unknown"), (names, "roster")):  # of these, no advert came with it
        with pytest.raises(SecureSumError) as caught:
            answer(dataclasses.replace(sums, known=frozenset(known)), hidden, member, later)
        assert caught.value.code == code


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_server_and_parties_count_alike_so_that_a_run_ends_at_its_target(tmp_path: Path, stage: str) -> None:
    """Also where a round is abandoned after vectors have left; one that is abandoned before costs nothing."""
    transport = away({stage: ["silo-0", "silo-1"]}, rounds=[1])
    ran = run(Moves(rounds=9), tmp_path, FIVE, transport=transport, secure=SECURE, privacy=targeted(2), **LOSE)
    rounds = 2 if stage in ("mask", "unmask") else 3
    assert [line["abandoned"] for line in metrics(tmp_path)] == [True, False, False][:rounds]
    assert ran.server.ended.startswith(f"after round {rounds} of 9") and ran.server.private is not None
    assert ran.server.private.epsilon() == metrics(tmp_path)[-1]["epsilon"] <= (targeted(2).target_epsilon or 0)
    for party in ran.server.parties("trainer"):
        assert left(tmp_path / "answers" / "every-run", party) == [entry["rho"] for entry in spent(tmp_path)]


def test_rounds_with_too_few_replies_after_the_masks_are_spent_on_both_sides(tmp_path: Path) -> None:
    """The server asks for more replies than the sum needs."""
    transport = away({"mask": ["silo-0"]}, rounds=[1, 2])
    rules = LOSE | {"min_reply_fraction": 0.9}
    ran = run(Moves(rounds=9), tmp_path, FIVE, transport=transport, secure=SECURE, privacy=targeted(3), **rules)
    assert [line["abandoned"] for line in metrics(tmp_path)] == [True, True, False] and ran.server.ended
    assert len(opened(tmp_path)) == 1 and len(spent(tmp_path)) == 3
    assert left(tmp_path / "answers" / "every-run", "silo-3") == [entry["rho"] for entry in spent(tmp_path)]


@pytest.mark.parametrize("sampling", ["fixed", "cyclic"])
def test_of_drawn_parties_too_a_run_with_abandoned_rounds_ends_at_its_target(tmp_path: Path, sampling: Any) -> None:
    twelve, settings = Tiny(parties=12, each=3), SecureSettings(dropouts=0.2, corrupt=0.1)
    privacy = dataclasses.replace(targeted(3), sampling=sampling)
    transport = away({"mask": [f"silo-{place}" for place in range(0, 12, 2)]}, rounds=[1, 3])
    ran = run(
        Moves(rounds=60, sample=6), tmp_path, twelve, transport=transport, secure=settings, privacy=privacy, **LOSE
    )
    assert ran.server.ended and [line["round"] for line in metrics(tmp_path) if line["abandoned"]] == [1, 3]
    for party in ran.server.parties("trainer"):
        rho = [entry["rho"] for entry in spent(tmp_path) if party in entry["asked"]]
        path = tmp_path / "answers" / "every-run"
        assert (left(path, party) if (path / f"{party}.jsonl").exists() else []) == rho


@pytest.mark.parametrize("after", range(14, 34, 3))
def test_a_run_that_is_stopped_within_its_last_sum_ends_at_its_target_once_resumed(tmp_path: Path, after: int) -> None:
    """What was written down is asked for once more, and counts once."""
    rules: dict[str, Any] = {"secure": SECURE, "privacy": targeted(2)}
    resumed = stopped_and_resumed(Moves(rounds=9), tmp_path, after, FIVE, **rules)
    assert resumed.server.ended.startswith("after round 2 of 9")
    assert len(opened(tmp_path)) == len(spent(tmp_path)) == 2
    assert left(tmp_path / "answers" / "every-run", "silo-0") == [entry["rho"] for entry in spent(tmp_path)]


def test_a_repeated_round_from_another_model_is_not_taken_for_the_one_that_was_counted(tmp_path: Path) -> None:
    """Without a checkpoint all are. One party is away in round 3, which is abandoned; so round 4 has another model,
    and the parties mask no other vectors in it.
    """
    rules: dict[str, Any] = {"secure": SECURE, "privacy": NOISED, "checkpoint_every": 10, **LOSE}
    with pytest.raises(Stop):
        run(Moves(rounds=6), tmp_path, FIVE, transport=stopping(78), **rules)
    assert [entry["round"] for entry in opened(tmp_path)] == [1, 2, 3, 4]
    ran = run(Moves(rounds=6), tmp_path, FIVE, transport=away({"mask": ["silo-3"]}, rounds=[3]), **rules)
    assert [line["abandoned"] for line in metrics(tmp_path)] == [False, False, True, True, False, False]
    assert len(spent(tmp_path)) == 6 and ran.server.private is not None
    assert left(tmp_path / "answers" / "every-run", "silo-0") == [entry["rho"] for entry in spent(tmp_path)]


@pytest.mark.parametrize("rho", ["-5.0", "NaN", '"half"'])
def test_a_party_whose_count_is_damaged_spends_nothing(tmp_path: Path, rho: str) -> None:
    path = tmp_path / "silo-0.jsonl"
    path.write_text(f'{{"place": "work", "sha256": "00", "rho": {rho}}}\n')
    with pytest.raises(SecureSumError) as caught:
        Answers(path).spend("other", b"digest", 0.5, lambda spent: None)
    assert caught.value.code == "answered" and len(path.read_text().splitlines()) == 1
