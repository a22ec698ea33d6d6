"""What a party has answered binds it, also after it was killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from sum_rounds import Parties, context

from coalface.privacy.secure_sums import client, guard
from coalface.privacy.secure_sums.context import SecureSumError
from coalface.privacy.secure_sums.guard import Answers

ALL = [f"silo-{number:04}" for number in range(6)]
KILLED = """
import os, signal, sys
from hashlib import sha256
from pathlib import Path
import numpy as np
from coalface.privacy.secure_sums import client, context, guard, keys
about = context.SumContext("run", "train", 1, 1, asked=6, dropouts=2, corrupt=1, length=50, bits=32)
names = [f"silo-{number:04}" for number in range(6)]
members = [keys.Member(name, sha256(name.encode()).digest(), about, b"request", b"commit") for name in names]
adverts = {member.name: client.advertise(member) for member in members}
answers = guard.Answers(Path(sys.argv[1]))
client.mask(members[0], names, adverts, names, np.zeros(50, "<u4"), answers)
fsync = os.fsync
def killed(file):
    fsync(file)
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
client.unmask(members[0], names, adverts, names, names[:5], {}, answers)
"""


def code(answers: Answers, parties: Parties, sharers: list[str], survivors: list[str]) -> str:
    """What a party says that is asked for its shares: nothing, or why it gives none."""
    me, adverts = parties.members[ALL[0]], {name: client.advertise(parties.members[name]) for name in ALL}
    try:
        assert client.unmask(me, ALL, adverts, sharers, survivors, {}, answers)
    except SecureSumError as error:
        return error.code
    return ""


def test_a_party_that_is_killed_helps_to_open_no_other_sum(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    process = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert len(path.read_text().splitlines()) == 3  # for whom it masked, its vector, the survivors
    many, again = Parties(context(6, 2, 1)), Answers(path)
    assert code(again, many, ALL, ALL) == code(again, many, ALL, [*ALL[:4], ALL[5]]) == "answered"
    assert code(again, many, ALL, ALL[4::-1]) == ""  # the same ones, in another order
    assert code(again, Parties(context(6, 2, 0)), ALL, ALL[:5]) == "answered"  # another sum at this place of the run
    assert code(again, Parties(context(6, 2, 1, call=2)), ALL, ALL) == ""


def test_a_line_that_was_torn_by_a_kill_bound_nobody(tmp_path: Path) -> None:
    path, many = tmp_path / "answers.jsonl", Parties(context(6, 2, 1))
    answers = Answers(path)
    assert code(answers, many, ALL, ALL) == ""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    again = Answers(path)
    assert code(again, many, ALL, ALL[:5]) == ""
    *kept, _ = path.read_bytes().splitlines(keepends=True)
    assert kept == lines[:-1]
    assert code(again, many, ALL, ALL) == code(Answers(path), many, ALL, ALL) == "answered"


def test_the_file_and_its_name_are_on_the_disk_before_the_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    answers = Answers(tmp_path / "answers.jsonl")
    answers.record(context(6, 2, 1).place, "survivors", b"digest")
    assert flushed == [str(tmp_path / "answers.jsonl"), str(tmp_path)]
    answers.record(context(6, 2, 1, call=2).place, "survivors", b"digest")
    assert flushed[2:] == [str(tmp_path / "answers.jsonl")]


def test_a_party_masks_one_vector_for_one_set_of_parties(tmp_path: Path) -> None:
    many, path = Parties(context(6, 2, 1)), tmp_path / "answers.jsonl"
    adverts = {name: client.advertise(member) for name, member in many.members.items()}

    def masked(names: list[str], sharers: list[str], vector: str) -> bytes:
        given = (names, adverts, sharers, many.vectors[vector], Answers(path))
        return client.mask(many.members[ALL[0]], *given).tobytes()

    first = masked(ALL, ALL, ALL[0])
    assert masked(ALL, ALL, ALL[0]) == first
    # of two rosters the masks are others, but the shares that open one open the other
    for names, sharers, vector in ((ALL, ALL, ALL[1]), (ALL, ALL[:5], ALL[0]), (ALL[:5], ALL[:5], ALL[0])):
        with pytest.raises(SecureSumError, match="answered before") as caught:
            masked(names, sharers, vector)
        assert caught.value.code == "answered"


def test_a_party_counts_those_as_left_whom_it_masked_for() -> None:
    many, answers = Parties(context(6, 2, 1)), Answers()
    adverts = {name: client.advertise(member) for name, member in many.members.items()}
    client.mask(many.members[ALL[0]], ALL, adverts, ALL, many.vectors[ALL[0]], answers)
    assert code(answers, many, ALL[:5], ALL[:5]) == "answered"  # the sixth has shared its keys, it had been told
    assert code(answers, many, ALL, ALL[:5]) == ""


def test_who_signs_survivors_gives_shares_for_no_others() -> None:
    many = Parties(context(6, 2, 1), signs=True)
    me, answers = many.members[ALL[0]], Answers()
    sign = many.node_keys[ALL[0]].sign
    client.confirm(me, ALL, ALL, ALL[:5], sign, answers)
    assert code(answers, many, ALL, ALL) == "answered"
    with pytest.raises(SecureSumError, match="answered before"):
        client.confirm(me, ALL, ALL, ALL, sign, answers)
    assert code(answers, many, ALL, ALL[:5]) == ""


def test_two_processes_of_a_party_are_bound_by_each_others_answers(tmp_path: Path) -> None:
    """Both have read the file before the other one answers."""
    many, path = Parties(context(6, 2, 1)), tmp_path / "answers.jsonl"
    first, second = Answers(path), Answers(path)
    for answers in (first, second):
        assert code(answers, Parties(context(6, 2, 1, call=2)), ALL, ALL) == ""
    assert code(first, many, ALL, ALL) == ""
    assert code(second, many, ALL, ALL[:5]) == "answered"
    assert len(path.read_text().splitlines()) == 4


def test_a_party_reads_and_answers_while_no_other_process_can(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with open(path, "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        answering = Thread(target=lambda: Answers(path).record("here", "survivors", b"second"))
        answering.start()
        answering.join(0.2)
        assert answering.is_alive() and path.read_bytes() == b""
    answering.join()
    assert len(path.read_bytes().splitlines()) == 1


def test_a_file_is_read_once_and_then_from_where_it_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(tmp_path / "answers.jsonl")
    answers.record("here", "survivors", b"digest")
    parsed: list[str] = []
    monkeypatch.setattr(guard.json, "loads", parsed.append)
    answers.record("here", "survivors", b"digest")
    answers.record("there", "survivors", b"digest")
    assert parsed == []


def test_the_file_says_nothing_that_is_secret(tmp_path: Path) -> None:
    path, many = tmp_path / "answers.jsonl", Parties(context(6, 2, 1))
    code(Answers(path), many, ALL, ALL)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(entry.keys() == {"place", "what", "sha256"} for entry in entries)
    assert all(entry["place"] == '["run", "train", 1, 1]' and len(entry["sha256"]) == 64 for entry in entries)
