from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from one_party import PARTY, at, chain, commits, data, flip, kept, ledger_bytes, moves, place, request
from toys import CALLS, HOOKS, Control, Lagged, Memory, Moved, Moves, Note

from coalface.core import codec
from coalface.core.method import Party
from coalface.engine.party import commits as committing
from coalface.engine.party.commits import DATA, LINES, REPLY, Commit, DamagedCommit
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.party.request import Request, StepFailed
from coalface.privacy import ledger

pytestmark = pytest.mark.usefixtures("toy_steps")


# --- what a commit holds ----------------------------------------------------------------------------------------------


def test_a_reply_is_what_the_step_returned_and_its_ledger_lists_its_bytes(tmp_path: Path) -> None:
    executor = at(tmp_path)
    sent = executor.answer(request())

    reply = codec.decode(bytearray(data(sent)), Moved)
    assert reply.values["a"].tolist() == [3.0, 3.0, 3.0]  # sent 1, moved by 2, since the name ends in 1
    assert kept(executor, request(), Control).rounds == 1
    lines = [json.loads(text) for text in executor.ledger.read_text().splitlines()]
    assert sum(entry["bytes"] for entry in lines) == len(sent.data)
    assert [entry["sha256"] for entry in lines] == list(sent.sums)
    expected = {"run": "test", "stage": "train", "round": 1, "call": 1, "step": "move", "to": "server"}
    assert expected.items() <= lines[0].items()


def test_a_saved_reply_is_for_the_state_that_it_was_made_from(tmp_path: Path) -> None:
    """The same words to a party whose server has accepted another commit since: it works again, from that one."""
    executor = at(tmp_path)
    executor.answer(request(1))
    executor.answer(request(2))  # from nothing: round 1 was not accepted then
    assert kept(executor, request(2), Control).rounds == 1
    for _ in range(2):
        executor.answer(request(2, base=request(1).id))
        assert kept(executor, request(2), Control).rounds == 2
    lines = [json.loads(text) for text in executor.ledger.read_text().splitlines()]
    assert len(lines) == 3 * len({entry["name"] for entry in lines})  # sent three times in all, the fourth was saved
    assert ledger.read_head(executor.ledger) == Commit.open(place(executor, request(2))).head


def test_private_state_of_other_steps_is_carried_on(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, [request(1), request(1, step="remember"), request(2), request(2, step="remember")])
    assert kept(executor, answered[0], Memory) is None
    assert [kept(executor, request_, Control).rounds for request_ in answered] == [1, 1, 2, 2]
    assert [kept(executor, request_, Memory).times for request_ in answered[1:]] == [1, 1, 2]


def test_large_private_state_is_read_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, mapped = at(tmp_path / "copied"), at(tmp_path / "mapped")
    answered = chain(executor, moves(2))
    monkeypatch.setattr(committing, "_MAPPED", 16)  # everything is mapped
    chain(mapped, moves(2))
    for request_ in answered:
        assert place(mapped, request_).read_bytes() == place(executor, request_).read_bytes()


def test_only_the_owner_may_read_what_a_party_keeps(tmp_path: Path) -> None:
    executor = at(tmp_path)
    chain(executor, moves(3))
    assert executor.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in [*executor.folder.iterdir(), executor.ledger]} == {0o600}


# --- the same request again, pending and accepted ---------------------------------------------------------------------


@pytest.mark.parametrize("save_replies", [True, False])
def test_the_same_request_again_gets_the_same_bytes_and_leaves_no_trace(tmp_path: Path, save_replies: bool) -> None:
    executor = at(tmp_path, save_replies=save_replies)
    first = chain(executor, [request(1), request(1, step="remember")])
    asked = request(2, step="remember", base=first[-1].id)
    reply = data(executor.answer(asked))
    before, ran = (ledger_bytes(executor), commits(executor), kept(executor, asked, Memory).times), len(CALLS)
    assert data(executor.answer(asked)) == reply == data(executor.answer(asked))
    assert (ledger_bytes(executor), commits(executor), kept(executor, asked, Memory).times) == before
    assert len(CALLS) - ran == (0 if save_replies else 2)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_reply_that_was_not_accepted_is_never_built_on(tmp_path: Path, accepted: bool) -> None:
    executor, base = at(tmp_path), request(1).id if accepted else None
    executor.answer(request(1))
    executor.answer(request(2, base=base))  # refused, lost or abandoned: the server goes on from the base
    executor.answer(third := request(3, base=base))
    rounds = 2 if accepted else 1
    assert kept(executor, third, Control).rounds == rounds
    assert kept(executor, third, Control).total["a"].tolist() == [2.0 * rounds] * 3


