from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from toys import CALLS, HOOKS, Control, Lagged, Memory, Moved, Moves, Note, Nudge, Values

from coalface.core import codec
from coalface.core.method import Party
from coalface.engine.party import commits as committing
from coalface.engine.party import executor
from coalface.engine.party.commits import DATA, LINES, REPLY, Commit, DamagedCommit
from coalface.engine.party.executor import PartyExecutor, Request, StepFailed
from coalface.privacy import ledger

pytestmark = pytest.mark.usefixtures("toy_steps")
PARTY = "silo-1"


def executor_context(folder: Path, method: Any = None, **changes: Any) -> executor.ExecutorContext:
    build = worlds.Tiny(roles=(("silo-2", "validator"),))
    made = worlds.setup(method or Moves(note=True), folder, build).context(build())
    return replace(made, **changes)


def request(ordinal: int = 1, base: str | None = None, step: str = "move", **changes: Any) -> Request:
    values = Values(values={"a": torch.full((3,), float(ordinal)), "b": torch.zeros(2, 2, dtype=torch.float64)})
    to_one = step == "remember"
    made = Request(
        run="test",
        party=PARTY,
        stage="train",
        round=ordinal,
        rounds=9,
        ordinal=ordinal,
        call=2 if to_one else 1,
        step=step,
        common=None if to_one else codec.encode(values),
        each=codec.encode(Nudge(amount=torch.tensor(1.0))) if to_one else None,
        base=base,
        horizon=(0, None),
    )
    return replace(made, **changes)


def at(folder: Path, **changes: Any) -> PartyExecutor:
    return PartyExecutor(executor_context(folder, **changes), PARTY)


def data(reply: Any) -> bytes:
    return bytes(reply.data if isinstance(reply, codec.Encoded) else reply)


def kept(here: PartyExecutor, name: str, cls: Any) -> Any:
    stored = Commit.open(here.folder / f"{name}.commit").read(cls.__name__)
    return None if stored is None else codec.unpack(stored, cls)


def commits(here: PartyExecutor) -> list[str]:
    return sorted(path.stem for path in here.folder.glob("*.commit"))


def ledger_bytes(here: PartyExecutor) -> bytes:
    return here.ledger.read_bytes() if here.ledger.exists() else b""


def chain(here: PartyExecutor, requests: list[Request]) -> list[Request]:
    """Answer requests one after the other, each on top of the one before."""
    done: list[Request] = []
    for made in requests:
        made = replace(made, base=done[-1].id if done else None)
        here.answer(made)
        done.append(made)
    return done


# --- what a commit holds ----------------------------------------------------------------------------------------------


def test_a_reply_is_what_the_step_returned(tmp_path: Path) -> None:
    here = at(tmp_path)
    reply = codec.decode(bytearray(data(here.answer(request()))), Moved)
    assert reply.values["a"].tolist() == [3.0, 3.0, 3.0]  # sent 1, moved by 2, since the name ends in 1
    assert kept(here, request().id, Control).rounds == 1


def test_the_ledger_speaks_of_the_bytes_that_were_sent(tmp_path: Path) -> None:
    here = at(tmp_path)
    sent = here.answer(request())
    assert isinstance(sent, codec.Encoded)
    lines = [json.loads(text) for text in here.ledger.read_text().splitlines()]
    assert sum(entry["bytes"] for entry in lines) == len(sent.data)
    assert [entry["sha256"] for entry in lines] == list(sent.sums)
    expected = {"run": "test", "stage": "train", "round": 1, "call": 1, "step": "move", "to": "server"}
    assert expected.items() <= lines[0].items()


def test_a_saved_reply_is_for_the_state_that_it_was_made_from(tmp_path: Path) -> None:
    """The same words to a party whose server has accepted another commit since: it works again, from that one."""
    here = at(tmp_path)
    here.answer(request(1))
    here.answer(request(2))  # from nothing: round 1 was not accepted then
    assert kept(here, request(2).id, Control).rounds == 1
    for _ in range(2):
        here.answer(request(2, base=request(1).id))
        assert kept(here, request(2).id, Control).rounds == 2
    lines = [json.loads(text) for text in here.ledger.read_text().splitlines()]
    assert len(lines) == 3 * len({entry["name"] for entry in lines})  # sent three times in all, the fourth was saved
    read = ledger.read_head(here.ledger)
    assert read == Commit.open(here.folder / f"{request(2).id}.commit").head


def test_private_state_of_other_steps_is_carried_on(tmp_path: Path) -> None:
    here = at(tmp_path)
    done = chain(here, [request(1), request(1, step="remember"), request(2), request(2, step="remember")])
    assert kept(here, done[0].id, Memory) is None
    assert [kept(here, r.id, Control).rounds for r in done] == [1, 1, 2, 2]
    assert [kept(here, r.id, Memory).times for r in done[1:]] == [1, 1, 2]


