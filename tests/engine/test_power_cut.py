"""What lies unflushed when the power goes may be whole, torn or gone, file by file: a run goes on from any of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import by_default
from one_party import PARTY, at, chain, moves, place, request, shorten
from toys import CALLS, Moves

from coalface.engine import checkpoint
from coalface.engine.checkpoint import CheckpointError
from coalface.engine.party.commits import LINES, Commit, DamagedCommit
from coalface.engine.party.executor import PartyExecutor
from coalface.engine.transport import RunFailed
from coalface.experiments.conformance.tiny_federation import Ran, Stop, run, stopping
from coalface.privacy import ledger

pytestmark = pytest.mark.usefixtures("toy_steps")

TORN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a few bytes": lambda data: data[:5],
    "cut in its header": lambda data: data[:40],
    "cut by a byte": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "zeros after the length": lambda data: data[:8] + bytes(len(data) - 8),
    "longer": lambda data: data + bytes(512),
}


def rounds(executor: PartyExecutor) -> list[int]:
    return [json.loads(text)["round"] for text in executor.ledger.read_text().splitlines()]


# --- commits without ledger lines, and the other way round ------------------------------------------------------------


def test_lines_are_taken_from_every_commit_that_lies_there(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(4))
    before = executor.ledger.read_bytes()
    for left in (None, *answered[:3]):
        shorten(executor, left)
        executor.answer(answered[-1])
        assert executor.ledger.read_bytes() == before


@pytest.mark.parametrize("damage", ["zeros", "cut", "zeros in the middle"])
def test_a_torn_ledger_is_filled_from_the_commits(tmp_path: Path, damage: str) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(4))
    before = executor.ledger.read_bytes()
    middle = Commit.open(place(executor, answered[1])).head.size + 150
    torn = {
        "zeros": before[:middle] + bytes(len(before) - middle - 3),
        "cut": before[:middle],
        "zeros in the middle": before[:middle] + bytes(300) + before[middle + 300 : -1],
    }
    executor.ledger.write_bytes(torn[damage])
    executor.answer(answered[-1])
    assert executor.ledger.read_bytes() == before


def test_what_lies_behind_a_gap_is_done_again(tmp_path: Path) -> None:
    """The second commit is lost and so are the lines of both: the third cannot join the chain."""
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    before = executor.ledger.read_bytes()
    place(executor, answered[1]).unlink()
    shorten(executor, answered[0])
    ran = len(CALLS)
    for request_ in answered[1:]:
        executor.answer(request_)
    assert len(CALLS) == ran + 2
    assert executor.ledger.read_bytes() == before


def test_lines_of_a_reply_whose_commit_is_lost_stay(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(2))
    place(executor, answered[1]).unlink()
    executor.answer(answered[1])
    assert rounds(executor) == [1] * 5 + [2] * 5 + [2] * 5
    ledger.verify(executor.ledger)


@pytest.mark.parametrize("flush", [True, False])
def test_a_gap_before_what_is_needed_or_was_flushed_is_an_error(tmp_path: Path, flush: bool) -> None:
    executor = at(tmp_path, flush=flush)
    answered = chain(executor, moves(3))
    place(executor, answered[1]).unlink()
    shorten(executor, answered[0])
    base = answered[0].id if flush else answered[2].id
    with pytest.raises(ValueError, match=r"silo-1.jsonl ends after line 5, .* lines 11 to 15: 5 lines are missing.*"):
        executor.answer(request(4, base))


def test_lines_that_were_changed_are_not_taken_for_torn_ones(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    lines = executor.ledger.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"round": 2', '"round": 3')
    executor.ledger.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"silo-1.jsonl, line 7: the hash chain breaks here.*Restore the file"):
        executor.answer(answered[-1])


# --- torn commits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_commit_that_nobody_needs_is_done_again(tmp_path: Path, torn: str) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(2))
    expected, lines = place(executor, answered[1]).read_bytes(), executor.ledger.read_bytes()
    place(executor, answered[1]).write_bytes(TORN[torn](expected))
    shorten(executor, answered[0])
    executor.answer(answered[1])
    assert place(executor, answered[1]).read_bytes() == expected
    assert executor.ledger.read_bytes() == lines


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("needed", ["base", "horizon"])
def test_a_torn_commit_that_is_needed_is_named(tmp_path: Path, torn: str, needed: str) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    bad = place(executor, answered[2] if needed == "base" else answered[0])
    bad.write_bytes(TORN[torn](bad.read_bytes()))
    ran = len(CALLS)
    for _ in range(2):
        with pytest.raises(DamagedCommit, match=rf"{bad.name} is damaged \(.*Restore the party's folder, or start a"):
            executor.answer(request(4, answered[2].id, horizon=(1, answered[0].id)))
    assert len(CALLS) == ran and bad.exists()


def test_finalizing_drops_torn_commits_but_not_the_accepted_one(tmp_path: Path) -> None:
    executor = at(tmp_path)
    answered = chain(executor, moves(3))
    place(executor, answered[2]).write_bytes(b"")
    executor.commits.finalize(answered[1].id, 3)
    assert [path.name for path in executor.folder.iterdir()] == [f"{answered[1].id}.commit"]
    place(executor, answered[1]).write_bytes(b"")
    with pytest.raises(DamagedCommit, match="is damaged"):
        executor.commits.finalize(answered[1].id, 3)


# --- the order of what is flushed -------------------------------------------------------------------------------------


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed, renamed and written to ledgers, by the system calls and with the path, in their order."""
    noted: list[str] = []
    plain = {name: getattr(os, name) for name in ("fsync", "rename", "pwrite")}

    def of(descriptor: int, *more: Any) -> Path:
        number = os.fstat(descriptor).st_ino
        return next(path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == number)

    def noting(name: str, which: Callable[..., Path]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            noted.append(f"{name} {which(*arguments).relative_to(tmp_path)}")
            return plain[name](*arguments, **named)

        return wrapped

    monkeypatch.setattr(os, "rename", noting("rename", lambda old, new: Path(new)))
    for name in ("fsync", "pwrite"):
        monkeypatch.setattr(os, name, noting(name, of))
    return noted


def test_where_an_executor_flushes_no_line_is_written_before_its_commit_is_safe(
    tmp_path: Path, order: list[str]
) -> None:
    """Each time a ledger line is written, the commit, its name and its folder have been flushed; then the line is."""
    first, second = chain(at(tmp_path, flush=True), moves(2))
    party_folder, lines = f"parties/{PARTY}", f"ledger/{PARTY}.jsonl"
    expected = ["fsync parties", "fsync ."]
    for asked in (first, second):
        expected += [
            f"fsync {party_folder}/{asked.id}.new",
            f"rename {party_folder}/{asked.id}.commit",
            f"fsync {party_folder}",
        ]
        expected += [f"pwrite {lines}", f"fsync {lines}"] + ["fsync ledger"] * (asked is first)
    assert order == expected


def test_a_checkpoint_is_flushed_before_it_has_its_name_and_its_name_before_those_before_it_go(
    tmp_path: Path, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the last flush a power cut may undo the rename, and a party may have forgotten what is needed then."""
    remove = shutil.rmtree

    def removing(path: Path, **named: Any) -> None:
        order.append(f"rmtree {path.name}")
        remove(path, **named)

    monkeypatch.setattr(shutil, "rmtree", removing)
    for ordinal in (1, 2):
        order.clear()
        checkpoint.save(tmp_path / "c", checkpoint.Checkpoint(ordinal, 0, ordinal, b"state", {}, {}), keep=1)
    assert order == [
        "rmtree .new", "fsync c/.new/state.safetensors", "fsync c/.new/checkpoint.json", "fsync c/.new",
        "rmtree 0000002", "rename c/0000002", "fsync c", "rmtree 0000001",
    ]  # fmt: skip


# --- whole runs -------------------------------------------------------------------------------------------------------


def cut_the_power(folder: Path, rng: np.random.Generator) -> None:
    """Of what came after the last checkpoint, which flushed all before it, each file is whole, torn or gone."""
    checkpoints = sorted((folder / "checkpoints").glob("0*"))
    accepted, synced = {}, 0
    if checkpoints:
        about = json.loads((checkpoints[-1] / "checkpoint.json").read_text())
        accepted, synced = about["record"]["accepted"], about["ordinal"]
    for path in (folder / "parties").glob("*/*.commit"):
        if int(path.name[:7]) > synced:
            fate = rng.choice(["whole", "gone", *TORN])
            if fate == "gone":
                path.unlink()
            elif fate != "whole":
                path.write_bytes(TORN[str(fate)](path.read_bytes()))
    for path in (folder / "ledger").glob("*.jsonl"):
        safe = 0
        if path.stem in accepted:
            safe = Commit.open(folder / "parties" / path.stem / f"{accepted[path.stem]}.commit").head.size
        data = path.read_bytes()
        cut_at = int(rng.integers(safe, len(data) + 1))
        fates = [data, data[:cut_at], data[:cut_at] + bytes(len(data) - cut_at), data[:safe]]
        path.write_bytes(fates[rng.integers(len(fates))])


def bits(ran: Ran) -> dict[str, bytes]:
    """The bits that are promised after a power cut: the model, the metrics and the private state."""
    return {k: v for k, v in ran.bytes().items() if not k.startswith("ledger ") and not k.endswith(LINES)}


@pytest.mark.parametrize("save_replies", [True, False])
@pytest.mark.parametrize("every", by_default(1, [1, 3]))
@pytest.mark.parametrize("trials", [2, pytest.param(12, marks=(pytest.mark.slow, pytest.mark.ci))])
def test_after_any_power_cut_a_run_ends_with_the_same_model_and_whole_chains(
    tmp_path: Path, trials: int, every: int, save_replies: bool
) -> None:
    rng = np.random.default_rng(every)
    settings: dict[str, Any] = {"checkpoint_every": every, "save_replies": save_replies}
    method = Moves(rounds=7, note=True)
    unbroken = bits(run(method, tmp_path / "unbroken", **settings))
    lines = ledger.verify(tmp_path / "unbroken" / "ledger" / f"{PARTY}.jsonl").lines
    for trial in range(trials):
        folder = tmp_path / f"{trial}"
        for _ in range(1 + trial % 2):  # some lose power twice
            with pytest.raises(Stop):
                run(method, folder, transport=stopping(int(rng.integers(1, 16))), **settings)
            cut_the_power(folder, rng)
        assert bits(ran := run(method, folder, **settings)) == unbroken
        assert ran.server.check_ledgers() == {}
        for path in (folder / "ledger").glob("*.jsonl"):
            assert ledger.verify(path).lines >= lines  # a reply that was repeated may be listed twice
        shutil.rmtree(folder)


def stopped(folder: Path) -> str:
    """A run that was stopped after two rounds; the name of silo-1's accepted commit."""
    with pytest.raises(Stop):
        run(Moves(rounds=3), folder, transport=stopping(7))
    last = sorted((folder / "checkpoints").glob("0*"))[-1]
    accepted: str = json.loads((last / "checkpoint.json").read_text())["record"]["accepted"][PARTY]
    return accepted


def test_a_resume_begins_with_the_check_of_every_chain(tmp_path: Path) -> None:
    stopped(tmp_path)
    path = tmp_path / "ledger" / f"{PARTY}.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0].replace('"round": 1', '"round": 7'), *lines[1:]]))
    ran = len(CALLS)
    with pytest.raises(RunFailed, match=r"silo-1.jsonl, line 1: the hash chain breaks here"):
        run(Moves(rounds=3), tmp_path)
    assert len(CALLS) == ran


def test_a_resume_goes_on_from_before_an_accepted_commit_that_was_torn(tmp_path: Path) -> None:
    unbroken = run(Moves(rounds=3), tmp_path / "unbroken").bytes()
    folder = tmp_path / "torn"
    name = stopped(folder)
    path = folder / "parties" / PARTY / f"{name}.commit"
    path.write_bytes(bytes(path.stat().st_size))
    ran = run(Moves(rounds=3), folder).bytes()
    assert [key for key in unbroken if ran.get(key) != unbroken[key] and "ledger" not in key] == []
    assert f"{name}.commit is damaged" in (folder / "events.jsonl").read_text()


def test_a_resume_names_the_accepted_commit_that_was_torn_where_none_before_it_is_whole(tmp_path: Path) -> None:
    name = stopped(tmp_path)
    for path in (tmp_path / "parties" / PARTY).glob("*.commit"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RunFailed, match=rf"{name}.commit is damaged .*Restore the party's folder"):
        run(Moves(rounds=3), tmp_path)


def test_heads_are_checked_where_there_are_too_many_ledgers_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coalface.engine.server.READ", 1)
    ran = run(Moves(rounds=3), tmp_path)
    assert ran.server.check_ledgers() == {}
    for name in ("silo-0", "silo-1", "silo-2"):
        path = tmp_path / "ledger" / f"{name}.jsonl"
        text = path.read_text()
        path.write_text(text.replace('"round": 1', '"round": 7', 1))
        assert set(ran.server.check_ledgers()) == ({"silo-0"} if name == "silo-0" else set())  # the first is read whole
        path.write_text(text[:-500])
        assert set(ran.server.check_ledgers()) == set()  # the accepted commit has the lines that are cut off
        assert path.read_text() == text


# --- what a checkpoint speaks of --------------------------------------------------------------------------------------


def test_a_damaged_last_checkpoint_is_passed_over_and_the_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    unbroken = run(Moves(rounds=3), tmp_path / "unbroken").bytes()
    stopped(tmp_path / "run")
    last = sorted((tmp_path / "run" / "checkpoints").glob("0*"))[-1]
    (last / "checkpoint.json").write_bytes(b"")
    assert run(Moves(rounds=3), tmp_path / "run").bytes() == unbroken
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [last.name in event["why"] for event in events if event["event"] == "passed over"] == [True]


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_metrics_that_are_not_those_of_the_checkpoint_are_never_filled_up(tmp_path: Path, damage: str) -> None:
    unbroken = run(Moves(rounds=3), tmp_path / "unbroken").bytes()
    stopped(tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:-9] if damage == "cut" else whole[: first + 9] + b"~" + whole[first + 10 :])
    if damage != "gone":  # the checkpoint before speaks of the first line alone
        assert run(Moves(rounds=3), tmp_path / "run").bytes() == unbroken
        path.write_bytes(b"~" + unbroken["metrics"][1:])
    with pytest.raises(CheckpointError, match=r"metrics.jsonl.*Restore what is named, or start a new run"):
        run(Moves(rounds=3), tmp_path / "run")
