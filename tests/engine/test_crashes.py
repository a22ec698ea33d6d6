"""A process that is killed at any call of the system: what was written holds, and what was cut off is mended."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_party import at, chain, commits, data, kept, ledger_bytes, moves, request
from toys import Control, Moves

from coalface.experiments.conformance.tiny_federation import Tiny, run
from coalface.privacy import ledger

pytestmark = pytest.mark.usefixtures("toy_steps")


class Killed(BaseException):
    """Stands for kill -9: no handler of the code under test sees it."""


class Crash:
    """Dies before the n-th system call, or after half of it where it writes."""

    CALLS: list[tuple[Any, str]] = [(os, n) for n in ("open", "writev", "ftruncate", "fsync", "rename", "pwrite")]
    CALLS += [(os, "close"), (Path, "unlink")]

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, torn: bool) -> None:
        self.left, self.torn = after, torn
        for owner, name in self.CALLS:
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


def killed_before_its_ledger_lines(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "append", lambda *a, **k: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            act()


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("save_replies", [True, False])
def test_a_crash_between_any_two_system_calls_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool, save_replies: bool
) -> None:
    """Back again, the party answers and goes on: no ledger line is lost or doubled, the state is the accepted one."""
    rules: dict[str, Any] = {"save_replies": save_replies, "flush": True}
    unbroken = at(tmp_path / "unbroken", **rules)
    answered = chain(unbroken, moves(2))
    last = request(3, base=answered[-1].id, horizon=(2, answered[-1].id))
    final = request(4, base=last.id, horizon=(2, answered[-1].id))
    expected = data(unbroken.answer(last)), data(unbroken.answer(final))
    for instants in itertools.count():
        executor = at(tmp_path / f"{instants}", **rules)
        chain(executor, moves(2))
        if not crashes(monkeypatch, lambda executor=executor: executor.answer(last), torn=torn, after=instants):
            break
        assert kept(executor, answered[-1], Control).rounds == 2  # what was accepted is untouched
        back = at(tmp_path / f"{instants}", **rules)
        assert (data(back.answer(last)), data(back.answer(final))) == expected
        assert ledger_bytes(back) == ledger_bytes(unbroken)
        assert ledger.verify(back.ledger).lines == 4 * 5
        assert kept(back, final, Control).rounds == 4
        assert not list(back.folder.glob("*.new"))
    assert instants > 8  # open, writev, ftruncate, fsync, close, rename, … of the commit and of the ledger


@pytest.mark.parametrize("after", range(6))
def test_a_crash_while_finalizing_loses_no_ledger_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The second commit is written, its ledger lines are not; then the stage ends."""
    unbroken, executor = at(tmp_path / "unbroken"), at(tmp_path / "here")
    first, second = chain(unbroken, moves(2))
    chain(executor, moves(1))
    killed_before_its_ledger_lines(monkeypatch, lambda: executor.answer(second))
    crashes(monkeypatch, lambda: executor.commits.finalize(second.id, 2), torn=True, after=after)
    executor.commits.finalize(second.id, 2)
    assert ledger_bytes(executor) == ledger_bytes(unbroken)
    assert commits(executor) == [second.id]


def test_lines_are_not_lost_where_a_stale_commit_has_a_later_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume may ask for something else than before; commits of later rounds still lie there then."""
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    rebased = replace(request(9), ordinal=2, base=answered[0].id)
    killed_before_its_ledger_lines(monkeypatch, lambda: executor.answer(rebased))
    executor.answer(replace(request(10), base=rebased.id))
    assert ledger.verify(executor.ledger).lines == 5 * 5


CHANGES = ("mkdir", "open", "rename", "pwrite", "writev", "ftruncate", "truncate", "unlink", "rmdir")
"""The calls by which files change; a process may be killed before any of them."""


def test_a_run_that_is_killed_before_any_change_of_a_file_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, settings = Moves(rounds=2, note=True), {"build": Tiny(parties=1)}
    remaining = [-1]

    def counting(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                remaining[0] -= 1
                if remaining[0] == 0:
                    raise Killed(name)
            return call(*arguments, **named)

        return counted

    for name in CHANGES:
        monkeypatch.setattr(os, name, counting(name))
    unbroken = run(method, tmp_path / "unbroken", **settings).bytes()
    receipts = (tmp_path / "unbroken" / "receipts.jsonl").read_bytes()
    for place in itertools.count(1):
        remaining[0] = place
        try:
            run(method, tmp_path / str(place), **settings)
        except Killed:
            remaining[0] = -1
            assert run(method, tmp_path / str(place), **settings).bytes() == unbroken, place
            assert (tmp_path / str(place) / "receipts.jsonl").read_bytes() == receipts
        else:
            break
    assert place > 40