def test_large_private_state_is_read_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = at(tmp_path / "copied")
    done = chain(here, [request(1), request(2)])
    monkeypatch.setattr(committing, "_MAPPED", 16)  # everything is mapped
    mapped = at(tmp_path / "mapped")
    assert [r.id for r in chain(mapped, [request(1), request(2)])] == [r.id for r in done]
    for path in here.folder.glob("*.commit"):
        assert (mapped.folder / path.name).read_bytes() == path.read_bytes()


def test_only_the_owner_may_read_what_a_party_keeps(tmp_path: Path) -> None:
    here = at(tmp_path)
    chain(here, [request(n) for n in (1, 2, 3)])
    assert here.folder.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in [*here.folder.iterdir(), here.ledger]} == {0o600}


# --- the same request again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_replies", [True, False])
def test_the_same_request_again_gets_the_same_bytes_and_leaves_no_trace(tmp_path: Path, save_replies: bool) -> None:
    here = at(tmp_path, save_replies=save_replies)
    first = chain(here, [request(1), request(1, step="remember")])
    asked = request(2, step="remember", base=first[-1].id)
    reply = data(here.answer(asked))
    before = ledger_bytes(here), commits(here), kept(here, asked.id, Memory).times
    ran = len(CALLS)
    assert data(here.answer(asked)) == reply
    assert data(here.answer(replace(asked, rounds=asked.rounds))) == reply
    assert (ledger_bytes(here), commits(here), kept(here, asked.id, Memory).times) == before
    assert len(CALLS) - ran == (0 if save_replies else 2)


# --- pending and accepted ---------------------------------------------------------------------------------------------


def test_a_reply_that_was_not_accepted_is_never_built_on(tmp_path: Path) -> None:
    here = at(tmp_path)
    accepted = request(1)
    here.answer(accepted)
    here.answer(request(2, base=accepted.id))  # refused, lost or abandoned: the server goes on from the first
    third = request(3, base=accepted.id)
    here.answer(third)
    assert kept(here, third.id, Control).rounds == 2
    assert kept(here, third.id, Control).total["a"].tolist() == [4.0, 4.0, 4.0]


def test_a_first_reply_that_was_not_accepted_leaves_the_party_new(tmp_path: Path) -> None:
    here = at(tmp_path)
    here.answer(request(1))
    here.answer(request(2, base=None))
    assert kept(here, request(2).id, Control).rounds == 1


def test_settling_keeps_the_accepted_state_alone(tmp_path: Path) -> None:
    here = at(tmp_path)
    done = chain(here, [request(1), request(2)])
    (here.folder / "0000002.001-x.new").write_bytes(b"cut off")
    before = ledger_bytes(here)
    here.finalize(done[0].id, 2)
    assert [p.name for p in here.folder.iterdir()] == [f"{done[0].id}.commit"]
    here.finalize(done[0].id, 2)
    assert kept(here, done[0].id, Control).rounds == 1
    assert ledger_bytes(here) == before
    here.finalize(None, 2)
    assert commits(here) == []


def test_settling_a_stage_leaves_the_work_of_the_next(tmp_path: Path) -> None:
    here = at(tmp_path)
    done = chain(here, [request(1), request(2), request(3)])
    here.finalize(done[1].id, 2)
    assert commits(here) == [done[1].id, done[2].id]


def test_a_party_whose_folder_was_lost_is_not_silently_begun_anew(tmp_path: Path) -> None:
    here = at(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"server last accepted is not here. Restore the party's folder"):
        here.answer(request(2, base=request(1).id))
    assert CALLS == []


# --- what a resume needs ----------------------------------------------------------------------------------------------


def test_what_a_resume_from_the_last_checkpoint_needs_stays(tmp_path: Path) -> None:
    here = at(tmp_path)
    done: list[Request] = []
    checkpoint: tuple[int, str | None] = (0, None)
    for n in range(1, 12):
        made = request(n, base=done[-1].id if done else None, horizon=checkpoint)
        here.answer(made)
        done.append(made)
        if n % 4 == 0:
            checkpoint = (n, made.id)
        for needed in (made.id, made.base, checkpoint[1]):
            assert needed is None or needed in commits(here)
        assert len(commits(here)) <= 4 + 3  # one for each round since the checkpoint before, and no more
    # A resume from round 8 asks for rounds 9 to 11 again: they are all there, and nothing trains.
    ran = len(CALLS)
    for again in done[8:]:
        here.answer(again)
    assert len(CALLS) == ran