def test_finalizing_keeps_the_accepted_state_alone_and_the_work_of_the_next_stage(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    (executor.folder / "0000002.001-x.new").write_bytes(b"cut off")
    before = ledger_bytes(executor)
    for _ in range(2):
        executor.commits.finalize(answered[0].id, 2)
        assert sorted(path.stem for path in executor.folder.iterdir()) == [answered[0].id, answered[2].id]
    assert kept(executor, answered[0], Control).rounds == 1
    executor.commits.finalize(None, 3)
    assert (commits(executor), ledger_bytes(executor)) == ([], before)


def test_a_party_whose_folder_was_lost_is_not_silently_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Restore the party's folder"):
        at(tmp_path).answer(request(2, base=request(1).id))
    assert CALLS == []


def test_what_a_resume_from_the_last_checkpoint_needs_stays(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered: list[Request] = []
    checkpoint: tuple[int, str | None] = (0, None)
    for n in range(1, 12):
        request_ = request(n, base=answered[-1].id if answered else None, horizon=checkpoint)
        executor.answer(request_)
        answered.append(request_)
        if n % 4 == 0:
            checkpoint = (n, request_.id)
        for needed in (request_.id, request_.base, checkpoint[1]):
            assert needed is None or needed in commits(executor)
        assert len(commits(executor)) <= 4 + 3  # one for each round since the checkpoint before, and no more
    # A resume from round 8 asks for rounds 9 to 11 again: they are all there, and nothing trains.
    ran = len(CALLS)
    for again in answered[8:]:
        executor.answer(again)
    assert len(CALLS) == ran


def test_a_commit_is_written_over_one_that_nobody_needs(tmp_path: Path) -> None:
    executor, fresh = at(tmp_path / "here"), at(tmp_path / "fresh")
    first, second = chain(executor, moves(2))
    old = place(executor, first).stat().st_ino
    last = request(3, base=second.id, horizon=(2, second.id), step="remember")  # another length
    executor.answer(last)
    assert commits(executor) == [second.id, last.id] and place(executor, last).stat().st_ino == old
    chain(fresh, [*moves(2), request(3, step="remember")])
    assert place(executor, last).read_bytes() == place(fresh, last).read_bytes()


# --- failing ----------------------------------------------------------------------------------------------------------


def failing(party: Party) -> None:
    raise ZeroDivisionError("no images")


def test_a_failing_step_names_party_step_and_round_and_leaves_no_trace(tmp_path: Path) -> None:
    executor = at(tmp_path)
    chain(executor, moves(1))
    before = ledger_bytes(executor), commits(executor)
    HOOKS.append(failing)
    with pytest.raises(StepFailed, match=r"^silo-1, step move, train round 2: ZeroDivisionError: no images ") as caught:
        executor.answer(request(2, base=request(1).id))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (ledger_bytes(executor), commits(executor)) == before


def test_a_step_of_another_role_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="validator"):
        at(tmp_path, Lagged()).answer(request(step="validation.score"))
    assert CALLS == []


NOTHING = Moved(values={}, delta={}, images=1, loss=0.0)
CONTROL = Control(total={}, rounds=1)
UNDECLARED: dict[str, Any] = {
    "nothing": None,
    "another message": (Note(drawn=torch.zeros(1), remembered=1), CONTROL),
    "private state": (CONTROL, CONTROL),
    "no private state": NOTHING,
    "other private state": (NOTHING, Memory(times=1)),
    "private state in a message": (replace(NOTHING, values=CONTROL), CONTROL),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("returned", UNDECLARED.values(), ids=UNDECLARED)
def test_what_a_step_does_not_declare_never_leaves(tmp_path: Path, returned: Any) -> None:
    executor = at(tmp_path)
    function: Callable[..., Any] = lambda *a, **k: returned  # noqa: E731
    declaration = replace(executor.context.method.steps["move"][1], function=function)

    class Lying(Moves):
        own_steps = {"move": declaration}

    lying = PartyExecutor(replace(executor.context, method=Lying()), PARTY)
    with pytest.raises(StepFailed, match=r"silo-1, step move, train round 1: .*only what is declared"):
        lying.answer(request())
    assert (ledger_bytes(lying), commits(lying)) == (b"", [])


def test_a_local_result_leaves_no_trace(tmp_path: Path) -> None:
    executor = at(tmp_path)
    (first,) = chain(executor, moves(1))
    before = ledger_bytes(executor), commits(executor)
    model = executor.local_result(replace(request(2, step="own_model"), common=None, base=first.id))
    assert model["a"].tolist() == [2.0, 2.0, 2.0]
    assert (ledger_bytes(executor), commits(executor)) == before


def test_the_stream_of_a_step_follows_its_place_in_the_run(tmp_path: Path) -> None:
    def drawn(folder: str, **changes: Any) -> list[float]:
        reply = at(tmp_path / folder).answer(request(step="remember", **changes))
        return codec.decode(bytearray(data(reply)), Note).drawn.tolist()

    assert drawn("a") == drawn("b")
    for n, change in enumerate(({"ordinal": 2}, {"stage": "other"}, {"call": 7})):
        assert drawn(f"c{n}", **change) != drawn("a")


# --- damage that a length does not show -------------------------------------------------------------------------------


def test_a_saved_reply_that_is_not_what_its_ledger_lists_is_not_served_but_made_again(tmp_path: Path) -> None:
    executor = at(tmp_path)
    reply, before = data(executor.answer(request())), ledger_bytes(executor)
    flip(place(executor, request()), sum(Commit.open(place(executor, request())).spans[REPLY]) - 1)
    assert data(executor.answer(request())) == reply and ledger_bytes(executor) == before


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("part", ["Control", DATA, LINES, "(header)"])
def test_a_flipped_byte_of_a_commit_is_named_when_a_run_is_resumed(
    tmp_path: Path, part: str, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "_MAPPED", 16 if mapped else 1 << 22)
    executor = at(tmp_path)
    executor.answer(request())
    path = place(executor, request())
    flip(path, 60 if part == "(header)" else sum(Commit.open(path).spans[part]) - 1)
    if mapped and part == "Control":  # a step reads of it what it uses
        assert Commit.open(path).read(part) is not None
    with pytest.raises(DamagedCommit, match=rf"{path.name} is damaged.*Restore the party's folder"):
        executor.commits.check(request().id, whole=False)