# --- one atomic commit ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for kill -9: no handler of the code under test sees it."""


SYSTEM_CALLS: list[tuple[Any, str]] = [
    (os, "open"),
    (os, "writev"),
    (os, "ftruncate"),
    (os, "fsync"),
    (os, "rename"),
    (os, "pwrite"),
    (os, "close"),
    (Path, "unlink"),
]


class Crash:
    """Dies before the n-th system call, or after half of it where it writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, torn: bool) -> None:
        self.left, self.torn = after, torn
        for owner, name in SYSTEM_CALLS:
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def _wrapped(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                if self.torn and name == "pwrite":
                    descriptor, text, place = arguments
                    call(descriptor, text[: len(text) * 2 // 3], place)
                if self.torn and name == "writev":
                    call(arguments[0], arguments[1][:1])
                raise Killed
            self.left -= 1
            return call(*arguments, **named)

        return wrapped


def crashes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, torn: bool, after: int) -> bool:
    """Act, and die at the n-th system call; False if it was over before."""
    with monkeypatch.context() as patched:
        Crash(patched, after, torn=torn)
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("save_replies", [True, False])
def test_a_crash_between_any_two_system_calls_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool, save_replies: bool
) -> None:
    """Back again, the party answers and goes on: no ledger line is lost or doubled, the state is the accepted one."""
    begin = [request(1), request(2)]
    unbroken = at(tmp_path / "unbroken", save_replies=save_replies, flush=True)
    done = chain(unbroken, begin)
    last = request(3, base=done[-1].id, horizon=(2, done[-1].id))
    final = request(4, base=last.id, horizon=(2, done[-1].id))
    expected = data(unbroken.answer(last)), data(unbroken.answer(final))
    instants = 0
    while True:
        here = at(tmp_path / f"{instants}", save_replies=save_replies, flush=True)
        chain(here, begin)
        if not crashes(monkeypatch, lambda here=here: here.answer(last), torn=torn, after=instants):
            break
        assert kept(here, done[-1].id, Control).rounds == 2  # what was accepted is untouched
        back = at(tmp_path / f"{instants}", save_replies=save_replies, flush=True)
        assert data(back.answer(last)) == expected[0]
        assert data(back.answer(final)) == expected[1]
        assert ledger_bytes(back) == ledger_bytes(unbroken)
        assert ledger.verify(back.ledger).lines == 4 * 5
        assert kept(back, final.id, Control).rounds == 4
        assert [p.name for p in back.folder.glob("*.new")] == []
        instants += 1
    assert instants > 8  # open, writev, ftruncate, fsync, close, rename, … of the commit and of the ledger


@pytest.mark.parametrize("after", range(6))
def test_a_crash_while_settling_loses_no_ledger_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    unbroken, here = at(tmp_path / "unbroken"), at(tmp_path / "here")
    done = chain(unbroken, [request(1), request(2)])
    chain(here, [request(1)])
    # The second commit is written, its ledger lines are not; then the stage ends.
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "append", lambda *a, **k: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            here.answer(replace(request(2), base=done[0].id))
    crashes(monkeypatch, lambda: here.finalize(done[1].id, 2), torn=True, after=after)
    here.finalize(done[1].id, 2)
    assert ledger_bytes(here) == ledger_bytes(unbroken)
    assert commits(here) == [done[1].id]


def test_lines_are_not_lost_where_a_stale_commit_has_a_later_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume may ask for something else than before; commits of later rounds still lie there then."""
    here = at(tmp_path)
    done = chain(here, [request(1), request(2), request(3)])
    other = replace(request(9), ordinal=2, base=done[0].id)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "append", lambda *a, **k: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            here.answer(other)
    here.answer(replace(request(10), base=other.id))
    assert ledger.verify(here.ledger).lines == 5 * 5


def test_a_commit_is_written_over_one_that_nobody_needs(tmp_path: Path) -> None:
    here = at(tmp_path / "here")
    done = chain(here, [request(1), request(2)])
    old = (here.folder / f"{done[0].id}.commit").stat().st_ino
    last = request(3, base=done[1].id, horizon=(2, done[1].id), step="remember")  # another length
    here.answer(last)
    assert commits(here) == [done[1].id, last.id]
    assert (here.folder / f"{last.id}.commit").stat().st_ino == old
    fresh = at(tmp_path / "fresh")
    chain(fresh, [request(1), request(2), request(3, step="remember")])
    written = (here.folder / f"{last.id}.commit").read_bytes()
    assert written == (fresh.folder / f"{last.id}.commit").read_bytes()
    assert kept(here, last.id, Memory).times == 1


# --- failing ----------------------------------------------------------------------------------------------------------


def failing(party: Party) -> None:
    raise ZeroDivisionError("no images")


def test_a_failing_step_names_party_step_and_round_and_leaves_no_trace(tmp_path: Path) -> None:
    here = at(tmp_path)
    chain(here, [request(1)])
    before = ledger_bytes(here), commits(here)
    HOOKS.append(failing)
    with pytest.raises(StepFailed, match=r"^silo-1, step move, train round 2: ZeroDivisionError: no images$") as caught:
        here.answer(request(2, base=request(1).id))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (ledger_bytes(here), commits(here)) == before


def test_a_step_of_another_role_is_not_run(tmp_path: Path) -> None:
    here = at(tmp_path, method=Lagged())
    with pytest.raises(StepFailed, match=r"the step is for the role 'validator', this party is a 'trainer'"):
        here.answer(request(step="validation.score"))
    assert CALLS == []


WRONG: list[Callable[..., Any]] = [
    lambda *a, **k: None,
    lambda *a, **k: (Note(drawn=torch.zeros(1), remembered=1), Control(total={}, rounds=1)),
    lambda *a, **k: (Control(total={}, rounds=1), Control(total={}, rounds=1)),
    lambda *a, **k: Moved(values={}, delta={}, images=1, loss=0.0),
    lambda *a, **k: (Moved(values={}, delta={}, images=1, loss=0.0), Memory(times=1)),
    lambda *a, **k: (
        Moved(values=Control(total={}, rounds=1), delta={}, images=1, loss=0.0),  # type: ignore[arg-type]
        Control(total={}, rounds=1),
    ),
]


@pytest.mark.parametrize("returned", WRONG, ids=range(len(WRONG)))
def test_what_a_step_does_not_declare_never_leaves(tmp_path: Path, returned: Callable[..., Any]) -> None:
    here = at(tmp_path)
    owner, declaration = here.context.method.steps["move"]

    class Lying(Moves):
        own_steps = {"move": replace(declaration, function=returned)}

    lying = PartyExecutor(replace(here.context, method=Lying()), PARTY)
    with pytest.raises(StepFailed, match=r"silo-1, step move, train round 1: .*only what is declared"):
        lying.answer(request())
    assert (ledger_bytes(lying), commits(lying)) == (b"", [])


def test_a_model_that_stays_leaves_no_trace(tmp_path: Path) -> None:
    here = at(tmp_path)
    done = chain(here, [request(1)])
    before = ledger_bytes(here), commits(here)
    model = here.local_result(replace(request(2, step="own_model"), common=None, base=done[0].id))
    assert model["a"].tolist() == [2.0, 2.0, 2.0]
    assert (ledger_bytes(here), commits(here)) == before


def test_the_stream_of_a_step_follows_its_place_in_the_run(tmp_path: Path) -> None:
    def drawn(folder: str, **changes: Any) -> list[float]:
        reply = at(tmp_path / folder).answer(request(step="remember", **changes))
        return codec.decode(bytearray(data(reply)), Note).drawn.tolist()

    assert drawn("a") == drawn("b")
    for n, change in enumerate(({"ordinal": 2}, {"stage": "other"}, {"call": 7})):
        assert drawn(f"c{n}", **change) != drawn("a")


# --- damage that a length does not show -------------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1
    path.write_bytes(changed)


def test_a_saved_reply_that_is_not_what_its_ledger_lists_is_not_served_but_made_again(tmp_path: Path) -> None:
    here = at(tmp_path)
    reply = data(here.answer(request(1)))
    path, before = here.folder / f"{request(1).id}.commit", here.ledger.read_bytes()
    flip(path, sum(Commit.open(path).spans[REPLY]) - 1)
    again = here.answer(request(1))
    assert data(again) == reply
    assert here.ledger.read_bytes() == before


@pytest.mark.parametrize("part", ["Control", DATA, LINES, "(header)"])
def test_a_flipped_byte_of_a_commit_is_named(tmp_path: Path, part: str) -> None:
    here = at(tmp_path)
    here.answer(request(1))
    path = here.folder / f"{request(1).id}.commit"
    flip(path, 60 if part == "(header)" else sum(Commit.open(path).spans[part]) - 1)
    with pytest.raises(DamagedCommit, match=rf"{path.name} is damaged.*Restore the party's folder"):
        here.check(request(1).id, whole=False)


def test_a_mapped_state_is_looked_through_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "_MAPPED", 16)
    here = at(tmp_path)
    here.answer(request(1))
    path = here.folder / f"{request(1).id}.commit"
    flip(path, sum(Commit.open(path).spans["Control"]) - 1)
    assert Commit.open(path).read("Control") is not None
    with pytest.raises(DamagedCommit, match="Control is not what was written"):
        here.check(request(1).id, whole=False)
